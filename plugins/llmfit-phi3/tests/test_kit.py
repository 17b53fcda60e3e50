"""Phi-3 against llmfit's conformance kit (Phi-3.5-MoE, which no graph computes, has tests of its own)."""

from __future__ import annotations

from typing import Any, ClassVar

from llmfit_core.testing import ArchitectureTests
from llmfit_phi3 import PHI3

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}


class TestPhi3(ArchitectureTests):
    architecture = PHI3
    config: ClassVar = {
        **SMALL, "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "original_max_position_embeddings": 256,
        "tie_word_embeddings": False, "pad_token_id": None,
    }  # fmt: skip
    variations: ClassVar = {"tied-mha": {"tie_word_embeddings": True, "num_key_value_heads": 4}, "window": {"sliding_window": 20}}
    bounded: ClassVar = {"window": 20}
    refused: ClassVar = {"gelu": ({"hidden_act": "gelu"}, "graph-cannot")}
    slow = frozenset({"tied-mha"})
