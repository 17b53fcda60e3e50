"""Phi-3 and Phi-3.5-MoE, stated once as data."""

from __future__ import annotations

from collections.abc import Iterable

from llmfit_core import Architecture, hookimpl
from llmfit_phi3.phi3 import PHI3
from llmfit_phi3.phimoe import PHIMOE


@hookimpl
def llmfit_architectures() -> Iterable[Architecture]:
    """Both families."""
    return (PHI3, PHIMOE)
