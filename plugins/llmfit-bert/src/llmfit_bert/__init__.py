"""Encoders that embed and rank texts, stated once as data."""

from __future__ import annotations

from collections.abc import Iterable

from llmfit_bert.bert import BERT, BERT_CLASSIFIER
from llmfit_bert.distilbert import DISTILBERT
from llmfit_bert.modernbert import MODERNBERT
from llmfit_bert.nomic import NOMIC
from llmfit_bert.roberta import ROBERTA, ROBERTA_CLASSIFIER
from llmfit_core import Architecture, hookimpl


@hookimpl
def llmfit_architectures() -> Iterable[Architecture]:
    """The families."""
    return (BERT, BERT_CLASSIFIER, ROBERTA, ROBERTA_CLASSIFIER, DISTILBERT, NOMIC, MODERNBERT)
