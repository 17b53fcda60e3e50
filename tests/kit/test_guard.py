"""Nobody overrides the kit silently."""

from __future__ import annotations

from typing import Any

import pytest

from llmfit_core.testing import ArchitectureTests, ExporterTests
from llmfit_core.testing.conformance import test_names as names_of

TEST = "test_every_saved_tensor_is_claimed_once"
WHY = "its files hold a tensor twice on purpose"


def subclass(body: dict[str, Any], *bases: type) -> type:
    return type("TestMine", (*bases, ArchitectureTests), body)


def nothing(self: object, case: str = "") -> None:
    """Prove nothing."""


class Mixin:
    test_shapes_agree_with_hparams = nothing


@pytest.mark.parametrize(
    ("body", "bases", "name"),
    [
        ({TEST: nothing}, (), TEST),
        ({TEST: None}, (), TEST),
        ({}, (Mixin,), "test_shapes_agree_with_hparams"),
        ({"pytestmark": pytest.mark.skip(reason="later")}, (), "pytestmark"),
        ({"pytestmark": [pytest.mark.slow, pytest.mark.xfail]}, (), "pytestmark"),
        ({"__test__": False}, (), "__test__"),
        ({"kl_bound": 0.1}, (), "kl_bound"),
        ({"cases": classmethod(lambda cls: ())}, (), "cases"),
        ({"values_for": classmethod(lambda cls, parameter: ())}, (), "values_for"),
        ({"bench": None}, (), "bench"),
        ({"settings": frozenset()}, (), "settings"),
        ({"pytest_generate_tests": nothing}, (), "pytest_generate_tests"),
    ],
)
def test_what_weakens_the_kit_is_an_error_unless_it_is_declared(body: dict[str, Any], bases: tuple[type, ...], name: str) -> None:
    with pytest.raises(TypeError, match=name):
        subclass(body, *bases)
    subclass({**body, "overrides": {name: WHY}}, *bases)
    with pytest.raises(TypeError, match="why"):
        subclass({**body, "overrides": {name: "because"}}, *bases)


def test_a_subclass_of_a_subclass_is_held_too() -> None:
    mine = subclass({})
    with pytest.raises(TypeError, match=TEST):
        type("TestMore", (mine,), {TEST: nothing})


def test_declarations_that_nothing_needs_are_an_error() -> None:
    with pytest.raises(TypeError, match="does not redefine"):
        subclass({"overrides": {TEST: WHY}})
    with pytest.raises(TypeError, match="does not redefine"):
        subclass({"overrides": {"test_of_my_dreams": WHY}})


def test_settings_and_own_tests_are_free() -> None:
    mine = subclass({"config": {}, "slow": frozenset({"x"}), "kl_bound": 1e-6, "test_more": nothing, "pytestmark": pytest.mark.slow})
    assert "test_more" in names_of(mine)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="refusd"):
        subclass({"sample": {"refusd": {}}})
    assert subclass({"sample": {"seed": 9}}).seed == 9  # type: ignore[attr-defined]
    assert subclass({"sample": {"seed": 9}, "seed": 8}).seed == 8  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="kl_bound"):
        subclass({"sample": {"kl_bound": 1.0}})


def test_nobody_else_makes_classes_of_the_kit() -> None:
    with pytest.raises(TypeError, match="no class of the kit"):
        type("Weak", (ExporterTests,), {"test_refusals": nothing}, kit=True)


def test_importing_the_kit_imports_neither_pytest_nor_what_is_heavy() -> None:
    import subprocess
    import sys

    code = (
        "import sys; from llmfit_core.testing import *; import llmfit_core.testing.plugin_check\n"
        "print([m for m in ('pytest', 'numpy', 'torch', 'transformers', 'tokenizers', 'ml_dtypes') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
