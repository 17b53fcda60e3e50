"""Open decoders that are close to Llama, stated once as data."""

from __future__ import annotations

from collections.abc import Iterable

from llmfit_core import Architecture, hookimpl
from llmfit_open.smollm3 import SMOLLM3


@hookimpl
def llmfit_architectures() -> Iterable[Architecture]:
    """The families."""
    return (SMOLLM3,)
