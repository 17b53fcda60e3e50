"""Experts one by one, as one tensor, as its transpose: the same result, and gaps are named (case 16)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.cases.source import codes, converted, planned, refused
from tests.tiny import DROP, save, tiny, weights

if TYPE_CHECKING:
    from pathlib import Path

MOE = ("mixtral", "qwen2moe", "qwen3moe")


@pytest.mark.parametrize("family", MOE)
@pytest.mark.parametrize("to", ["gguf:f32", "gguf:q8_0"])
def test_all_forms_give_the_same_file(tmp_path: Path, family: str, to: str) -> None:
    forms = ["each", "fused", "turned", *(["old"] if family == "mixtral" else [])]
    files = {f: converted(tiny(family, tmp_path / f, experts=f, moe=96, shared=128), "--strict", to=to).path.read_bytes() for f in forms}
    assert len(set(files.values())) == 1


@pytest.mark.parametrize("family", MOE)
def test_the_values_are_where_they_belong(tmp_path: Path, family: str) -> None:
    folder = tiny(family, tmp_path / "m")
    found = converted(folder)
    stored = load_file(folder / "model.safetensors")
    for e in (0, 3):
        for part in ("gate", "up", "down"):
            want = stored[f"model.layers.1.mlp.experts.{e}.{part}_proj.weight"].astype(np.float32)
            assert np.array_equal(found.tensors[f"blk.1.ffn_{part}_exps.weight"][e], want)


@pytest.mark.parametrize("family", MOE)
def test_half_fused_forms_are_mixed_freely(tmp_path: Path, family: str) -> None:
    """One layer fused, one not; gate and up fused, down not."""
    plain = converted(tiny(family, tmp_path / "a"))
    each = load_file(tiny(family, tmp_path / "each") / "model.safetensors")
    fused = load_file(tiny(family, tmp_path / "fused", experts="turned") / "model.safetensors")
    layer0 = {n: t for n, t in fused.items() if "layers.1." not in n} | {n: t for n, t in each.items() if "layers.1." in n}
    folder = tiny(family, tmp_path / "b")
    save(folder, layer0)
    assert converted(folder, name="b.gguf").path.read_bytes() == plain.path.read_bytes()
    down = {n: t for n, t in fused.items() if "experts.down" not in n} | {n: t for n, t in each.items() if "down_proj" in n}
    folder = tiny(family, tmp_path / "c")
    save(folder, down)
    assert converted(folder, name="c.gguf").path.read_bytes() == plain.path.read_bytes()


@pytest.mark.parametrize("family", MOE)
def test_square_experts_follow_their_fellow(tmp_path: Path, family: str) -> None:
    """2I = H makes gate_up square and I = H makes down square: the other tensor tells."""
    for width in (32, 64):
        size = {"ffn" if family == "mixtral" else "moe": width}
        files = {
            f: converted(tiny(family, tmp_path / f"{f}{width}", experts=f, **size), "--strict").path.read_bytes()
            for f in ("each", "fused", "turned")
        }
        assert len(set(files.values())) == 1


def test_a_square_tensor_that_nothing_tells_of_is_said(tmp_path: Path) -> None:
    each = load_file(tiny("qwen3moe", tmp_path / "each", moe=32) / "model.safetensors")
    fused = load_file(tiny("qwen3moe", tmp_path / "fused", moe=32, experts="fused") / "model.safetensors")
    gate_up = {n: t for n, t in fused.items() if "experts.down" not in n} | {n: t for n, t in each.items() if "down_proj" in n}
    folder = tiny("qwen3moe", tmp_path / "m", moe=32)
    save(folder, gate_up)
    plan = planned(folder)
    assert codes(plan) == ["orientation-assumed"]
    assert "gate_up_proj" in next(e["message"] for e in plan["events"] if e["code"] == "orientation-assumed")


@pytest.mark.parametrize("family", MOE)
@pytest.mark.parametrize("part", ["gate_proj", "up_proj", "down_proj"])
@pytest.mark.parametrize("expert", [0, 2, 3])
def test_a_missing_expert_is_named(tmp_path: Path, family: str, part: str, expert: int) -> None:
    name = f"model.layers.1.mlp.experts.{expert}.{part}.weight"
    refused(tiny(family, tmp_path / "m", tensors={name: DROP}), "missing-expert", name)


def test_a_missing_expert_under_the_old_names(tmp_path: Path) -> None:
    name = "model.layers.0.block_sparse_moe.experts.1.w3.weight"
    refused(tiny("mixtral", tmp_path / "m", experts="old", tensors={name: DROP}), "missing-expert", name)


@pytest.mark.parametrize("family", MOE)
@pytest.mark.parametrize("name", ["gate_up_proj", "down_proj"])
def test_a_missing_fused_tensor(tmp_path: Path, family: str, name: str) -> None:
    folder = tiny(family, tmp_path / "m", experts="fused", tensors={f"model.layers.1.mlp.experts.{name}": DROP})
    refused(folder, "missing-expert", "model.layers.1.mlp.experts")


def test_a_whole_missing_expert_and_a_gap(tmp_path: Path) -> None:
    folder = tiny("qwen3moe", tmp_path / "a")
    held = {n: t for n, t in load_file(folder / "model.safetensors").items() if ".experts.2." not in n}
    save(folder, held)
    refused(folder, "missing-expert", "experts.2.gate_proj")
    moved = {n.replace(".experts.3.", ".experts.7."): t for n, t in load_file(tiny("qwen3moe", tmp_path / "x") / "model.safetensors").items()}
    folder = tiny("qwen3moe", tmp_path / "b")
    save(folder, moved)
    refused(folder, "missing-expert", "experts.3.gate_proj")


@pytest.mark.parametrize("family", MOE)
@pytest.mark.parametrize("experts", ["each", "fused"])
@pytest.mark.parametrize("count", [2, 3, 5, 8])
def test_another_count_of_experts(tmp_path: Path, family: str, experts: str, count: int) -> None:
    key = "num_local_experts" if family == "mixtral" else "num_experts"
    folder = tiny(family, tmp_path / "m", experts=experts, config={key: count})
    refused(folder, "shape-mismatch", "model.layers.0.mlp.gate.weight", f"{key} = {count}")


def test_no_experts_at_all(tmp_path: Path) -> None:
    refused(tiny("qwen3moe", tmp_path / "m", config={"num_experts": 0}), "missing-tensor", "layers.0.mlp.gate_proj")


@pytest.mark.parametrize("changes", [{"mlp_only_layers": [0]}, {"decoder_sparse_step": 2}])
def test_a_model_that_is_only_partly_mixed_is_understood_and_refused_for_its_graph(tmp_path: Path, changes: dict[str, object]) -> None:
    from tests.cases.source import command

    dense = {f"model.layers.0.mlp.{x}_proj.weight": weights(x, (64, 96) if x == "down" else (96, 64)) for x in ("gate", "up", "down")}
    folder = tiny("qwen3moe", tmp_path / "m", config=changes, tensors=dense)
    held = {n: t for n, t in load_file(folder / "model.safetensors").items() if "layers.0.mlp.gate.w" not in n and "layers.0.mlp.experts" not in n}
    save(folder, held)
    assert command("inspect", folder).code == 0
    refused(folder, "graph-cannot", "qwen3moe", "mlp_only_layers", exit_code=4)


def test_an_expert_of_another_shape_or_type(tmp_path: Path) -> None:
    name = "model.layers.0.mlp.experts.2.up_proj.weight"
    refused(tiny("qwen3moe", tmp_path / "a", tensors={name: weights(name, (40, 64))}), "shape-mismatch", name, "[40, 64]")
    refused(tiny("qwen3moe", tmp_path / "b", tensors={name: weights(name, (48, 64), "float32")}), "shape-mismatch", name, "f32")


@pytest.mark.parametrize("shape", [(4, 96), (4, 96, 64, 1), (384, 64), (), (4, 64, 64), (4, 48, 64), (5, 96, 64)])
def test_a_fused_tensor_of_another_shape(tmp_path: Path, shape: tuple[int, ...]) -> None:
    name = "model.layers.0.mlp.experts.gate_up_proj"
    refused(tiny("qwen3moe", tmp_path / "m", experts="fused", tensors={name: weights(name, shape)}), "shape-mismatch", name)


def test_experts_across_shards(tmp_path: Path) -> None:
    plain = converted(tiny("qwen2moe", tmp_path / "a"))
    other = converted(tiny("qwen2moe", tmp_path / "b", shards=7), "--strict")
    assert other.path.read_bytes() == plain.path.read_bytes()
