"""Tensors as the quantized blocks that they are stored in, so that a format with the same blocks takes them bit for bit.

A node that turns blocks into floats offers the blocks themselves as its `blocks`: a tensor of the same shape whose dtype
is a GGUF block type (`llmfit_core.readers.ggml_types`) and whose rows are bytes. Most operations on a tree only move
whole rows; `blocks_of` carries them out on the blocks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from llmfit_core.transform import Concat, PermuteRope, Reshape, Slice, Stack, Transpose

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llmfit_core.tensors import Tensor


@runtime_checkable
class Unpacked(Protocol):
    """A node whose floats come out of blocks."""

    @property
    def blocks(self) -> Tensor:
        """The same tensor, as blocks: its dtype is their type, and its rows are bytes, uint8 `[N, row_bytes]`."""
        ...


def blocks_of(tensor: Tensor) -> Tensor | None:
    """The tensor as stored blocks; `None` where it is not stored in blocks, or where an operation needs their values.

    Two transpositions that follow each other are none; a single one, a cast or a factor needs the values.
    """
    if isinstance(tensor, Unpacked):
        return tensor.blocks
    if isinstance(tensor, Transpose) and isinstance(tensor.source, Transpose):
        return blocks_of(tensor.source.source)
    if isinstance(tensor, (Stack, Concat)):
        if isinstance(tensor, Concat) and tensor.axis == len(tensor.shape) - 1:
            return None
        parts = tuple(b for b in map(blocks_of, tensor.parts) if b is not None)
        alike = len(parts) == len(tensor.parts) and len({p.dtype for p in parts}) == 1
        return replace(tensor, parts=parts) if alike else None
    if not isinstance(tensor, (Slice, Reshape, PermuteRope)) or not _moves_rows(tensor):
        return None
    below = blocks_of(tensor.source)
    return None if below is None else replace(tensor, source=below)


def block_types(tensor: Tensor) -> frozenset[str]:
    """The types of all blocks that a tensor is made of, whatever is done to them; empty where it is made of floats."""
    return frozenset(_types(tensor))


def _types(tensor: Tensor) -> Iterator[str]:
    if isinstance(tensor, Unpacked):
        yield tensor.blocks.dtype
        return
    for part in (*getattr(tensor, "parts", ()), *filter(None, [getattr(tensor, "source", None)])):
        yield from _types(part)


def _moves_rows(tensor: Slice | Reshape | PermuteRope) -> bool:
    """Whether an operation leaves each row whole."""
    axes = len(tensor.shape)
    if isinstance(tensor, Slice):
        return tensor.axis < len(tensor.source.shape) - 1
    if isinstance(tensor, Reshape):
        return axes > 0 and tensor.shape[-1:] == tensor.source.shape[-1:]
    return axes > 1
