"""One chunk of rows, from whatever the source holds to the bytes of the target type, with what was lost on the way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np  # noqa: TID253 - no entry module imports this one

from llmfit_core.dtypes import DTYPES, FLOATS
from llmfit_core.errors import SourceError, UnsupportedError
from llmfit_core.readers.ggml_types import BY_NAME
from llmfit_core.transform import cast, to_float32
from llmfit_gguf.engine import all_finite, quantize_rows, scale_losses

if TYPE_CHECKING:
    from llmfit_core.tensors import Tensor

    Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, kw_only=True)
class Losses:
    """What the target type could not hold.

    Attributes:
        overflow: Values that became infinite; for block types, blocks whose scale did.
        underflow: Nonzero values that became zero; for block types, blocks all of whose scales did.
        nonfinite: NaNs and infinities of the source that were kept.
    """

    overflow: int = 0
    underflow: int = 0
    nonfinite: int = 0

    def __add__(self, other: Losses) -> Losses:
        """Added up, chunk by chunk."""
        return Losses(
            overflow=self.overflow + other.overflow,
            underflow=self.underflow + other.underflow,
            nonfinite=self.nonfinite + other.nonfinite,
        )


NONE = Losses()


def convertible(source: str, target: str) -> bool:
    """Whether rows of dtype `source` can become `target` here: the same, or from a float type."""
    return source == target or (source in FLOATS and target in BY_NAME)


def source_row_bytes(dtype: str, width: int) -> int:
    """Bytes of one source row of `width` values, plain or in blocks."""
    if dtype in DTYPES:
        return width * DTYPES[dtype].size
    return BY_NAME[dtype].bytes_for((width,))


def convert(tensor: Tensor, start: int, stop: int, target: str) -> tuple[Array, Losses]:
    """Rows `start` to `stop` of a tensor as the bytes of `target`.

    Returns:
        A contiguous array whose memory is what belongs into the file, and the losses.

    Raises:
        SourceError: `not-finite`: a NaN or infinity in rows that become blocks, where it would spoil its neighbours.
        UnsupportedError: `needs-decoding`: the source is neither a float type nor already the target.
    """
    if not convertible(tensor.dtype, target):
        raise UnsupportedError(
            "needs-decoding",
            f"{tensor.dtype} cannot be written as {target}",
            "Decode the source to a float type first.",
        )
    rows = tensor.rows(start, stop)
    if tensor.dtype == target:
        data = np.ascontiguousarray(rows)
        return data, NONE if all_finite(data) else Losses(nonfinite=_count_nonfinite(data))
    finite = all_finite(rows)
    if target in FLOATS:
        data = np.ascontiguousarray(_narrow(rows, target))
        return data, _plain_losses(rows, data, finite)
    if not finite:
        where = start + int(np.flatnonzero(~np.isfinite(to_float32(rows)).all(axis=1))[0])
        raise SourceError(
            "not-finite",
            f"row {where} holds a NaN or infinity, which {target} cannot",
            "The checkpoint is damaged; fetch it again, or write f32 with --force to look at it.",
        )
    wide = np.ascontiguousarray(to_float32(rows))
    if tensor.dtype == "f64" and not all_finite(wide):
        raise SourceError("not-finite", "float64 values beyond float32", "Scale the weights down before converting.")
    encoded = quantize_rows(wide, target)
    overflow, underflow = scale_losses(wide, encoded, target)
    return encoded, Losses(overflow=overflow, underflow=underflow) if overflow or underflow else NONE


def _narrow(rows: Array, target: str) -> Array:
    if target == "f64":
        return rows.astype(np.float64)
    with np.errstate(over="ignore"):
        return cast(rows, target)


def _plain_losses(rows: Array, data: Array, finite: bool) -> Losses:
    """Counts between plain floats; nothing to count where the target holds every value of the source."""
    nonfinite = 0 if finite else _count_nonfinite(rows)
    if data.dtype.itemsize >= 4 and rows.dtype.itemsize <= data.dtype.itemsize:
        return Losses(nonfinite=nonfinite) if nonfinite else NONE
    overflow = 0 if finite and all_finite(data) else _count_nonfinite(data) - nonfinite
    underflow = _count_nonzero(rows) - _count_nonzero(data)
    return Losses(overflow=overflow, underflow=underflow, nonfinite=nonfinite)


def _count_nonfinite(x: Array) -> int:
    wide = x if x.dtype == np.float64 else to_float32(x)
    return int(x.size - np.count_nonzero(np.isfinite(wide)))


def _count_nonzero(x: Array) -> int:
    """By the bits, which numpy counts faster than bfloat16 or float16 values."""
    if x.dtype.itemsize == 2:
        return int(np.count_nonzero(x.view(np.uint16) & np.uint16(0x7FFF)))
    return int(np.count_nonzero(x))
