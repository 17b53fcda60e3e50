"""Solar Open against llmfit's conformance kit."""

from __future__ import annotations

from llmfit_core.testing import ArchitectureTests
from llmfit_deepseek2 import SOLAR_OPEN, samples


class TestSolarOpen(ArchitectureTests):
    architecture = SOLAR_OPEN
    sample = samples.SAMPLES["architectures"]["solar-open"]
