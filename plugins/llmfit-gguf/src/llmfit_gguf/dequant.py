"""GGUF blocks back to float32.

gguf's own numpy kernels do it for most types; the simple ones are done here by the same arithmetic in
the same order, so bit for bit alike, and q1_0 and q2_0, which gguf cannot read, by ggml's
(`dequantize_row_q1_0`, `dequantize_row_q2_0`). All in blocks that stay in the processor's cache.
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
"""Blocks at a time for gguf's kernels, whose cost is by the call."""
_VALUES = 1 << 18
"""Values at a time for ours: 1 MB of float32; a quarter and the fourfold of it were slower."""


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

    @property
    def blocks(self) -> Tensor:
        """The source."""
        return self.source

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
    if rows.size == 0:
        # gguf's kernels cannot shape nothing.
        return np.empty((rows.shape[0], width), dtype=np.float32)
    kernel, step = _KERNELS.get(ggml_type), _VALUES // kind.block
    if kernel is None:
        kernel, step = _by_gguf(ggml_type), _BLOCKS
    blocks = np.ascontiguousarray(rows).reshape(-1, kind.size)
    out = np.empty((blocks.shape[0], kind.block), dtype=np.float32)
    with np.errstate(all="ignore"):
        for at in range(0, blocks.shape[0], step):
            kernel(blocks[at : at + step], out[at : at + step])
    return out.reshape(rows.shape[0], width)


def can_dequantize(ggml_type: str) -> bool:
    """Whether blocks of a type can be read: tried on one, since versions of gguf differ."""
    try:
        dequantize_rows(np.zeros((1, BY_NAME[ggml_type].size), np.uint8), ggml_type)
    except UnsupportedError:
        return False
    return True


def _by_gguf(ggml_type: str) -> Kernel:
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    def kernel(blocks: Array, out: Array) -> None:
        try:
            out[:] = dequantize(blocks, GGMLQuantizationType[ggml_type.upper()])
        except (NotImplementedError, KeyError):
            raise cannot_dequantize("tensors", ggml_type) from None

    return kernel


def cannot_dequantize(what: str, ggml_type: str) -> UnsupportedError:
    """The refusal, naming the type."""
    return UnsupportedError(
        "cannot-dequantize",
        f"{what} of the GGUF type {ggml_type} cannot be turned back into floats",
        "Start from the original model, or from a GGUF in another type.",
    )


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


def _q1_0(blocks: Array, out: Array) -> None:
    """128 signs after their scale, lowest bit first."""
    signs = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little").view(np.int8)
    np.multiply(signs * np.int8(2) - np.int8(1), _half(blocks, 0), out=out, dtype=np.float32)


def _q2_0(blocks: Array, out: Array) -> None:
    """64 numbers of two bits, -1 to 2, after their scale, lowest first."""
    numbers = (blocks[:, 2:, None] >> np.array([0, 2, 4, 6], np.uint8)) & 3
    codes = numbers.reshape(blocks.shape[0], 64).view(np.int8) - np.int8(1)
    np.multiply(codes, _half(blocks, 0), out=out, dtype=np.float32)


_CURVE = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
"""iq4_nl's sixteen values (`kvalues_iq4nl`)."""
_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)
"""The four-bit floats of OCP's microscaling formats, doubled (`kvalues_mxfp4`)."""


def _iq4_nl(blocks: Array, out: Array) -> None:
    np.take(_CURVE, _nibbles(blocks, 2), out=out, mode="clip")
    out *= _half(blocks, 0)


def _mxfp4(blocks: Array, out: Array) -> None:
    """The first byte is the scale's exponent, 127 for one; half of that scale goes with doubled values."""
    np.take(_E2M1, _nibbles(blocks, 1), out=out, mode="clip")
    exponents = blocks[:, :1].astype(np.uint32)
    small = np.uint32(0x00200000) << np.minimum(exponents, 1)
    out *= np.where(exponents < 2, small, (exponents - 1) << 23).astype(np.uint32).view(np.float32)


def _scales_and_mins(blocks: Array) -> tuple[Array, Array]:
    """Eight scales and eight offsets of six bits each, from byte 4 on, times the block's own two: float32 `[N, 8]` each."""
    low, high, rest = (blocks[:, at : at + 4] for at in (4, 8, 12))
    scales = np.concatenate([low & 0x3F, (rest & 0x0F) | ((low >> 2) & 0x30)], axis=1)
    mins = np.concatenate([high & 0x3F, (rest >> 4) | ((high >> 2) & 0x30)], axis=1)
    return _half(blocks, 0) * scales, _half(blocks, 2) * mins


