"""Hybrids of state spaces and attention against llmfit's conformance kit."""

from __future__ import annotations

from typing import Any, ClassVar

from llmfit_core.testing import ArchitectureTests
from llmfit_recurrent import BAMBA, FALCON_H1, GRANITE_HYBRID, JAMBA

SIZES: dict[str, object] = {
    "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 512, "mamba_d_state": 8,
}  # fmt: skip
NETS: dict[str, object] = {"mamba_n_heads": 8, "mamba_n_groups": 2, "mamba_d_head": 16, "mamba_chunk_size": 32}
REFUSED: dict[str, Any] = {
    "gelu": ({"hidden_act": "gelu"}, "graph-cannot"),
    "no-bias-of-the-convolution": ({"mamba_conv_bias": False}, "graph-cannot"),
    "biases-of-projections": ({"mamba_proj_bias": True}, "graph-cannot"),
}
WIDER: dict[str, Any] = {"mamba_expand": 3, "mamba_n_heads": 12}


class TestGraniteHybrid(ArchitectureTests):
    architecture = GRANITE_HYBRID
    config: ClassVar = {
        "architectures": ["GraniteMoeHybridForCausalLM"], "model_type": "granitemoehybrid", **SIZES, **NETS,
        "layer_types": ["mamba", "attention"], "num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 40,
        "embedding_multiplier": 12, "logits_scaling": 6, "residual_multiplier": 0.22, "attention_multiplier": 0.2,
    }  # fmt: skip
    variations: ClassVar = {
        "dense": {"num_local_experts": 0, "num_experts_per_tok": 0, "tie_word_embeddings": True},
        "roped-biases": {"position_embedding_type": "rope", "attention_bias": True, "layer_types": ["attention", "mamba"]},
        "attention-only": {"layer_types": ["attention"] * 2, "position_embedding_type": "rope"},
        "attention-only-dense": {"layer_types": ["attention"] * 2, "num_local_experts": 0},
    }
    refused: ClassVar = {
        **REFUSED,
        "three-times-as-wide": (WIDER, "graph-cannot"),
        "no-kind": ({"layer_types": ["mamba", "sliding"]}, "config-value"),
    }
    slow = frozenset(variations)


class TestBamba(ArchitectureTests):
    architecture = BAMBA
    config: ClassVar = {
        "architectures": ["BambaForCausalLM"], "model_type": "bamba", **SIZES, **NETS, "attn_layer_indices": [1],
    }  # fmt: skip
    variations: ClassVar = {
        "biases-tied": {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "attn_layer_indices": [0]},
    }
    refused: ClassVar = {
        **REFUSED,
        "three-times-as-wide": (WIDER, "graph-cannot"),
    }
    slow = frozenset(variations)


class TestFalconH1(ArchitectureTests):
    architecture = FALCON_H1
    config: ClassVar = {
        "architectures": ["FalconH1ForCausalLM"], "model_type": "falcon_h1", **SIZES, **NETS, "mamba_d_ssm": 128, "head_dim": 16,
        "embedding_multiplier": 5.5, "lm_head_multiplier": 0.05, "key_multiplier": 0.4, "attention_in_multiplier": 0.9,
        "attention_out_multiplier": 0.8, "ssm_in_multiplier": 1.2, "ssm_out_multiplier": 0.3, "mlp_multipliers": [0.9, 0.6],
        "ssm_multipliers": [0.7, 0.5, 0.35, 1.1, 0.6],
    }  # fmt: skip
    variations: ClassVar = {
        "normed": {"mamba_rms_norm": True, "mamba_norm_before_gate": False, "tie_word_embeddings": True},
        "narrow-plain": {
            "mamba_d_ssm": 96, "mamba_d_head": 12, "ssm_multipliers": ..., "mlp_multipliers": ..., "mlp_bias": True,
        },
    }  # fmt: skip
    refused: ClassVar = {
        **REFUSED,
        "normed-first": ({"mamba_rms_norm": True}, "graph-cannot"),
        "biases-of-attention": ({"attention_bias": True}, "graph-cannot"),
    }
    slow = frozenset(variations)


class TestJamba(ArchitectureTests):
    architecture = JAMBA
    config: ClassVar = {
        "architectures": ["JambaForCausalLM"], "model_type": "jamba", **SIZES, "num_experts": 4, "num_experts_per_tok": 2,
        "attn_layer_period": 2, "attn_layer_offset": 1,
    }  # fmt: skip
    variations: ClassVar = {
        "dense": {"num_experts": 1, "num_experts_per_tok": 1, "mamba_dt_rank": 6, "tie_word_embeddings": True},
        "four-layers": {"num_hidden_layers": 4, "attn_layer_period": 4, "attn_layer_offset": 2, "expert_layer_offset": 0},
    }
    refused: ClassVar = {
        **REFUSED,
        "three-times-as-wide": ({"mamba_expand": 3}, "graph-cannot"),
    }
    slow = frozenset(variations)
