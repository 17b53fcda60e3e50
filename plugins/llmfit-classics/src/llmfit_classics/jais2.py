"""Jais 2: LayerNorm, biases everywhere, a squared ReLU without a gate."""

from __future__ import annotations

from llmfit_classics.common import KEYS, LAYER_NORM_CONFIG, PLAIN_ROPE, QKV, RECOMPUTED, V_TO_OUT, norm, whole_heads
from llmfit_core import Architecture, Fix, Graph, Link, Reads, Role, Slot

_LAYER = "model.layers.{layer}."

JAIS2 = Architecture(
    name="jais2",
    hf_classes=("Jais2ForCausalLM",),
    model_types=("jais2",),
    tensors={
        "model.embed_tokens": Role.EMBED,
        _LAYER + "input_layernorm": norm(Role.ATTN_NORM),
        _LAYER + "self_attn.q_proj": Slot(Role.ATTN_Q, bias="attention_bias"),
        _LAYER + "self_attn.k_proj": Slot(Role.ATTN_K, bias="attention_bias"),
        _LAYER + "self_attn.v_proj": Slot(Role.ATTN_V, bias="attention_bias"),
        _LAYER + "self_attn.o_proj": Slot(Role.ATTN_OUT, bias="attention_bias"),
        _LAYER + "post_attention_layernorm": norm(Role.FFN_NORM),
        _LAYER + "mlp.up_proj": Slot(Role.FFN_UP, bias="mlp_bias"),
        _LAYER + "mlp.down_proj": Slot(Role.FFN_DOWN, bias="mlp_bias"),
        "model.norm": norm(Role.OUTPUT_NORM),
        "lm_head": Slot(Role.HEAD, optional=True),
    },
    config=LAYER_NORM_CONFIG
    | {
        "max_position_embeddings": Reads("context_length", 8192),
        "hidden_act": Reads("hidden_act", "relu2"),
        "head_dim": Reads("attention.key_length", None),
        "attention_bias": Reads("attention_bias", True),
        "mlp_bias": Reads("mlp_bias", True),
    },
    wiring=(
        Link(source=Role.ATTN_NORM, sinks=QKV),
        V_TO_OUT,
        Link(source=Role.FFN_NORM, sinks=(Role.FFN_UP,)),
    ),
    graphs=(
        Graph(
            format="gguf",
            name="jais2",
            engine="llama.cpp",
            keys=KEYS,
            fixes={
                "hidden_act": Fix(values=("relu2",), why="the jais2 graph squares a ReLU"),
                "partial_rotary_factor": whole_heads("jais2"),
                "attention_bias": Fix(values=(True,), why="the jais2 graph needs the biases of attention"),
                "mlp_bias": Fix(values=(True,), why="the jais2 graph needs the biases of the feed-forward"),
            },
            rope=PLAIN_ROPE,
        ),
    ),
    waived=RECOMPUTED,
)
