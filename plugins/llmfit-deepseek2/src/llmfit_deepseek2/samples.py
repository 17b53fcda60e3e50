"""Tiny models, for the tests and for `llmfit plugins check deepseek2`. llmfit never loads this by itself."""

from __future__ import annotations

from typing import Any

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
YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "mscale": 0.5,
    "mscale_all_dim": 0.9,
}
GROUPS = frozenset({"expert_group_count", "expert_group_used_count"})
"""Of DeepSeek-V3's graph, which is the same."""

DEEPSEEK2: dict[str, Any] = {
    "config": {
        **SMALL, **MIXED, "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "first_k_dense_replace": 1,
    },
    "variations": {"whole-q": {"q_lora_rank": None}, "yarn": {"rope_parameters": YARN}},
    "refused": {
        "best-group": ({"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2}, "graph-cannot"),
        "sigmoid": ({"scoring_func": "sigmoid"}, "config-value"),
    },
    "slow": frozenset({"whole-q", "yarn"}),
    "optional_keys": GROUPS,
}

DEEPSEEK3: dict[str, Any] = {
    "config": {
        **SMALL, **MIXED, "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "first_k_dense_replace": 1,
        "n_group": 4, "topk_group": 2, "num_mtp_layers": 0,
    },
    "variations": {
        "whole-q": {"q_lora_rank": None},
        "epsilon": {"rms_norm_eps": 1e-4},
        "yarn-one-group": {"rope_parameters": YARN, "n_group": 1, "topk_group": 1, "norm_topk_prob": False},
    },
    "refused": {
        "halves": ({"rope_interleave": False}, "config-value"),
        "softmax": ({"scoring_func": "softmax"}, "config-value"),
    },
    "slow": frozenset({"whole-q", "epsilon", "yarn-one-group"}),
}

GLM4_MOE_LITE: dict[str, Any] = {
    "config": {**SMALL, **MIXED, "architectures": ["Glm4MoeLiteForCausalLM"], "model_type": "glm4_moe_lite"},
    "variations": {
        "whole-q": {"q_lora_rank": None},
        "all-mixed": {"mlp_layer_types": ["sparse", "sparse"], "rms_norm_eps": 1e-5, "n_group": 4, "topk_group": 2},
    },
    "refused": {"few-kinds": ({"mlp_layer_types": ["dense"]}, "config-key-invalid")},
    "slow": frozenset({"base", "whole-q", "all-mixed"}),  # computed as DeepSeek-V3 is
}

YOUTU: dict[str, Any] = {
    "config": {**SMALL, "architectures": ["YoutuForCausalLM"], "model_type": "youtu"},
    "variations": {"whole-q": {"q_lora_rank": None, "tie_word_embeddings": False, "rope_parameters": YARN}},
    "slow": frozenset({"whole-q"}),
    "optional_keys": GROUPS,
}

GLM4_MOE: dict[str, Any] = {
    "config": {
        **{k: v for k, v in SMALL.items() if "rank" not in k and "head_dim" not in k},
        **MIXED, "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "num_key_value_heads": 2, "head_dim": 24,
        "num_mtp_layers": 0,
    },
    "variations": {
        "biases-normed": {"attention_bias": True, "use_qk_norm": True, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5},
        "whole-heads-mha": {
            "partial_rotary_factor": 1.0, "num_key_value_heads": 4, "first_k_dense_replace": 0, "norm_topk_prob": False,
        },
        "yarn": {"rope_parameters": {**YARN, "mscale": None, "mscale_all_dim": None, "partial_rotary_factor": 0.5}},
    },
    "refused": {
        "softmax": ({"scoring_func": "softmax"}, "config-value"),
        "gelu": ({"hidden_act": "gelu"}, "graph-cannot"),
    },
    "slow": frozenset({"biases-normed", "whole-heads-mha", "yarn"}),
}

SAMPLES: dict[str, dict[str, Any]] = {
    "architectures": {
        "deepseek2": DEEPSEEK2, "deepseek3": DEEPSEEK3, "glm4-moe-lite": GLM4_MOE_LITE, "youtu": YOUTU, "glm4moe": GLM4_MOE,
    }
}  # fmt: skip
