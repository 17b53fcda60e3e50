"""MLX checkpoints: what MLX itself packed and unpacked, whole models, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from llmfit_core.errors import LlmfitError
from llmfit_core.pipeline import convert, plan_conversion
from llmfit_core.plan import Recipe
from llmfit_core.prepare import prepare
from llmfit_core.readers.shards import read_weights
from llmfit_core.tensors import read, row_count
from llmfit_mlx.decode import Packing, weight_of
from tests.mlx_models import SIZES, write
from tests.tiny import tiny

if TYPE_CHECKING:
    from llmfit_core.plugins import PluginRegistry

DATA = Path(__file__).parent / "data"
Q = "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize("path", sorted(DATA.glob("*.safetensors")), ids=lambda p: p.stem)
def test_files_by_mlx_are_what_it_makes_of_them(path: Path) -> None:
    from llmfit_core.checkpoint import Checkpoint
    from llmfit_core.config import normalise

    with safe_open(path, "np") as file:
        said, want = file.metadata(), file.get_tensor("expected")
    found = read_weights({path.name: path}, layers=None)
    source = Checkpoint(label="m", config=normalise({}), tensors={f"m.{n}": r for n, r in found.tensors.items()})
    tensor = weight_of(source, "m", Packing(bits=int(said["bits"]), group=int(said["group_size"]), where="here"))
    assert np.array_equal(read(tensor), want)
    flat = want.reshape(-1, want.shape[-1])
    for start in range(row_count(want.shape)):
        assert np.array_equal(tensor.rows(start, start + 1), flat[start : start + 1])
    assert tensor.rows(2, 2).shape == (0, want.shape[-1])


def same(folder: Path, worth: dict[str, np.ndarray], registry: PluginRegistry) -> list[str]:
    found = prepare(folder, registry)
    assert found.decoders == ("mlx",)
    refs = {r.name: r.tensor for r in found.model.refs}
    assert set(refs) == set(worth)
    for name, tensor in refs.items():
        assert np.array_equal(np.asarray(read(tensor), np.float32), worth[name]), name
    return [e.code for e in found.model.events if e.severity in ("warning", "fallback")]


@pytest.mark.parametrize(
    ("family", "how"),
    [
        ("llama", {}),
        ("llama", {"bits": 2}),
        ("llama", {"bits": 3, "group": 64}),
        ("llama", {"bits": 6, "group": 64}),
        ("llama", {"bits": 8, "group": 128}),
        ("llama", {"own": {Q: (8, 64), "lm_head": (6, 32)}, "said": {"model.layers.1.mlp.up_proj": True}}),
        ("qwen2", {}),
        ("qwen3moe", {"own": {"model.layers.0.mlp.gate": (8, 64), "model.layers.1.mlp.gate": (8, 64)}}),
        ("qwen2moe", {}),
    ],
)
def test_whole_models(family: str, how: dict[str, Any], registry: PluginRegistry, tmp_path: Path) -> None:
    folder, worth = write(tmp_path / "m", family, **how)
    assert same(folder, worth, registry) == []
    plan = plan_conversion(folder, Recipe(exporter="gguf", scheme="q4_k_m"), registry).plan
    assert "requantized" in {e.code for e in plan.events if e.severity == "warning"}


def test_a_folder_from_it_is_plain(registry: PluginRegistry, tmp_path: Path) -> None:
    folder, worth = write(tmp_path / "m", "qwen3moe")
    convert(folder, Recipe(exporter="hf", scheme="f32"), tmp_path / "hf", registry, verify=False)
    config = json.loads((tmp_path / "hf" / "config.json").read_text(encoding="utf-8"))
    assert {"quantization", "quantization_config"}.isdisjoint(config)
    made = load_file(tmp_path / "hf" / "model.safetensors")
    assert set(made) == set(worth)
    assert all(np.array_equal(made[n].astype(np.float32), worth[n]) for n in worth)


def test_experts_that_are_only_stacked(registry: PluginRegistry, tmp_path: Path) -> None:
    """mlx-lm's folders without quantization are plain but for that."""
    folder, worth = write(tmp_path / "m", "qwen3moe", packed=False)
    assert same(folder, worth, registry) == []


