"""Decoders: a quantized or foreign checkpoint to plain tensors in Hugging Face layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llmfit_core.architecture import Architecture
    from llmfit_core.checkpoint import Checkpoint


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """Declares that some kind of checkpoint can be read as if it were plain.

    Attributes:
        name: `gguf`, `fp8`.
        detects: Whether a checkpoint is of this kind; from config, names and dtypes alone.
        decode: `(checkpoint, known architectures) -> checkpoint` with Hugging Face names and config and lazy
            plain tensors; adds an event where the source was already quantized. A tensor whose floats come out of blocks
            that GGUF has too may offer those (`llmfit_core.blocks.Unpacked`): they are then taken over bit for bit.
    """

    name: str
    detects: Callable[[Checkpoint], bool]
    decode: Callable[[Checkpoint, Sequence[Architecture]], Checkpoint]
