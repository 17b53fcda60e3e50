"""Cohere's Command-R: LayerNorm without bias, attention and feed-forward side by side, scaled logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmfit_core import DECODER_CONFIG, Architecture, Fix, Graph, Link, Reads, Role, Slot
from llmfit_open.common import ENDS, KEYS_LAYER_NORM, PLAIN_ROPE, QKV, RECOMPUTED, attention, common_fixes, gated

NORMED_FROM = 64
"""Layers from which on llama.cpp's command-r loads norms of q and k; below, it loads none."""


def derived(hparams: Mapping[str, Any]) -> dict[str, object]:
    """The context the authors mean, and whether the loader expects the norms that there are."""
    stated = hparams.get("model_max_length")
    normed = bool(hparams.get("use_qk_norm"))
    return {
        # Command-R's config limits the cache of transformers in max_position_embeddings and means this one.
        **({"context_length": stated} if stated else {}),
        "qk_norm_as_loaded": normed == (hparams["block_count"] >= NORMED_FROM),
    }


def assumed(keys: Mapping[str, Any]) -> dict[str, object]:
    """What the loader takes: norms by the number of layers, and logits as they are where no key scales them."""
    return {"use_qk_norm": keys["block_count"] >= NORMED_FROM, "logit_scale": 1.0}


def kinds(hparams: Mapping[str, Any], _layer: int) -> frozenset[str]:
    """Layers with norms of q and k, or without."""
    return frozenset({"normed"} if hparams.get("use_qk_norm") else ())


COHERE = Architecture(
    name="cohere",
    hf_classes=("CohereForCausalLM",),
    model_types=("cohere",),
    tensors=ENDS
    | {"model.layers.{layer}.input_layernorm": Role.ATTN_NORM}
    | attention("attention_bias")
    | {
        "model.layers.{layer}.self_attn.q_norm": Slot(Role.ATTN_Q_NORM, when="normed"),
        "model.layers.{layer}.self_attn.k_norm": Slot(Role.ATTN_K_NORM, when="normed"),
    }
    | gated(),
    config={k: v for k, v in DECODER_CONFIG.items() if k != "rms_norm_eps"}
    | {
        "layer_norm_eps": Reads("attention.layer_norm_epsilon", 1e-5),
        "rope_theta": Reads("rope.freq_base", 500000.0),
        "tie_word_embeddings": Reads("tie_word_embeddings", True),
        "attention_bias": Reads("attention_bias", False),
        "use_qk_norm": Reads("use_qk_norm", False),
        "logit_scale": Reads("logit_scale", 0.0625, kind="number"),
        "model_max_length": Reads("model_max_length", None, kind="count"),
    },
    wiring=(
        Link(source=Role.ATTN_NORM, sinks=(Role.ATTN_Q, Role.ATTN_K, Role.ATTN_V, Role.FFN_GATE, Role.FFN_UP)),
        Link(source=Role.ATTN_V, sinks=(Role.ATTN_OUT,), when="no_gqa"),
        Link(source=Role.FFN_UP, sinks=(Role.FFN_DOWN,)),
    ),
    graphs=(
        Graph(
            format="gguf",
            name="command-r",
            engine="llama.cpp",
            keys=(*KEYS_LAYER_NORM, "logit_scale"),
            fixes=common_fixes("command-r", square=True)
            | {
                "qk_norm_as_loaded": Fix(
                    values=(True,),
                    why=f"use_qk_norm does not go with the number of layers: the command-r graph has norms of q and k in "
                    f"models of {NORMED_FROM} layers and more, and only in those",
                )
            },
            rope=PLAIN_ROPE,
            rope_rows="pairs",
            biases=QKV,
            own_head=False,
            assumes=assumed,
        ),
    ),
    shapes={
        Role.ATTN_Q_NORM: ("attention.head_count", "attention.key_length"),
        Role.ATTN_K_NORM: ("attention.head_count_kv", "attention.key_length"),
    },
    hparams=derived,
    layer_kinds=kinds,
    waived=RECOMPUTED,
    rope_rows="pairs",
)
