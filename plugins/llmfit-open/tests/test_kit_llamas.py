"""Arcee and Seed-OSS against llmfit's conformance kit."""

from __future__ import annotations

from llmfit_core.testing import ArchitectureTests
from llmfit_open import ARCEE, SEED_OSS, samples

SAMPLES = samples.SAMPLES["architectures"]


class TestArcee(ArchitectureTests):
    architecture = ARCEE
    sample = SAMPLES["arcee"]


class TestSeedOss(ArchitectureTests):
    architecture = SEED_OSS
    sample = SAMPLES["seed_oss"]
