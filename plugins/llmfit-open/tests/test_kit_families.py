"""The families that stand in the plugin's samples against llmfit's conformance kit."""

from __future__ import annotations

from llmfit_core.testing import ArchitectureTests
from llmfit_open import COHERE, ERNIE4_5, EXAONE4, GLM4, GRANITE, INTERNLM2, OLMO, OLMO2, OLMOE, SMOLLM3, samples

SAMPLES = samples.SAMPLES["architectures"]


class TestSmolLm3(ArchitectureTests):
    architecture = SMOLLM3
    sample = SAMPLES["smollm3"]


class TestOlmo(ArchitectureTests):
    architecture = OLMO
    sample = SAMPLES["olmo"]


class TestOlmo2(ArchitectureTests):
    architecture = OLMO2
    sample = SAMPLES["olmo2"]


class TestOlmoe(ArchitectureTests):
    architecture = OLMOE
    sample = SAMPLES["olmoe"]


class TestGranite(ArchitectureTests):
    architecture = GRANITE
    sample = SAMPLES["granite"]


class TestCohere(ArchitectureTests):
    architecture = COHERE
    sample = SAMPLES["cohere"]


class TestGlm4(ArchitectureTests):
    architecture = GLM4
    sample = SAMPLES["glm4"]


class TestExaone4(ArchitectureTests):
    architecture = EXAONE4
    sample = SAMPLES["exaone4"]


class TestErnie45(ArchitectureTests):
    architecture = ERNIE4_5
    sample = SAMPLES["ernie4_5"]


class TestInternLm2(ArchitectureTests):
    architecture = INTERNLM2
    sample = SAMPLES["internlm2"]
