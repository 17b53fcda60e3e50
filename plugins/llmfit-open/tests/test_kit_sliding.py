"""Cohere 2 and OLMo 3, whose layers slide or see everything, against llmfit's conformance kit."""

from __future__ import annotations

from typing import ClassVar

from llmfit_core.testing import ArchitectureTests
from llmfit_open import COHERE2, OLMO3

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "sliding_window": 16,
}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 500000.0, "factor": 4.0, "original_max_position_embeddings": 64}
SLIDING, FULL = "sliding_attention", "full_attention"


class TestCohere2(ArchitectureTests):
    architecture = COHERE2
    config: ClassVar = {"architectures": ["Cohere2ForCausalLM"], "model_type": "cohere2", **SIZES}
    variations: ClassVar = {
        "odd-layers": {"layer_types": [FULL, SLIDING, FULL, SLIDING], "num_key_value_heads": 4, "logit_scale": 0.5},
        "everything-slides": {"layer_types": [SLIDING] * 4, "rope_parameters": YARN},
    }
    refused: ClassVar = {
        "gelu": ({"hidden_act": "gelu"}, "graph-cannot"),
        "own-head": ({"tie_word_embeddings": False}, "graph-cannot"),
        "llama3": ({"rope_parameters": LLAMA3}, "graph-cannot"),
        "nothing-slides": ({"layer_types": [FULL] * 4}, "graph-cannot"),
        "no-window": ({"sliding_window": None}, "config-value"),
        "odd-kind": ({"layer_types": ["chunked_attention"] * 4}, "config-value"),
    }
    slow = frozenset({"everything-slides"})


class TestOlmo3(ArchitectureTests):
    architecture = OLMO3
    config: ClassVar = {
        "architectures": ["Olmo3ForCausalLM"],
        "model_type": "olmo3",
        **SIZES,
        "rope_parameters": {FULL: YARN, SLIDING: {"rope_type": "default", "rope_theta": 500000.0}},
    }
    variations: ClassVar = {
        "odd-layers": {"layer_types": [FULL, SLIDING, FULL, SLIDING], "num_key_value_heads": 4, "rope_parameters": None},
        "nothing-slides": {"layer_types": [FULL] * 4, "tie_word_embeddings": True},
        "everything-slides": {"layer_types": [SLIDING] * 4},
    }
    refused: ClassVar = {
        "gelu": ({"hidden_act": "gelu"}, "graph-cannot"),
        "two-bases": ({"rope_parameters": {FULL: YARN, SLIDING: {"rope_type": "default", "rope_theta": 10000.0}}}, "graph-cannot"),
        "scaled-sliding": ({"rope_parameters": {FULL: YARN, SLIDING: YARN}}, "graph-cannot"),
        "llama3": ({"rope_parameters": {FULL: {**LLAMA3, "rope_theta": 500000.0}, SLIDING: {"rope_type": "default", "rope_theta": 500000.0}}}, "graph-cannot"),
        "no-window": ({"sliding_window": None}, "config-value"),
        "whose-base": ({"rope_parameters": ..., "rope_theta": 10000.0}, "config-value"),
        "biases": ({"attention_bias": True}, "graph-cannot"),
    }
    slow = frozenset({"nothing-slides", "everything-slides"})
