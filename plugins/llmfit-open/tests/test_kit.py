"""ERNIE 4.5 with experts against llmfit's conformance kit."""

from __future__ import annotations

from llmfit_core.testing import ArchitectureTests
from llmfit_open import ERNIE4_5_MOE, samples

SAMPLES = samples.SAMPLES["architectures"]


class TestErnie45Moe(ArchitectureTests):
    architecture = ERNIE4_5_MOE
    sample = SAMPLES["ernie4_5-moe"]
