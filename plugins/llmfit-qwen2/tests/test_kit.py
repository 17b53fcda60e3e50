"""Qwen2, Qwen2-MoE, Qwen3 and Qwen3-MoE against the conformance kit."""

from __future__ import annotations

from typing import Any, ClassVar

from llmfit_core.testing import ArchitectureTests
from llmfit_qwen2 import QWEN2, QWEN2_MOE, QWEN3, QWEN3_MOE

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
WINDOW = {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 0}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
OF_EYES = frozenset({"sections", "deep_layers_left"})
"""Hparams of the models that see, whose graphs these tables name too."""
GELU: Any = ({"hidden_act": "gelu"}, "graph-cannot")


def rope(kind: str, theta: float = 10000.0, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **more}}


def yarn(**more: Any) -> dict[str, Any]:
    return rope("yarn", **{"factor": 4.0, "original_max_position_embeddings": 128, **more})


class TestQwen2(ArchitectureTests):
    architecture = QWEN2
    optional_keys = OF_EYES
    config: ClassVar = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", **SMALL}
    variations: ClassVar = {
        # What the qwen2 graph cannot do and the llama graph can
        "wide-heads": {"head_dim": 64},
        "yarn-betas": {**yarn(beta_fast=16.0), "tie_word_embeddings": True},
        "llama3": rope("llama3", 500000.0, **LLAMA3),
        "tied": {"tie_word_embeddings": True, "num_hidden_layers": 3, "num_key_value_heads": 4},
        "window": {**WINDOW, "max_window_layers": 1},
        "yarn-attention-factor": yarn(attention_factor=1.3),
        "linear": rope("linear", 1e6, factor=2.5),
        "yarn": yarn(),
        "padded-vocabulary": {"vocab_size": 300},
        "window-unused": {**WINDOW, "max_window_layers": 2},
    }
    slow = frozenset(list(variations)[5:])
    bounded: ClassVar = {"window": 16}
    refused: ClassVar = {"relu": ({"hidden_act": "relu"}, "graph-cannot")}


class TestQwen2Moe(ArchitectureTests):
    architecture = QWEN2_MOE
    config: ClassVar = {
        "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", **SMALL, **EXPERTS,
        "shared_expert_intermediate_size": 80,
    }  # fmt: skip
    variations: ClassVar = {
        "tied": {"tie_word_embeddings": True},
        "all-used": {"norm_topk_prob": True, "num_experts_per_tok": 4},
        "no-biases": {"qkv_bias": False},
        "yarn": yarn(attention_factor=0.7),
        "window": WINDOW,
        "narrow": {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 112},
    }
    slow = frozenset({"no-biases", "yarn", "window", "narrow"})
    bounded: ClassVar = {"window": 16}
    refused: ClassVar = {
        "normalised": ({"norm_topk_prob": True}, "graph-cannot"),
        "dense-layer": ({"mlp_only_layers": [0]}, "graph-cannot"),
    }
    optional_keys = OF_EYES


class TestQwen3(ArchitectureTests):
    architecture = QWEN3
    optional_keys = OF_EYES
    config: ClassVar = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", **SMALL, "head_dim": 32}
    variations: ClassVar = {
        "wide-heads": {"head_dim": 64, "num_key_value_heads": 1},
        "tied": {"tie_word_embeddings": True, **rope("default", 5e6)},
        "yarn-mscales": yarn(mscale=0.7, mscale_all_dim=0.5),
        "window": WINDOW,
    }
    slow = frozenset({"tied", "yarn-mscales", "window"})
    bounded: ClassVar = {"window": 16}
    refused: ClassVar = {"gelu": GELU}


class TestQwen3Moe(ArchitectureTests):
    architecture = QWEN3_MOE
    optional_keys = OF_EYES
    config: ClassVar = {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", **SMALL, **EXPERTS, "head_dim": 32,
        "norm_topk_prob": True,
    }  # fmt: skip
    variations: ClassVar = {
        "tied": {"tie_word_embeddings": True, "head_dim": 64},
        "all-used": {"norm_topk_prob": False, "num_experts_per_tok": 4},
        "window": WINDOW,
    }
    slow = frozenset({"tied", "all-used"})
    bounded: ClassVar = {"window": 16}
    refused: ClassVar = {
        "gelu": GELU,
        "not-normalised": ({"norm_topk_prob": False}, "graph-cannot"),
        "every-other-layer": ({"decoder_sparse_step": 2}, "graph-cannot"),
    }
