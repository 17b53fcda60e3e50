"""Who computes a BitNet: told before the work, refused, forced and caught, or written for an engine that does."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gguf import GGUFReader
from safetensors.numpy import load_file

from llmfit_core.cli.guarded import run
from llmfit_core.errors import UnsupportedError
from llmfit_core.pipeline import convert, plan_conversion
from llmfit_core.plan import Recipe
from tests import bitnet_reference as reference
from tests import bitnet_twins as twins
from tests.e2e.scoring import by_llamacpp, divergence, ids_of
from tests.e2e.test_golden import compare_keys, tensors_of
from tests.golden_models import gold

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from llmfit_core.plugins import PluginRegistry

EXACT = 1e-5
ROUNDED = 6e-3
SLOW = pytest.mark.slow(reason="the kind of case is covered by a quicker one")
IDS = [(7 * i + 3) % twins.ROWS for i in range(56)]
# What the loader assumes, written by the peer for this architecture alone.
UNREAD = ("bitnet.rope.scaling.type", "bitnet.rope.scaling.factor")


def recipe(scheme: str = "f32", **more: Any) -> Recipe:
    return Recipe(exporter="gguf", scheme=scheme, **more)


@pytest.mark.parametrize("case", ["bitnet-relu2", "bitnet-relu2-packed"])
def test_the_usual_target_cannot_and_says_who_can(
    case: str, golden_model: Callable[[str], Path], registry: PluginRegistry
) -> None:
    with pytest.raises(UnsupportedError) as caught:
        plan_conversion(golden_model(case), recipe(), registry)
    assert caught.value.code == "graph-cannot"
    assert "hidden_act is 'relu2'" in caught.value.cause
    assert "SiLU" in caught.value.cause
    for way in ("--graph bitnet.cpp", "--graph ik_llama.cpp", "--to hf", "--force"):
        assert way in caught.value.remedy
    assert gold(case)["parity"]["f32"]["mean_kl"] > 0.01, "the peer was right after all"


def test_a_silu_model_is_planned_for_llama_cpp_and_for_no_other(tmp_path: Path, registry: PluginRegistry) -> None:
    model = twins.twin(tmp_path / "twin", hidden_act="silu")
    plan = plan_conversion(model, recipe(), registry).plan
    assert (plan.graph, plan.engine) == ("bitnet", "llama.cpp")
    told = next(e.message for e in plan.events if e.code == "runtimes")
    assert "llama.cpp (bitnet): yes" in told
    assert "bitnet.cpp (bitnet-b1.58): no, hidden_act is 'silu'" in told
    for engine in ("bitnet.cpp", "ik_llama.cpp", "bitnet-b1.58"):
        with pytest.raises(UnsupportedError, match="squared ReLU"):
            plan_conversion(model, recipe(graph=engine), registry)


@pytest.mark.parametrize("gain", [1.0, 0.03], ids=["clear", "flat"])
def test_forced_and_caught(tmp_path: Path, registry: PluginRegistry, gain: float, capfd: pytest.CaptureFixture[str]) -> None:
    # With a weak last norm all tokens are nearly as likely, and even a wrong computation diverges by little.
    norm = "model.norm.weight"
    model = twins.twin(tmp_path / "twin", tensors={norm: (twins.plain()[norm] * gain).astype(twins.BF16)})
    plan = plan_conversion(model, recipe(force=True), registry).plan
    assert [e.severity for e in plan.events if e.code == "graph-forced"] == ["warning"]
    assert "runtimes" in {e.code for e in plan.events}
    wrong = tmp_path / "wrong.gguf"
    _, events = convert(model, recipe("tq2_0", force=True), wrong, registry, verify=False)
    assert "graph-forced" in {e.code for e in events}
    assert run(["verify", str(wrong), "--against", str(model)]) == 9
    assert "does not compute the same" in capfd.readouterr().err


@SLOW
def test_a_forced_file_says_itself_what_it_should_be(tmp_path: Path, registry: PluginRegistry) -> None:
    wrong = tmp_path / "wrong.gguf"
    convert(twins.twin(tmp_path / "twin"), recipe(force=True), wrong, registry, verify=False)
    assert run(["verify", str(wrong)]) == 9


def test_a_right_file_is_verified(tmp_path: Path, registry: PluginRegistry, capfd: pytest.CaptureFixture[str]) -> None:
    model = twins.twin(tmp_path / "twin", hidden_act="silu")
    convert(model, recipe("tq2_0"), tmp_path / "m.gguf", registry, verify=False)
    assert run(["verify", str(tmp_path / "m.gguf"), "--against", str(model), "--json"]) == 0
    said = json.loads(capfd.readouterr().out)
    assert said["verified"]["logits"] is True
    other = twins.twin(tmp_path / "other", hidden_act="silu", head=True)
    assert run(["verify", str(tmp_path / "m.gguf"), "--against", str(other)]) == 9
    assert "lm_head.weight" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("graph", "name"),
    [
        ("bitnet.cpp", "bitnet-b1.58"),
        pytest.param("ik_llama.cpp", "bitnet-b1.58", marks=SLOW),
        pytest.param("bitnet-b1.58", "bitnet-b1.58", marks=SLOW),
        pytest.param("bitnet-25", "bitnet-25", marks=SLOW),
    ],
)
def test_files_for_other_engines_and_back(
    graph: str, name: str, tmp_path: Path, registry: PluginRegistry, to_hf: Callable[..., Path]
) -> None:
    """Names and keys as microsoft/BitNet's converter writes them, read by gguf-py; and the same model back."""
    model = twins.twin(tmp_path / "twin")
    file = tmp_path / "m.gguf"
    artifact, events = convert(model, recipe(graph=graph), file, registry)
    assert artifact.manifest["graph"] == name
    assert {"tokens-not-proven"} <= {e.code for e in events}, "no runtime here has this graph"
    reader = GGUFReader(file)
    value = {k: reader.fields[k].contents() for k in reader.fields if not k.startswith("tokenizer.")}
    assert value["general.architecture"] == name
    assert value[f"{name}.vocab_size"] == twins.ROWS
    assert value[f"{name}.rope.dimension_count"] == twins.HIDDEN // twins.HEADS
    assert value[f"{name}.block_count"] == twins.LAYERS
    assert {t.name for t in reader.tensors} == {
        "token_embd.weight", "output_norm.weight",
        *(f"blk.{i}.{n}.weight" for i in range(2) for n in (
            "attn_norm attn_q attn_k attn_v attn_sub_norm attn_output ffn_norm ffn_gate ffn_up ffn_sub_norm ffn_down".split()
        )),
    }  # fmt: skip
    back = to_hf(file, "f32")
    ours, wanted = load_file(back / "model.safetensors"), reference.weights_of(model)
    assert all(np.array_equal(ours[n], t.numpy()) for n, t in wanted.items())
    config = json.loads((back / "config.json").read_text(encoding="utf-8"))
    assert (config["hidden_act"], config["architectures"]) == ("relu2", ["BitNetForCausalLM"])
    assert divergence(
        reference.scored(reference.loaded(reference.plain_folder(model, tmp_path / "plain")), IDS),
        reference.scored(reference.loaded(back), IDS),
    ).mean() < 1e-9


