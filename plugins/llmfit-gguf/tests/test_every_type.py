"""A GGUF file in each type becomes a Hugging Face folder with the values that gguf's kernels and ggml give."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize

from llmfit_core.errors import LlmfitError
from llmfit_core.pipeline import convert, plan_conversion
from llmfit_core.plan import Recipe
from llmfit_core.plugins import PluginRegistry, load_plugins
from llmfit_core.prepare import prepare
from llmfit_core.readers.ggml_types import BY_NAME, PLAIN
from llmfit_core.tensors import read
from llmfit_gguf.engine import _xllamacpp_files
from tests.tiny import tiny

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

REAL = sorted(set(BY_NAME) - PLAIN - {"q8_1", "q8_k", "q1_0", "q2_0"})
SIZES = {"hidden": 256, "heads": 4, "kv": 2, "head": 64, "ffn": 512, "layers": 1}
SLOW_TO_WRITE = ("iq1_m", "iq1_s", "iq2_s", "iq2_xs", "iq2_xxs", "iq3_s", "iq3_xxs")
HF = {
    "token_embd": "model.embed_tokens", "output": "lm_head", "attn_v": "self_attn.v_proj", "attn_q": "self_attn.q_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> PluginRegistry:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LLMFIT_CONFIG_DIR", str(tmp_path_factory.mktemp("config")))
        patch.delenv("LLMFIT_PLUGINS", raising=False)
        return load_plugins()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, plugins: PluginRegistry) -> Path:
    """A tiny model in f32."""
    folder = tmp_path_factory.mktemp("plain")
    out = folder / "f32.gguf"
    convert(tiny("llama", folder / "m", **SIZES), Recipe(exporter="gguf", scheme="f32"), out, plugins, verify=False)
    return out


def encode(values: np.ndarray, name: str) -> np.ndarray:
    """Rows in a type's blocks, by ggml; types that take seconds to prepare by random blocks with small scales."""
    kind = BY_NAME[name]
    if name in SLOW_TO_WRITE:
        blocks = np.random.default_rng(3).integers(0, 256, (*values.shape[:-1], values.shape[-1] // 256, kind.size), np.uint8)
        if name == "iq1_m":
            blocks[..., 49::2] = blocks[..., 49::2] & 0x0F | np.array([0, 0, 0, 0x20], np.uint8)[: blocks[..., 49::2].shape[-1]]
        else:
            blocks[..., 1] = 0x24
        return blocks.reshape(*values.shape[:-1], -1)
    library = ctypes.CDLL(str(_xllamacpp_files()[0]))
    function = library.ggml_quantize_chunk
    function.restype = ctypes.c_size_t
    function.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 3, ctypes.c_void_p)
    rows = np.ascontiguousarray(values, np.float32)
    out = np.empty((*values.shape[:-1], kind.bytes_for(values.shape[-1:])), np.uint8)
    flat = rows.reshape(-1, rows.shape[-1])
    assert function(kind.id, flat.ctypes.data, out.ctypes.data, 0, *flat.shape, None) == out.nbytes
    return out


def rewritten(
    source: Path,
    out: Path,
    name: str,
    more: Mapping[str, np.ndarray] | None = None,
    chosen: Callable[[str], bool] = lambda n: True,
) -> dict[str, np.ndarray]:
    """The file with its matrices in another type, by gguf's writer; what gguf says the matrices then are."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(out, "llama")
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            kinds = field.types
            writer.add_key_value(key, field.contents(), kinds[0], sub_type=kinds[-1] if len(kinds) > 1 else None)
    worth = {}
    kind = gguf.GGMLQuantizationType[name.upper()]
    for tensor in reader.tensors:
        values = np.array(tensor.data)
        if tensor.name in (more or {}):
            continue
        if values.ndim < 2 or not chosen(tensor.name):
            writer.add_tensor(tensor.name, values)
            continue
        blocks = encode(values, name)
        with np.errstate(all="ignore"):
            worth[tensor.name] = dequantize(blocks, kind)
        assert np.isfinite(worth[tensor.name]).all()
        writer.add_tensor(tensor.name, blocks, raw_dtype=kind)
    for tensor_name, values in (more or {}).items():
        writer.add_tensor(tensor_name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return worth


def hf_name(name: str) -> str:
    *_, role, part = name.split(".")
    return f"model.layers.0.{HF[role]}.{part}" if name.startswith("blk.") else f"{HF[role]}.{part}"


def turned(rows: np.ndarray, heads: int) -> np.ndarray:
    """GGUF's rows of q and k as Hugging Face has them: pairs beside each other become halves."""
    high, wide = rows.shape
    return rows.reshape(heads, high // heads // 2, 2, wide).swapaxes(1, 2).reshape(high, wide)


def compare(folder: Path, worth: Mapping[str, np.ndarray]) -> None:
    from safetensors.numpy import load_file

    held = load_file(folder / "model.safetensors")
    for name, values in worth.items():
        if "attn_k" in name:
            continue
        wanted = turned(values, 4) if "attn_q" in name else values
        assert held[hf_name(name)].dtype == np.float32
        assert np.array_equal(held[hf_name(name)], wanted), name


@pytest.mark.parametrize("name", REAL)
def test_every_type_becomes_a_folder(name: str, plain: Path, plugins: PluginRegistry, tmp_path: Path) -> None:
    worth = rewritten(plain, tmp_path / "q.gguf", name)
    assert len(worth) == 9
    _, events = convert(tmp_path / "q.gguf", Recipe(exporter="hf", scheme="f32"), tmp_path / "hf", plugins, verify=False)
    compare(tmp_path / "hf", worth)
    told = next(e for e in events if e.code == "source-quantized")
    assert name in told.message
    again = plan_conversion(tmp_path / "q.gguf", Recipe(exporter="gguf", scheme="q5_k_m"), plugins).plan
    assert "requantized" in {e.code for e in again.events if e.severity == "warning"}
    assert name in next(e.message for e in again.events if e.code == "requantized")


@pytest.mark.parametrize("name", ["q8_1", "q8_k"])
def test_types_of_a_computation_are_refused_before_the_work(name: str, plain: Path, plugins: PluginRegistry, tmp_path: Path) -> None:
    file = tmp_path / "q.gguf"
    rewritten(plain, file, "q8_0")
    last = max(gguf.GGUFReader(file).tensors, key=lambda t: t.data_offset).name.encode()
    raw = bytearray(file.read_bytes())
    at = raw.index(last) + len(last) + 4 + 16
    assert int.from_bytes(raw[at : at + 4], "little") == BY_NAME["q8_0"].id
    raw[at : at + 4] = BY_NAME[name].id.to_bytes(4, "little")
    file.write_bytes(raw + bytes(1 << 20))
    with pytest.raises(LlmfitError) as caught:
        plan_conversion(file, Recipe(exporter="hf", scheme="f32"), plugins)
    assert caught.value.code == "cannot-dequantize"
    assert last.decode() in caught.value.cause
    assert name in caught.value.cause


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
def test_whole_numbers_are_no_weights(dtype: type, plain: Path, plugins: PluginRegistry, tmp_path: Path) -> None:
    rewritten(plain, tmp_path / "q.gguf", "q8_0", {"blk.0.ffn_up.weight": np.ones((512, 256), dtype)}, lambda n: False)
    with pytest.raises(LlmfitError, match="up_proj") as caught:
        plan_conversion(tmp_path / "q.gguf", Recipe(exporter="hf", scheme="f32"), plugins)
    assert caught.value.code == "tensor-dtype"


def test_factors_beside_a_tensor_are_multiplied_in(plain: Path, plugins: PluginRegistry, tmp_path: Path) -> None:
    """As files in NVFP4 have them: `build_lora_mm` multiplies the products by `.scale`."""
    scale, name = np.array([0.37], np.float32), "blk.0.ffn_up.weight"
    more = {"blk.0.ffn_up.scale": scale, "blk.0.ffn_up.input_scale": np.array([2.0], np.float32)}
    worth = rewritten(plain, tmp_path / "q.gguf", "nvfp4", more)
    found = prepare(tmp_path / "q.gguf", plugins)
    refs = {r.name: r.tensor for r in found.model.refs}
    assert np.array_equal(read(refs[hf_name(name)]), worth[name] * scale)
    assert np.array_equal(read(refs["model.layers.0.mlp.down_proj.weight"]), worth["blk.0.ffn_down.weight"])
    assert "activations" in found.model.ledger.waived["blk.0.ffn_up.input_scale"]
    for bad in ({"blk.0.ffn_up.scale": np.ones(3, np.float32)}, {"blk.0.ffn_up.scale": np.ones(1, np.int32)}):
        rewritten(plain, tmp_path / "bad.gguf", "nvfp4", bad)
        with pytest.raises(LlmfitError) as caught:
            prepare(tmp_path / "bad.gguf", plugins)
        assert caught.value.code == "scale-mismatch"
        assert "blk.0.ffn_up.scale" in caught.value.cause
