"""Solar Open against llmfit's conformance kit."""

from __future__ import annotations

from typing import ClassVar

from llmfit_core.testing import ArchitectureTests
from llmfit_deepseek2 import SOLAR_OPEN

HALF = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}


class TestSolarOpen(ArchitectureTests):
    architecture = SOLAR_OPEN
    config: ClassVar = {
        "architectures": ["SolarOpenForCausalLM"],
        "model_type": "solar_open",
        "hidden_size": 64,
        "intermediate_size": 96,  # as published, though no layer is dense
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 256,
        "moe_intermediate_size": 32,
        "n_routed_experts": 8,
        "n_shared_experts": 2,
        "num_experts_per_tok": 2,
        "routed_scaling_factor": 1.5,
    }
    variations: ClassVar = {
        "groups": {"n_group": 4, "topk_group": 2, "norm_topk_prob": False, "attention_bias": True},
    }
    refused: ClassVar = {
        "gelu": ({"hidden_act": "gelu"}, "graph-cannot"),
        "half-heads": ({"rope_parameters": HALF}, "config-key-invalid"),
    }
    slow = frozenset({"groups"})
