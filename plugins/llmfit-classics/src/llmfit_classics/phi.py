"""Phi-1, Phi-1.5 and Phi-2: attention and feed-forward side by side, biases everywhere, the head included."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmfit_classics.common import KEYS, LAYER_NORM_CONFIG, PLAIN_ROPE, QKV, RECOMPUTED, V_TO_OUT, gelu, norm, square
from llmfit_core import Architecture, Fix, Graph, Link, Reads, Role, Slot

_LAYER = "model.layers.{layer}."


def kinds(hparams: Mapping[str, Any], _layer: int) -> frozenset[str]:
    """Layers with norms of q and k, or without."""
    return frozenset({"normed"} if hparams.get("qk_layernorm") else ())


PHI = Architecture(
    name="phi",
    hf_classes=("PhiForCausalLM",),
    model_types=("phi",),
    tensors={
        "model.embed_tokens": Role.EMBED,
        _LAYER + "input_layernorm": norm(Role.ATTN_NORM),
        _LAYER + "self_attn.q_proj": Slot(Role.ATTN_Q, bias=True),
        _LAYER + "self_attn.k_proj": Slot(Role.ATTN_K, bias=True),
        _LAYER + "self_attn.v_proj": Slot(Role.ATTN_V, bias=True),
        _LAYER + "self_attn.q_layernorm": norm(Role.ATTN_Q_NORM, "normed"),
        _LAYER + "self_attn.k_layernorm": norm(Role.ATTN_K_NORM, "normed"),
        _LAYER + "self_attn.dense": Slot(Role.ATTN_OUT, bias=True),
        _LAYER + "mlp.fc1": Slot(Role.FFN_UP, bias=True),
        _LAYER + "mlp.fc2": Slot(Role.FFN_DOWN, bias=True),
        "model.final_layernorm": norm(Role.OUTPUT_NORM),
        "lm_head": Slot(Role.HEAD, bias=True, optional=True),
    },
    config=LAYER_NORM_CONFIG
    | {
        "hidden_act": Reads("hidden_act", "gelu_new"),
        "head_dim": Reads("attention.key_length", None),
        "partial_rotary_factor": Reads("partial_rotary_factor", 0.5),
        "qk_layernorm": Reads("qk_layernorm", False),
    },
    wiring=(Link(source=Role.ATTN_NORM, sinks=(*QKV, Role.FFN_UP)), V_TO_OUT),
    graphs=(
        Graph(
            format="gguf",
            name="phi2",
            engine="llama.cpp",
            keys=KEYS,
            fixes={
                "hidden_act": gelu("phi2", "gelu_new"),
                "attention.key_length": square("phi2"),
                "qk_layernorm": Fix(values=(False,), why="the phi2 graph has no norms of q and k"),
            },
            rope=PLAIN_ROPE,
            needs_head=True,
        ),
    ),
    layer_kinds=kinds,
    waived=RECOMPUTED,
)
