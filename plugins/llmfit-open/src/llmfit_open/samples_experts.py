"""Tiny models of the families with experts. llmfit never loads this by itself."""

from __future__ import annotations

from typing import Any

SIZES: dict[str, Any] = {"hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 256}
GRANITE: dict[str, Any] = {
    **SIZES, "intermediate_size": 32, "num_hidden_layers": 2, "num_key_value_heads": 2, "num_local_experts": 4,
    "num_experts_per_tok": 2, "embedding_multiplier": 12, "logits_scaling": 6, "residual_multiplier": 0.22,
    "attention_multiplier": 0.2,
}  # fmt: skip
GELU = ({"hidden_act": "gelu"}, "graph-cannot")
TOO_MANY_USED = ({"num_experts_per_tok": 5}, "config-key-invalid")


def _of(cls: str, kind: str, config: dict[str, Any], *, slow: str, **more: Any) -> dict[str, Any]:
    return {"config": {"architectures": [cls], "model_type": kind, **config}, "slow": frozenset(slow.split()), **more}


EXPERTS: dict[str, dict[str, Any]] = {
    "ernie4_5-moe": _of(
        "Ernie4_5_MoeForCausalLM", "ernie4_5_moe", slow="own-head-mha-no-shared last-of-every-three",
        config={
            **SIZES, "intermediate_size": 96, "num_hidden_layers": 3, "num_key_value_heads": 2, "moe_num_experts": 4, "moe_k": 3,
            "moe_intermediate_size": 32, "moe_layer_start_index": 1,
        },
        variations={
            "own-head-mha-no-shared": {"tie_word_embeddings": False, "num_key_value_heads": 4, "moe_num_shared_experts": 0},
            "last-of-every-three": {"moe_layer_interval": 3, "moe_num_shared_experts": 1, "moe_layer_start_index": 0},
            "all-mixed": {"moe_layer_start_index": 0, "moe_layer_end_index": -1},
        },
        refused={
            "biases": ({"use_bias": True}, "missing-tensor"),
            "norm-min": ({"moe_norm_min": 0.5}, "config-value"),
            "odd-end": ({"moe_layer_end_index": "last"}, "config-value"),
        },
    ),
    "granitemoe": _of(
        "GraniteMoeForCausalLM", "granitemoe", GRANITE, slow="tied-biases",
        variations={"tied-biases": {"tie_word_embeddings": True, "attention_bias": True, "num_key_value_heads": 4}},
        refused={"gelu": GELU, "too-many-used": TOO_MANY_USED},
    ),
    "granitemoeshared": _of(
        "GraniteMoeSharedForCausalLM", "granitemoeshared", {**GRANITE, "shared_intermediate_size": 48}, slow="not-shared",
        variations={"not-shared": {"shared_intermediate_size": 0, "num_experts_per_tok": 4}},
        refused={"gelu": GELU, "too-many-used": TOO_MANY_USED},
    ),
    "dots1": _of(
        "Dots1ForCausalLM", "dots1", slow="not-normalised window",
        config={
            **SIZES, "intermediate_size": 48, "num_hidden_layers": 3, "num_key_value_heads": 4, "num_experts_per_tok": 2,
            "head_dim": 16, "moe_intermediate_size": 32, "n_routed_experts": 4, "n_shared_experts": 2,
            "first_k_dense_replace": 1, "routed_scaling_factor": 2.5, "norm_topk_prob": True,
        },
        variations={
            "not-normalised": {"norm_topk_prob": False, "routed_scaling_factor": 1.0, "first_k_dense_replace": 0},
            "window": {"sliding_window": 16, "max_window_layers": 1},
        },
        bounded={"window": 16},
        refused={
            "grouped": ({"num_key_value_heads": 2}, "graph-cannot"),
            "gelu": GELU,
            "groups": ({"n_group": 2}, "config-value"),
        },
    ),
    "minimax-m2": _of(
        "MiniMaxM2ForCausalLM", "minimax_m2", slow="whole-heads-tied",
        config={
            **SIZES, "intermediate_size": 48, "num_hidden_layers": 2, "num_key_value_heads": 2, "num_experts_per_tok": 2,
            "head_dim": 32, "rotary_dim": 16, "num_local_experts": 4,
        },
        variations={"whole-heads-tied": {"rotary_dim": ..., "tie_word_embeddings": True, "num_experts_per_tok": 4}},
        refused={"gelu": GELU, "odd-dims": ({"rope_parameters": ..., "rotary_dim": 15}, "config-value")},
    ),
}  # fmt: skip
"""By name of the architecture."""
