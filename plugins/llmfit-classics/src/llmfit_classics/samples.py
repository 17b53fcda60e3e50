"""Tiny models of these families, for the tests and for `llmfit plugins check classics`. llmfit never loads this by itself."""

from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 256}
WIDE: dict[str, Any] = {**SMALL, "intermediate_size": 96}
GROUPED: dict[str, Any] = {**WIDE, "num_key_value_heads": 2}
YARN: dict[str, Any] = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3: dict[str, Any] = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
}  # fmt: skip
LINEAR: dict[str, Any] = {"rope_type": "linear", "factor": 2.5}
CANNOT = "graph-cannot"


def rope(kind: dict[str, Any], theta: float = 10000.0, **more: Any) -> dict[str, Any]:
    """A config's rope."""
    return {"rope_parameters": {**kind, "rope_theta": theta, **more}}


def _of(cls: str, kind: str, sizes: dict[str, Any], *, slow: str = "", **more: Any) -> dict[str, Any]:
    return {"config": {"architectures": [cls], "model_type": kind, **sizes}, "slow": frozenset(slow.split()), **more}


SAMPLES: dict[str, dict[str, Any]] = {
    "architectures": {
        "gpt2": _of(
            "GPT2LMHeadModel", "gpt2", SMALL, slow="own-head",
            variations={
                "inner": {"n_inner": 80, "layer_norm_epsilon": 1e-3, "activation_function": "gelu"},
                "own-head": {"tie_word_embeddings": False, "num_attention_heads": 2, "max_position_embeddings": 100},
            },
            refused={
                "relu": ({"activation_function": "relu"}, CANNOT),
                "quick-gelu": ({"activation_function": "quick_gelu"}, CANNOT),
                "unscaled": ({"scale_attn_weights": False}, CANNOT),
                "by-layer": ({"scale_attn_by_inverse_layer_idx": True}, CANNOT),
            },
        ),
        "gpt-bigcode": _of(
            "GPTBigCodeForCausalLM", "gpt_bigcode", SMALL, slow="own-keys",
            variations={"own-keys": {"multi_query": False, "n_inner": 80, "tie_word_embeddings": False}},
            refused={"unscaled": ({"scale_attn_weights": False}, CANNOT)},
        ),
        "gptneox": _of(
            "GPTNeoXForCausalLM", "gpt_neox", WIDE, slow="tied-yarn yarn dynamic",
            variations={
                "in-turn": {"use_parallel_residual": False, **rope(LINEAR, partial_rotary_factor=0.5)},
                "tied-yarn": {"tie_word_embeddings": True, **rope(YARN, 5e5, partial_rotary_factor=1.0)},
                "yarn": rope(YARN, partial_rotary_factor=0.25),
                "dynamic": {
                    **rope({"rope_type": "dynamic", "factor": 4.0}, partial_rotary_factor=0.25), "max_position_embeddings": 32,
                },
            },
            bounded={"dynamic": 32},
            refused={
                "relu": ({"hidden_act": "relu"}, CANNOT),
                "no-biases": ({"attention_bias": False}, CANNOT),
                # The class reads rotary_emb_base alone, and 10000 where that is absent.
                "other-name": ({"rope_theta": 5e4, "rope_parameters": ...}, "config-key-missing"),
                "llama3": (rope(LLAMA3, partial_rotary_factor=0.25), CANNOT),
            },
        ),
        "bloom": _of(
            "BloomForCausalLM", "bloom",
            {"hidden_size": 64, "n_layer": 2, "n_head": 4}, slow="six-heads",
            variations={
                "six-heads": {"hidden_size": 96, "n_head": 6, "layer_norm_epsilon": 1e-3, "tie_word_embeddings": False},
            },
            refused={"residual": ({"apply_residual_connection_post_layernorm": True}, CANNOT)},
        ),
        "falcon": _of(
            "FalconForCausalLM", "falcon", SMALL, slow="own-keys new-own-head one-kv-head",
            variations={
                "two-norms": {"new_decoder_architecture": True, "num_kv_heads": 2},
                "one-norm": {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
                "own-keys": {"multi_query": False, "ffn_hidden_size": 80, **rope(LINEAR, 5e5)},
                "new-own-head": {"new_decoder_architecture": True, "tie_word_embeddings": False},
                "one-kv-head": {"new_decoder_architecture": True, "num_kv_heads": 1, "parallel_attn": True, **rope(YARN)},
            },
            refused={
                "alibi": ({"alibi": True}, CANNOT),
                "in-turn": ({"parallel_attn": False}, CANNOT),
                "biases": ({"bias": True}, CANNOT),
                "silu": ({"activation": "silu"}, CANNOT),
            },
        ),
        "phi": _of(
            "PhiForCausalLM", "phi", WIDE, slow="tied yarn",
            variations={
                "grouped": {"num_key_value_heads": 2, **rope({"rope_type": "default"}, 5e5, partial_rotary_factor=0.25)},
                "tied": {"tie_word_embeddings": True, "hidden_act": "gelu"},
                "yarn": rope(YARN, partial_rotary_factor=1.0),
            },
            refused={
                "normed": ({"qk_layernorm": True}, CANNOT),
                "wide-heads": ({"head_dim": 32}, CANNOT),
                "silu": ({"hidden_act": "silu"}, CANNOT),
            },
        ),
        "stablelm": _of(
            "StableLmForCausalLM", "stablelm", GROUPED, slow="tied normed-in-turn yarn",
            variations={
                "normed": {"qk_layernorm": True, "use_parallel_residual": True},
                "side": {"use_parallel_residual": True, "use_qkv_bias": True, "num_key_value_heads": 4},
                "tied": {"tie_word_embeddings": True, **rope(LINEAR, 5e5, partial_rotary_factor=1.0)},
                "normed-in-turn": {"qk_layernorm": True, "num_key_value_heads": 1},
                "yarn": rope(YARN, partial_rotary_factor=0.5, attention_factor=1.3),
            },
            refused={"gelu": ({"hidden_act": "gelu"}, CANNOT)},
        ),
        "starcoder2": _of(
            "Starcoder2ForCausalLM", "starcoder2", {**GROUPED, "sliding_window": None}, slow="own-head yarn",
            variations={
                "window": {"sliding_window": 16},
                "own-head": {"tie_word_embeddings": False, "num_key_value_heads": 4, "norm_epsilon": 1e-3},
                "yarn": {"sliding_window": 4096, **rope(YARN, 1e6)},
            },
            bounded={"window": 16},
            refused={
                "no-biases": ({"use_bias": False}, CANNOT),
                "wide-heads": ({"head_dim": 32}, CANNOT),
                "llama3": (rope(LLAMA3), CANNOT),
            },
        ),
        "jais2": _of(
            "Jais2ForCausalLM", "jais2", GROUPED, slow="tied-yarn",
            variations={"tied-yarn": {"tie_word_embeddings": True, "num_key_value_heads": 4, **rope(YARN)}},
            refused={
                "silu": ({"hidden_act": "silu"}, CANNOT),
                "no-biases": ({"attention_bias": False}, CANNOT),
                "no-biases-of-mlp": ({"mlp_bias": False}, CANNOT),
            },
        ),
        "nemotron": _of(
            "NemotronForCausalLM", "nemotron", GROUPED, slow="tied yarn",
            variations={
                "biases": {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4},
                "tied": {"tie_word_embeddings": True, **rope(LINEAR, 5e5, partial_rotary_factor=1.0)},
                "yarn": rope(YARN, partial_rotary_factor=0.5),
            },
            refused={"silu": ({"hidden_act": "silu"}, CANNOT), "wide-heads": ({"head_dim": 32}, CANNOT)},
        ),
    }
}  # fmt: skip
