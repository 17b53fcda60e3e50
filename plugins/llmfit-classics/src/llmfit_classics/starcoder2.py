"""StarCoder2: LayerNorm, biases, a plain feed-forward."""

from __future__ import annotations

from llmfit_classics.common import (
    EPSILON,
    KEYS,
    LAYER_NORM_CONFIG,
    PLAIN_ROPE,
    QKV,
    RECOMPUTED,
    V_TO_OUT,
    gelu,
    norm,
    square,
    whole_heads,
)
from llmfit_core import Architecture, Asserts, Fix, Graph, Ignores, Limit, Link, Reads, Role, Slot

_LAYER = "model.layers.{layer}."

STARCODER2 = Architecture(
    name="starcoder2",
    hf_classes=("Starcoder2ForCausalLM",),
    model_types=("starcoder2",),
    tensors={
        "model.embed_tokens": Role.EMBED,
        _LAYER + "input_layernorm": norm(Role.ATTN_NORM),
        _LAYER + "self_attn.q_proj": Slot(Role.ATTN_Q, bias="use_bias"),
        _LAYER + "self_attn.k_proj": Slot(Role.ATTN_K, bias="use_bias"),
        _LAYER + "self_attn.v_proj": Slot(Role.ATTN_V, bias="use_bias"),
        _LAYER + "self_attn.o_proj": Slot(Role.ATTN_OUT, bias="use_bias"),
        _LAYER + "post_attention_layernorm": norm(Role.FFN_NORM),
        _LAYER + "mlp.c_fc": Slot(Role.FFN_UP, bias="use_bias"),
        _LAYER + "mlp.c_proj": Slot(Role.FFN_DOWN, bias="use_bias"),
        "model.norm": norm(Role.OUTPUT_NORM),
        "lm_head": Slot(Role.HEAD, optional=True),
    },
    config={k: v for k, v in LAYER_NORM_CONFIG.items() if k != "layer_norm_eps"}
    | {
        "norm_epsilon": Reads(EPSILON, 1e-5),
        "hidden_act": Reads("hidden_act", "gelu_pytorch_tanh"),
        "head_dim": Reads("attention.key_length", None),
        "num_key_value_heads": Reads("attention.head_count_kv", 2),
        "tie_word_embeddings": Reads("tie_word_embeddings", True),
        "use_bias": Reads("use_bias", True),
        "sliding_window": Reads("attention.sliding_window", None),
        # What the published configs say of variants that the class does not have.
        "norm_type": Asserts(("layer_norm", None), "the norms would be others"),
        "mlp_type": Asserts(("default", None), "the feed-forward would have a gate"),
        "activation_function": Ignores("hidden_act is what counts"),
        "layer_norm_epsilon": Ignores("norm_epsilon is what counts"),
        "attention_softmax_in_fp32": Ignores("how it runs, not what it computes"),
        "scale_attention_softmax_in_fp32": Ignores("how it runs, not what it computes"),
        "scale_attn_weights": Asserts((True, None), "attention would not be scaled"),
    },
    wiring=(
        Link(source=Role.ATTN_NORM, sinks=QKV),
        V_TO_OUT,
        Link(source=Role.FFN_NORM, sinks=(Role.FFN_UP,)),
    ),
    graphs=(
        Graph(
            format="gguf",
            name="starcoder2",
            engine="llama.cpp",
            keys=KEYS,
            fixes={
                "hidden_act": gelu("starcoder2", "gelu_pytorch_tanh"),
                "partial_rotary_factor": whole_heads("starcoder2"),
                "attention.key_length": square("starcoder2"),
                "use_bias": Fix(values=(True,), why="the starcoder2 graph needs the biases"),
            },
            limits=(
                Limit(
                    hparam="attention.sliding_window",
                    message="the starcoder2 graph knows no sliding window: exact up to {tokens} tokens",
                ),
            ),
            rope=PLAIN_ROPE,
        ),
    ),
    waived=RECOMPUTED,
)