def _halves(packed: Array, width: int) -> Array:
    """Bytes `[N, runs * width]` as four-bit values `[N, runs, 2, width]`: the low halves of a run, then its high halves."""
    runs = packed.reshape(packed.shape[0], -1, width)
    values = np.empty((*runs.shape[:2], 2, width), dtype=np.uint8)
    np.bitwise_and(runs, 15, out=values[:, :, 0])
    np.right_shift(runs, 4, out=values[:, :, 1])
    return values


def _times_and_minus(values: Array, blocks: Array, out: Array) -> None:
    scales, mins = _scales_and_mins(blocks)
    parts = out.reshape(-1, 8, 32)
    np.multiply(values, scales[:, :, None], out=parts, dtype=np.float32)
    parts -= mins[:, :, None]


def _quarters(packed: Array) -> Array:
    """64 bytes as 256 values of two bits, `[N, 8, 32]`: each run of 32 bytes gives its lowest bits first."""
    runs = packed.reshape(packed.shape[0], 2, 32)
    values = np.empty((packed.shape[0], 2, 4, 32), dtype=np.uint8)
    for part in range(4):
        np.bitwise_and(runs >> 2 * part, 3, out=values[:, :, part])
    return values.reshape(-1, 8, 32)


def _q2_k(blocks: Array, out: Array) -> None:
    values, parts = _quarters(blocks[:, 16:80]).reshape(-1, 16, 16), out.reshape(-1, 16, 16)
    scales = _half(blocks, 80) * (blocks[:, :16] & 15)
    np.multiply(values, scales[:, :, None], out=parts, dtype=np.float32)
    parts -= (_half(blocks, 82) * (blocks[:, :16] >> 4))[:, :, None]


def _q3_k(blocks: Array, out: Array) -> None:
    """A third bit that is not set takes four away; the scales' upper two bits lie behind their lower four."""
    codes = _quarters(blocks[:, 32:96]).view(np.int8)
    for bit in range(8):
        codes[:, bit] += (((blocks[:, :32] >> bit) & 1) << 2).view(np.int8)
    codes -= 4
    low, high = blocks[:, 96:104], blocks[:, 104:108]
    scales = np.concatenate([low & 15, low >> 4], axis=1)
    scales |= np.concatenate([((high >> shift) & 3) << 4 for shift in (0, 2, 4, 6)], axis=1)
    factors = _half(blocks, 108) * (scales.view(np.int8) - np.int8(32))
    np.multiply(codes.reshape(-1, 16, 16), factors[:, :, None], out=out.reshape(-1, 16, 16), dtype=np.float32)


def _q4_k(blocks: Array, out: Array) -> None:
    _times_and_minus(_halves(blocks[:, 16:], 32).reshape(-1, 8, 32), blocks, out)


def _q5_k(blocks: Array, out: Array) -> None:
    values = _halves(blocks[:, 48:], 32).reshape(-1, 8, 32)
    high = blocks[:, 16:48]
    for bit in range(8):
        values[:, bit] |= ((high >> bit) & 1) << 4
    _times_and_minus(values, blocks, out)


def _q6_k(blocks: Array, out: Array) -> None:
    values = _halves(blocks[:, :128], 64).reshape(-1, 2, 4, 32)
    high = blocks[:, 128:192].reshape(-1, 2, 32)
    for part in range(4):
        values[:, :, part] |= ((high >> 2 * part) & 3) << 4
    codes = values.reshape(-1, 16, 16).view(np.int8)
    codes -= 32
    scales = _half(blocks, 208) * blocks[:, 192:208].view(np.int8)
    np.multiply(codes, scales[:, :, None], out=out.reshape(-1, 16, 16), dtype=np.float32)


_KERNELS: dict[str, Kernel] = {
    "q4_0": _q4_0, "q4_1": _q4_1, "q5_0": _q5_0, "q5_1": _q5_1, "q8_0": _q8_0, "q1_0": _q1_0, "q2_0": _q2_0,
    "iq4_nl": _iq4_nl, "mxfp4": _mxfp4,
    "q2_k": _q2_k, "q3_k": _q3_k, "q4_k": _q4_k, "q5_k": _q5_k, "q6_k": _q6_k,
}  # fmt: skip
