"""Decoders with LayerNorm, stated once as data."""

from __future__ import annotations

from collections.abc import Iterable

from llmfit_classics.bigcode import GPT_BIGCODE
from llmfit_classics.bloom import BLOOM
from llmfit_classics.falcon import FALCON
from llmfit_classics.gpt2 import GPT2
from llmfit_classics.gptneox import GPTNEOX
from llmfit_classics.jais2 import JAIS2
from llmfit_classics.nemotron import NEMOTRON
from llmfit_classics.phi import PHI
from llmfit_classics.stablelm import STABLELM
from llmfit_classics.starcoder2 import STARCODER2
from llmfit_core import Architecture, hookimpl


@hookimpl
def llmfit_architectures() -> Iterable[Architecture]:
    """The families."""
    return (GPT2, GPT_BIGCODE, GPTNEOX, BLOOM, FALCON, PHI, STABLELM, STARCODER2, NEMOTRON, JAIS2)
