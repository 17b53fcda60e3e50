"""Qwen3-Next and Qwen3.5: the kit, and what it does not ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from llmfit_core.errors import LlmfitError
from llmfit_core.testing import ArchitectureTests
from llmfit_qwen2.hybrid import QWEN3_NEXT, QWEN35, QWEN35_MOE
from tests.e2e.scoring import by_llamacpp, by_transformers, divergence, ids_of
from tests.expert_forms import load, one_by_one
from tests.multimodal_models import Kind, make

if TYPE_CHECKING:
    from pathlib import Path

SMALL: dict[str, object] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}
EXPERTS: dict[str, object] = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48,
}  # fmt: skip
FULL, LINEAR = "full_attention", "linear_attention"
KINDS: dict[str, Any] = {
    "one-value-head-a-key-head": {"linear_num_value_heads": 2},
    "no-period": {"layer_types": [FULL, LINEAR, FULL], "num_hidden_layers": 3},
    "interval": {"layer_types": ..., "full_attention_interval": 2},
    "tied": {"tie_word_embeddings": True, "num_key_value_heads": 4},
}
REFUSED: dict[str, Any] = {
    "attention-only": ({"layer_types": [FULL] * 2}, "graph-cannot"),
    "two-sizes-of-heads": ({"linear_value_head_dim": 32}, "shape-mismatch"),
    "uneven-groups": ({"linear_num_value_heads": 3}, "config-value"),
    "no-kind": ({"layer_types": [LINEAR, "sliding_attention"]}, "config-value"),
    "epsilon": ({"rms_norm_eps": 1e-5}, "graph-cannot"),
    "gelu": ({"hidden_act": "gelu"}, "graph-cannot"),
    "no-gate": ({"attn_output_gate": False}, "config-value"),
}
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
    config: ClassVar = {
        "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "intermediate_size": 96,
        "norm_topk_prob": True, **SMALL, **EXPERTS,
    }  # fmt: skip
    variations: ClassVar = KINDS
    refused: ClassVar = {
        **REFUSED,
        "not-normalised": ({"norm_topk_prob": False}, "graph-cannot"),
        "dense-layers": ({"mlp_only_layers": [0]}, "stray-tensor"),
    }
    slow = frozenset({"tied", "one-value-head-a-key-head"})
    overrides: ClassVar = NORMS

    def test_it_comes_back(self, case: str, tmp_path: Path) -> None:
        comes_back(self.bench().built(case).folder, tmp_path)


class TestQwen35(ArchitectureTests):
    architecture = QWEN35
    config: ClassVar = {"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "intermediate_size": 96, **SMALL}
    variations: ClassVar = {**KINDS, "three-value-heads-a-key-head": {"linear_num_value_heads": 6}}
    refused: ClassVar = REFUSED
    slow = frozenset({"tied", "no-period"})
    overrides: ClassVar = NORMS

    def test_it_comes_back(self, case: str, tmp_path: Path) -> None:
        comes_back(self.bench().built(case).folder, tmp_path)


class TestQwen35Moe(ArchitectureTests):
    architecture = QWEN35_MOE
    config: ClassVar = {"architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text", **SMALL, **EXPERTS}
    variations: ClassVar = KINDS
    refused: ClassVar = REFUSED
    slow = frozenset({"tied", "no-period", "one-value-head-a-key-head"})
    overrides: ClassVar = NORMS

    def test_it_comes_back(self, case: str, tmp_path: Path) -> None:
        comes_back(self.bench().built(case).folder, tmp_path)


EYE = {
    "depth": 1, "num_heads": 2, "in_channels": 3, "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2,
    "hidden_size": 32, "intermediate_size": 32, "out_hidden_size": 128, "num_position_embeddings": 16,
}  # fmt: skip
NETS = {
    "layer_types": [LINEAR, FULL], "head_dim": 64, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
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
        config["text_config"]["layer_types"] = [LINEAR, LINEAR]
        return config

    with pytest.raises(LlmfitError) as caught:
        to_gguf(respelled(make(golden_models, "qwen3.5", SEEING), tmp_path / "nets", str, nets_alone))
    assert caught.value.code == "config-value"
    assert FULL in caught.value.cause
