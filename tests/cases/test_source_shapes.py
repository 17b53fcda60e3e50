"""Shapes against the config, stray and missing tensors, element types (cases 12 and 13)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest

from tests.cases.source import codes, command, converted, planned, refused
from tests.tiny import DROP, FAMILIES, tiny, weights

if TYPE_CHECKING:
    from pathlib import Path

Q = "model.layers.0.self_attn.q_proj.weight"


def freqs(size: int) -> np.ndarray:
    return (1 / 10000 ** (np.arange(0, size, 2, dtype=np.float32) / size)).astype(np.float32)


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen3", "mixtral"])
def test_a_silent_head_dim_is_told_by_the_query_matrix(tmp_path: Path, family: str) -> None:
    folder = tiny(family, tmp_path / "m", head=32, config={"head_dim": DROP})
    found = converted(folder)
    assert "32" in found.message("inferred-from-shapes")
    assert "head_dim" in found.message("inferred-from-shapes")
    name = found.keys["general.architecture"]
    assert found.keys[f"{name}.attention.key_length"] == 32
    assert found.keys[f"{name}.attention.value_length"] == 32
    assert found.keys[f"{name}.rope.dimension_count"] == 32 if family != "qwen3" else True
    said = tiny(family, tmp_path / "n", head=32)
    assert converted(said).path.read_bytes() == found.path.read_bytes()


@pytest.mark.parametrize("value", [DROP, None])
@pytest.mark.parametrize("kv", [1, 2])
def test_silent_key_value_heads_are_told_by_the_key_matrix(tmp_path: Path, value: object, kv: int) -> None:
    found = converted(tiny("llama", tmp_path / "m", kv=kv, config={"num_key_value_heads": value}))
    assert found.keys["llama.attention.head_count_kv"] == kv
    assert found.codes() == ["inferred-from-shapes"]
    assert found.path.read_bytes() == converted(tiny("llama", tmp_path / "n", kv=kv)).path.read_bytes()


def test_as_many_key_value_heads_as_heads_is_the_default(tmp_path: Path) -> None:
    assert codes(planned(tiny("llama", tmp_path / "m", kv=4, config={"num_key_value_heads": DROP}))) == []


def test_both_silent(tmp_path: Path) -> None:
    folder = tiny("llama", tmp_path / "m", head=32, kv=1, config={"head_dim": DROP, "num_key_value_heads": DROP})
    found = converted(folder)
    assert found.keys["llama.attention.key_length"] == 32
    assert found.keys["llama.attention.head_count_kv"] == 1


@pytest.mark.parametrize(
    ("family", "changes", "tensor", "words"),
    [
        ("llama", {"head_dim": 32}, "self_attn.q_proj", ("head_dim = 32", "[64, 64]", "[128, 64]")),
        ("llama", {"num_key_value_heads": 4}, "self_attn.k_proj", ("num_key_value_heads = 4", "[32, 64]", "[64, 64]")),
        ("llama", {"num_key_value_heads": 1}, "self_attn.k_proj", ("num_key_value_heads = 1",)),
        ("llama", {"hidden_size": 128}, "embed_tokens", ("hidden_size = 128", "[512, 64]")),
        ("llama", {"intermediate_size": 128}, "mlp.gate_proj", ("intermediate_size = 128",)),
        ("llama", {"intermediate_size": 0}, "mlp.gate_proj", ("intermediate_size = 0",)),
        ("llama", {"num_attention_heads": 8}, "self_attn.k_proj", ("num_key_value_heads = 2",)),
        ("llama", {"num_attention_heads": 2}, "self_attn.k_proj", ()),
        ("llama", {"head_dim": 8, "num_attention_heads": 8}, "self_attn.k_proj", ("head_dim = 8",)),
        ("qwen3", {"head_dim": 32, "num_attention_heads": 2, "num_key_value_heads": 1}, "self_attn.q_norm", ("head_dim = 32",)),
        ("phi3", {"num_key_value_heads": 4}, "self_attn.qkv_proj", ("64 + 64 + 64", "128")),
        ("phi3", {"num_key_value_heads": DROP}, "self_attn.qkv_proj", ("64 + 64 + 64",)),
        ("phi3", {"intermediate_size": 64}, "mlp.gate_up_proj", ("64 + 64", "192")),
        ("mixtral", {"intermediate_size": 48}, "experts.0.gate_proj", ("intermediate_size",)),
        ("qwen3moe", {"moe_intermediate_size": 96}, "experts.0.gate_proj", ("moe_intermediate_size = 96",)),
        ("qwen2moe", {"shared_expert_intermediate_size": 96}, "shared_expert.gate_proj", ("shared_expert_intermediate_size = 96",)),
    ],
)  # fmt: skip
def test_a_config_that_contradicts_the_shapes_names_both(
    tmp_path: Path, family: str, changes: dict[str, Any], tensor: str, words: tuple[str, ...]
) -> None:
    refused(tiny(family, tmp_path / "m", config=changes), "shape-mismatch", tensor, *words)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_attention_heads": 3, "head_dim": 16}, ("num_attention_heads 3", "num_key_value_heads 2")),
        ({"num_attention_heads": 4, "num_key_value_heads": 3}, ("num_attention_heads 4", "num_key_value_heads 3")),
        ({"num_attention_heads": 7, "num_key_value_heads": 7}, ("hidden_size 64", "num_attention_heads 7")),
        ({"head_dim": 15}, ("head_dim 15",)),
        ({"num_key_value_heads": 8}, ("num_key_value_heads 8",)),
    ],
)
def test_counts_that_cannot_go_together(tmp_path: Path, changes: dict[str, Any], words: tuple[str, ...]) -> None:
    refused(tiny("llama", tmp_path / "m", config=changes), "config-key-invalid", *words)


@pytest.mark.parametrize("place", ["model.rotary_emb.inv_freq", "model.layers.1.self_attn.rotary_emb.inv_freq"])
def test_stored_frequencies_tell_of_wrong_heads(tmp_path: Path, place: str) -> None:
    """Without grouped heads, rows alone cannot tell 4 heads of 16 from 8 of 8."""
    more = {place: freqs(16)}
    good = tiny("llama", tmp_path / "a", kv=4, tensors=more)
    plan = planned(good, "--strict")
    assert list(plan["waived"]) == [place]
    wrong = tiny("llama", tmp_path / "b", kv=4, tensors=more, config={"num_attention_heads": 8, "num_key_value_heads": 8})
    refused(wrong, "shape-mismatch", place, "num_attention_heads 8")


@pytest.mark.parametrize("layers", [1, 3, 40, 16000])
def test_another_number_of_layers(tmp_path: Path, layers: int) -> None:
    began = time.monotonic()
    folder = tiny("llama", tmp_path / "m", config={"num_hidden_layers": layers})
    name = f"model.layers.{1 if layers == 1 else 2}.input_layernorm.weight"
    refused(folder, "stray-tensor" if layers == 1 else "missing-tensor", name, f"num_hidden_layers = {layers}")
    assert time.monotonic() - began < 2


def test_a_huge_number_of_experts_ends_quickly(tmp_path: Path) -> None:
    began = time.monotonic()
    folder = tiny("qwen3moe", tmp_path / "m", config={"num_experts": 65000})
    refused(folder, "shape-mismatch", "model.layers.0.mlp.gate.weight", "num_experts = 65000")
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("family", "name", "shape"),
    [
        ("llama", "foo.weight", (4,)),
        ("llama", "model.layers.0.foo.weight", (64, 64)),
        ("llama", "model.layers.0.self_attn.q_proj.bias", (64,)),
        ("llama", "model.layers.1.self_attn.o_proj.bias", (64,)),
        ("llama", "model.layers.1.mlp.down_proj.bias", (64,)),
        ("llama", "model.layers.0.input_layernorm.bias", (64,)),
        ("llama", "model.norm.bias", (64,)),
        ("llama", "lm_head.bias", (512,)),
        ("llama", "model.embed_tokens.bias", (512,)),
        ("llama", "model.layers.0.self_attn.q_norm.weight", (16,)),
        ("llama", "model.layers.2.input_layernorm.weight", (64,)),
        ("llama", "model.layers.0.self_attn.q_proj.scale", (64,)),
        ("llama", "model.layers.0.self_attn.q_proj.weight_scale", ()),
        ("llama", "model.layers.0.self_attn.q_proj.weight.absmax", (4,)),
        ("llama", "model.layers.01.input_layernorm.weight", (64,)),
        ("llama", "model.layers.-1.input_layernorm.weight", (64,)),
        ("llama", "model.layers.99999999999.input_layernorm.weight", (64,)),
        ("llama", "model.layers.0.block_sparse_moe.gate.weight", (4, 64)),
        ("mistral", "model.layers.0.self_attn.q_proj.bias", (64,)),
        ("qwen2", "model.layers.0.self_attn.o_proj.bias", (64,)),
        ("qwen2", "model.layers.0.self_attn.q_norm.weight", (16,)),
        ("qwen3", "model.layers.0.self_attn.q_proj.bias", (64,)),
        ("qwen3", "model.layers.0.self_attn.q_norm.bias", (16,)),
        ("phi3", "model.layers.0.self_attn.q_proj.weight", (64, 64)),
        ("phi3", "model.layers.0.mlp.gate_up_proj.bias", (192,)),
        ("qwen3moe", "model.layers.0.mlp.experts.4.gate_proj.weight", (48, 64)),
        ("qwen3moe", "model.layers.0.mlp.gate_proj.weight", (96, 64)),
        ("qwen3moe", "model.layers.0.mlp.gate.bias", (4,)),
        ("qwen3moe", "model.layers.0.mlp.shared_expert.gate_proj.weight", (48, 64)),
        ("qwen3moe", "model.layers.0.mlp.experts.0.gate_proj.bias", (48,)),
        ("qwen2moe", "model.layers.0.mlp.shared_expert_gate.bias", (1,)),
    ],
)  # fmt: skip
def test_any_stray_tensor_is_an_error(tmp_path: Path, family: str, name: str, shape: tuple[int, ...]) -> None:
    folder = tiny(family, tmp_path / "m", tensors={name: weights(name, shape)})
    refused(folder, "stray-tensor", name)


@pytest.mark.parametrize("family", FAMILIES)
def test_any_missing_tensor_is_an_error(tmp_path: Path, family: str) -> None:
    from safetensors import safe_open

    whole = tiny(family, tmp_path / "whole")
    with safe_open(whole / "model.safetensors", "np") as file:
        names = [n for n in file.keys() if not n.startswith("lm_head")]
    rng = np.random.default_rng(1)
    for name in rng.choice(names, 6, replace=False):
        folder = tiny(family, tmp_path / f"without-{name}", tensors={str(name): DROP})
        said = command("plan", folder)
        assert said.code == 3, name
        assert str(name) in said.err, said.err


@pytest.mark.parametrize("name", ["gate_up_proj", "down_proj"])
def test_experts_in_one_tensor_and_one_by_one(tmp_path: Path, name: str) -> None:
    whole = {f"model.layers.0.mlp.experts.{name}": weights("x", (4, 96, 64) if name == "gate_up_proj" else (4, 64, 48))}
    refused(tiny("qwen3moe", tmp_path / "m", tensors=whole), "duplicate-tensor", f"experts.{name}", "experts.0.")


def test_a_name_twice_in_two_spellings(tmp_path: Path) -> None:
    folder = tiny("llama", tmp_path / "m", tensors={"model.norm": weights("model.norm.weight", (64,))})
    refused(folder, "duplicate-tensor", "model.norm.weight")


@pytest.mark.parametrize("part", ["attention_bias", "mlp_bias"])
def test_biases_said_by_the_config(tmp_path: Path, part: str) -> None:
    rows = {"q": 64, "k": 32, "v": 32, "o": 64} if part == "attention_bias" else {"gate": 96, "up": 96, "down": 64}
    block = "self_attn" if part == "attention_bias" else "mlp"
    biases = {f"model.layers.{i}.{block}.{x}_proj.bias": weights(f"{i}{x}", (n,)) for i in (0, 1) for x, n in rows.items()}
    good = converted(tiny("llama", tmp_path / "a", config={part: True}, tensors=biases), "--strict")
    role = "attn_q" if part == "attention_bias" else "ffn_down"
    assert f"blk.1.{role}.bias" in good.tensors
    gone = f"model.layers.1.{block}.{'q' if 'q' in rows else 'up'}_proj.bias"
    rest = {k: v for k, v in biases.items() if k != gone}
    refused(tiny("llama", tmp_path / "b", config={part: True}, tensors=rest), "missing-tensor", gone)
    refused(tiny("llama", tmp_path / "c", config={part: False}, tensors=biases), "stray-tensor", f"{block}.", f"{part} = false")
    refused(tiny("llama", tmp_path / "d", tensors=biases), "stray-tensor", f"{block}.", f"{part} = false")
    short = {gone: weights("x", (7,))}
    refused(tiny("llama", tmp_path / "e", config={part: True}, tensors=biases | short), "shape-mismatch", gone, "[7]")


def test_qwen2_without_a_bias(tmp_path: Path) -> None:
    gone = "model.layers.1.self_attn.k_proj.bias"
    refused(tiny("qwen2", tmp_path / "m", tensors={gone: DROP}), "missing-tensor", gone)


NOT_FLOATS = ["int8", "uint8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "bool"]


@pytest.mark.parametrize("dtype", NOT_FLOATS)
@pytest.mark.parametrize("name", [Q, "model.norm.weight", "model.embed_tokens.weight", "lm_head.weight"])
def test_weights_that_are_no_floats_are_refused_by_name(tmp_path: Path, dtype: str, name: str) -> None:
    shape = {Q: (64, 64), "model.norm.weight": (64,)}.get(name, (512, 64))
    array = np.ones(shape).astype(getattr(ml_dtypes, dtype, dtype))
    refused(tiny("llama", tmp_path / "m", tensors={name: array}), "tensor-dtype", name, exit_code=4)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_float8_without_a_scale_is_taken_as_it_is_and_warned_of(tmp_path: Path, dtype: str) -> None:
    array = weights(Q, (64, 64)).astype(getattr(ml_dtypes, dtype))
    folder = tiny("llama", tmp_path / "m", tensors={Q: array})
    found = converted(folder)
    assert "fp8-unscaled" in found.codes()
    refused(folder, "strict", "without scales", exit_code=8, flags=("--strict",))


def test_float8_with_its_scale_and_no_word_of_it(tmp_path: Path) -> None:
    more = {
        Q: np.ones((64, 64), ml_dtypes.float8_e4m3fn),
        Q + "_scale_inv": np.full((1, 1), 0.25, np.float32),
    }
    found = converted(tiny("llama", tmp_path / "m", tensors=more))
    assert (found.tensors["blk.0.attn_q.weight"] == 0.25).all()


@pytest.mark.parametrize("experts", ["each", "fused"])
def test_experts_that_are_no_floats(tmp_path: Path, experts: str) -> None:
    name = "model.layers.0.mlp.experts.0.gate_proj.weight" if experts == "each" else "model.layers.0.mlp.experts.down_proj"
    shape = (48, 64) if experts == "each" else (4, 64, 48)
    folder = tiny("qwen3moe", tmp_path / "m", experts=experts, tensors={name: np.ones(shape, np.int8)})
    refused(folder, "tensor-dtype", name, exit_code=4)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_other_floats_are_read(tmp_path: Path, dtype: str) -> None:
    found = converted(tiny("llama", tmp_path / "m", dtype=dtype), "--strict")
    want = weights("model.norm.weight", (64,), dtype).astype(np.float32)
    assert np.array_equal(found.tensors["output_norm.weight"], want)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        (Q, ()),
        (Q, (64,)),
        (Q, (64, 64, 1)),
        (Q, (1, 64, 64)),
        (Q, (0, 64)),
        (Q, (64, 0)),
        (Q, (0,)),
        ("model.norm.weight", ()),
        ("model.norm.weight", (64, 1)),
        ("model.norm.weight", (0,)),
        ("model.embed_tokens.weight", ()),
        ("model.embed_tokens.weight", (512,)),
        ("model.embed_tokens.weight", (0, 64)),
        ("model.embed_tokens.weight", (8, 64, 64)),
        ("lm_head.weight", ()),
        ("lm_head.weight", (512,)),
        ("lm_head.weight", (511, 64)),
        ("model.layers.0.self_attn.k_proj.weight", ()),
        ("model.layers.1.mlp.down_proj.weight", (96, 64)),
        ("model.rotary_emb.inv_freq", ()),
        ("model.rotary_emb.inv_freq", (0,)),
        ("model.rotary_emb.inv_freq", (8, 2)),
    ],
)
def test_odd_shapes_name_the_tensor(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    for family in ("llama", "qwen2"):
        folder = tiny(family, tmp_path / family, rows=512, tensors={name: weights(name, shape)}, config={"head_dim": DROP})
        refused(folder, "shape-mismatch", name)


@pytest.mark.parametrize("shape", [(), (0,), (128,), (128, 64, 1), (2, 64, 64), (127, 64), (128, 32)])
def test_odd_shapes_of_a_fused_tensor(tmp_path: Path, shape: tuple[int, ...]) -> None:
    name = "model.layers.0.self_attn.qkv_proj.weight"
    refused(tiny("phi3", tmp_path / "m", tensors={name: weights(name, shape)}), "shape-mismatch", name)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["model.layers.0.input_layernorm.weight", "model.layers.0.mlp.up_proj.weight"])
@pytest.mark.parametrize("to", ["gguf:f32", "gguf:bf16", "gguf:f16", "hf:bf16", "gguf:q8_0"])
def test_weights_that_are_no_numbers_are_damage(tmp_path: Path, value: float, name: str, to: str) -> None:
    """Once written as they are with a warning, which the proof of opening then took for a fault of llmfit."""
    array = np.ones((64,) if "norm" in name else (96, 64), np.float32)
    array.flat[3] = value
    folder = tiny("llama", tmp_path / "m", tensors={name: array})
    refused(folder, "not-finite", "row 0" if to == "gguf:q8_0" and "norm" not in name else "1 of its values", to=to)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_no_numbers_are_written_when_forced(tmp_path: Path, value: float) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    array = np.ones((96, 64), np.float32)
    array.flat[3] = value
    folder = tiny("llama", tmp_path / "m", tensors={name: array})
    found = converted(folder, "--force")
    assert found.codes() == ["not-finite"]
    assert sum(int((~np.isfinite(t)).sum()) for t in found.tensors.values()) == 1
    refused(folder, "strict", "NaN", exit_code=8, flags=("--strict", "--force"))
    # With verification too: opening is not tried, for it could only fail.
    said = command("convert", folder, "-o", tmp_path / "v.gguf", "--to", "gguf:f32", "--force")
    assert said.code == 0, said.err
    assert "not-finite" in said.out + said.err


@pytest.mark.parametrize("family", FAMILIES)
def test_an_ordinary_model_passes_strict(tmp_path: Path, family: str) -> None:
    found = converted(tiny(family, tmp_path / "m"), "--strict")
    assert found.codes() == []
