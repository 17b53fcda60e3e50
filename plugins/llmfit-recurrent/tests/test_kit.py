"""State spaces against llmfit's conformance kit."""

from __future__ import annotations

from llmfit_core.testing import ArchitectureTests
from llmfit_recurrent import FALCON_MAMBA, MAMBA, MAMBA2, samples

SAMPLES = samples.SAMPLES["architectures"]


class TestMamba(ArchitectureTests):
    architecture = MAMBA
    sample = SAMPLES["mamba"]


class TestFalconMamba(ArchitectureTests):
    architecture = FALCON_MAMBA
    sample = SAMPLES["falcon_mamba"]


class TestMamba2(ArchitectureTests):
    architecture = MAMBA2
    sample = SAMPLES["mamba2"]
