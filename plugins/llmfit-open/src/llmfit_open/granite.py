"""Granite: a Llama with four multipliers, each a key of its graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmfit_core import DECODER_CONFIG, PRE_NORM_DECODER, Architecture, Graph, Reads, UnsupportedError
from llmfit_open.common import ENDS, KEYS, PLAIN_ROPE, PRE_NORMS, RECOMPUTED, attention, common_fixes, gated


def assumed(keys: Mapping[str, Any]) -> dict[str, object]:
    """What the loader takes where a file has no multipliers; attention's is not the config's own default."""
    return {"attention.scale": keys["attention.key_length"] ** -0.5, "embedding_scale": 1.0, "residual_scale": 1.0}


def roped(hparams: Mapping[str, Any]) -> dict[str, object]:
    """Nothing; a GGUF file that switches rope off is no model of this class.

    Raises:
        UnsupportedError: `gguf-variant`.
    """
    if hparams.get("rope.scaling.finetuned") is False:
        raise UnsupportedError(
            "gguf-variant",
            "the file says rope.scaling.finetuned = false under the graph granite, which then has no rope at all",
            "No class of transformers computes this; take the model's original in Hugging Face's layout.",
        )
    return {}


GRANITE = Architecture(
    name="granite",
    hf_classes=("GraniteForCausalLM",),
    model_types=("granite",),
    tensors=ENDS | PRE_NORMS | attention("attention_bias") | gated("mlp_bias"),
    config=DECODER_CONFIG
    | {
        "attention_bias": Reads("attention_bias", False),
        "mlp_bias": Reads("mlp_bias", False),
        "embedding_multiplier": Reads("embedding_scale", 1.0, kind="number"),
        "residual_multiplier": Reads("residual_scale", 1.0, kind="number"),
        "attention_multiplier": Reads("attention.scale", 1.0, kind="number"),
        "logits_scaling": Reads("logit_scale", 1.0, kind="number"),
    },
    wiring=PRE_NORM_DECODER,
    graphs=(
        Graph(
            format="gguf",
            name="granite",
            engine="llama.cpp",
            keys=(
                *KEYS,
                "vocab_size",
                "rope.dimension_count",
                "attention.scale",
                "embedding_scale",
                "residual_scale",
                "logit_scale",
            ),
            fixes=common_fixes("granite"),
            rope=PLAIN_ROPE | {"llama3", "longrope"},
            rope_rows="pairs",
            rope_factors=True,
            assumes=assumed,
        ),
    ),
    hparams=roped,
    waived=RECOMPUTED,
)
