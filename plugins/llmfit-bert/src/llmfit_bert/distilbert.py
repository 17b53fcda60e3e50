"""DistilBERT: BERT with half the layers, other names, and no kinds of token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmfit_bert.bert import BUFFERS, SHAPES, derived, graph
from llmfit_bert.common import (
    ATTN_OUT_NORM,
    EPSILON,
    KEYS,
    LAYER_OUT_NORM,
    TOKEN_TYPES,
    V_TO_OUT,
    Table,
    norm,
    old_norms,
)
from llmfit_core import COMMON_CONFIG, Architecture, Asserts, Ignores, Reads, Role, Slot

_LAYER = "transformer.layer.{layer}."
_TENSORS: Table = {
    "embeddings.word_embeddings": Role.EMBED,
    "embeddings.position_embeddings": Role.POSITION_EMBED,
    "embeddings.LayerNorm": norm(Role.EMBED_NORM),
    _LAYER + "attention.q_lin": Slot(Role.ATTN_Q, bias=True),
    _LAYER + "attention.k_lin": Slot(Role.ATTN_K, bias=True),
    _LAYER + "attention.v_lin": Slot(Role.ATTN_V, bias=True),
    _LAYER + "attention.out_lin": Slot(Role.ATTN_OUT, bias=True),
    _LAYER + "sa_layer_norm": norm(ATTN_OUT_NORM),
    _LAYER + "ffn.lin1": Slot(Role.FFN_UP, bias=True),
    _LAYER + "ffn.lin2": Slot(Role.FFN_DOWN, bias=True),
    _LAYER + "output_layer_norm": norm(LAYER_OUT_NORM),
}
_WORDS = "of the head that predicts words"


def _derived(hparams: Mapping[str, Any]) -> dict[str, object]:
    """The class's own epsilon, which no config states; and one kind of token, which the loader wants to be told."""
    return {**derived(hparams), EPSILON: 1e-12, TOKEN_TYPES: 1}


DISTILBERT = Architecture(
    name="distilbert",
    hf_classes=("DistilBertModel", "DistilBertForMaskedLM"),
    model_types=("distilbert",),
    tensors=old_norms(_TENSORS),
    config=COMMON_CONFIG
    | {
        "is_decoder": Asserts((False, None), "each token would see only those before it, which the graph does not compute"),
        "dim": Reads("embedding_length", 768),
        "n_layers": Reads("block_count", 6),
        "n_heads": Reads("attention.head_count", 12),
        "hidden_dim": Reads("feed_forward_length", 3072),
        "activation": Reads("hidden_act", "gelu"),
        "max_position_embeddings": Reads("context_length", 512),
        "vocab_size": Reads("vocab_size", None),
        # The class takes these names for the same.
        "hidden_size": Reads("embedding_length", None),
        "num_hidden_layers": Reads("block_count", None),
        "num_attention_heads": Reads("attention.head_count", None),
        "sinusoidal_pos_embds": Ignores("the positions are stored whichever way they came about"),
        "tie_word_embeddings": Ignores("of the head that predicts words, which is left out"),
        "tie_weights_": Ignores("of the head that predicts words, which is left out"),
        "qa_dropout": Ignores("training only"),
        "seq_classif_dropout": Ignores("training only"),
    },
    wiring=(V_TO_OUT,),
    graphs=(graph(keys=(*KEYS, TOKEN_TYPES)),),
    shapes=SHAPES,
    hparams=_derived,
    waived=BUFFERS | {"vocab_transform": _WORDS, "vocab_layer_norm": _WORDS, "vocab_projector": _WORDS},
    base_prefix="distilbert.",
)
