"""What every kind of declaration promises: it is found under its name, and its module is light."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from llmfit_core.errors import PluginError
from llmfit_core.plugin_record import KINDS
from llmfit_core.testing.conformance import Conformance
from llmfit_core.testing.imports import check_light
from llmfit_core.testing.outcome import CheckFailed, NotRun, require

if TYPE_CHECKING:
    from llmfit_core.plugin_record import PluginId
    from llmfit_core.plugins import PluginRegistry
    from llmfit_core.testing.bench import Bench


class Declared(Conformance, kit=True):
    """The base of the classes for everything but architectures.

    Attributes:
        plural: The kind, as in `llmfit plugins list --json`.
        setting: The name of the setting that holds the declaration.
        of_core: The declaration is the core's own; no plugin provides it.
    """

    settings: ClassVar[frozenset[str]] = frozenset({"of_core"})
    plural: ClassVar[str] = ""
    setting: ClassVar[str] = ""
    of_core: ClassVar[bool] = False

    @classmethod
    def declaration(cls) -> Any:
        """What is under test."""
        return getattr(cls, cls.setting)

    @classmethod
    def bench(cls) -> Bench:
        """A tiny Llama, for this class."""
        found: Bench | None = cls.__dict__.get("_bench")
        if found is None:
            from llmfit_core.testing import tiny_llama

            found = tiny_llama.bench(cls.model_variations())
            cls._bench = found  # type: ignore[attr-defined]
        return found

    @classmethod
    def model_variations(cls) -> dict[str, dict[str, object]]:
        """Configs of the tiny Llama besides the plain one."""
        return {}

    @classmethod
    def teardown_class(cls) -> None:
        """Remove what was built."""
        found = cls.__dict__.get("_bench")
        if found is not None:
            found.close()
            del cls._bench  # type: ignore[attr-defined]

    def test_the_plugin_provides_it(self) -> None:
        """It is found in the installed plugins under its name."""
        if self.of_core:
            raise NotRun("it is the core's own")
        _owner(_registry(), self.plural, self.declaration())

    def test_the_module_imports_nothing_heavy(self) -> None:
        """Loading the plugin imports no numpy, torch or their like."""
        if self.of_core:
            raise NotRun("it is the core's own")
        registry = _registry()
        plugin = _owner(registry, self.plural, self.declaration())
        (module,) = {r.entry_point.partition(":")[0] for r in registry.records() if r.id == plugin}
        check_light(module)


def _registry() -> PluginRegistry:
    from llmfit_core.plugins import load_plugins

    return load_plugins()


def _owner(registry: PluginRegistry, plural: str, declaration: Any) -> PluginId:
    (kind,) = [k for k in KINDS if k.plural == plural]
    found = [p for p in getattr(registry, plural)() if p.value.name == declaration.name]
    if not found:
        raise CheckFailed(f"no installed plugin provides the {kind.noun} {declaration.name}: pip install -e .")
    try:
        provided = registry.choose(kind.noun, declaration.name, found)
    except PluginError as error:
        raise CheckFailed(f"{error.cause}. {error.remedy}") from error
    require(isinstance(provided.value, kind.type), f"{declaration.name} is no {kind.noun}")
    owner: PluginId = provided.plugin
    return owner
