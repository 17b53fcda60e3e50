"""Each class against llmfit's conformance kit: vectors in place of logits."""

from __future__ import annotations

import pytest

from llmfit_bert import (
    BERT,
    BERT_CLASSIFIER,
    DISTILBERT,
    MODERNBERT,
    NOMIC,
    ROBERTA,
    ROBERTA_CLASSIFIER,
    samples,
)
from llmfit_core.testing import ArchitectureTests

SAMPLES = samples.SAMPLES["architectures"]
SLOW = pytest.mark.slow(reason="the same table under another class's names")


class TestBert(ArchitectureTests):
    architecture = BERT
    sample = SAMPLES["bert"][0]


@SLOW
class TestBertMaskedLm(ArchitectureTests):
    architecture = BERT
    sample = SAMPLES["bert"][1]


@SLOW
class TestBertPreTraining(ArchitectureTests):
    architecture = BERT
    sample = SAMPLES["bert"][2]


class TestBertClassifier(ArchitectureTests):
    architecture = BERT_CLASSIFIER
    sample = SAMPLES["bert-classifier"][0]


class TestRoberta(ArchitectureTests):
    architecture = ROBERTA
    sample = SAMPLES["roberta"][0]


@SLOW
class TestRobertaMaskedLm(ArchitectureTests):
    architecture = ROBERTA
    sample = SAMPLES["roberta"][1]


@SLOW
class TestXlmRoberta(ArchitectureTests):
    architecture = ROBERTA
    sample = SAMPLES["roberta"][2]


@SLOW
class TestXlmRobertaMaskedLm(ArchitectureTests):
    architecture = ROBERTA
    sample = SAMPLES["roberta"][3]


@SLOW
class TestCamembert(ArchitectureTests):
    architecture = ROBERTA
    sample = SAMPLES["roberta"][4]


@SLOW
class TestCamembertMaskedLm(ArchitectureTests):
    architecture = ROBERTA
    sample = SAMPLES["roberta"][5]


@SLOW
class TestRobertaClassifier(ArchitectureTests):
    architecture = ROBERTA_CLASSIFIER
    sample = SAMPLES["roberta-classifier"][0]


@SLOW
class TestXlmRobertaClassifier(ArchitectureTests):
    architecture = ROBERTA_CLASSIFIER
    sample = SAMPLES["roberta-classifier"][1]


@SLOW
class TestCamembertClassifier(ArchitectureTests):
    architecture = ROBERTA_CLASSIFIER
    sample = SAMPLES["roberta-classifier"][2]


class TestDistilBert(ArchitectureTests):
    architecture = DISTILBERT
    sample = SAMPLES["distilbert"][0]


@SLOW
class TestDistilBertMaskedLm(ArchitectureTests):
    architecture = DISTILBERT
    sample = SAMPLES["distilbert"][1]


class TestNomic(ArchitectureTests):
    architecture = NOMIC
    sample = SAMPLES["nomic-bert"][0]


class TestModernBert(ArchitectureTests):
    architecture = MODERNBERT
    sample = SAMPLES["modern-bert"][0]


@SLOW
class TestModernBertMaskedLm(ArchitectureTests):
    architecture = MODERNBERT
    sample = SAMPLES["modern-bert"][1]
