"""Phi-3, and Phi-3.5-MoE, which no graph computes, against llmfit's conformance kit."""

from __future__ import annotations

from llmfit_core.testing import ArchitectureTests
from llmfit_phi3 import PHI3, PHIMOE, samples


class TestPhi3(ArchitectureTests):
    architecture = PHI3
    sample = samples.SAMPLES["architectures"]["phi3"]


class TestPhimoe(ArchitectureTests):
    architecture = PHIMOE
    sample = samples.SAMPLES["architectures"]["phimoe"]
