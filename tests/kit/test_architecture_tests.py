"""What is wrong is found: tables with one fault each, against the kit. Judged by what the fault is, not by the kit."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from llmfit_acme import ACME
from llmfit_acme_samples import SAMPLES

from llmfit_core import PRE_NORM_DECODER, Architecture, Link, Role, Slot
from llmfit_core.errors import LlmfitError
from llmfit_core.plugins import PluginRegistry, load_plugins
from llmfit_core.testing import ArchitectureTests, CheckFailed, NotRun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

SAMPLE: dict[str, Any] = SAMPLES["architectures"]["acme"]
GRAPH = ACME.graphs[0]
BLOCK = "decoder.blocks.{layer}"


def table(**tensors: Any) -> Architecture:
    changed = {name.replace("__", "."): slot for name, slot in tensors.items()}
    merged = {**ACME.tensors, **{(BLOCK + n[5:] if n.startswith("block") else n): s for n, s in changed.items()}}
    return replace(ACME, tensors={n: s for n, s in merged.items() if s is not None})


def graph(**changes: Any) -> Architecture:
    return replace(ACME, graphs=(replace(GRAPH, **changes),))


def without(*keys: str) -> tuple[str, ...]:
    return tuple(k for k in GRAPH.keys if k not in keys)


def wired(source: str, sinks: tuple[str, ...], **more: Any) -> Architecture:
    kept = tuple(link for link in PRE_NORM_DECODER if link.source != source)
    return replace(ACME, wiring=(*kept, Link(source=source, sinks=sinks, **more)))


COUNT = itertools.count(128)


def other_each_time(hparams: Mapping[str, object]) -> dict[str, object]:
    return {"context_length": next(COUNT)}


def changes_what_it_is_given(hparams: Any, layer: int) -> frozenset[str]:
    hparams["context_length"] = 1
    return frozenset()


class Kit:
    """Runs one test of the kit on a table, as if its plugin declared that."""

    def __init__(self) -> None:
        self.made: list[type[ArchitectureTests]] = []

    def __call__(self, architecture: Architecture, test: str, *arguments: str, **settings: Any) -> None:
        tests: type[ArchitectureTests] = type(
            "TestMutant", (ArchitectureTests,), {"architecture": architecture, "sample": SAMPLE, **settings}
        )
        self.made.append(tests)
        tests.bench().registry = declaring(architecture)
        getattr(tests(), f"test_{test}")(*arguments)


def declaring(architecture: Architecture) -> PluginRegistry:
    """The installed plugins, with this table in the place of Acme's."""
    plugins = [
        replace(p, declarations={"architectures": (architecture,)}) if p.record.id.name == "acme" else p
        for p in load_plugins()._plugins
    ]
    return PluginRegistry(plugins)


@pytest.fixture
def kit() -> Iterator[Kit]:
    made = Kit()
    yield made
    for tests in made.made:
        tests.teardown_class()


FAULTS: list[Any] = [
    pytest.param(table(decoder__norm=None), "every_saved_tensor_is_claimed_once", "base", id="a-tensor-forgotten"),
    pytest.param(table(decoder__spare=Role.ATTN_Q_NORM), "every_pattern_is_met", None, id="a-pattern-of-nothing"),
    pytest.param(table(block__norm_1=Slot("my_norm")), "shapes_agree_with_hparams", "base", id="a-role-without-a-shape"),
    pytest.param(table(block__norm_1=Slot(Role.ATTN_NORM, shift=1.0)), "the_runtime_computes_the_same", "base", id="a-shift"),
    pytest.param(
        table(block__mlp__gate=Role.FFN_UP, block__mlp__up=Role.FFN_GATE), "the_runtime_computes_the_same", "base", id="gate-for-up"
    ),
    pytest.param(graph(rope_rows="halves"), "the_runtime_computes_the_same", "base", id="rope-rows"),
    pytest.param(graph(keys=without("rope.freq_base")), "the_runtime_computes_the_same", "one-kv-head", id="a-key-forgotten"),
    pytest.param(graph(keys=(*GRAPH.keys, "attention.head_cuont")), "every_hparam_the_graph_reads_is_there", None, id="a-key-misspelt"),
    pytest.param(graph(fixes={}), "refusals", "gelu", id="a-fix-forgotten"),
    pytest.param(replace(ACME, config={k: u for k, u in ACME.config.items() if k != "rope_theta"}),
                 "every_config_key_is_known", "base", id="a-config-key-forgotten"),
    pytest.param(wired(Role.ATTN_NORM, (Role.ATTN_Q, Role.ATTN_K)), "the_wiring_is_true", "base", id="a-sink-forgotten"),
    pytest.param(
        wired(Role.ATTN_NORM, (Role.ATTN_Q, Role.ATTN_K, Role.ATTN_V, Role.FFN_UP)), "the_wiring_is_true", "base", id="a-sink-too-many"
    ),
    pytest.param(wired(Role.ATTN_NORM, ("attn_qq",)), "the_wiring_names_real_roles", None, id="a-sink-misspelt"),
    pytest.param(wired("attn_nrom", (Role.ATTN_Q,)), "the_wiring_names_real_roles", None, id="a-source-misspelt"),
    pytest.param(replace(ACME, hparams=other_each_time), "it_says_the_same_each_time", "base", id="another-value-each-time"),
    pytest.param(replace(ACME, layer_kinds=changes_what_it_is_given), "it_says_the_same_each_time", "base", id="a-function-that-writes"),
    pytest.param(replace(ACME, hf_classes=("OtherForCausalLM",)), "the_config_is_its_own", None, id="another-class"),
]  # fmt: skip


