"""Each family against llmfit's conformance kit."""

from __future__ import annotations

from llmfit_core.testing import ArchitectureTests
from llmfit_deepseek2 import DEEPSEEK, DEEPSEEK2, DEEPSEEK3, GLM4_MOE, GLM4_MOE_LITE, YOUTU, samples

SAMPLES = samples.SAMPLES["architectures"]


class TestDeepseek2(ArchitectureTests):
    architecture = DEEPSEEK2
    sample = SAMPLES["deepseek2"]


class TestDeepseek3(ArchitectureTests):
    architecture = DEEPSEEK3
    sample = SAMPLES["deepseek3"]


class TestGlm4MoeLite(ArchitectureTests):
    architecture = GLM4_MOE_LITE
    sample = SAMPLES["glm4-moe-lite"]


class TestYoutu(ArchitectureTests):
    architecture = YOUTU
    sample = SAMPLES["youtu"]


class TestGlm4Moe(ArchitectureTests):
    architecture = GLM4_MOE
    sample = SAMPLES["glm4moe"]


class TestDeepseek(ArchitectureTests):
    architecture = DEEPSEEK
    sample = SAMPLES["deepseek"]
