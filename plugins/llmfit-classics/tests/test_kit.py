"""StableLM 2 12B, whose heads have norms of their own, against llmfit's conformance kit."""

from __future__ import annotations

from typing import ClassVar

from llmfit_classics import STABLELM
from llmfit_core.testing import ArchitectureTests


class TestStableLm(ArchitectureTests):
    architecture = STABLELM
    config: ClassVar = {
        "architectures": ["StableLmForCausalLM"],
        "model_type": "stablelm",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "use_parallel_residual": True,
        "qk_layernorm": True,
    }
    variations: ClassVar = {"in-turn": {"use_parallel_residual": False, "use_qkv_bias": True}}
    refused: ClassVar = {"gelu": ({"hidden_act": "gelu"}, "graph-cannot")}
    slow = frozenset({"in-turn"})
