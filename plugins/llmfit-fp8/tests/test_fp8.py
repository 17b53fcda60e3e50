"""fp8 checkpoints of every writer, judged by torch's own 8-bit floats and by llama.cpp's converter."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the judge of 8-bit floats")
from llmfit_core.errors import LlmfitError
from llmfit_core.pipeline import convert, plan_conversion
from llmfit_core.plan import Recipe
from llmfit_core.prepare import prepare
from llmfit_core.readers.gguf import read_gguf
from llmfit_core.tensors import read, row_count
from tests.fp8_models import E5M2, E8M0, WHOLE, fp8
from tests.golden_models import gold
from tests.tiny import write_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from llmfit_core.plugins import PluginRegistry
    from llmfit_core.prepare import Prepared

BLOCKS = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]}


def codes(found: Prepared, *severities: str) -> list[str]:
    return [e.code for e in found.model.events if e.severity in (severities or ("warning", "fallback"))]


def same(found: Prepared, worth: dict[str, np.ndarray]) -> None:
    refs = {r.name: r.tensor for r in found.model.refs}
    assert set(refs) == set(worth)
    for name, tensor in refs.items():
        ours = np.asarray(read(tensor), dtype=np.float32)
        assert ours.shape == worth[name].shape, name
        assert np.array_equal(ours, worth[name]), name
        assert tensor.dtype == ("f32" if "_proj" in name else "bf16")


def refused(folder: Path, registry: PluginRegistry, code: str, *words: str) -> None:
    with pytest.raises(LlmfitError) as caught:
        plan_conversion(folder, Recipe(exporter="gguf", scheme="f32"), registry)
    assert caught.value.code == code, caught.value
    for word in words:
        assert word in caught.value.cause, caught.value.cause
    assert len(caught.value.remedy) > 12


@pytest.mark.parametrize("scheme", ["f32", "bf16", "q4_k_m"])
def test_the_golden_case_is_the_peers(
    scheme: str, golden_model: Callable[[str], Path], registry: PluginRegistry, tmp_path: Path
) -> None:
    wanted = gold("llama-fp8")
    theirs = {
        "f32": {t["name"]: (t["type"], t["sha256"]) for t in wanted["tensors"]},
        "bf16": {n: tuple(v) for n, v in wanted["convert_bf16"]["tensors"].items()},
        "q4_k_m": {n: tuple(v) for n, v in wanted["quantize"]["Q4_K_M"]["tensors"].items()},
    }[scheme]
    out = tmp_path / "m.gguf"
    _, events = convert(golden_model("llama-fp8"), Recipe(exporter="gguf", scheme=scheme), out, registry, verify=False)
    raw = out.read_bytes()
    ours = {
        n: (t.ggml_type.upper(), hashlib.sha256(raw[t.offset : t.offset + t.nbytes]).hexdigest())
        for n, t in read_gguf(out).tensors.items()
    }
    assert ours == theirs
    told = [e.code for e in events if e.severity in ("warning", "fallback")]
    assert told == (["requantized"] if scheme == "q4_k_m" else [])
    manifest = json.loads((tmp_path / "llmfit.json").read_text(encoding="utf-8"))
    assert "source-quantized" in json.dumps(manifest)
    assert "fp8" in json.dumps(manifest)


def test_a_folder_from_it_is_plain(golden_model: Callable[[str], Path], registry: PluginRegistry, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    convert(golden_model("llama-fp8"), Recipe(exporter="hf", scheme="f32"), tmp_path / "hf", registry, verify=False)
    config = json.loads((tmp_path / "hf" / "config.json").read_text(encoding="utf-8"))
    assert "quantization_config" not in config
    source = load_file(golden_model("llama-fp8") / "model.safetensors")
    made = load_file(tmp_path / "hf" / "model.safetensors")
    assert set(made) == {n for n in source if not n.endswith("_scale_inv")}
    name = "model.layers.0.mlp.down_proj.weight"
    scale = source[f"{name}_scale_inv"].repeat_interleave(128, 0).repeat_interleave(128, 1)
    high, wide = source[name].shape
    assert torch.equal(made[name], source[name].float() * scale[:high, :wide])


@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "int8", "uint8"])
def test_every_code_is_torchs(kind: str) -> None:
    import ml_dtypes

    from llmfit_core.scaled import widen

    bits = np.arange(256, dtype=np.uint8)
    dtype = np.dtype(getattr(ml_dtypes, kind)) if kind.startswith("float8") else np.dtype(kind)
    theirs = torch.from_numpy(bits.copy()).view(getattr(torch, kind)).float().numpy()
    assert np.array_equal(widen(bits.view(dtype)), theirs, equal_nan=True)


FBGEMM = {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": ["lm_head"]}
STATIC = {"quant_method": "fp8", "activation_scheme": "static"}


def powers(s: Any) -> Any:
    return torch.exp2(torch.ceil(torch.log2(s))).to(E8M0)


@pytest.mark.parametrize(
    ("wanted", "writing"),
    [
        ([], {"config": BLOCKS}),
        (["inferred-from-shapes"], {}),
        (["inferred-from-shapes"], {"config": STATIC}),
        ([], {"rows": 64, "columns": 32, "config": {**BLOCKS, "weight_block_size": [64, 32]}}),
        ([], {"rows": 96, "columns": 96, "config": {**BLOCKS, "weight_block_size": [96, 96]}}),
        (["inferred-from-shapes"], {"rows": 64, "columns": 32}),
        (["inferred-from-shapes"], {"rows": 1, "columns": 32}),
        ([], {"config": BLOCKS, "kind": E5M2}),
        ([], {"config": BLOCKS, "stored": lambda s: s.bfloat16()}),
        ([], {"config": BLOCKS, "stored": lambda s: s.half()}),
        ([], {"config": BLOCKS, "stored": powers, "end": ".scale"}),
        ([], {"config": {**BLOCKS, "scale_fmt": "ue8m0"}, "stored": lambda s: powers(s).view(torch.uint8)}),
        ([], {"rows": WHOLE, "columns": WHOLE, "end": "_scale", "stored": lambda s: s.reshape(())}),
        ([], {"rows": WHOLE, "columns": WHOLE, "config": STATIC, "stored": lambda s: s.reshape(1)}),
        ([], {"rows": WHOLE, "columns": WHOLE, "end": ".qscale_weight", "config": STATIC, "stored": lambda s: s.reshape(())}),
        ([], {"rows": 1, "columns": WHOLE, "end": "_scale", "config": FBGEMM}),
        ([], {"rows": 1, "columns": WHOLE, "end": "_scale", "stored": lambda s: s.reshape(-1)}),
    ],
    ids=lambda v: "-".join(f"{x}{y}" if x in ("rows", "columns", "end") else x for x, y in v.items()) if isinstance(v, dict) else "",
)  # fmt: skip
def test_every_kind_of_scale(wanted: list[str], writing: dict[str, Any], registry: PluginRegistry, tmp_path: Path) -> None:
    folder, worth = fp8(tmp_path / "m", **writing)
    found = prepare(folder, registry)
    assert found.decoders == ("fp8",)
    same(found, worth)
    assert codes(found) == wanted
    assert "source-quantized" in codes(found, "info")
    assert found.model.checkpoint.quantized[0] == ("f8_e5m2" if writing.get("kind") is E5M2 else "f8_e4m3")


@pytest.mark.parametrize(
    ("experts", "writing"),
    [
        ("each", {"config": BLOCKS}),
        ("each", {"rows": 1, "columns": WHOLE, "end": "_scale"}),
        ("fused", {"config": BLOCKS}),
        ("fused", {}),
        ("fused", {"rows": WHOLE, "columns": WHOLE, "stored": lambda s: s.reshape(-1) if s.ndim == 3 else s.reshape(1)}),
        ("fused", {"rows": 1, "columns": WHOLE, "stored": lambda s: s.squeeze(-1), "end": "_scale", "config": FBGEMM}),
        ("turned", {"rows": WHOLE, "columns": 1, "end": "_scale", "config": FBGEMM, "only": "experts"}),
    ],
)  # fmt: skip
def test_experts(experts: str, writing: dict[str, Any], registry: PluginRegistry, tmp_path: Path) -> None:
    only = writing.pop("only", "") if "only" in writing else ""

    def change(tensors: dict[str, Any]) -> None:
        for name in [n for n in tensors if "_proj.weight" in n and only and only not in n]:
            if name.endswith("_scale"):
                del tensors[name]
            else:
                tensors[name] = tensors[name].float().bfloat16()

    folder, worth = fp8(
        tmp_path / "m", family="qwen3moe", experts=experts, hidden=256, head=64, moe=128, change=change, **writing
    )
    found = prepare(folder, registry)
    refs = {r.name: r.tensor for r in found.model.refs}
    assert any("experts" in n for n in refs)
    for name, tensor in refs.items():
        if not only or only in name:
            assert np.array_equal(np.asarray(read(tensor), np.float32), worth[name]), name
    plan_conversion(folder, Recipe(exporter="gguf", scheme="bf16"), registry)


def test_modelopts_own_file(registry: PluginRegistry, tmp_path: Path) -> None:
    side = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}

    def change(tensors: dict[str, Any]) -> None:
        for name in [n for n in tensors if n.endswith("_proj.weight")]:
            tensors[name.replace(".weight", ".input_scale")] = torch.tensor(0.5)
        for at in (0, 1):
            for part in "kv":
                tensors[f"model.layers.{at}.self_attn.{part}_proj.{part}_scale"] = torch.tensor(0.25)

    whole = {"rows": WHOLE, "columns": WHOLE, "end": "_scale", "stored": lambda s: s.reshape(())}
    folder, worth = fp8(tmp_path / "m", side=side, change=change, **whole)
    found = prepare(folder, registry)
    same(found, worth)
    waived = found.model.ledger.waived
    assert len(waived) == 2 * (7 + 2)
    assert "activations" in waived["model.layers.0.mlp.up_proj.input_scale"]
    assert "cache" in waived["model.layers.1.self_attn.v_proj.v_scale"]
    assert codes(found) == []
    assert "scales-left-out" in codes(found, "info")
    side["quantization"]["quant_algo"] = "NVFP4"
    folder, _ = fp8(tmp_path / "n", side=side, **whole)
    refused(folder, registry, "undecodable-source", "nvfp4", "hf_quant_config.json")
    blocks = {"stored": lambda s: s[:, None, :, None] if s.ndim == 2 else s, "end": "_scale"}
    config = {"quant_method": "modelopt", "quant_algo": "FP8_PB_WO", "weight_block_size": [128, 128]}
    folder, worth = fp8(tmp_path / "b", config=config, **blocks)
    same(prepare(folder, registry), worth)


def test_no_scales_anywhere(registry: PluginRegistry, tmp_path: Path) -> None:
    folder, worth = fp8(tmp_path / "m", scaled=False)
    found = prepare(folder, registry)
    same(found, worth)
    assert codes(found) == ["fp8-unscaled"]


def test_no_fp8_in_spite_of_the_config(registry: PluginRegistry, tmp_path: Path) -> None:
    def change(tensors: dict[str, Any]) -> None:
        for name, tensor in list(tensors.items()):
            tensors[name] = tensor.float().bfloat16()

    folder, _ = fp8(tmp_path / "m", scaled=False, config=BLOCKS, change=change)
    assert codes(prepare(folder, registry)) == ["quantization-unused"]


Q = "model.layers.0.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    ("code", "words", "change", "writing"),
    [
        ("missing-scale", (Q,), lambda t: t.pop(f"{Q}_scale_inv"), {"config": BLOCKS}),
        ("missing-scale", (Q,), lambda t: t.pop(f"{Q}_scale_inv"), {}),
        ("missing-scale", ("_proj", "13 more"), lambda t: None, {"config": BLOCKS, "scaled": False}),
        ("scale-mismatch", (Q, "[1, 2]", "[2, 2]"), lambda t: t.update({f"{Q}_scale_inv": torch.ones(1, 2)}), {"config": BLOCKS}),
        ("scale-mismatch", (Q, "[1, 2]", "[2, 2]"), lambda t: t.update({f"{Q}_scale_inv": torch.ones(1, 2)}), {}),
        ("scale-mismatch", (Q, "[]"), lambda t: t.update({f"{Q}_scale_inv": torch.ones(())}), {"config": BLOCKS}),
        ("scale-mismatch", (Q, "[7]"), lambda t: t.update({f"{Q}_scale_inv": torch.ones(7)}), {}),
        ("scale-mismatch", (Q, "[0]"), lambda t: t.update({f"{Q}_scale_inv": torch.ones(0)}), {}),
        ("scale-mismatch", ("weight_block_size", "64 x 64"), lambda t: None, {"config": {**BLOCKS, "weight_block_size": [64, 64]}}),
        ("scale-mismatch", (Q, "[3, 2]"), lambda t: t.update({f"{Q}_scale_inv": torch.ones(3, 2)}), {}),
        ("scale-mismatch", ("weight_block_size", "96"), lambda t: None, {"rows": 96, "columns": 96}),
        ("config-key-invalid", ("weight_block_size",), lambda t: None, {"config": {**BLOCKS, "weight_block_size": [128]}}),
        ("config-key-invalid", ("weight_block_size",), lambda t: None, {"config": {**BLOCKS, "weight_block_size": [0, 128]}}),
        ("orphan-scale", (Q, "bf16"), lambda t: t.update({Q: t[Q].float().bfloat16()}), {"config": BLOCKS}),
        ("orphan-scale", (Q, "bf16"), lambda t: t.update({Q: t[Q].float().bfloat16()}), {}),
        ("orphan-scale", (Q, "not there"), lambda t: t.pop(Q), {"config": BLOCKS}),
        ("duplicate-scale", (Q,), lambda t: t.update({f"{Q}_scale": torch.ones(2, 2)}), {"config": BLOCKS}),
        ("tensor-dtype", (Q, "i32"), lambda t: t.update({f"{Q}_scale_inv": torch.ones(2, 2, dtype=torch.int32)}), {"config": BLOCKS}),
        ("tensor-dtype", (Q, "u8"), lambda t: t.update({f"{Q}_scale_inv": torch.ones(2, 2, dtype=torch.uint8)}), {"config": BLOCKS}),
        ("stray-tensor", ("odd.input_scale",), lambda t: t.update({"model.odd.input_scale": torch.ones(1)}), {"config": BLOCKS}),
        ("undecodable-source", ("fp4",), lambda t: None, {"config": {**BLOCKS, "expert_dtype": "fp4"}}),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(
    code: str, words: tuple[str, ...], change: Any, writing: dict[str, Any], registry: PluginRegistry, tmp_path: Path
) -> None:
    folder, _ = fp8(tmp_path / "m", change=change, **writing)
    refused(folder, registry, code, *words)


def test_a_module_that_was_not_to_be_converted(registry: PluginRegistry, tmp_path: Path) -> None:
    config = {**BLOCKS, "modules_to_not_convert": ["model.layers.0.self_attn.q_proj"]}
    folder, worth = fp8(tmp_path / "m", config=config, change=lambda t: t.pop(f"{Q}_scale_inv"))
    found = prepare(folder, registry)
    assert codes(found) == ["fp8-unscaled"]
    ours = {r.name: r for r in found.model.refs}
    assert float(np.abs(read(ours[Q].tensor)).max()) == 448
    folder, worth = fp8(tmp_path / "n", config=config)
    found = prepare(folder, registry)
    assert codes(found) == ["fp8-module-listed"]
    same(found, worth)


def test_nan_codes_stop_the_work(registry: PluginRegistry, tmp_path: Path) -> None:
    def change(tensors: dict[str, Any]) -> None:
        tensors[Q].view(torch.uint8)[3, 5] = 0x7F

    folder, _ = fp8(tmp_path / "m", config=BLOCKS, change=change)
    for scheme in ("f32", "q8_0"):
        with pytest.raises(LlmfitError) as caught:
            convert(folder, Recipe(exporter="gguf", scheme=scheme), tmp_path / "m.gguf", registry, verify=False)
        assert caught.value.code == "not-finite"
        assert "attn_q" in caught.value.cause
    assert not (tmp_path / "m.gguf").exists()


def test_any_rows_are_those_of_the_whole(registry: PluginRegistry, tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    for index, writing in enumerate(({"config": BLOCKS}, {"rows": 1, "columns": 32}, {"rows": 1, "columns": WHOLE})):
        folder, worth = fp8(
            tmp_path / f"m{index}", family="qwen3moe", experts="fused", hidden=256, head=64, moe=96, **writing
        )
        for ref in prepare(folder, registry).model.refs:
            if "_proj" in ref.name:
                flat = worth[ref.name].reshape(-1, ref.shape[-1])
                for _ in range(8):
                    start, stop = sorted(draw.integers(0, row_count(ref.shape) + 1, 2))
                    assert np.array_equal(ref.tensor.rows(int(start), int(stop)), flat[start:stop]), ref.name


def test_nothing_heavy_is_imported() -> None:
    import subprocess

    code = "import sys, llmfit_fp8; sys.exit(bool({'numpy', 'ml_dtypes', 'torch', 'gguf'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_section_that_is_no_object(registry: PluginRegistry, tmp_path: Path) -> None:
    folder, _ = fp8(tmp_path / "m", config=BLOCKS)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    write_json(folder / "config.json", {**config, "quantization_config": "fp8"})
    refused(folder, registry, "config-key-invalid", "quantization_config")


def test_a_quantized_cache_alone_says_nothing_of_weights(registry: PluginRegistry, tmp_path: Path) -> None:
    side = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": None, "kv_cache_quant_algo": "FP8"}}

    def change(tensors: dict[str, Any]) -> None:
        for name, tensor in list(tensors.items()):
            tensors[name] = tensor.float().bfloat16()
        tensors["model.layers.0.self_attn.k_proj.k_scale"] = torch.tensor(0.25)

    folder, _ = fp8(tmp_path / "m", scaled=False, side=side, change=change)
    found = prepare(folder, registry)
    assert codes(found) == []
    assert list(found.model.ledger.waived) == ["model.layers.0.self_attn.k_proj.k_scale"]


def test_headers_are_enough(tmp_path: Path) -> None:
    """Of a model on a hub nothing but headers is here while it is planned."""
    from dataclasses import replace

    from llmfit_core.checkpoint import open_checkpoint
    from llmfit_core.readers.remote import Remote
    from llmfit_fp8.decode import decode

    config = {**BLOCKS, "scale_fmt": "ue8m0"}
    folder, worth = fp8(tmp_path / "m", config=config, stored=lambda s: powers(s).view(torch.uint8))
    here = open_checkpoint(folder)
    there = {
        n: replace(r, tensor=Remote("org/name", "0" * 40, "model.safetensors", 0, r.shape, r.dtype)) for n, r in here.tensors.items()
    }
    decoded = decode(replace(here, tensors=there), [])
    assert {n: r.shape for n, r in decoded.tensors.items()} == {n: w.shape for n, w in worth.items()}
