"""Gemma, Gemma 2 and Gemma 3 against llmfit's conformance kit."""

from __future__ import annotations

from llmfit_gemma_samples import SAMPLES

from llmfit_core.testing import ArchitectureTests
from llmfit_gemma import GEMMA, GEMMA_2, GEMMA_3


class TestGemma(ArchitectureTests):
    architecture = GEMMA
    sample = SAMPLES["architectures"]["gemma"]


class TestGemma2(ArchitectureTests):
    architecture = GEMMA_2
    sample = SAMPLES["architectures"]["gemma2"]


class TestGemma3(ArchitectureTests):
    architecture = GEMMA_3
    sample = SAMPLES["architectures"]["gemma3"]
