"""Granite with experts against llmfit's conformance kit."""

from __future__ import annotations

from typing import ClassVar

from llmfit_core.testing import ArchitectureTests
from llmfit_open import GRANITE_MOE, GRANITE_MOE_SHARED

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "embedding_multiplier": 12,
    "logits_scaling": 6,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.2,
}
REFUSED = {
    "gelu": ({"hidden_act": "gelu"}, "graph-cannot"),
    "too-many-used": ({"num_experts_per_tok": 5}, "config-key-invalid"),
}


class TestGraniteMoe(ArchitectureTests):
    architecture = GRANITE_MOE
    config: ClassVar = {"architectures": ["GraniteMoeForCausalLM"], "model_type": "granitemoe", **SIZES}
    variations: ClassVar = {"tied-biases": {"tie_word_embeddings": True, "attention_bias": True, "num_key_value_heads": 4}}
    refused: ClassVar = REFUSED
    slow = frozenset({"tied-biases"})


class TestGraniteMoeShared(ArchitectureTests):
    architecture = GRANITE_MOE_SHARED
    config: ClassVar = {
        "architectures": ["GraniteMoeSharedForCausalLM"],
        "model_type": "granitemoeshared",
        "shared_intermediate_size": 48,
        **SIZES,
    }
    variations: ClassVar = {"not-shared": {"shared_intermediate_size": 0, "num_experts_per_tok": 4}}
    refused: ClassVar = REFUSED
    slow = frozenset({"not-shared"})
