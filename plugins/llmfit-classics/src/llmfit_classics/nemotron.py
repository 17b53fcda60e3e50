"""Nemotron and Minitron: LayerNorm stored minus one, a squared ReLU, partial rope."""

from __future__ import annotations

from llmfit_classics.common import (
    EPSILON,
    KEYS,
    LAYER_NORM_CONFIG,
    PLAIN_ROPE,
    QKV,
    RECOMPUTED,
    V_TO_OUT,
    square,
)
from llmfit_core import Architecture, Fix, Graph, Link, Reads, Role, Slot

_LAYER = "model.layers.{layer}."


def norm1p(role: Role) -> Slot:
    """A LayerNorm whose weights are stored minus one."""
    return Slot(role, bias=True, shift=1.0)


NEMOTRON = Architecture(
    name="nemotron",
    hf_classes=("NemotronForCausalLM",),
    model_types=("nemotron",),
    tensors={
        "model.embed_tokens": Role.EMBED,
        _LAYER + "input_layernorm": norm1p(Role.ATTN_NORM),
        _LAYER + "self_attn.q_proj": Slot(Role.ATTN_Q, bias="attention_bias"),
        _LAYER + "self_attn.k_proj": Slot(Role.ATTN_K, bias="attention_bias"),
        _LAYER + "self_attn.v_proj": Slot(Role.ATTN_V, bias="attention_bias"),
        _LAYER + "self_attn.o_proj": Slot(Role.ATTN_OUT, bias="attention_bias"),
        _LAYER + "post_attention_layernorm": norm1p(Role.FFN_NORM),
        _LAYER + "mlp.up_proj": Slot(Role.FFN_UP, bias="mlp_bias"),
        _LAYER + "mlp.down_proj": Slot(Role.FFN_DOWN, bias="mlp_bias"),
        "model.norm": norm1p(Role.OUTPUT_NORM),
        "lm_head": Slot(Role.HEAD, optional=True),
    },
    config={k: v for k, v in LAYER_NORM_CONFIG.items() if k != "layer_norm_eps"}
    | {
        "norm_eps": Reads(EPSILON, 1e-5),
        "hidden_act": Reads("hidden_act", "relu2"),
        "head_dim": Reads("attention.key_length", None),
        "partial_rotary_factor": Reads("partial_rotary_factor", 0.5),
        "attention_bias": Reads("attention_bias", False),
        "mlp_bias": Reads("mlp_bias", False),
    },
    wiring=(
        Link(source=Role.ATTN_NORM, sinks=QKV),
        V_TO_OUT,
        Link(source=Role.FFN_NORM, sinks=(Role.FFN_UP,)),
    ),
    graphs=(
        Graph(
            format="gguf",
            name="nemotron",
            engine="llama.cpp",
            keys=(*KEYS, "vocab_size"),
            fixes={
                "hidden_act": Fix(values=("relu2",), why="the nemotron graph squares a ReLU"),
                "attention.key_length": square("nemotron"),
            },
            rope=PLAIN_ROPE,
            needs_head=True,
        ),
    ),
    waived=RECOMPUTED,
)
