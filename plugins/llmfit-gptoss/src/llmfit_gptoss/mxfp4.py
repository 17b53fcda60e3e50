"""MXFP4: 32 four-bit floats (E2M1) with one power of two (E8M0) for them all, as tensors of a tree.

OCP Microscaling Formats (MX) specification 1.0. Hugging Face's files hold the codes of a row's blocks, two a byte, and the
exponents in a tensor of their own; GGUF puts a block's exponent before its codes, in another order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np  # noqa: TID253 - no entry module imports this one

from llmfit_core.dtypes import numpy_dtype
from llmfit_core.errors import SourceError
from llmfit_core.transform import cast

if TYPE_CHECKING:
    from llmfit_core.tensors import Array, Tensor

BLOCK = 32
"""Values that share an exponent."""
_BYTES = BLOCK // 2
_VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=np.float32)
_TABLE = np.concatenate([_VALUES, -_VALUES])
_PAIRS = np.stack([_TABLE[np.arange(256) & 15], _TABLE[np.arange(256) >> 4]], axis=1)
"""The two values of each byte, the lower four bits first."""
_PAIRS_BITS = cast(_PAIRS, "bf16").view(np.uint16)
_BIAS = 127
_SMALLEST = 2
"""From this exponent on every value but zero is a normal number in bfloat16, whose exponent can be added to."""
_LARGEST = 252
"""Up to this exponent every value is finite in float32 and bfloat16."""


@dataclass(frozen=True)
class Blocks:
    """The blocks as GGUF has them: an exponent, then 16 bytes, byte i with value i below and value i + 16 above.

    Attributes:
        name: The tensor's, for messages.
        codes: `[.., N, K / 32, 16]` or `[.., N, K / 2]` of u8: byte j of a block holds values 2 j (below) and 2 j + 1.
        exponents: `[.., N, K / 32]` of u8 or f8_e8m0, each 127 too large.
    """

    name: str
    codes: Tensor
    exponents: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """`[.., N, K]`."""
        return (*self.exponents.shape[:-1], self.exponents.shape[-1] * BLOCK)

    @property
    def dtype(self) -> str:
        """GGUF's name."""
        return "mxfp4"

    def rows(self, start: int, stop: int) -> Array:
        """Row-local: uint8 `[stop - start, K / 32 * 17]`.

        Raises:
            SourceError: `not-finite`: an exponent with which values are infinite.
        """
        codes, exponents = parts(self, start, stop)
        out = np.empty((*exponents.shape, 1 + _BYTES), dtype=np.uint8)
        out[..., 0] = exponents
        first, second = codes[..., : _BYTES // 2], codes[..., _BYTES // 2 :]
        out[..., 1::2] = (first & 15) | (second << 4)
        out[..., 2::2] = (first >> 4) | (second & 0xF0)
        return out.reshape(stop - start, exponents.shape[-1] * (1 + _BYTES))

    def files(self) -> tuple[str, ...]:
        """Both tensors'."""
        return tuple(dict.fromkeys((*self.codes.files(), *self.exponents.files())))


@dataclass(frozen=True)
class Values:
    """The values of blocks, which bfloat16 holds exactly.

    Attributes:
        blocks: What they come out of.
    """

    blocks: Blocks

    @property
    def shape(self) -> tuple[int, ...]:
        """`[.., N, K]`."""
        return self.blocks.shape

    @property
    def dtype(self) -> str:
        """Always bfloat16, as transformers has it."""
        return "bf16"

    def rows(self, start: int, stop: int) -> Array:
        """Row-local: bfloat16 `[stop - start, K]`.

        Raises:
            SourceError: `not-finite`: an exponent with which values are infinite.
        """
        codes, exponents = parts(self.blocks, start, stop)
        if exponents.size and _SMALLEST <= exponents.min() and exponents.max() <= _LARGEST:
            bits = _PAIRS_BITS[codes].reshape(*exponents.shape, BLOCK)
            shift = ((exponents.astype(np.int16) - _BIAS) << 7).view(np.uint16)[..., None]
            bits += shift * ((bits & 0x7FFF) != 0)
            return bits.reshape(stop - start, self.shape[-1]).view(numpy_dtype("bf16"))
        values = _PAIRS[codes].reshape(*exponents.shape, BLOCK)
        values *= np.ldexp(np.float32(1), exponents.astype(np.int32) - _BIAS)[..., None]
        return cast(values.reshape(stop - start, self.shape[-1]), "bf16")

    def files(self) -> tuple[str, ...]:
        """The blocks'."""
        return self.blocks.files()


def parts(blocks: Blocks, start: int, stop: int) -> tuple[Array, Array]:
    """Codes `[stop - start, K / 32, 16]` and exponents `[stop - start, K / 32]` of some rows."""
    count = blocks.exponents.shape[-1]
    per_row = count if blocks.codes.shape[-1:] == (_BYTES,) and len(blocks.codes.shape) > len(blocks.shape) else 1
    codes = blocks.codes.rows(start * per_row, stop * per_row).reshape(stop - start, count, _BYTES)
    exponents = blocks.exponents.rows(start, stop).view(np.uint8)
    large = exponents > _LARGEST
    if large.any():
        scale = exponents[large].astype(np.int32)
        largest = np.abs(_PAIRS[codes[large]]).max(axis=(1, 2))
        # 2 ** 128 is the first that is too large; 255 is no number at all.
        odd = (scale == 255) | (np.log2(np.maximum(largest, 1e-30)) + scale - _BIAS >= 128)
        if odd.any():
            raise SourceError(
                "not-finite",
                f"{blocks.name} has a scale of 2^{int(scale[odd][0]) - _BIAS}, beyond every float"
                if int(scale[odd][0]) < 255
                else f"{blocks.name} has a scale that is no number",
                "The checkpoint is damaged; fetch it again.",
            )
    return codes, exponents
