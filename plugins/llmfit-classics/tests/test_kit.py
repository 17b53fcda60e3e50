"""Each family against llmfit's conformance kit."""

from __future__ import annotations

from llmfit_classics import (
    BLOOM,
    FALCON,
    GPT2,
    GPT_BIGCODE,
    GPTNEOX,
    JAIS2,
    NEMOTRON,
    PHI,
    STABLELM,
    STARCODER2,
    samples,
)
from llmfit_core.testing import ArchitectureTests

SAMPLES = samples.SAMPLES["architectures"]


class TestGpt2(ArchitectureTests):
    architecture = GPT2
    sample = SAMPLES["gpt2"]


class TestGptBigCode(ArchitectureTests):
    architecture = GPT_BIGCODE
    sample = SAMPLES["gpt-bigcode"]


class TestGptNeoX(ArchitectureTests):
    architecture = GPTNEOX
    sample = SAMPLES["gptneox"]


class TestBloom(ArchitectureTests):
    architecture = BLOOM
    sample = SAMPLES["bloom"]


class TestFalcon(ArchitectureTests):
    architecture = FALCON
    sample = SAMPLES["falcon"]


class TestPhi(ArchitectureTests):
    architecture = PHI
    sample = SAMPLES["phi"]


class TestStableLm(ArchitectureTests):
    architecture = STABLELM
    sample = SAMPLES["stablelm"]


class TestStarcoder2(ArchitectureTests):
    architecture = STARCODER2
    sample = SAMPLES["starcoder2"]


class TestNemotron(ArchitectureTests):
    architecture = NEMOTRON
    sample = SAMPLES["nemotron"]


class TestJais2(ArchitectureTests):
    architecture = JAIS2
    sample = SAMPLES["jais2"]