def test_what_other_engines_do_not_read(tmp_path: Path, registry: PluginRegistry) -> None:
    model = twins.twin(tmp_path / "twin")
    with pytest.raises(UnsupportedError, match=r"ik_llama\.cpp does not read") as caught:
        plan_conversion(model, recipe("tq2_0", graph="ik_llama.cpp"), registry)
    assert caught.value.code == "type-not-read"
    plan_conversion(model, recipe("tq2_0", graph="bitnet.cpp"), registry)
    silu = twins.twin(tmp_path / "silu", head=True, hidden_act="silu")
    with pytest.raises(UnsupportedError, match="head differs"):
        plan_conversion(silu, recipe(force=True), registry)
    own = twins.twin(tmp_path / "own-head", head=True)
    with pytest.raises(UnsupportedError, match="head differs"):
        plan_conversion(own, recipe(graph="bitnet.cpp"), registry)
    plan_conversion(own, recipe(graph="ik_llama.cpp"), registry)
    with pytest.raises(UnsupportedError) as caught:
        plan_conversion(model, recipe(graph="exllama"), registry)
    assert caught.value.code == "unknown-graph"
    with pytest.raises(UnsupportedError, match="--graph"):
        plan_conversion(model, Recipe(exporter="hf", scheme="bf16", graph="bitnet.cpp"), registry)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"attention_bias": True}, "bias"),
        ({"head_dim": 32}, "width"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                           "original_max_position_embeddings": 32}}, "llama3"),
    ],
)  # fmt: skip
def test_what_the_graph_of_llama_cpp_does_not_load_cannot_be_forced(
    changes: dict[str, Any], what: str, tmp_path: Path, registry: PluginRegistry
) -> None:
    tensors: dict[str, Any] = {}
    if "attention_bias" in changes:
        sizes = {"q": 256, "k": 128, "v": 128, "o": 256}
        tensors = {
            f"model.layers.{i}.self_attn.{n}_proj.bias": np.zeros(size, np.float32) for i in range(2) for n, size in sizes.items()
        }
    if "head_dim" in changes:
        codes = {"q": (32, 256), "k": (16, 256), "v": (16, 256), "o": (64, 128)}
        tensors = {
            f"model.layers.{i}.self_attn.{n}_proj.weight": np.zeros(s, np.uint8) for i in range(2) for n, s in codes.items()
        }
    model = twins.twin(tmp_path / "twin", hidden_act="silu", tensors=tensors, **changes)
    with pytest.raises(UnsupportedError, match=what):
        plan_conversion(model, recipe(), registry)
    if what != "width":
        with pytest.raises(UnsupportedError, match=what):
            plan_conversion(model, recipe(force=True), registry)


