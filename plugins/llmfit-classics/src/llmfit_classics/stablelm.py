"""StableLM: a Llama with LayerNorm and partial rope; some run attention and feed-forward side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmfit_classics.common import (
    EPSILON,
    KEYS,
    LAYER_NORM_CONFIG,
    NORMS,
    PLAIN_ROPE,
    QKV,
    RECOMPUTED,
    V_TO_OUT,
    norm,
    silu,
)
from llmfit_core import ROLES, Architecture, Asserts, Graph, Link, Reads, Role, Slot

_LAYER = "model.layers.{layer}."
_FFN = (Role.FFN_GATE, Role.FFN_UP)


def kinds(hparams: Mapping[str, Any], _layer: int) -> frozenset[str]:
    """Attention and feed-forward side by side behind one norm, or in turn; with norms of heads or without."""
    normed = {"normed"} if hparams.get("qk_layernorm") else set()
    return frozenset({"side by side" if hparams["use_parallel_residual"] else "in turn", *normed})


def of_heads(role: Role, heads: str) -> Slot:
    """Norms of heads, one tensor each."""
    return Slot(role, when="normed", count=heads)


def assumed(keys: Mapping[str, Any]) -> dict[str, object]:
    """What the tensors of a file tell."""
    return {
        "use_parallel_residual": Role.FFN_NORM not in keys[ROLES],
        "qk_layernorm": Role.ATTN_Q_NORM in keys[ROLES],
    }


STABLELM = Architecture(
    name="stablelm",
    hf_classes=("StableLmForCausalLM", "StableLMEpochForCausalLM"),
    model_types=("stablelm", "stablelm_epoch"),
    tensors={
        "model.embed_tokens": Role.EMBED,
        _LAYER + "input_layernorm": norm(Role.ATTN_NORM),
        _LAYER + "self_attn.q_proj": Slot(Role.ATTN_Q, bias="use_qkv_bias"),
        _LAYER + "self_attn.k_proj": Slot(Role.ATTN_K, bias="use_qkv_bias"),
        _LAYER + "self_attn.v_proj": Slot(Role.ATTN_V, bias="use_qkv_bias"),
        _LAYER + "self_attn.o_proj": Role.ATTN_OUT,
        # StableLM 2 12B: each head by weights of its own.
        _LAYER + "self_attn.q_layernorm.norms.{expert}": of_heads(Role.ATTN_Q_NORM, "attention.head_count"),
        _LAYER + "self_attn.k_layernorm.norms.{expert}": of_heads(Role.ATTN_K_NORM, "attention.head_count_kv"),
        _LAYER + "post_attention_layernorm": norm(Role.FFN_NORM, "in turn"),
        _LAYER + "mlp.gate_proj": Role.FFN_GATE,
        _LAYER + "mlp.up_proj": Role.FFN_UP,
        _LAYER + "mlp.down_proj": Role.FFN_DOWN,
        "model.norm": norm(Role.OUTPUT_NORM),
        "lm_head": Slot(Role.HEAD, optional=True),
    },
    config=LAYER_NORM_CONFIG
    | {
        "partial_rotary_factor": Reads("partial_rotary_factor", 0.25),
        "use_qkv_bias": Reads("use_qkv_bias", False),
        "use_parallel_residual": Reads("use_parallel_residual", False),
        "qk_layernorm": Reads("qk_layernorm", False),
        # The names of the first revisions, before transformers had the class.
        "norm_eps": Reads(EPSILON, None),
        "rope_pct": Reads("partial_rotary_factor", None, kind="number"),
        "rotary_scaling_factor": Asserts((1, 1.0, None), "positions would be stretched"),
    },
    wiring=(
        Link(source=Role.ATTN_NORM, sinks=QKV, when="in turn"),
        Link(source=Role.ATTN_NORM, sinks=(*QKV, *_FFN), when="side by side"),
        V_TO_OUT,
        Link(source=Role.FFN_NORM, sinks=_FFN),
        Link(source=Role.FFN_UP, sinks=(Role.FFN_DOWN,)),
    ),
    graphs=(
        Graph(
            format="gguf",
            name="stablelm",
            engine="llama.cpp",
            keys=(*KEYS, "use_parallel_residual"),
            fixes={"hidden_act": silu("stablelm")},
            rope=PLAIN_ROPE,
            biases=NORMS | {*QKV},
            needs_head=True,
            assumes=assumed,
        ),
    ),
    shapes={
        Role.ATTN_Q_NORM: ("attention.head_count", "attention.key_length"),
        Role.ATTN_K_NORM: ("attention.head_count_kv", "attention.key_length"),
    },
    layer_kinds=kinds,
    waived=RECOMPUTED,
)
