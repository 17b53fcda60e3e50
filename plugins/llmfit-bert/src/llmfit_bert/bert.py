"""BERT: learned positions, a norm behind each half of a layer, every token sees every other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from llmfit_bert.common import (
    ATTN_OUT_NORM,
    CAUSAL,
    CLASSES,
    CLASSIFIER_CONFIG,
    CLASSIFIER_SHAPES,
    ENCODER_CONFIG,
    KEYS,
    LAYER_OUT_NORM,
    LEARNED,
    POOLED,
    TOKEN_TYPES,
    V_TO_OUT,
    Table,
    assumed_labels,
    gelu,
    labels,
    norm,
    old_norms,
    two_types,
)
from llmfit_core import Architecture, Graph, Role, Slot

LAYER: Final = "encoder.layer.{layer}."

LAYERS: Final[Table] = {
    LAYER + "attention.self.query": Slot(Role.ATTN_Q, bias=True),
    LAYER + "attention.self.key": Slot(Role.ATTN_K, bias=True),
    LAYER + "attention.self.value": Slot(Role.ATTN_V, bias=True),
    LAYER + "attention.output.dense": Slot(Role.ATTN_OUT, bias=True),
    LAYER + "attention.output.LayerNorm": norm(ATTN_OUT_NORM),
    LAYER + "intermediate.dense": Slot(Role.FFN_UP, bias=True),
    LAYER + "output.dense": Slot(Role.FFN_DOWN, bias=True),
    LAYER + "output.LayerNorm": norm(LAYER_OUT_NORM),
}

EMBEDDINGS: Final[Table] = {
    "embeddings.word_embeddings": Role.EMBED,
    "embeddings.position_embeddings": Role.POSITION_EMBED,
    "embeddings.token_type_embeddings": Role.TOKEN_TYPES,
    "embeddings.LayerNorm": norm(Role.EMBED_NORM),
}

SHAPES: Final = {
    Role.POSITION_EMBED: ("context_length", "embedding_length"),
    Role.TOKEN_TYPES: (TOKEN_TYPES, "embedding_length"),
    Role.EMBED_NORM: ("embedding_length",),
    ATTN_OUT_NORM: ("embedding_length",),
    LAYER_OUT_NORM: ("embedding_length",),
}

BUFFERS: Final = {
    "embeddings.position_ids": "0, 1, 2, ... as they are counted anyway",
    "embeddings.token_type_ids": "noughts",
}
POOLER: Final = {"pooler.dense": "of the head that compares two sentences; an embedding is made of the tokens' own vectors"}
_WORDS = "of the head that predicts words"
HEADS: Final = {
    **dict.fromkeys(
        (
            "cls.predictions",
            "cls.predictions.decoder",
            "cls.predictions.transform.dense",
            "cls.predictions.transform.LayerNorm",
            "cls.predictions.transform.LayerNorm.gamma",
            "cls.predictions.transform.LayerNorm.beta",
        ),
        _WORDS,
    ),
    "cls.seq_relationship": "of the head that compares two sentences",
}


def derived(hparams: Mapping[str, Any]) -> dict[str, object]:
    """How many positions were learned."""
    return {"learned_positions": hparams["context_length"]}


def graph(**more: Any) -> Graph:
    """llama.cpp's graph of BERT."""
    return Graph(
        format="gguf",
        name="bert",
        engine="llama.cpp",
        **(
            {
                "keys": (*KEYS, TOKEN_TYPES),
                "constants": CAUSAL,
                "fixes": {"hidden_act": gelu("bert"), "learned_positions": LEARNED},
                "rope": frozenset({"default"}),
            }
            | more
        ),
    )


RANKING: Final[Mapping[str, Any]] = {
    "keys": (*KEYS, TOKEN_TYPES, "classifier.output_labels"),
    "constants": {**CAUSAL, "pooling_type": 4},
    "bounds": two_types,
    "assumes": assumed_labels,
}
"""What a graph with a classifier has besides: its answer is the classes' scores of the first token."""

BERT = Architecture(
    name="bert",
    hf_classes=("BertModel", "BertForMaskedLM", "BertForPreTraining"),
    model_types=("bert",),
    tensors=old_norms(EMBEDDINGS | LAYERS),
    config=ENCODER_CONFIG,
    wiring=(V_TO_OUT,),
    graphs=(graph(),),
    shapes=SHAPES,
    hparams=derived,
    waived=BUFFERS | POOLER | HEADS,
    base_prefix="bert.",
)

BERT_CLASSIFIER = Architecture(
    name="bert-classifier",
    hf_classes=("BertForSequenceClassification",),
    model_types=("bert",),
    tensors=old_norms(EMBEDDINGS | LAYERS)
    | {"pooler.dense": Slot(POOLED, bias=True), "classifier": Slot(CLASSES, bias=True)},
    config=ENCODER_CONFIG | CLASSIFIER_CONFIG,
    wiring=(V_TO_OUT,),
    graphs=(graph(**RANKING),),
    shapes={**SHAPES, **CLASSIFIER_SHAPES},
    hparams=lambda hp: derived(hp) | labels(hp),
    waived=BUFFERS,
    base_prefix="bert.",
)
