"""Each family against llmfit's conformance kit."""

from __future__ import annotations

from typing import Any, ClassVar

from llmfit_core.testing import ArchitectureTests
from llmfit_deepseek2 import DEEPSEEK2, DEEPSEEK3, GLM4_MOE, GLM4_MOE_LITE, YOUTU

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 256,
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 24,
    "rms_norm_eps": 1e-6,
}
MIXED: dict[str, Any] = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 2,
    "moe_intermediate_size": 32,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "mscale": 0.5,
    "mscale_all_dim": 0.9,
}
GROUPS = frozenset({"expert_group_count", "expert_group_used_count"})
"""Of DeepSeek-V3's graph, which is the same."""


class TestDeepseek2(ArchitectureTests):
    architecture = DEEPSEEK2
    config: ClassVar = {
        **SMALL, **MIXED, "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "first_k_dense_replace": 1,
    }  # fmt: skip
    variations: ClassVar = {"whole-q": {"q_lora_rank": None}, "yarn": {"rope_parameters": YARN}}
    refused: ClassVar = {
        "best-group": ({"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2}, "graph-cannot"),
        "sigmoid": ({"scoring_func": "sigmoid"}, "config-value"),
    }
    slow = frozenset({"whole-q", "yarn"})
    optional_keys = GROUPS


class TestDeepseek3(ArchitectureTests):
    architecture = DEEPSEEK3
    config: ClassVar = {
        **SMALL, **MIXED, "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "first_k_dense_replace": 1,
        "n_group": 4, "topk_group": 2, "num_mtp_layers": 0,
    }  # fmt: skip
    variations: ClassVar = {
        "whole-q": {"q_lora_rank": None},
        "epsilon": {"rms_norm_eps": 1e-4},
        "yarn-one-group": {"rope_parameters": YARN, "n_group": 1, "topk_group": 1, "norm_topk_prob": False},
    }
    refused: ClassVar = {
        "halves": ({"rope_interleave": False}, "config-value"),
        "softmax": ({"scoring_func": "softmax"}, "config-value"),
    }
    slow = frozenset(variations)


class TestGlm4MoeLite(ArchitectureTests):
    architecture = GLM4_MOE_LITE
    config: ClassVar = {**SMALL, **MIXED, "architectures": ["Glm4MoeLiteForCausalLM"], "model_type": "glm4_moe_lite"}
    variations: ClassVar = {
        "whole-q": {"q_lora_rank": None},
        "all-mixed": {"mlp_layer_types": ["sparse", "sparse"], "rms_norm_eps": 1e-5, "n_group": 4, "topk_group": 2},
    }
    refused: ClassVar = {"few-kinds": ({"mlp_layer_types": ["dense"]}, "config-key-invalid")}
    slow = frozenset({"base", *variations})  # computed as DeepSeek-V3 is


class TestYoutu(ArchitectureTests):
    architecture = YOUTU
    config: ClassVar = {**SMALL, "architectures": ["YoutuForCausalLM"], "model_type": "youtu"}
    variations: ClassVar = {"whole-q": {"q_lora_rank": None, "tie_word_embeddings": False, "rope_parameters": YARN}}
    slow = frozenset(variations)
    optional_keys = GROUPS


class TestGlm4Moe(ArchitectureTests):
    architecture = GLM4_MOE
    config: ClassVar = {
        **{k: v for k, v in SMALL.items() if "rank" not in k and "head_dim" not in k},
        **MIXED, "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "num_key_value_heads": 2, "head_dim": 24,
        "num_mtp_layers": 0,
    }  # fmt: skip
    variations: ClassVar = {
        "biases-normed": {"attention_bias": True, "use_qk_norm": True, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5},
        "whole-heads-mha": {
            "partial_rotary_factor": 1.0, "num_key_value_heads": 4, "first_k_dense_replace": 0, "norm_topk_prob": False,
        },
        "yarn": {"rope_parameters": {**YARN, "mscale": None, "mscale_all_dim": None, "partial_rotary_factor": 0.5}},
    }  # fmt: skip
    refused: ClassVar = {
        "softmax": ({"scoring_func": "softmax"}, "config-value"),
        "gelu": ({"hidden_act": "gelu"}, "graph-cannot"),
    }
    slow = frozenset(variations)