def test_mixtrals_experts_get_their_old_names(registry: PluginRegistry, tmp_path: Path) -> None:
    folder = tiny("mixtral", tmp_path / "m", experts="old", **{k: v for k, v in SIZES.items() if k not in ("moe", "shared")})
    found = prepare(folder, registry)
    want = {r.name: np.asarray(read(r.tensor), np.float32) for r in found.model.refs}
    from safetensors.torch import load_file as load_torch
    from safetensors.torch import save_file as save_torch

    torch = pytest.importorskip("torch")
    held = load_torch(folder / "model.safetensors")
    for layer in range(2):
        block = f"model.layers.{layer}.block_sparse_moe"
        for word, part in (("w1", "gate_proj"), ("w3", "up_proj"), ("w2", "down_proj")):
            each = [held.pop(f"{block}.experts.{e}.{word}.weight") for e in range(4)]
            held[f"{block}.switch_mlp.{part}.weight"] = torch.stack(each)
    save_torch(held, folder / "model.safetensors")
    assert same(folder, want, registry) == []


@pytest.mark.parametrize(
    ("code", "words", "how", "change"),
    [
        ("shape-mismatch", (Q, "8 bits"), {"said": {"bits": 8}}, None),
        ("shape-mismatch", (Q, "groups of 64"), {"said": {"group_size": 64}}, None),
        ("shape-mismatch", (Q,), {}, lambda t: t.update({f"{Q}.biases": np.zeros((128, 1), np.float16)})),
        ("shape-mismatch", (Q,), {}, lambda t: t.update({f"{Q}.scales": np.zeros((), np.float16)})),
        ("config-key-invalid", ("bits", "7"), {"said": {"bits": 7}}, None),
        ("config-key-invalid", ("group_size", "0"), {"said": {"group_size": 0}}, None),
        ("unknown-packing", ("mxfp4",), {"said": {"mode": "mxfp4"}}, None),
        ("missing-tensor", (f"{Q}.biases",), {}, lambda t: t.pop(f"{Q}.biases")),
        ("missing-tensor", (f"{Q}.weight", "u32"), {}, lambda t: (t.pop(f"{Q}.scales"), t.pop(f"{Q}.biases"))),
        ("orphan-tensor", (Q, "not there"), {}, lambda t: t.pop(f"{Q}.weight")),
        ("tensor-dtype", (f"{Q}.weight", "i32"), {}, lambda t: t.update({f"{Q}.weight": t[f"{Q}.weight"].view(np.int32)})),
        ("tensor-dtype", (f"{Q}.scales", "u8"), {}, lambda t: t.update({f"{Q}.scales": t[f"{Q}.scales"].astype(np.uint8)})),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(
    code: str, words: tuple[str, ...], how: dict[str, Any], change: Any, registry: PluginRegistry, tmp_path: Path
) -> None:
    def only(tensors: dict[str, np.ndarray]) -> None:
        for module in [n.removesuffix(".scales") for n in tensors if n.endswith(".scales")]:
            if module != Q and code in ("shape-mismatch",):
                shape = (*tensors[f"{module}.scales"].shape[:-1], tensors[f"{module}.scales"].shape[-1] * 32)
                tensors[f"{module}.weight"] = np.zeros(shape, np.float16)
                del tensors[f"{module}.scales"], tensors[f"{module}.biases"]
        if change is not None:
            change(tensors)

    folder, _ = write(tmp_path / "m", change=only, **how)
    with pytest.raises(LlmfitError) as caught:
        plan_conversion(folder, Recipe(exporter="gguf", scheme="f32"), registry)
    assert caught.value.code == code, caught.value
    for word in words:
        assert word in caught.value.cause


def test_without_the_configs_word_it_is_refused_by_name(registry: PluginRegistry, tmp_path: Path) -> None:
    folder, _ = write(tmp_path / "m")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    del config["quantization"], config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(LlmfitError) as caught:
        plan_conversion(folder, Recipe(exporter="gguf", scheme="f32"), registry)
    assert caught.value.code == "undecodable-source"
    assert "mlx" in caught.value.cause
