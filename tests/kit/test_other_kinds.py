"""Faults of what is no architecture, and what nothing was run on: neither passes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from llmfit_core.plugins import PluginRegistry, load_plugins
from llmfit_core.testing import CheckFailed, DecoderTests, ExporterTests, RuntimeTests
from llmfit_core.testing.plugin_check import run_class

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from llmfit_core.export import Exporter


@pytest.fixture
def registry() -> PluginRegistry:
    return load_plugins()


@pytest.fixture
def made() -> Iterator[list[Any]]:
    classes: list[Any] = []
    yield classes
    for cls in classes:
        cls.teardown_class()


def exporting(exporter: Exporter) -> PluginRegistry:
    """The installed plugins, with this exporter in the place of the one of its name."""
    plugins = [
        replace(p, declarations={**p.declarations, "exporters": tuple(exporter if e.name == exporter.name else e for e in p.declarations.get("exporters", ()))})
        for p in load_plugins()._plugins
    ]
    return PluginRegistry(plugins)


def test_an_exporter_that_writes_other_values_is_found(registry: PluginRegistry, made: list[Any]) -> None:
    """Every file reopens, has its size and its sums: only the values are wrong."""
    from llmfit_core.transform import Affine

    right = registry.exporter("gguf").value

    def plan(model: Any, recipe: Any) -> Any:
        louder = {k: Affine(t, scale=2.0) if k.role == "ffn_down" else t for k, t in model.tensors.items()}
        return right.plan(replace(model, tensors=louder), recipe)

    for exporter in (right, replace(right, plan=plan)):
        tests: Any = type("TestMine", (ExporterTests,), {"exporter": exporter})
        made.append(tests)
        tests.bench().registry = exporting(exporter)
        tests().test_each_scheme_exports_and_reopens("f32")
        if exporter is right:
            tests().test_it_comes_back()
            continue
        with pytest.raises(CheckFailed, match=r"down_proj\.weight came back"):
            tests().test_it_comes_back()


def test_a_runtime_that_computes_something_else_is_found(registry: PluginRegistry, made: list[Any]) -> None:
    """Probabilities that sum to one, the same each time, and not the model's."""
    pytest.importorskip("torch", reason="the judge")
    pytest.importorskip("xllamacpp", reason="the runtime that scores")
    import math

    right = registry.runtime("llamacpp").value

    def score(path: Path, ids: Sequence[int], options: Any) -> list[list[float]]:
        return [[-math.log(273)] * 273 for _ in ids]

    for runtime in (right, replace(right, score=score)):
        tests: Any = type("TestMine", (RuntimeTests,), {"runtime": runtime})
        made.append(tests)
        tests().test_scores_are_probabilities()
        if runtime is right:
            tests().test_scores_are_those_of_the_model()
            continue
        with pytest.raises(CheckFailed, match="mean KL"):
            tests().test_scores_are_those_of_the_model()


def test_tests_without_anything_to_run_on_are_rows_that_say_so(registry: PluginRegistry) -> None:
    tests = type("TestMine", (DecoderTests,), {"decoder": registry.decoders()[0].value})
    rows = {r.check: r for r in run_class(tests, "decoder", "mine")}
    assert rows["values are right"].result == "not run"
    assert rows["values are right"].reason == "no sample is given to run it on"


def test_an_author_s_exception_is_told_with_its_place(registry: PluginRegistry) -> None:
    def detects(checkpoint: object) -> bool:
        raise KeyError("oops")

    tests = type("TestMine", (DecoderTests,), {"decoder": replace(registry.decoders()[0].value, detects=detects)})
    rows = {r.check: r for r in run_class(tests, "decoder", "mine")}
    assert rows["it leaves others alone"].result == "failed"
    assert "KeyError: 'oops' (raised by detects, test_other_kinds.py line" in rows["it leaves others alone"].reason
