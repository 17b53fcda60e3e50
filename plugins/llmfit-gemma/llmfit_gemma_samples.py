"""Tiny Gemmas, for the tests and for `llmfit plugins check gemma`. llmfit never loads this by itself."""

from __future__ import annotations

from typing import Any

FULL, SLIDING = "full_attention", "sliding_attention"
SMALL: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 256, "head_dim": 32,
}  # fmt: skip
TEXT_2: dict[str, Any] = {**SMALL, "sliding_window": 16, "query_pre_attn_scalar": 32}
YARN: dict[str, Any] = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LINEAR: dict[str, Any] = {"rope_type": "linear", "factor": 2.5}
DEFAULT: dict[str, Any] = {"rope_type": "default"}
CANNOT = "graph-cannot"


def rope(kind: dict[str, Any], theta: float = 10000.0, **more: Any) -> dict[str, Any]:
    """A config's rope."""
    return {"rope_parameters": {**kind, "rope_theta": theta, **more}}


def ropes(full: dict[str, Any], sliding: dict[str, Any]) -> dict[str, Any]:
    """One rope for each kind of layer."""
    return {"rope_parameters": {FULL: DEFAULT | full, SLIDING: DEFAULT | sliding}}


def layers(*kinds: str) -> dict[str, Any]:
    """Layers of these kinds."""
    return {"layer_types": list(kinds), "num_hidden_layers": len(kinds)}


SAMPLES: dict[str, dict[str, Any]] = {
    "architectures": {
        "gemma": {
            "config": {"architectures": ["GemmaForCausalLM"], "model_type": "gemma", **SMALL},
            "variations": {
                "yarn": {"num_key_value_heads": 4, "head_dim": 48, **rope(YARN, attention_factor=1.3)},
                "gelu": {"hidden_act": "gelu"},
                "theta": {"head_dim": 64, "num_key_value_heads": 1, "rms_norm_eps": 1e-3, **rope(DEFAULT, 1234.5)},
                "linear": {"vocab_size": 300, **rope(LINEAR)},
            },
            "slow": frozenset({"gelu", "theta", "linear"}),
            "refused": {
                "silu": ({"hidden_act": "silu"}, CANNOT),
                "own-head": ({"tie_word_embeddings": False}, CANNOT),
                "exact-gelu": ({"hidden_activation": "gelu"}, "config-value"),
            },
        },
        "gemma2": {
            "config": {"architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", **TEXT_2},
            "variations": {
                "scalar-other-layers": {"query_pre_attn_scalar": 56, **layers(FULL, SLIDING, SLIDING)},
                "caps": {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0, **layers(SLIDING, SLIDING, SLIDING)},
                "no-windows": layers(FULL, FULL),
                "linear": rope(LINEAR, 5e5),
                "yarn": rope(YARN),
            },
            "slow": frozenset({"caps", "no-windows", "linear", "yarn"}),
            "refused": {
                "exact-gelu": ({"hidden_activation": "gelu"}, CANNOT),
                "own-head": ({"tie_word_embeddings": False}, CANNOT),
                "no-attention-cap": ({"attn_logit_softcapping": None}, CANNOT),
                "no-cap": ({"final_logit_softcapping": None}, CANNOT),
                "no-window": ({"sliding_window": 0}, "config-key-invalid"),
                "too-few-kinds": ({"layer_types": [SLIDING]}, "config-key-invalid"),
            },
        },
        "gemma3": {
            "config": {
                "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", **TEXT_2, **layers(FULL, SLIDING, FULL),
            },
            "variations": {
                "linear": {
                    **ropes({**LINEAR, "rope_theta": 1e6}, {"rope_theta": 777.0}), **layers(SLIDING, FULL),
                    "query_pre_attn_scalar": 7, "final_logit_softcapping": 5.0,
                },
                "own-head": {"tie_word_embeddings": False, "layer_types": ..., "num_hidden_layers": 7},
                # One rope for all is no reason to forget that sliding layers have it too.
                "equal-ropes": {**ropes({"rope_theta": 5e5}, {"rope_theta": 5e5}), **layers(SLIDING, FULL)},
                "no-windows": layers(FULL, FULL, FULL),
                "windows-only": layers(*[SLIDING] * 7),
            },
            "slow": frozenset({"own-head", "equal-ropes", "no-windows", "windows-only"}),
            "refused": {
                "relu": ({"hidden_activation": "relu"}, CANNOT),
                "biases": ({"attention_bias": True}, CANNOT),
                "sliding-linear": (ropes({}, {"rope_type": "linear", "factor": 2.0}), CANNOT),
                "yarn": (ropes(YARN, {}), CANNOT),
                "looks-ahead": ({"use_bidirectional_attention": True}, "config-value"),
                "attention-cap": ({"attn_logit_softcapping": 50.0}, "config-value"),
                "no-window": ({"sliding_window": None}, "config-key-invalid"),
                "odd-kind": ({"layer_types": ["chunked_attention"] * 3}, "config-key-invalid"),
                "scalar": ({"query_pre_attn_scalar": 0}, "config-key-invalid"),
            },
        },
    }
}  # fmt: skip