@pytest.mark.parametrize("case", [pytest.param("bitnet-silu", marks=SLOW), "bitnet-silu-packed", "llama-packed-bl"])
def test_logits(case: str, golden_model: Callable[[str], Path], to_gguf: Callable[..., Any], tmp_path: Path) -> None:
    """Against the class with its 8-bit inputs switched off, and on."""
    model = golden_model(case)
    file, _ = to_gguf(model)
    plain, ids = reference.plain_folder(model, tmp_path / "plain"), ids_of(model)
    ours = by_llamacpp(file, ids)
    assert divergence(reference.scored(reference.loaded(plain), ids), ours).mean() < EXACT
    assert divergence(reference.scored(reference.loaded(plain, rounds=True), ids), ours).mean() < ROUNDED


@pytest.mark.parametrize(
    ("family", "stored", "section"),
    [
        pytest.param("bitnet", "full", twins.ONLINE, marks=SLOW),
        pytest.param("bitnet", "packed", twins.PACKED, marks=SLOW),
        pytest.param("qwen2", "packed", twins.BITLINEAR, marks=SLOW),
        pytest.param("qwen3", "unpacked", twins.PACKED, marks=SLOW),
    ],
)
def test_logits_of_twins(
    family: str, stored: str, section: dict[str, Any], tmp_path: Path, to_gguf: Callable[..., Any]
) -> None:
    model = twins.twin(tmp_path / "twin", stored, section, family=family, hidden_act="silu")
    file, _ = to_gguf(model)
    wanted = reference.scored(reference.loaded(reference.plain_folder(model, tmp_path / "plain")), IDS)
    assert divergence(wanted, by_llamacpp(file, IDS)).mean() < EXACT


@pytest.mark.parametrize("case", ["bitnet-silu", "llama-packed-bl"])
def test_tensors_and_keys_are_the_peers_where_it_is_right(
    case: str, golden_model: Callable[[str], Path], to_gguf: Callable[..., Any]
) -> None:
    wanted = gold(case)
    file, _ = to_gguf(golden_model(case))
    ours = tensors_of(file)
    theirs = {t["name"]: (t["type"], t["sha256"]) for t in wanted["tensors"]}
    assert {n: t for n, (t, _) in ours.items()} == {n: t for n, (t, _) in theirs.items()}
    differ = {n for n in ours if ours[n] != theirs[n]}
    # torch's float32 mean of a whole matrix may be off by its last place; ours is rounded from float64.
    assert all("_q." in n or "_k." in n or "_v." in n or "output.w" in n or "ffn_" in n for n in differ)
    assert case == "bitnet-silu" or not differ
    reader = {t.name: t for t in GGUFReader(file).tensors}
    for stated in wanted["tensors"]:
        assert np.std(reader[stated["name"]].data, dtype=np.float64) == pytest.approx(stated["std"], rel=1e-6)
    from llmfit_core.readers.gguf import read_gguf

    compare_keys(case, read_gguf(file), {k: v for k, v in wanted["kv"].items() if k not in UNREAD})


@pytest.mark.parametrize("case", ["bitnet-silu", "bitnet-silu-packed", "llama-packed-bl"])
def test_types_of_every_scheme_are_llama_quantizes(
    case: str, golden_model: Callable[[str], Path], registry: PluginRegistry
) -> None:
    for scheme, theirs in gold(case)["quantize"].items():
        plan = plan_conversion(golden_model(case), recipe(scheme.lower()), registry).plan
        wanted = {n: v[0] if isinstance(v, list) else v for n, v in theirs["tensors"].items()}
        assert {t.name: t.type.upper() for t in plan.tensors} == wanted, scheme
