"""GLM-4 in transformers' layout against llmfit's conformance kit."""

from __future__ import annotations

from typing import ClassVar

from llmfit_core.testing import ArchitectureTests
from llmfit_open import GLM


class TestGlm(ArchitectureTests):
    architecture = GLM
    config: ClassVar = {
        "architectures": ["GlmForCausalLM"],
        "model_type": "glm",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 256,
        "pad_token_id": 272,
    }
    variations: ClassVar = {
        "tied-whole": {"tie_word_embeddings": True, "partial_rotary_factor": 1.0, "attention_bias": False, "num_key_value_heads": 4},
    }
    refused: ClassVar = {
        "gelu": ({"hidden_act": "gelu"}, "graph-cannot"),
        "wide-heads": ({"head_dim": 32}, "graph-cannot"),
    }
    slow = frozenset({"tied-whole"})
