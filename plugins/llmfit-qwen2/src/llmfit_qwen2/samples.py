"""Tiny models of each family, for `llmfit plugins check qwen2`. llmfit never loads this by itself.

The hybrids' are those of the tests; of the others the tests try more.
"""

from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}  # fmt: skip
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
SHARED: dict[str, Any] = {**EXPERTS, "shared_expert_intermediate_size": 80}
FULL, LINEAR = "full_attention", "linear_attention"
HYBRID: dict[str, Any] = {
    **{k: v for k, v in SMALL.items() if k != "intermediate_size"},
    "head_dim": 32, "layer_types": [LINEAR, FULL], "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4,
}  # fmt: skip
HYBRID_EXPERTS: dict[str, Any] = {**EXPERTS, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48}
HYBRID_KINDS: dict[str, Any] = {
    "one-value-head-a-key-head": {"linear_num_value_heads": 2},
    "no-period": {"layer_types": [FULL, LINEAR, FULL], "num_hidden_layers": 3},
    "interval": {"layer_types": ..., "full_attention_interval": 2},
    "tied": {"tie_word_embeddings": True, "num_key_value_heads": 4},
}
NOT_HYBRID: dict[str, Any] = {
    "attention-only": ({"layer_types": [FULL] * 2}, "graph-cannot"),
    "two-sizes-of-heads": ({"linear_value_head_dim": 32}, "shape-mismatch"),
    "uneven-groups": ({"linear_num_value_heads": 3}, "config-value"),
    "no-kind": ({"layer_types": [LINEAR, "sliding_attention"]}, "config-value"),
    "epsilon": ({"rms_norm_eps": 1e-5}, "graph-cannot"),
    "gelu": ({"hidden_act": "gelu"}, "graph-cannot"),
    "no-gate": ({"attn_output_gate": False}, "config-value"),
}
OF_EYES = frozenset({"sections", "deep_layers_left"})
"""Hparams of the models that see, whose graphs these tables name too."""
DENSE_LAYER = ({"mlp_only_layers": [0]}, "graph-cannot")


def _of(cls: str, kind: str, sizes: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"config": {"architectures": [cls], "model_type": kind, **sizes}, "optional_keys": OF_EYES, **more}


def _hybrid(
    cls: str,
    kind: str,
    sizes: dict[str, Any],
    *,
    slow: str,
    variations: dict[str, Any] | None = None,
    refused: dict[str, Any] | None = None,
) -> dict[str, Any]:
    return {
        "config": {"architectures": [cls], "model_type": kind, **sizes},
        "variations": HYBRID_KINDS | (variations or {}),
        "refused": NOT_HYBRID | (refused or {}),
        "slow": frozenset(slow.split()),
    }


SAMPLES: dict[str, dict[str, Any]] = {
    "architectures": {
        "qwen2": _of("Qwen2ForCausalLM", "qwen2", SMALL),
        "qwen2moe": _of("Qwen2MoeForCausalLM", "qwen2_moe", {**SMALL, **SHARED}, refused={"dense-layer": DENSE_LAYER}),
        "qwen3": _of("Qwen3ForCausalLM", "qwen3", {**SMALL, "head_dim": 32}),
        "qwen3moe": _of(
            "Qwen3MoeForCausalLM", "qwen3_moe", {**SMALL, **EXPERTS, "head_dim": 32, "norm_topk_prob": True},
            refused={"dense-layer": DENSE_LAYER},
        ),
        "qwen3next": _hybrid(
            "Qwen3NextForCausalLM", "qwen3_next",
            {"intermediate_size": 96, "norm_topk_prob": True, **HYBRID, **HYBRID_EXPERTS},
            slow="tied one-value-head-a-key-head",
            refused={
                "not-normalised": ({"norm_topk_prob": False}, "graph-cannot"),
                "dense-layers": ({"mlp_only_layers": [0]}, "stray-tensor"),
            },
        ),
        "qwen35": _hybrid(
            "Qwen3_5ForCausalLM", "qwen3_5_text", {"intermediate_size": 96, **HYBRID}, slow="tied no-period",
            variations={"three-value-heads-a-key-head": {"linear_num_value_heads": 6}},
        ),
        "qwen35moe": _hybrid(
            "Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", {**HYBRID, **HYBRID_EXPERTS},
            slow="tied no-period one-value-head-a-key-head",
        ),
    }
}  # fmt: skip
