"""dots.llm1 and MiniMax-M2, which gate their experts by sigmoid, against llmfit's conformance kit."""

from __future__ import annotations

from typing import ClassVar

from llmfit_core.testing import ArchitectureTests
from llmfit_open import DOTS1, MINIMAX_M2

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 256,
    "num_experts_per_tok": 2,
}


class TestDots1(ArchitectureTests):
    architecture = DOTS1
    config: ClassVar = {
        "architectures": ["Dots1ForCausalLM"],
        "model_type": "dots1",
        **SIZES,
        "head_dim": 16,
        "moe_intermediate_size": 32,
        "n_routed_experts": 4,
        "n_shared_experts": 2,
        "first_k_dense_replace": 1,
        "routed_scaling_factor": 2.5,
        "norm_topk_prob": True,
    }
    variations: ClassVar = {
        "not-normalised": {"norm_topk_prob": False, "routed_scaling_factor": 1.0, "first_k_dense_replace": 0},
        "window": {"sliding_window": 16, "max_window_layers": 1},
    }
    bounded: ClassVar = {"window": 16}
    refused: ClassVar = {
        "grouped": ({"num_key_value_heads": 2}, "graph-cannot"),
        "gelu": ({"hidden_act": "gelu"}, "graph-cannot"),
        "groups": ({"n_group": 2}, "config-value"),
    }
    slow = frozenset({"not-normalised", "window"})


class TestMiniMaxM2(ArchitectureTests):
    architecture = MINIMAX_M2
    config: ClassVar = {
        "architectures": ["MiniMaxM2ForCausalLM"],
        "model_type": "minimax_m2",
        **SIZES,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "rotary_dim": 16,
        "num_local_experts": 4,
    }
    variations: ClassVar = {"whole-heads-tied": {"rotary_dim": ..., "tie_word_embeddings": True, "num_experts_per_tok": 4}}
    refused: ClassVar = {
        "gelu": ({"hidden_act": "gelu"}, "graph-cannot"),
        "odd-dims": ({"rope_parameters": ..., "rotary_dim": 15}, "config-value"),
    }
    slow = frozenset({"whole-heads-tied"})
