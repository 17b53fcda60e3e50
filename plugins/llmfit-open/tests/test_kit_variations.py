"""Families that transformers lacks against llmfit's conformance kit, by formulas of their own."""

from __future__ import annotations

from llmfit_core.testing import ArchitectureTests
from llmfit_open import samples
from llmfit_open.variations import BAICHUAN, EXAONE, INTERNLM3, MINICPM, ORION, XVERSE

SAMPLES = samples.SAMPLES["architectures"]


class TestInternLM3(ArchitectureTests):
    architecture = INTERNLM3
    sample = SAMPLES["internlm3"]


class TestXverse(ArchitectureTests):
    architecture = XVERSE
    sample = SAMPLES["xverse"]


class TestOrion(ArchitectureTests):
    architecture = ORION
    sample = SAMPLES["orion"]


class TestExaone(ArchitectureTests):
    architecture = EXAONE
    sample = SAMPLES["exaone"]


class TestMiniCPM(ArchitectureTests):
    architecture = MINICPM
    sample = SAMPLES["minicpm"]


class TestBaichuan(ArchitectureTests):
    architecture = BAICHUAN
    sample = SAMPLES["baichuan"]
