"""8-bit floats of compressed-tensors: the package's own files, whole models judged by torch, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the judge of 8-bit floats")

from safetensors import safe_open
from safetensors.torch import save_file

from llmfit_compressed_tensors.decode import decode
from llmfit_core.checkpoint import Checkpoint
from llmfit_core.config import normalise
from llmfit_core.errors import LlmfitError
from llmfit_core.pipeline import plan_conversion
from llmfit_core.plan import Recipe
from llmfit_core.prepare import prepare
from llmfit_core.readers.shards import read_weights
from llmfit_core.tensors import read
from tests.fp8_models import E5M2, WHOLE, fp8

if TYPE_CHECKING:
    from llmfit_core.plugins import PluginRegistry

DATA = Path(__file__).parent / "data" / "floats"
Q = "model.layers.0.self_attn.q_proj.weight"


def section(form: str = "float-quantized", **weights: Any) -> dict[str, Any]:
    args = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": False, "group_size": None, **weights}
    group = {"targets": ["Linear"], "weights": args, "input_activations": {"num_bits": 8, "type": "float", "dynamic": True}}
    return {
        "quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed", "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }  # fmt: skip


BLOCK = {"strategy": "block", "block_structure": [128, 128]}


def test_there_are_files() -> None:
    assert len(list(DATA.glob("*.safetensors"))) == 5


@pytest.mark.parametrize("path", sorted(DATA.glob("*.safetensors")), ids=lambda p: p.stem)
def test_files_by_the_package_give_what_it_makes_of_them(path: Path, tmp_path: Path) -> None:
    """Ours is the product in float32; rounded to the type of its scales it is the package's, bit for bit."""
    with safe_open(path, "pt") as file:
        parts = {f"m.{name}": file.get_tensor(name) for name in file.keys()}
        said = json.loads(file.metadata()["config"])
    want = parts.pop("m.expected")
    stored = tmp_path / "model.safetensors"
    save_file(parts, stored)
    found = read_weights({stored.name: stored}, layers=None)
    source = Checkpoint(label="m", config=normalise({"quantization_config": said}), tensors=found.tensors)
    got = read(decode(source, []).tensors["m.weight"].tensor)
    assert got.dtype == np.float32
    assert torch.equal(torch.from_numpy(got).to(want.dtype), want)


@pytest.mark.parametrize(
    ("said", "writing"),
    [
        (section(strategy="tensor"), {"rows": WHOLE, "columns": WHOLE, "stored": lambda s: s.reshape(1)}),
        (section(strategy="tensor"), {"rows": WHOLE, "columns": WHOLE, "stored": lambda s: s.reshape(())}),
        (section(strategy="channel"), {"rows": 1, "columns": WHOLE, "stored": lambda s: s.bfloat16()}),
        (section(strategy="channel"), {"rows": 1, "columns": WHOLE, "stored": lambda s: s.reshape(-1)}),
        (section(strategy="group", group_size=32), {"rows": 1, "columns": 32}),
        (section(**BLOCK), {}),
        (section(strategy="block", block_structure="128x128"), {}),
        (section("naive-quantized", **BLOCK), {"stored": lambda s: s.half()}),
    ],
)
def test_whole_models(said: dict[str, Any], writing: dict[str, Any], registry: PluginRegistry, tmp_path: Path) -> None:
    folder, worth = fp8(tmp_path / "m", config=said, end="_scale", **writing)
    found = prepare(folder, registry)
    assert found.decoders == ("compressed-tensors",)
    for ref in found.model.refs:
        assert np.array_equal(np.asarray(read(ref.tensor), np.float32), worth[ref.name]), ref.name
    assert "quantization_config" not in found.model.checkpoint.config.raw
    plan_conversion(folder, Recipe(exporter="gguf", scheme="q8_0"), registry)


@pytest.mark.parametrize(
    ("code", "words", "said", "change", "writing"),
    [
        ("shape-mismatch", ("weight_scale", "[2, 3]"), section(strategy="block", block_structure=[64, 64]), None, {}),
        ("shape-mismatch", ("weight_scale",), section(strategy="tensor"), None, {}),
        ("shape-mismatch", ("weight_scale",), section(strategy="channel"), None, {}),
        ("shape-mismatch", ("weight_scale",), section(strategy="channel"), None, {"rows": WHOLE, "columns": WHOLE}),
        ("shape-mismatch", ("weight_scale",), section(strategy="group", group_size=64), None, {"rows": 1, "columns": 32}),
        ("config-key-invalid", ("block_structure",), section(strategy="block"), None, {}),
        ("unknown-bits", ("4 bits",), section(strategy="channel", num_bits=4), None, {"rows": 1, "columns": WHOLE}),
        ("unknown-bits", ("type int",), section(strategy="channel", type="int"), None, {"rows": 1, "columns": WHOLE}),
        ("tensor-dtype", ("f8_e5m2",), section(**BLOCK), None, {"kind": E5M2}),
        ("missing-tensor", (Q.removesuffix("weight"),), section(**BLOCK), lambda t: t.pop(Q), {}),
        ("tensor-dtype", (Q, "bf16"), section(**BLOCK), lambda t: t.update({Q: t[Q].float().bfloat16()}), {}),
        (
            "unknown-packing", ("zero points",), section(**BLOCK),
            lambda t: t.update({f"{Q}_zero_point": torch.ones(2, 2, dtype=torch.int8)}), {},
        ),
        ("unknown-packing", ("zero points",), section(symmetric=False, **BLOCK), None, {}),
        (
            "unknown-packing", ("weight_g_idx",), section(**BLOCK),
            lambda t: t.update({f"{Q}_g_idx": torch.zeros(192, dtype=torch.int32)}), {},
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(
    code: str, words: tuple[str, ...], said: Any, change: Any, writing: Any, registry: PluginRegistry, tmp_path: Path
) -> None:
    folder, _ = fp8(tmp_path / "m", config=said, end="_scale", change=change or (lambda t: None), **writing)
    with pytest.raises(LlmfitError) as caught:
        plan_conversion(folder, Recipe(exporter="gguf", scheme="f32"), registry)
    assert caught.value.code == code, caught.value
    for word in words:
        assert word in caught.value.cause


def test_zero_points_that_are_none(registry: PluginRegistry, tmp_path: Path) -> None:
    """Early writers stored them for symmetric weights."""

    def change(tensors: Any) -> None:
        for name in [n for n in tensors if n.endswith("_scale")]:
            tensors[name.replace("_scale", "_zero_point")] = torch.zeros(2, 2).to(torch.float8_e4m3fn)

    folder, worth = fp8(tmp_path / "m", config=section(**BLOCK), end="_scale", change=change)
    for ref in prepare(folder, registry).model.refs:
        assert np.array_equal(np.asarray(read(ref.tensor), np.float32), worth[ref.name]), ref.name
