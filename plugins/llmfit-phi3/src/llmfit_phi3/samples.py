"""Tiny Phi-3s and Phi-3.5-MoEs, for the tests and for `llmfit plugins check phi3`. llmfit never loads this by itself."""

from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 512, "original_max_position_embeddings": 256, "tie_word_embeddings": False, "pad_token_id": None,
}  # fmt: skip


def factors(pairs: int) -> dict[str, Any]:
    """Factors of both sides, far apart."""
    return {"short_factor": [1 + 0.05 * i for i in range(pairs)], "long_factor": [1 + 0.4 * i for i in range(pairs)]}


# llama.cpp chooses the side by the context that it is launched with: the file is exact on the side of each launch.
SAMPLES: dict[str, dict[str, Any]] = {
    "architectures": {
        "phi3": {
            "config": {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", **SMALL},
            "variations": {
                "longrope": {"rope_parameters": {"rope_type": "longrope", "rope_theta": 10000.0, **factors(8)}},
                "window": {"sliding_window": 20},
                "longrope-partial": {
                    "rope_parameters": {
                        "rope_type": "longrope", "rope_theta": 50000.0, "partial_rotary_factor": 0.75, "factor": 3.0,
                        "attention_factor": 1.5, "original_max_position_embeddings": 256, **factors(6),
                    },
                    "num_key_value_heads": 1,
                },
                "tied-mha": {"tie_word_embeddings": True, "num_key_value_heads": 4},
            },
            "bounded": {"window": 20},
            "slow": frozenset({"longrope-partial", "tied-mha"}),
            "refused": {
                "gelu": ({"hidden_act": "gelu"}, "graph-cannot"),
                "biases": ({"attention_bias": True}, "config-value"),
                "stretched": ({"interpolate_factor": 2}, "config-value"),
            },
        },
        "phimoe": {
            "config": {
                "architectures": ["PhimoeForCausalLM"], "model_type": "phimoe", "hidden_size": 64, "intermediate_size": 48,
                "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
                "num_local_experts": 4, "attention_bias": True, "lm_head_bias": True,
            },
            "variations": {"no-biases": {"attention_bias": False, "lm_head_bias": False, "num_hidden_layers": 2}},
            "uncomputed": "graph-cannot",
            "slow": frozenset({"no-biases"}),
            "refused": {"three-experts": ({"num_experts_per_tok": 3}, "config-value")},
        },
    }
}  # fmt: skip
