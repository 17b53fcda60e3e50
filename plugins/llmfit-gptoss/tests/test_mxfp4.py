"""MXFP4: unpacked as transformers and gguf unpack it, kept bit for bit where the target has it, read back, refused damaged."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from llmfit_core.blocks import block_types, blocks_of
from llmfit_core.errors import LlmfitError, SourceError
from llmfit_core.pipeline import plan_conversion
from llmfit_core.plan import Recipe
from llmfit_core.readers.gguf import read_gguf
from llmfit_core.tensors import Given, read, row_count
from llmfit_core.transform import Affine, Concat, Reshape, Slice, Stack, Transpose, to_float32
from llmfit_gptoss.mxfp4 import Blocks, Values
from tests.e2e.scoring import by_llamacpp, by_transformers, divergence, ids_of, reference
from tests.e2e.test_golden import compare_keys, tensors_of
from tests.e2e.test_round_trip import as_the_peer
from tests.expert_forms import config_of, load, save
from tests.golden_models import gold

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from llmfit_core.events import Event
    from llmfit_core.plugins import PluginRegistry

    ToGguf = Callable[..., tuple[Path, tuple[Event, ...]]]
    Make = Callable[..., Path]

CASE = "gptoss-plainrope-mxfp4"
EXACT = 3e-6
SLOW = pytest.mark.slow(reason="the kind of case is covered by a quicker one")
RNG = np.random.default_rng(3)


@pytest.fixture(autouse=True)
def forget_models() -> Iterator[None]:
    yield
    reference.cache_clear()


def packed(*shape: int, low: int = 0, high: int = 252) -> tuple[np.ndarray, np.ndarray]:
    codes = RNG.integers(0, 256, (*shape, 16), dtype=np.uint8)
    return codes, RNG.integers(low, high + 1, shape, dtype=np.uint8)


def blocks(codes: np.ndarray, exponents: np.ndarray, kind: str = "u8") -> Blocks:
    return Blocks("x", Given(codes.tobytes(), codes.shape, "u8"), Given(exponents.tobytes(), exponents.shape, kind))


def by_transformers_itself(codes: np.ndarray, exponents: np.ndarray) -> np.ndarray:
    """`[E, K, N]`, as bits."""
    torch = pytest.importorskip("torch", reason="the judge is transformers")
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    found = convert_moe_packed_tensors(torch.from_numpy(codes), torch.from_numpy(exponents))
    return found.contiguous().view(torch.int16).numpy()


def test_values_are_those_of_transformers_and_of_gguf() -> None:
    """Every byte with every exponent that gives finite values."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    codes = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16).repeat(253, axis=1)
    exponents = np.arange(253, dtype=np.uint8).reshape(1, 253, 1).repeat(16, axis=2)
    values = Values(blocks(codes, exponents))
    ours = read(values)
    assert ours.shape == (1, 253, 512)
    np.testing.assert_array_equal(read(Transpose(values)).view(np.int16), by_transformers_itself(codes, exponents))
    for row in range(253):  # each exponent by itself, too
        np.testing.assert_array_equal(values.rows(row, row + 1).view(np.int16), ours[:, row].view(np.int16))
    theirs = dequantize(values.blocks.rows(0, 253), GGMLQuantizationType.MXFP4)
    np.testing.assert_array_equal(to_float32(ours)[0], theirs)


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("kind", ["u8", "f8_e8m0"])
def test_any_range_of_rows_is_that_of_the_whole(flat: bool, kind: str) -> None:
    codes, exponents = packed(2, 5, 3, low=100, high=140)
    node = blocks(codes.reshape(2, 5, 48) if flat else codes, exponents, kind)
    for tensor in (node, Values(node)):
        assert tensor.shape == (2, 5, 96)
        whole = tensor.rows(0, 10)
        for start in range(11):
            for stop in range(start, 11):
                np.testing.assert_array_equal(tensor.rows(start, stop), whole[start:stop])
        assert pickle.loads(pickle.dumps(tensor)) == tensor
    np.testing.assert_array_equal(whole, Values(blocks(codes, exponents)).rows(0, 10))


