"""Qwen3-Next and Qwen3.5: the kit, and what it does not ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from llmfit_core.errors import LlmfitError
from llmfit_core.testing import ArchitectureTests
from llmfit_qwen2 import samples
from llmfit_qwen2.hybrid import QWEN3_NEXT, QWEN35, QWEN35_MOE
from tests.e2e.scoring import by_llamacpp, by_transformers, divergence, ids_of
from tests.expert_forms import load, one_by_one
from tests.multimodal_models import Kind, make

if TYPE_CHECKING:
    from pathlib import Path

SAMPLES = samples.SAMPLES["architectures"]
NORMS = {"test_it_comes_back": "norms are stored minus one: what they multiply by comes back, small differences from one do not"}


def comes_back(folder: Path, to: Path) -> None:
    """Through a GGUF file and back: every tensor as it was, norms as what they multiply by."""
    from llmfit_core.pipeline import convert
    from llmfit_core.plan import Recipe
    from llmfit_core.plugins import load_plugins

    plugins = load_plugins()
    convert(folder, Recipe(exporter="gguf", scheme="bf16"), to / "model.gguf", plugins, verify=False)
    convert(to / "model.gguf", Recipe(exporter="hf", scheme="bf16"), to / "back", plugins, verify=False)
    ours, theirs = (one_by_one(load(f)) for f in (to / "back", folder))
    assert sorted(ours) == sorted(theirs)
    for name, tensor in theirs.items():
        one = 1.0 if "norm" in name and "linear_attn" not in name else 0.0
        assert (ours[name].float() + one).equal(tensor.float() + one), name


class TestQwen3Next(ArchitectureTests):
    architecture = QWEN3_NEXT
    sample = SAMPLES["qwen3next"]
    overrides: ClassVar = NORMS

    def test_it_comes_back(self, case: str, tmp_path: Path) -> None:
        comes_back(self.bench().built(case).folder, tmp_path)


class TestQwen35(ArchitectureTests):
    architecture = QWEN35
    sample = SAMPLES["qwen35"]
    overrides: ClassVar = NORMS

    def test_it_comes_back(self, case: str, tmp_path: Path) -> None:
        comes_back(self.bench().built(case).folder, tmp_path)


class TestQwen35Moe(ArchitectureTests):
    architecture = QWEN35_MOE
    sample = SAMPLES["qwen35moe"]
    overrides: ClassVar = NORMS

    def test_it_comes_back(self, case: str, tmp_path: Path) -> None:
        comes_back(self.bench().built(case).folder, tmp_path)


EYE = {
    "depth": 1, "num_heads": 2, "in_channels": 3, "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2,
    "hidden_size": 32, "intermediate_size": 32, "out_hidden_size": 128, "num_position_embeddings": 16,
}  # fmt: skip
NETS = {
    "layer_types": [samples.LINEAR, samples.FULL], "head_dim": 64, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 32, "linear_value_head_dim": 32,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25, "mrope_section": [3, 3, 2]},
}  # fmt: skip
SEEING = Kind(
    cls="Qwen3_5ForConditionalGeneration", config="Qwen3_5Config", text={"model_type": "qwen3_5_text", **NETS},
    parts={"vision_config": EYE, "image_token_id": 3, "video_token_id": 4, "vision_start_token_id": 5, "vision_end_token_id": 6},
)  # fmt: skip


def test_the_text_part_of_a_model_that_sees_and_looks_ahead(
    golden_models: Any, to_gguf: Any, to_hf: Any, tmp_path: Path
) -> None:
    """As the hub has them: with a vision tower, and with layers that predict further tokens."""
    import torch
    from gguf import GGUFReader

    from tests.e2e.test_multimodal import by_whole
    from tests.multimodal_models import respelled

    model = make(golden_models, "qwen3.5", SEEING)
    ahead = {"mtp.fc.weight": torch.ones(128, 256), "mtp.norm.weight": torch.ones(128)}
    for name in ("input_layernorm", "post_attention_layernorm"):
        ahead[f"mtp.layers.0.{name}.weight"] = torch.ones(128)
    for name in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"):
        ahead[f"mtp.layers.0.self_attn.{name}.weight"] = torch.ones(8, 8)
    for name in ("gate", "up", "down"):
        ahead[f"mtp.layers.0.mlp.{name}_proj.weight"] = torch.ones(8, 8)
    for name in ("embedding", "hidden"):
        ahead[f"mtp.pre_fc_norm_{name}.weight"] = torch.ones(128)
    file, events = to_gguf(respelled(model, tmp_path / "hub", str, **ahead))
    assert [e for e in events if e.severity != "info"] == []
    assert "tensors-left-out" in {e.code for e in events}
    reader = GGUFReader(file)
    assert reader.get_field("qwen35.rope.dimension_sections").contents() == [3, 3, 2, 0]
    wanted = by_whole(model, SEEING.cls, ids_of(model))
    assert divergence(wanted, by_llamacpp(file, ids_of(model))).mean() < 1e-5
    assert divergence(wanted, by_transformers(to_hf(file), ids_of(model))).mean() < 1e-9


def test_nets_alone_are_no_model_of_the_class(golden_models: Any, to_gguf: Any, tmp_path: Path) -> None:
    from tests.multimodal_models import respelled

    def nets_alone(config: dict[str, Any]) -> dict[str, Any]:
        config["text_config"]["layer_types"] = [samples.LINEAR] * 2
        return config

    with pytest.raises(LlmfitError) as caught:
        to_gguf(respelled(make(golden_models, "qwen3.5", SEEING), tmp_path / "nets", str, nets_alone))
    assert caught.value.code == "config-value"
    assert samples.FULL in caught.value.cause
