"""Granite with experts against llmfit's conformance kit."""

from __future__ import annotations

from llmfit_core.testing import ArchitectureTests
from llmfit_open import GRANITE_MOE, GRANITE_MOE_SHARED, samples

SAMPLES = samples.SAMPLES["architectures"]


class TestGraniteMoe(ArchitectureTests):
    architecture = GRANITE_MOE
    sample = SAMPLES["granitemoe"]


class TestGraniteMoeShared(ArchitectureTests):
    architecture = GRANITE_MOE_SHARED
    sample = SAMPLES["granitemoeshared"]
