"""Tiny models of each family, for `llmfit plugins check qwen2`; the tests try more. llmfit never loads this by itself."""

from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}  # fmt: skip
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
SHARED: dict[str, Any] = {**EXPERTS, "shared_expert_intermediate_size": 80}
HYBRID: dict[str, Any] = {
    **SMALL, "head_dim": 32, "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4,
}  # fmt: skip
OF_EYES = frozenset({"sections", "deep_layers_left"})
"""Hparams of the models that see, whose graphs these tables name too."""
DENSE_LAYER = ({"mlp_only_layers": [0]}, "graph-cannot")


def _of(cls: str, kind: str, sizes: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"config": {"architectures": [cls], "model_type": kind, **sizes}, "optional_keys": OF_EYES, **more}


SAMPLES: dict[str, dict[str, Any]] = {
    "architectures": {
        "qwen2": _of("Qwen2ForCausalLM", "qwen2", SMALL),
        "qwen2moe": _of("Qwen2MoeForCausalLM", "qwen2_moe", {**SMALL, **SHARED}, refused={"dense-layer": DENSE_LAYER}),
        "qwen3": _of("Qwen3ForCausalLM", "qwen3", {**SMALL, "head_dim": 32}),
        "qwen3moe": _of(
            "Qwen3MoeForCausalLM", "qwen3_moe", {**SMALL, **EXPERTS, "head_dim": 32, "norm_topk_prob": True},
            refused={"dense-layer": DENSE_LAYER},
        ),
        "qwen3next": _of("Qwen3NextForCausalLM", "qwen3_next", {**HYBRID, **SHARED, "norm_topk_prob": True}),
        "qwen35": _of("Qwen3_5ForCausalLM", "qwen3_5_text", HYBRID),
        "qwen35moe": _of(
            "Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", {**{k: v for k, v in HYBRID.items() if k != "intermediate_size"}, **SHARED},
        ),
    }
}  # fmt: skip
