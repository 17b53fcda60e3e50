"""GPT-OSS, and the MXFP4 blocks that its experts are published in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from llmfit_core import Architecture, Decoder, hookimpl
from llmfit_gptoss.table import GPT_OSS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llmfit_core.checkpoint import Checkpoint


def _is_mxfp4(checkpoint: Checkpoint) -> bool:
    from llmfit_gptoss.decode import is_mxfp4

    return is_mxfp4(checkpoint)


def _decode_mxfp4(checkpoint: Checkpoint, architectures: Sequence[Architecture]) -> Checkpoint:
    from llmfit_gptoss.decode import decode

    return decode(checkpoint)


@hookimpl
def llmfit_architectures() -> Iterable[Architecture]:
    """The one family."""
    return (GPT_OSS,)


@hookimpl
def llmfit_decoders() -> Iterable[Decoder]:
    """Experts stored as blocks of 4-bit floats."""
    yield Decoder(name="mxfp4", detects=_is_mxfp4, decode=_decode_mxfp4)
