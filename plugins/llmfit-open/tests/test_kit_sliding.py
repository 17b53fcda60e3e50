"""Cohere 2 and OLMo 3, whose layers slide or see everything, against llmfit's conformance kit."""

from __future__ import annotations

from llmfit_core.testing import ArchitectureTests
from llmfit_open import COHERE2, OLMO3, samples

SAMPLES = samples.SAMPLES["architectures"]


class TestCohere2(ArchitectureTests):
    architecture = COHERE2
    sample = SAMPLES["cohere2"]


class TestOlmo3(ArchitectureTests):
    architecture = OLMO3
    sample = SAMPLES["olmo3"]
