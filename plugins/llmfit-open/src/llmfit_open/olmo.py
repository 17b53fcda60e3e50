"""OLMo, OLMo 2 and OLMoE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmfit_core import DECODER_CONFIG, PRE_NORM_DECODER, Architecture, Fix, Fused, Graph, Link, Reads, Role, Slot
from llmfit_core import UnsupportedError as Unsupported
from llmfit_open.common import (
    ENDS,
    KEYS,
    KEYS_LAYER_NORM,
    PLAIN_ROPE,
    PRE_NORMS,
    QKV,
    RECOMPUTED,
    Table,
    attention,
    common_fixes,
    gated,
)

EPSILON = 1e-5
CLAMP = "attention.clamp_kqv"
Q_WIDTH, K_WIDTH = (("attention.head_count", "attention.key_length"), ("attention.head_count_kv", "attention.key_length"))
UP_TO_DOWN = Link(source=Role.FFN_UP, sinks=(Role.FFN_DOWN,))
V_TO_OUT = Link(source=Role.ATTN_V, sinks=(Role.ATTN_OUT,), when="no_gqa")

NORMED_QK: Table = {
    "model.layers.{layer}.self_attn.q_norm": Role.ATTN_Q_NORM,
    "model.layers.{layer}.self_attn.k_norm": Role.ATTN_K_NORM,
}


def known_epsilon(hparams: Mapping[str, Any]) -> dict[str, object]:
    """Nothing; a GGUF file may say another epsilon, which the class cannot.

    Raises:
        UnsupportedError: `gguf-variant`.
    """
    stated = hparams.get("attention.layer_norm_epsilon", EPSILON)
    if abs(stated - EPSILON) > 1e-9:
        raise Unsupported(
            "gguf-variant",
            f"the file says attention.layer_norm_epsilon = {stated:g}, and OLMo's class has {EPSILON:g} built in",
            "Take the model's original in Hugging Face's layout.",
        )
    return {}


# Norms without weights: their epsilon is part of the class.
OLMO = Architecture(
    name="olmo",
    hf_classes=("OlmoForCausalLM",),
    model_types=("olmo",),
    tensors={k: v for k, v in ENDS.items() if k != "model.norm"} | attention("attention_bias") | gated(),
    config={k: v for k, v in DECODER_CONFIG.items() if k != "rms_norm_eps"}
    | {
        "clip_qkv": Reads(CLAMP, None, kind="number"),
        "attention_bias": Reads("attention_bias", False),
    },
    # Clamped values do not pass a scale on, and there are no norms to take one.
    wiring=(UP_TO_DOWN,),
    graphs=(
        Graph(
            format="gguf",
            name="olmo",
            engine="llama.cpp",
            keys=(*(k for k in KEYS_LAYER_NORM if k != "attention.layer_norm_epsilon"), CLAMP),
            constants={"attention.layer_norm_epsilon": EPSILON},
            fixes=common_fixes("olmo", square=True),
            rope=PLAIN_ROPE,
            rope_rows="pairs",
            biases=QKV,
        ),
    ),
    hparams=known_epsilon,
    waived=RECOMPUTED,
)


OLMO2 = Architecture(
    name="olmo2",
    hf_classes=("Olmo2ForCausalLM",),
    model_types=("olmo2",),
    tensors=ENDS
    | attention("attention_bias")
    | NORMED_QK
    | {
        "model.layers.{layer}.post_attention_layernorm": Role.ATTN_POST_NORM,
        "model.layers.{layer}.post_feedforward_layernorm": Role.FFN_POST_NORM,
    }
    | gated(),
    config=DECODER_CONFIG
    | {
        "rms_norm_eps": Reads("attention.layer_norm_rms_epsilon", 1e-5),
        "attention_bias": Reads("attention_bias", False),
    },
    # The norms follow the blocks: what they give goes into the residual, where no scale can be taken up.
    wiring=(V_TO_OUT, UP_TO_DOWN),
    graphs=(
        Graph(
            format="gguf",
            name="olmo2",
            engine="llama.cpp",
            keys=KEYS,
            fixes=common_fixes("olmo2", square=True),
            rope=PLAIN_ROPE,
            biases=QKV,
            needs_head=True,
        ),
    ),
    shapes={Role.ATTN_Q_NORM: (Q_WIDTH,), Role.ATTN_K_NORM: (K_WIDTH,)},
    waived=RECOMPUTED,
)


def all_experts_used(hparams: Mapping[str, Any]) -> bool:
    """With every expert in use the softmax already adds up to one, and normalising changes nothing."""
    return bool(hparams["expert_used_count"] == hparams["expert_count"])


def no_groups(hparams: Mapping[str, Any]) -> bool:
    """As many key-value heads as heads."""
    return bool(hparams["attention.head_count_kv"] == hparams["attention.head_count"])


OLMOE = Architecture(
    name="olmoe",
    hf_classes=("OlmoeForCausalLM",),
    model_types=("olmoe",),
    tensors=ENDS
    | PRE_NORMS
    | attention("attention_bias")
    | NORMED_QK
    | {
        "model.layers.{layer}.mlp.gate": Role.FFN_ROUTER,
        "model.layers.{layer}.mlp.experts.{expert}.gate_proj": Role.FFN_GATE_EXPS,
        "model.layers.{layer}.mlp.experts.{expert}.up_proj": Role.FFN_UP_EXPS,
        "model.layers.{layer}.mlp.experts.{expert}.down_proj": Role.FFN_DOWN_EXPS,
        "model.layers.{layer}.mlp.experts.gate_up_proj": Slot(
            Fused((Role.FFN_GATE_EXPS, Role.FFN_UP_EXPS)), either_way=True, bare=True
        ),
        "model.layers.{layer}.mlp.experts.down_proj": Slot(Role.FFN_DOWN_EXPS, either_way=True, bare=True),
    },
    config=DECODER_CONFIG
    | {
        "rms_norm_eps": Reads("attention.layer_norm_rms_epsilon", 1e-5),
        "attention_bias": Reads("attention_bias", False),
        "clip_qkv": Reads(CLAMP, None, kind="number"),
        "num_experts": Reads("expert_count", 64),
        "num_local_experts": Reads("expert_count", 64),  # transformers' second name of num_experts
        "num_experts_per_tok": Reads("expert_used_count", 8),
        "norm_topk_prob": Reads("norm_topk_prob", False),
    },
    wiring=PRE_NORM_DECODER,
    graphs=(
        Graph(
            format="gguf",
            name="olmoe",
            engine="llama.cpp",
            keys=(*KEYS, "expert_count", "expert_used_count"),
            fixes=common_fixes("olmoe", square=True)
            | {
                "attention.head_count_kv": Fix(
                    values=(None,),
                    why="the olmoe graph wants as many key-value heads as heads: it loads a k norm as wide as the model",
                    unless=no_groups,
                ),
                "norm_topk_prob": Fix(
                    values=(False,),
                    why="the olmoe graph never normalises the chosen experts' weights",
                    unless=all_experts_used,
                ),
                CLAMP: Fix(values=(None,), why="the olmoe graph does not clamp q, k and v"),
            },
            rope=PLAIN_ROPE,
            biases=QKV,
            needs_head=True,
        ),
    ),
    shapes={
        Role.ATTN_Q_NORM: (Q_WIDTH,),
        Role.ATTN_K_NORM: (K_WIDTH,),
        Role.FFN_GATE_EXPS: ("expert_count", "feed_forward_length", "embedding_length"),
        Role.FFN_UP_EXPS: ("expert_count", "feed_forward_length", "embedding_length"),
        Role.FFN_DOWN_EXPS: ("expert_count", "embedding_length", "feed_forward_length"),
    },
    waived=RECOMPUTED,
)
