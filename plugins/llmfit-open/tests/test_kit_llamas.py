"""Arcee and Seed-OSS against llmfit's conformance kit."""

from __future__ import annotations

from typing import ClassVar

from llmfit_core.testing import ArchitectureTests
from llmfit_open import ARCEE, SEED_OSS

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip


class TestArcee(ArchitectureTests):
    architecture = ARCEE
    config: ClassVar = {"architectures": ["ArceeForCausalLM"], "model_type": "arcee", **SIZES}
    variations: ClassVar = {
        "yarn-betas": {"rope_parameters": {**YARN, "beta_fast": 16.0, "truncate": False}, "head_dim": 32},
        "llama3-tied": {"rope_parameters": LLAMA3, "tie_word_embeddings": True, "num_key_value_heads": 4},
    }
    refused: ClassVar = {
        "silu": ({"hidden_act": "silu"}, "graph-cannot"),
        "biases": ({"mlp_bias": True}, "missing-tensor"),
    }
    slow = frozenset({"llama3-tied"})


class TestSeedOss(ArchitectureTests):
    architecture = SEED_OSS
    config: ClassVar = {"architectures": ["SeedOssForCausalLM"], "model_type": "seed_oss", "head_dim": 32, **SIZES}
    variations: ClassVar = {
        "yarn": {"rope_parameters": YARN, "num_key_value_heads": 4},
        "no-biases-tied": {"attention_bias": False, "tie_word_embeddings": True, "head_dim": None},
    }
    refused: ClassVar = {
        "gelu": ({"hidden_act": "gelu"}, "graph-cannot"),
        "llama3": ({"rope_parameters": LLAMA3}, "graph-cannot"),
    }
    slow = frozenset({"no-biases-tied"})