def test_infinite_values_are_refused() -> None:
    codes, exponents = packed(1, 4, 2, low=100, high=140)
    codes[0, 2, 1] = 0x11  # halves
    for scale, code, wrong in ((255, 0x11, True), (254, 0x77, True), (253, 0x66, True), (253, 0x55, False), (254, 0x11, False)):
        exponents[0, 2, 1], codes[0, 2, 1] = scale, code
        for tensor in (blocks(codes, exponents), Values(blocks(codes, exponents))):
            if wrong:
                with pytest.raises(SourceError, match="x has a scale"):
                    tensor.rows(0, 4)
            else:
                assert len(tensor.rows(0, 4)) == 4
            assert len(tensor.rows(0, 2)) == 2


def test_operations_that_move_rows_work_on_blocks() -> None:
    """Judged by the values: the blocks of a tree, dequantized by gguf, are the tree's values."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    a, b = (Values(blocks(*packed(3, 4, 2, low=100, high=140))) for _ in range(2))
    halves = tuple(Reshape(Slice(Reshape(a, (6, 2, 64)), i, i + 1, 1), (3, 2, 64)) for i in range(2))
    trees: dict[str, Any] = {
        "slice": Slice(a, 1, 3, 1),
        "expert": Slice(a, 1, 2, 0, squeeze=True),
        "every other": halves[1],
        "together again": Reshape(Concat(tuple(Reshape(h, (6, 1, 64)) for h in halves), 1), (3, 4, 64)),
        "stack": Stack((Slice(a, 0, 1, 0, squeeze=True), Slice(b, 2, 3, 0, squeeze=True))),
        "concat": Concat((a, b), 1),
        "turned twice": Transpose(Transpose(a)),
    }
    for name, tree in trees.items():
        found = blocks_of(tree)
        assert found is not None, name
        assert (found.shape, found.dtype) == (tree.shape, "mxfp4"), name
        rows = row_count(tree.shape)
        values = dequantize(found.rows(0, rows), GGMLQuantizationType.MXFP4)
        np.testing.assert_array_equal(values, to_float32(tree.rows(0, rows)), err_msg=name)
    for tree in (Transpose(a), Affine(a, scale=2.0), Slice(a, 0, 32, 2), Concat((a, b), 2), Reshape(a, (3, 8, 32)), Given(b"1234", (1,), "f32")):
        assert blocks_of(tree) is None
    assert block_types(Affine(Concat((a, b), 2))) == {"mxfp4"}
    assert block_types(Given(b"1234", (1,), "f32")) == frozenset()


def test_the_usual_file_is_the_peers(golden_model: Make, registry: PluginRegistry, to_gguf: ToGguf) -> None:
    """Without a scheme the experts stay as they are, and the rest stays bfloat16: what the peer's converter writes."""
    model = golden_model(CASE)
    plan = plan_conversion(model, Recipe(exporter="gguf", scheme=""), registry).plan
    assert plan.recipe.scheme == "source"
    assert plan.files[0].name.endswith("-MXFP4.gguf")
    assert plan_conversion(golden_model("gptoss-plainrope"), Recipe(exporter="gguf", scheme=""), registry).plan.recipe.scheme == "q4_k_m"
    file, events = to_gguf(model, "")
    assert [e for e in events if e.severity in ("warning", "fallback")] == []
    assert tensors_of(file) == {n: tuple(v) for n, v in gold(CASE)["convert_bf16"]["tensors"].items()}
    compare_keys(CASE, read_gguf(file), gold(CASE)["kv"])
    wide, _ = to_gguf(model, "source", name="wide", tensor_types=((r"^(?!.*_exps)", "f32"),))
    assert tensors_of(wide) == {t["name"]: (t["type"], t["sha256"]) for t in gold(CASE)["tensors"]}
    # ggml multiplies these blocks by activations in eight bits.
    ids = ids_of(model)
    found = divergence(by_transformers(reference_of(model), ids), by_llamacpp(wide, ids)).mean()
    assert found == pytest.approx(gold(CASE)["parity"]["f32"]["mean_kl"], rel=0.1)


