"""GGUF blocks back to float32.

gguf's own numpy kernels do it for every type; the five simple ones are done here by the same
arithmetic in the same order, so bit for bit alike, in blocks that stay in the processor's cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np  # noqa: TID253 - no entry module imports this one

from llmfit_core.errors import UnsupportedError
from llmfit_core.readers.ggml_types import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from llmfit_core.tensors import Array, Tensor

    Kernel = Callable[["np.ndarray[Any, np.dtype[np.uint8]]", "np.ndarray[Any, np.dtype[np.float32]]"], None]

_BLOCKS = 2048
"""Blocks at a time: 256 KB of float32."""


@dataclass(frozen=True)
class Dequantized:
    """A block tensor as float32.

    Attributes:
        source: A tensor whose dtype is a GGUF block type and whose rows are bytes
            (`llmfit_core.readers.ggml_types.Blocked`).
    """

    source: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Unchanged."""
        return self.source.shape

    @property
    def dtype(self) -> str:
        """Always float32."""
        return "f32"

    def rows(self, start: int, stop: int) -> Array:
        """Row-local: float32 `[stop - start, K]`."""
        return dequantize_rows(self.source.rows(start, stop), self.source.dtype)

    def files(self) -> tuple[str, ...]:
        """The source's."""
        return self.source.files()


def dequantize_rows(rows: Array, ggml_type: str) -> Array:
    """Rows of blocks, uint8 `[N, row_bytes]`, as float32 `[N, K]`.

    Raises:
        UnsupportedError: `cannot-dequantize` for a type that gguf has no kernel for (`q8_1`, `q8_k`: they only
            exist inside a computation).
    """
    kind = BY_NAME[ggml_type]
    width = rows.shape[1] // kind.size * kind.block
    kernel = _KERNELS.get(ggml_type)
    if rows.size == 0:
        # gguf's kernels cannot shape nothing.
        return np.empty((rows.shape[0], width), dtype=np.float32)
    if kernel is None:
        return _by_gguf(rows, ggml_type).reshape(rows.shape[0], width)
    blocks = np.ascontiguousarray(rows).reshape(-1, kind.size)
    out = np.empty((blocks.shape[0], kind.block), dtype=np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        for at in range(0, blocks.shape[0], _BLOCKS):
            kernel(blocks[at : at + _BLOCKS], out[at : at + _BLOCKS])
    return out.reshape(rows.shape[0], width)


def _by_gguf(rows: Array, ggml_type: str) -> Array:
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    try:
        with np.errstate(all="ignore"):
            result: Array = dequantize(rows, GGMLQuantizationType[ggml_type.upper()])
    except (NotImplementedError, KeyError):
        raise UnsupportedError(
            "cannot-dequantize",
            f"tensors of the GGUF type {ggml_type} cannot be turned back into floats",
            "Start from the original model, or from a GGUF in another type.",
        ) from None
    return result


def _half(blocks: Array, column: int) -> Array:
    """The float16 at byte `column` of each block, as float32 `[N, 1]`."""
    half: Array = np.ascontiguousarray(blocks[:, column : column + 2]).view("<f2").astype(np.float32)
    return half


def _nibbles(blocks: Array, column: int) -> Array:
    """32 four-bit values from byte `column` on: the low halves of 16 bytes, then their high halves."""
    packed = blocks[:, column : column + 16]
    values = np.empty((blocks.shape[0], 32), dtype=np.uint8)
    np.bitwise_and(packed, 15, out=values[:, :16])
    np.right_shift(packed, 4, out=values[:, 16:])
    return values


def _fifth_bits(blocks: Array, column: int) -> Array:
    """32 bits from byte `column` on, each as 16 or 0."""
    bits = np.unpackbits(blocks[:, column : column + 4], axis=1, bitorder="little")
    bits <<= 4
    return bits


def _q4_0(blocks: Array, out: Array) -> None:
    np.subtract(_nibbles(blocks, 2), np.float32(8), out=out, dtype=np.float32)
    out *= _half(blocks, 0)


def _q4_1(blocks: Array, out: Array) -> None:
    np.multiply(_nibbles(blocks, 4), _half(blocks, 0), out=out, dtype=np.float32)
    out += _half(blocks, 2)


def _q5_0(blocks: Array, out: Array) -> None:
    values = _nibbles(blocks, 6)
    values |= _fifth_bits(blocks, 2)
    np.subtract(values, np.float32(16), out=out, dtype=np.float32)
    out *= _half(blocks, 0)


def _q5_1(blocks: Array, out: Array) -> None:
    values = _nibbles(blocks, 8)
    values |= _fifth_bits(blocks, 4)
    np.multiply(values, _half(blocks, 0), out=out, dtype=np.float32)
    out += _half(blocks, 2)


def _q8_0(blocks: Array, out: Array) -> None:
    np.multiply(blocks[:, 2:].view(np.int8), _half(blocks, 0), out=out, dtype=np.float32)


_KERNELS: dict[str, Kernel] = {"q4_0": _q4_0, "q4_1": _q4_1, "q5_0": _q5_0, "q5_1": _q5_1, "q8_0": _q8_0}
