"""Hybrids of state spaces and attention against llmfit's conformance kit."""

from __future__ import annotations

from llmfit_core.testing import ArchitectureTests
from llmfit_recurrent import BAMBA, FALCON_H1, GRANITE_HYBRID, JAMBA, samples

SAMPLES = samples.SAMPLES["architectures"]


class TestGraniteHybrid(ArchitectureTests):
    architecture = GRANITE_HYBRID
    sample = SAMPLES["granitemoehybrid"]


class TestBamba(ArchitectureTests):
    architecture = BAMBA
    sample = SAMPLES["bamba"]


class TestFalconH1(ArchitectureTests):
    architecture = FALCON_H1
    sample = SAMPLES["falcon_h1"]


class TestJamba(ArchitectureTests):
    architecture = JAMBA
    sample = SAMPLES["jamba"]
