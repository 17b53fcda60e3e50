"""Llama, Mistral and Mixtral against the conformance kit, over what configs may say."""

from __future__ import annotations

from typing import Any, ClassVar

from llmfit_core.testing import ArchitectureTests
from llmfit_llama import LLAMA, MISTRAL, MIXTRAL

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}


def rope(kind: str, theta: float = 10000.0, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **more}}


def yarn(**more: Any) -> dict[str, Any]:
    return rope("yarn", **{"factor": 4.0, "original_max_position_embeddings": 128, **more})


class TestLlama(ArchitectureTests):
    architecture = LLAMA
    config: ClassVar = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **SMALL}
    variations: ClassVar = {
        "one-kv-head": {"num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 1},
        "wide-heads": {"head_dim": 128},
        "no-multiples-of-32": {"intermediate_size": 250, "hidden_size": 104},
        "biases": {"attention_bias": True, "mlp_bias": True},
        "dynamic": {**rope("dynamic", factor=4.0), "max_position_embeddings": 32},
        "eight-heads-a-kv-head": {"num_attention_heads": 16, "num_key_value_heads": 2},
        "no-grouped-heads": {"num_key_value_heads": 4},
        "six-heads": {"hidden_size": 192, "num_attention_heads": 6, "num_key_value_heads": 3},
        "one-layer": {"num_hidden_layers": 1},
        "tiny-heads": {"head_dim": 6},
        "padded-vocabulary": {"vocab_size": 300},
        "epsilon": {"rms_norm_eps": 1e-3},
        "swish": {"hidden_act": "swish"},
        "attention-bias": {"attention_bias": True, "head_dim": 64, "num_key_value_heads": 4},
        "mlp-bias-tied": {"mlp_bias": True, "tie_word_embeddings": True},
        "theta": rope("default", 1234.5),
        "llama3": rope("llama3", 500000.0, **LLAMA3),
        "yarn": yarn(),
        "yarn-factor-1": yarn(factor=1.0),
        "yarn-factor-below-1": yarn(factor=0.5),
        "yarn-betas": yarn(beta_fast=16.0, beta_slow=2.0),
        "yarn-attention-factor": yarn(attention_factor=1.3),
        "yarn-untruncated": yarn(truncate=False),
        "yarn-mscales": yarn(mscale=0.7, mscale_all_dim=0.5),
    }
    slow = frozenset(list(variations)[5:])
    bounded: ClassVar = {"dynamic": 32}
    refused: ClassVar = {"gelu": ({"hidden_act": "gelu"}, "graph-cannot")}


class TestMistral(ArchitectureTests):
    architecture = MISTRAL
    config: ClassVar = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": None, **SMALL}
    variations: ClassVar = {
        "window": {"sliding_window": 16},
        "odd-llama3": rope("llama3", **{**LLAMA3, "factor": 3.0, "low_freq_factor": 1.5, "high_freq_factor": 3.0}),
        "wide-heads": {"head_dim": 128},
        "odd-heads": {"head_dim": 48},
    }
    slow = frozenset({"wide-heads", "odd-heads"})
    bounded: ClassVar = {"window": 16}
    refused: ClassVar = {"gelu": ({"hidden_act": "gelu"}, "graph-cannot")}


class TestMixtral(ArchitectureTests):
    architecture = MIXTRAL
    config: ClassVar = {
        "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", **SMALL,
        "num_local_experts": 3, "num_experts_per_tok": 2,
    }  # fmt: skip
    variations: ClassVar = {
        "linear": rope("linear", 1e6, factor=2.5),
        "yarn-all-at-once": {"head_dim": 32, **yarn(beta_fast=8.0, truncate=False, attention_factor=0.8)},
        "one-used": {"num_experts_per_tok": 1},
        "one-expert": {"num_local_experts": 1, "num_experts_per_tok": 1},
        "all-used": {"num_local_experts": 8, "num_experts_per_tok": 8, "tie_word_embeddings": True},
        "window": {"sliding_window": 16},
    }
    slow = frozenset({"one-expert", "all-used", "window"})
    bounded: ClassVar = {"window": 16}