@pytest.mark.parametrize(("architecture", "test", "case"), FAULTS)
def test_a_fault_is_found(architecture: Architecture, test: str, case: str | None, kit: Kit) -> None:
    pytest.importorskip("xllamacpp", reason="the runtime that scores")
    arguments = (case,) if case else ()
    kit(ACME, test, *arguments)
    with pytest.raises((CheckFailed, LlmfitError)):
        kit(architecture, test, *arguments)


def test_a_reference_of_another_model_is_found(kit: Kit) -> None:
    pytest.importorskip("xllamacpp", reason="the runtime that scores")
    right: Callable[..., Any] = SAMPLE["reference"]

    def wrong(folder: Any, ids: Any) -> Any:
        return right(folder, list(ids)[::-1])[::-1]

    with pytest.raises(CheckFailed, match="mean KL"):
        kit(ACME, "the_runtime_computes_the_same", "base", sample={**SAMPLE, "reference": wrong})


def test_a_wrong_statement_of_what_is_saved_is_found(kit: Kit) -> None:
    saved: Callable[..., Any] = SAMPLE["saved_tensors"]
    strange = {**SAMPLE, "saved_tensors": lambda config: {**saved(config), "decoder.stranger.weight": (3,)}}
    with pytest.raises(LlmfitError, match=r"decoder\.stranger"):
        kit(ACME, "every_saved_tensor_is_claimed_once", "base", sample=strange)


def test_bounds_have_to_be_those_that_are_stated(kit: Kit) -> None:
    with pytest.raises(CheckFailed, match="bounded"):
        kit(ACME, "bounds_are_told", "base", bounded={"base": 64})


def test_formulas_that_fail_say_the_same_each_time(kit: Kit) -> None:
    def failing(folder: Any, ids: Any) -> Any:
        raise KeyError("oops")

    tests: Any = type("TestMutant", (ArchitectureTests,), {"architecture": ACME, "sample": {**SAMPLE, "reference": failing}})
    kit.made.append(tests)
    for test in (tests().test_every_saved_tensor_is_claimed_once, tests().test_a_stray_tensor_is_an_error):
        with pytest.raises(KeyError, match="oops"):
            test("base")


def test_a_window_that_no_prompt_leaves_is_an_error() -> None:
    from llmfit_core.testing import parity

    hparams = {"context_length": 8192, "attention.sliding_window": 4096}
    model: Any = SimpleNamespace(hparams=hparams, integer=hparams.__getitem__)
    with pytest.raises(CheckFailed, match=r"the window of this config is 4096.*choose one under 136"):
        parity.reach(model)


@pytest.mark.parametrize(
    ("original", "sides"),
    [(256, [(range(257, 281), 512), (range(9, 33), 256)]), (64, [(range(65, 89), 512)])],
)
def test_longrope_is_compared_on_both_sides_where_an_engine_can_be_launched_with_either(
    original: int, sides: list[tuple[range, int]]
) -> None:
    from llmfit_core.testing import parity

    hparams = {"context_length": 1024}
    model: Any = SimpleNamespace(
        hparams=hparams, integer=hparams.__getitem__, rope=SimpleNamespace(type="longrope", original_context=original)
    )
    plan: Any = SimpleNamespace(exact_context=None)
    assert list(parity.prefixes(model, plan)) == sides


def test_without_anything_to_build_from_it_is_not_run(kit: Kit) -> None:
    bare = {k: SAMPLE[k] for k in ("config",)}
    with pytest.raises(NotRun, match="saved_tensors"):
        kit(ACME, "every_saved_tensor_is_claimed_once", "base", sample=bare)


def test_values_are_the_same_each_time(kit: Kit) -> None:
    sums = []
    for _ in range(2):
        tests = type("TestAcme", (ArchitectureTests,), {"architecture": ACME, "sample": SAMPLE})
        kit.made.append(tests)
        sums.append((tests.bench().built("base").folder / "model.safetensors").read_bytes())
    assert sums[0] == sums[1]