def test_the_command_without_a_target_keeps_the_blocks(
    golden_model: Make, config_dir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from llmfit_core.cli.guarded import run

    assert config_dir
    for case, scheme in ((CASE, "source"), ("gptoss-plainrope", "q4_k_m")):
        assert run(["plan", str(golden_model(case)), "--json"]) == 0
        assert json.loads(capfd.readouterr().out)["plan"]["scheme"] == scheme


def reference_of(model: Path) -> Path:
    """The same model with transformers' own unpacking, in a folder that it loads without kernels."""
    torch = pytest.importorskip("torch", reason="the judge is transformers")
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    to = model.parent / f"{model.name}-unpacked"
    if not to.exists():
        stored = load(model)
        plain = {n: t for n, t in stored.items() if not n.endswith(("_blocks", "_scales"))}
        for name in stored:
            if name.endswith("_blocks"):
                base = name.removesuffix("_blocks")
                plain[base] = convert_moe_packed_tensors(stored[name], stored[f"{base}_scales"], dtype=torch.bfloat16)
        save(model, plain, to)
        config = config_of(to)
        config.pop("quantization_config")
        (to / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return to


def test_unpacked_files_are_exact(golden_model: Make, to_gguf: ToGguf, to_hf: Make) -> None:
    model = golden_model(CASE)
    plain = reference_of(model)
    file, events = to_gguf(model)
    assert "unpacked" in [e.code for e in events if e.severity == "info"]
    assert tensors_of(file) == tensors_of(to_gguf(plain, name="plain")[0])
    ids = ids_of(model)
    assert divergence(by_transformers(plain, ids), by_llamacpp(file, ids)).mean() < EXACT
    folder = to_hf(model)
    a, b = load(folder), load(plain)
    assert sorted(a) == sorted(b)
    assert all(a[n].equal(b[n]) and a[n].dtype == b[n].dtype for n in b)
    assert "quantization_config" not in config_of(folder)


def test_mxfp4_moe_keeps_the_experts_and_is_llama_quantizes_rule(golden_model: Make, to_gguf: ToGguf) -> None:
    file, events = to_gguf(golden_model(CASE), "mxfp4_moe")
    assert [e for e in events if e.severity in ("warning", "fallback")] == []
    ours = tensors_of(file)
    theirs = {n: tuple(v) for n, v in gold(CASE)["convert_bf16"]["tensors"].items()}
    for name, (kind, digest) in ours.items():
        assert (kind, digest) == theirs[name] if theirs[name][0] in ("MXFP4", "F32") else kind == "Q8_0", name
    # Made of floats, where values lie on the grid already: the same experts.
    again, _ = to_gguf(golden_model("gptoss-plainrope"), "mxfp4_moe", name="floats")
    assert {n: t for n, (t, _) in tensors_of(again).items()} == {n: t for n, (t, _) in ours.items()}


def test_quantizing_again_is_warned_of(golden_model: Make, to_gguf: ToGguf) -> None:
    file, events = to_gguf(golden_model(CASE), "q4_k_m")
    told = [e for e in events if e.code == "requantized"]
    assert [e.severity for e in told] == ["warning"]
    assert "gguf:source or gguf:mxfp4_moe" in told[0].message
    types = {n: t for n, (t, _) in tensors_of(file).items()}
    assert types == {n: v[0] if isinstance(v, list) else v for n, v in gold("gptoss-plainrope")["quantize"]["Q4_K_M"]["tensors"].items()}


def test_a_gguf_file_is_read_back_and_taken_over(golden_model: Make, to_gguf: ToGguf, to_hf: Make, tmp_path: Path) -> None:
    model = golden_model(CASE)
    file, _ = to_gguf(model, "source")
    theirs = as_the_peer(file, CASE, tmp_path / "peer.gguf")
    for source, name in ((file, "ours"), (theirs, "theirs")):
        again, events = to_gguf(source, "", name=f"again-{name}")
        assert [e for e in events if e.severity in ("warning", "fallback")] == []
        assert tensors_of(again) == tensors_of(file)
        back = to_hf(source, name=f"back-{name}")
        a, b = load(back), load(reference_of(model))
        assert sorted(a) == sorted(b)
        assert all(a[n].equal(b[n]) for n in b)


@pytest.mark.parametrize("scheme", ["q4_0", pytest.param("q4_k_m", marks=SLOW), pytest.param("q8_0", marks=SLOW)])
def test_blocks_of_a_gguf_source_are_taken_over(scheme: str, golden_model: Make, to_gguf: ToGguf) -> None:
    """The same scheme again, or `source`: bit for bit, and nothing is quantized a second time."""
    first, _ = to_gguf(golden_model("qwen2"), scheme)
    for target in (scheme, "source"):
        again, events = to_gguf(first, target, name="again")
        assert tensors_of(again) == tensors_of(first)
        assert "requantized" not in [e.code for e in events]
        kv, before = (read_gguf(f).kv for f in (again, first))
        assert kv["general.file_type"].value == before["general.file_type"].value
    _, events = to_gguf(first, "q2_k", name="less")
    assert "requantized" in [e.code for e in events]


def test_rope_rows_of_blocks_are_moved(golden_model: Make, to_gguf: ToGguf) -> None:
    """A llama file's q and k lie in pairs: there and back again on blocks."""
    first, _ = to_gguf(golden_model("llama"), "q4_0")
    again, _ = to_gguf(first, "source", name="again")
    assert tensors_of(again) == tensors_of(first)


BROKEN: list[Any] = [
    pytest.param(lambda t: t.pop("model.layers.0.mlp.experts.down_proj_scales"), "down_proj_scales", id="no-scales"),
    pytest.param(lambda t: t.pop("model.layers.0.mlp.experts.down_proj_blocks"), "down_proj_blocks", id="no-blocks"),
    pytest.param(lambda t: [t.pop(n) for n in list(t) if "layers.1.mlp.experts.down_proj_" in n and "bias" not in n], "down_proj", id="no-expert"),
    pytest.param(lambda t: t.update({"model.layers.0.mlp.experts.down_proj": t["model.layers.0.mlp.experts.down_proj_bias"].clone()}), "plain", id="twice"),
    pytest.param(lambda t: _change(t, "down_proj_blocks", lambda x: x[..., :8]), "16 bytes", id="short-blocks"),
    pytest.param(lambda t: _change(t, "down_proj_scales", lambda x: x[..., :4]), "16 bytes", id="few-scales"),
    pytest.param(lambda t: _change(t, "down_proj_scales", lambda x: x.float()), "f32", id="float-scales"),
    pytest.param(lambda t: _change(t, "down_proj_blocks", lambda x: x.to(_torch().int32)), "i32", id="wide-codes"),
    pytest.param(lambda t: [_change(t, f"gate_up_proj_{p}", lambda x: x[:, :-2]) for p in ("blocks", "scales")], "510 rows", id="few-rows"),
    pytest.param(lambda t: _change(t, "down_proj_scales", lambda x: x.fill_(255)), "no number", id="no-number"),
]


def _torch() -> Any:
    return pytest.importorskip("torch", reason="writes the tensors")


def _change(tensors: dict[str, Any], end: str, how: Callable[[Any], Any]) -> None:
    name = f"model.layers.0.mlp.experts.{end}"
    tensors[name] = how(tensors[name])


@pytest.mark.parametrize(("breaking", "word"), BROKEN)
def test_damaged_checkpoints_are_refused(
    breaking: Callable[[dict[str, Any]], Any], word: str, golden_model: Make, to_gguf: ToGguf, tmp_path: Path
) -> None:
    tensors = load(golden_model(CASE))
    breaking(tensors)
    with pytest.raises(LlmfitError, match=word):
        to_gguf(save(golden_model(CASE), tensors, tmp_path / "broken"), "source")


def test_the_kind_is_known_without_a_config(golden_model: Make, with_config: Make, to_gguf: ToGguf) -> None:
    model = with_config(golden_model(CASE), quantization_config=...)
    assert tensors_of(to_gguf(model, "source")[0]) == {n: tuple(v) for n, v in gold(CASE)["convert_bf16"]["tensors"].items()}


def test_plain_tensors_under_such_a_config_are_plain(golden_model: Make, with_config: Make, to_gguf: ToGguf) -> None:
    model = with_config(golden_model("gptoss-plainrope"), quantization_config={"quant_method": "mxfp4"})
    file, events = to_gguf(model, "bf16")
    assert "source-quantized" not in [e.code for e in events]
    assert tensors_of(file) == {n: tuple(v) for n, v in gold("gptoss-plainrope")["convert_bf16"]["tensors"].items()}
