"""GLM-4 in transformers' layout against llmfit's conformance kit."""

from __future__ import annotations

from llmfit_core.testing import ArchitectureTests
from llmfit_open import GLM, samples

SAMPLES = samples.SAMPLES["architectures"]


class TestGlm(ArchitectureTests):
    architecture = GLM
    sample = SAMPLES["glm"]
