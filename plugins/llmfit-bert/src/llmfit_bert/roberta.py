"""RoBERTa, XLM-RoBERTa and CamemBERT: BERT whose positions begin behind the padding token's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from llmfit_bert.bert import BUFFERS, EMBEDDINGS, LAYERS, POOLER, RANKING, SHAPES, graph
from llmfit_bert.common import (
    CLASSES,
    CLASSIFIER_CONFIG,
    CLASSIFIER_SHAPES,
    ENCODER_CONFIG,
    POOLED,
    V_TO_OUT,
    Uses,
    labels,
    old_norms,
)
from llmfit_core import Architecture, Reads, Role, Slot

_WORDS = "of the head that predicts words"
HEADS: Final = {
    "lm_head": _WORDS,
    "lm_head.dense": _WORDS,
    "lm_head.layer_norm": _WORDS,
    "lm_head.decoder": _WORDS,
}
_CONFIG: Final[Uses] = ENCODER_CONFIG | {
    "max_position_embeddings": Reads("positions", 512, kind="count"),
    "pad_token_id": Reads("padding", 1, kind="count"),
}


def derived(hparams: Mapping[str, Any]) -> dict[str, object]:
    """Tokens are counted from one behind the padding token's id; the rows before that belong to no text."""
    offset = hparams["padding"] + 1
    context = max(hparams["positions"] - offset, 0)
    return {
        "position_offset": offset,
        "learned_positions": context,
        "context_length": hparams.get("context_length") or context,
    }


def assumed(hparams: Mapping[str, Any]) -> dict[str, object]:
    """How many positions the config counts, by those of a file."""
    return {"positions": hparams["context_length"] + int(hparams.get("padding", 1)) + 1}


_EMBEDDINGS = EMBEDDINGS | {"embeddings.position_embeddings": Slot(Role.POSITION_EMBED, skip="position_offset")}
_TENSORS = old_norms(_EMBEDDINGS | LAYERS)

ROBERTA = Architecture(
    name="roberta",
    hf_classes=(
        "RobertaModel",
        "RobertaForMaskedLM",
        "XLMRobertaModel",
        "XLMRobertaForMaskedLM",
        "CamembertModel",
        "CamembertForMaskedLM",
    ),
    model_types=("roberta", "xlm-roberta", "camembert"),
    tensors=_TENSORS,
    config=_CONFIG,
    wiring=(V_TO_OUT,),
    graphs=(graph(assumes=assumed),),
    shapes=SHAPES,
    hparams=derived,
    waived=BUFFERS | POOLER | HEADS,
    base_prefix="roberta.",
)

ROBERTA_CLASSIFIER = Architecture(
    name="roberta-classifier",
    hf_classes=(
        "RobertaForSequenceClassification",
        "XLMRobertaForSequenceClassification",
        "CamembertForSequenceClassification",
    ),
    model_types=("roberta", "xlm-roberta", "camembert"),
    tensors=_TENSORS
    | {"classifier.dense": Slot(POOLED, bias=True), "classifier.out_proj": Slot(CLASSES, bias=True)},
    config=_CONFIG | CLASSIFIER_CONFIG,
    wiring=(V_TO_OUT,),
    graphs=(graph(**{**RANKING, "assumes": lambda hp: {**RANKING["assumes"](hp), **assumed(hp)}}),),
    shapes={**SHAPES, **CLASSIFIER_SHAPES},
    hparams=lambda hp: derived(hp) | labels(hp),
    waived=BUFFERS | POOLER,
    base_prefix="roberta.",
)
