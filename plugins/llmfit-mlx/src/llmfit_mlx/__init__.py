"""MLX checkpoints as sources."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from llmfit_core import Decoder, hookimpl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llmfit_core.architecture import Architecture
    from llmfit_core.checkpoint import Checkpoint


def _detects(checkpoint: Checkpoint) -> bool:
    from llmfit_mlx.decode import detects

    return detects(checkpoint)


def _decode(checkpoint: Checkpoint, architectures: Sequence[Architecture]) -> Checkpoint:
    from llmfit_mlx.decode import decode

    return decode(checkpoint, architectures)


@hookimpl
def llmfit_decoders() -> Iterable[Decoder]:
    """Checkpoints that MLX quantized."""
    yield Decoder(name="mlx", detects=_detects, decode=_decode)
