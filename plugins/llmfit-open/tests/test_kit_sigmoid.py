"""dots.llm1 and MiniMax-M2, which gate their experts by sigmoid, against llmfit's conformance kit."""

from __future__ import annotations

from llmfit_core.testing import ArchitectureTests
from llmfit_open import DOTS1, MINIMAX_M2, samples

SAMPLES = samples.SAMPLES["architectures"]


class TestDots1(ArchitectureTests):
    architecture = DOTS1
    sample = SAMPLES["dots1"]


class TestMiniMaxM2(ArchitectureTests):
    architecture = MINIMAX_M2
    sample = SAMPLES["minimax-m2"]
