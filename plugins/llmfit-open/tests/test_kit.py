"""ERNIE 4.5 with experts against llmfit's conformance kit."""

from __future__ import annotations

from typing import ClassVar

from llmfit_core.testing import ArchitectureTests
from llmfit_open import ERNIE4_5_MOE


class TestErnie45Moe(ArchitectureTests):
    architecture = ERNIE4_5_MOE
    config: ClassVar = {
        "architectures": ["Ernie4_5_MoeForCausalLM"],
        "model_type": "ernie4_5_moe",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "moe_num_experts": 4,
        "moe_k": 3,
        "moe_intermediate_size": 32,
        "moe_layer_start_index": 1,
    }
    variations: ClassVar = {
        "own-head-mha-no-shared": {"tie_word_embeddings": False, "num_key_value_heads": 4, "moe_num_shared_experts": 0},
        "last-of-every-three": {"moe_layer_interval": 3, "moe_num_shared_experts": 1, "moe_layer_start_index": 0},
        "all-mixed": {"moe_layer_start_index": 0, "moe_layer_end_index": -1},
    }
    refused: ClassVar = {
        "biases": ({"use_bias": True}, "missing-tensor"),
        "norm-min": ({"moe_norm_min": 0.5}, "config-value"),
        "odd-end": ({"moe_layer_end_index": "last"}, "config-value"),
    }
    slow = frozenset({"own-head-mha-no-shared", "last-of-every-three"})
