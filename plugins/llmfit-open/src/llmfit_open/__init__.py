"""Open decoders that are close to Llama, stated once as data."""

from __future__ import annotations

from collections.abc import Iterable

from llmfit_core import Architecture, hookimpl
from llmfit_open.granite import GRANITE
from llmfit_open.olmo import OLMO, OLMO2, OLMOE
from llmfit_open.smollm3 import SMOLLM3


@hookimpl
def llmfit_architectures() -> Iterable[Architecture]:
    """The families."""
    return (SMOLLM3, OLMO, OLMO2, OLMOE, GRANITE)
