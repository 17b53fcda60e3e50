"""Mamba, Falcon-Mamba, Mamba-2, and models that have their layers among others, stated once as data."""

from __future__ import annotations

from collections.abc import Iterable

from llmfit_core import Architecture, hookimpl
from llmfit_recurrent.bamba import BAMBA
from llmfit_recurrent.falcon_h1 import FALCON_H1
from llmfit_recurrent.granite_hybrid import GRANITE_HYBRID
from llmfit_recurrent.jamba import JAMBA
from llmfit_recurrent.mamba import FALCON_MAMBA, MAMBA
from llmfit_recurrent.mamba2 import MAMBA2


@hookimpl
def llmfit_architectures() -> Iterable[Architecture]:
    """The families."""
    return (MAMBA, FALCON_MAMBA, MAMBA2, GRANITE_HYBRID, BAMBA, FALCON_H1, JAMBA)
