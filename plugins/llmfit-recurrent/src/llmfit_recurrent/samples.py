"""Tiny models of each family, for the tests and for `llmfit plugins check recurrent`. llmfit never loads this by itself."""

from __future__ import annotations

from typing import Any

CANNOT = "graph-cannot"
ALONE: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 2, "state_size": 8}
HYBRID: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 512, "mamba_d_state": 8,
}  # fmt: skip
NETS: dict[str, Any] = {"mamba_n_heads": 8, "mamba_n_groups": 2, "mamba_d_head": 16, "mamba_chunk_size": 32}
GELU: dict[str, Any] = {"gelu": ({"hidden_act": "gelu"}, CANNOT)}
NOT_ALONE: dict[str, Any] = {
    **GELU,
    "no-bias-of-the-convolution": ({"use_conv_bias": False}, CANNOT),
    "biases": ({"use_bias": True}, CANNOT),
}
NOT_MAMBA: dict[str, Any] = {**NOT_ALONE, "three-times-as-wide": ({"expand": 3}, CANNOT)}
NOT_HYBRID: dict[str, Any] = {
    **GELU,
    "no-bias-of-the-convolution": ({"mamba_conv_bias": False}, CANNOT),
    "biases-of-projections": ({"mamba_proj_bias": True}, CANNOT),
}
WIDER: dict[str, Any] = {"three-times-as-wide": ({"mamba_expand": 3, "mamba_n_heads": 12}, CANNOT)}


def _of(cls: str, kind: str, sizes: dict[str, Any], *, variations: dict[str, Any], refused: dict[str, Any]) -> dict[str, Any]:
    return {
        "config": {"architectures": [cls], "model_type": kind, **sizes},
        "variations": variations,
        "refused": refused,
        "slow": frozenset(variations),
    }


SAMPLES: dict[str, dict[str, Any]] = {
    "architectures": {
        "mamba": _of(
            "MambaForCausalLM", "mamba", ALONE,
            variations={
                "a-head-and-sizes": {
                    "tie_word_embeddings": False, "time_step_rank": 6, "conv_kernel": 3, "layer_norm_epsilon": 1e-3,
                },
            },
            refused=NOT_MAMBA,
        ),
        "falcon_mamba": _of(
            "FalconMambaForCausalLM", "falcon_mamba", {"tie_word_embeddings": False, **ALONE},
            variations={
                "coarse-epsilon": {"mixer_rms_eps": 0.01, "tie_word_embeddings": True},
                "one-epsilon": {"mixer_rms_eps": 1e-5, "layer_norm_epsilon": 1e-5},
            },
            refused=NOT_MAMBA,
        ),
        "mamba2": _of(
            "Mamba2ForCausalLM", "mamba2", {"num_heads": 8, "head_dim": 16, "n_groups": 2, "chunk_size": 32, **ALONE},
            variations={
                "one-group-tied": {"n_groups": 1, "tie_word_embeddings": True, "conv_kernel": 3},
                "three-times-as-wide": {"expand": 3, "num_heads": 12, "n_groups": 4},
            },
            refused={**NOT_ALONE, "bounded-steps": ({"time_step_limit": [0.0, 0.1]}, CANNOT)},
        ),
        "granitemoehybrid": _of(
            "GraniteMoeHybridForCausalLM", "granitemoehybrid",
            {
                **HYBRID, **NETS, "layer_types": ["mamba", "attention"], "num_local_experts": 4, "num_experts_per_tok": 2,
                "shared_intermediate_size": 40, "embedding_multiplier": 12, "logits_scaling": 6, "residual_multiplier": 0.22,
                "attention_multiplier": 0.2,
            },
            variations={
                "dense": {"num_local_experts": 0, "num_experts_per_tok": 0, "tie_word_embeddings": True},
                "roped-biases": {
                    "position_embedding_type": "rope", "attention_bias": True, "layer_types": ["attention", "mamba"],
                },
                "attention-only": {"layer_types": ["attention"] * 2, "position_embedding_type": "rope"},
                "attention-only-dense": {"layer_types": ["attention"] * 2, "num_local_experts": 0},
            },
            refused={**NOT_HYBRID, **WIDER, "no-kind": ({"layer_types": ["mamba", "sliding"]}, "config-value")},
        ),
        "bamba": _of(
            "BambaForCausalLM", "bamba", {**HYBRID, **NETS, "attn_layer_indices": [1]},
            variations={
                "biases-tied": {
                    "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "attn_layer_indices": [0],
                },
            },
            refused={**NOT_HYBRID, **WIDER},
        ),
        "falcon_h1": _of(
            "FalconH1ForCausalLM", "falcon_h1",
            {
                **HYBRID, **NETS, "mamba_d_ssm": 128, "head_dim": 16, "embedding_multiplier": 5.5, "lm_head_multiplier": 0.05,
                "key_multiplier": 0.4, "attention_in_multiplier": 0.9, "attention_out_multiplier": 0.8,
                "ssm_in_multiplier": 1.2, "ssm_out_multiplier": 0.3, "mlp_multipliers": [0.9, 0.6],
                "ssm_multipliers": [0.7, 0.5, 0.35, 1.1, 0.6],
            },
            variations={
                "normed": {"mamba_rms_norm": True, "mamba_norm_before_gate": False, "tie_word_embeddings": True},
                "narrow-plain": {
                    "mamba_d_ssm": 96, "mamba_d_head": 12, "ssm_multipliers": ..., "mlp_multipliers": ..., "mlp_bias": True,
                },
            },
            refused={
                **NOT_HYBRID,
                "normed-first": ({"mamba_rms_norm": True}, CANNOT),
                "biases-of-attention": ({"attention_bias": True}, CANNOT),
            },
        ),
        "jamba": _of(
            "JambaForCausalLM", "jamba",
            {**HYBRID, "num_experts": 4, "num_experts_per_tok": 2, "attn_layer_period": 2, "attn_layer_offset": 1},
            variations={
                "dense": {"num_experts": 1, "num_experts_per_tok": 1, "mamba_dt_rank": 6, "tie_word_embeddings": True},
                "four-layers": {
                    "num_hidden_layers": 4, "attn_layer_period": 4, "attn_layer_offset": 2, "expert_layer_offset": 0,
                },
            },
            refused={**NOT_HYBRID, "three-times-as-wide": ({"mamba_expand": 3}, CANNOT)},
        ),
    }
}  # fmt: skip
