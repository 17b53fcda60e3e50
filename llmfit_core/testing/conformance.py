"""What the classes of the kit have in common: nobody overrides them silently, and their samples are built once."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterator

_OVERRIDES: list[tuple[str, str, str]] = []
_HIDING = {"skip", "skipif", "xfail"}
_SHORTEST_REASON = 12


def declared_overrides() -> tuple[tuple[str, str, str], ...]:
    """Class, name and reason of every override that was declared in this process."""
    return tuple(_OVERRIDES)


class Conformance:
    """The base of the kit's classes.

    A subclass sets the attributes in `settings` and nothing else of the kit. What else it redefines, an inherited test
    first of all, is a `TypeError` when the class is made, unless `overrides` names it with the reason; so is a mark that
    hides all tests.

    Attributes:
        settings: What an author may set.
        sample: Settings by name, for those that lie in the plugin's SAMPLES and are given to `llmfit plugins check` too.
        overrides: By the name of an inherited test or setting, why it does not hold for this subject.
    """

    settings: ClassVar[frozenset[str]] = frozenset()
    sample: ClassVar[Mapping[str, Any]] = {}
    overrides: ClassVar[Mapping[str, str]] = {}
    kit: ClassVar[bool] = True
    parameters: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, kit: bool = False, **kwargs: object) -> None:
        """Refuse what would weaken the kit unseen."""
        super().__init_subclass__(**kwargs)
        cls.kit = kit
        if kit and not cls.__module__.startswith("llmfit_core.testing."):
            raise TypeError(f"{cls.__qualname__} is no class of the kit")
        if not kit:
            _apply(cls)
            _require_untouched(cls)

    @classmethod
    def values_for(cls, parameter: str) -> tuple[str, ...]:
        """The values that a test's parameter of this name takes."""
        raise TypeError(f"the kit has no parameter {parameter}")

    @classmethod
    def loosened(cls) -> frozenset[str]:
        """Settings that are laxer than the kit's own, which has to be declared like an override."""
        return frozenset()

    @classmethod
    def is_slow(cls, parameter: str, value: str) -> bool:
        """Whether this value is left to `-m slow`."""
        return False

    @classmethod
    def pytest_generate_tests(cls, metafunc: Any) -> None:
        """A test for each case of the sample."""
        import pytest

        for name in set(cls.parameters) & set(metafunc.fixturenames):
            marked = [
                pytest.param(v, marks=pytest.mark.slow) if cls.is_slow(name, v) else pytest.param(v)
                for v in cls.values_for(name)
            ]
            metafunc.parametrize(name, marked)

    @classmethod
    def runs(cls) -> Iterator[tuple[str, str, dict[str, str]]]:
        """Every test there is: the method's name, what it is run on, and its arguments."""
        for name in test_names(cls):
            parameters = _parameters(getattr(cls, name))
            if not parameters:
                yield name, "", {}
            elif len(parameters) == 1:
                for value in cls.values_for(parameters[0]):
                    yield name, value, {parameters[0]: value}

    @classmethod
    def idle(cls) -> Iterator[tuple[str, str]]:
        """Tests that have nothing to run on: the method's name, and the parameter that has no value."""
        for name in test_names(cls):
            for parameter in _parameters(getattr(cls, name)):
                if not cls.values_for(parameter):
                    yield name, parameter

    @classmethod
    def teardown_class(cls) -> None:
        """Throw away what was built; called by pytest."""


def test_names(cls: type[Conformance]) -> list[str]:
    """The names of the tests of a class, in the order in which the kit states them."""
    found: dict[str, None] = {}
    for base in reversed(cls.__mro__):
        found.update({n: None for n, v in vars(base).items() if n.startswith("test_") and callable(v)})
    return [n for n in found if callable(getattr(cls, n, None))]


test_names.__test__ = False  # type: ignore[attr-defined]


def _parameters(function: Any) -> list[str]:
    return [n for n in inspect.signature(function).parameters if n != "self"]


def _apply(cls: type[Conformance]) -> None:
    """Make settings of `sample`'s entries, under those that the class states itself."""
    strange = sorted(set(cls.__dict__.get("sample", {})) - cls.settings)
    if strange:
        raise TypeError(f"{cls.__qualname__}.sample has {', '.join(strange)}; settings are {', '.join(sorted(cls.settings))}")
    for name, value in cls.__dict__.get("sample", {}).items():
        if name not in cls.__dict__:
            setattr(cls, name, value)


def _require_untouched(cls: type[Conformance]) -> None:
    """Every name of the kit is the kit's own, the settings apart, or declared with a reason."""
    own = [c for c in cls.__mro__ if not (c is object or vars(c).get("kit"))]
    inherited = [c for c in cls.__mro__ if vars(c).get("kit")]
    free = {"overrides", "kit", "sample"}
    settings = frozenset().union(*(vars(c).get("settings", frozenset()) for c in inherited))
    names = {n for c in inherited for n in vars(c) if not n.startswith("__")}
    touched = {n for c in own for n in vars(c) if n in names and n not in settings and n not in free}
    touched |= {"__test__" for c in own if vars(c).get("__test__") is False}
    touched |= {"pytestmark" for c in own for mark in _marks(c) if mark in _HIDING}
    touched |= cls.loosened()
    overrides = dict(cls.overrides)
    undeclared = sorted(touched - set(overrides))
    if undeclared:
        raise TypeError(
            f"{cls.__qualname__} redefines {', '.join(undeclared)} of the conformance kit; tests may not be overridden "
            f'unseen: remove it, or say why in `overrides = {{"{undeclared[0]}": "reason"}}`'
        )
    stale = sorted(set(overrides) - touched)
    if stale:
        raise TypeError(f"{cls.__qualname__}.overrides names {', '.join(stale)}, which it does not redefine")
    for name, why in overrides.items():
        if not isinstance(why, str) or len(why.strip()) < _SHORTEST_REASON:
            raise TypeError(f"{cls.__qualname__}.overrides has to say why {name} does not hold here")
        _OVERRIDES.append((cls.__qualname__, name, why))


def _marks(cls: type) -> list[str]:
    marks = vars(cls).get("pytestmark", ())
    return [getattr(m, "name", "") for m in (marks if isinstance(marks, (list, tuple)) else (marks,))]
