"""Weights that are stored as small whole numbers with a scale for each group: read as the floats that they stand for.

`Dequantized` is a node of a tensor tree (`llmfit_core.tensors`); `Packed` and `Turned` read what it is made of. All work on
rows of the weight as a Linear has it, `[out, in]`, however the file lies: an AWQ or GPTQ file lies transposed, and of
that only the columns that are asked for are read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmfit_core.dtypes import DTYPES, numpy_dtype
from llmfit_core.errors import SourceError
from llmfit_core.packing import period, unpack, word_count
from llmfit_core.tensors import CHUNK_BYTES, Stored, Tensor, row_count
from llmfit_core.transform import cast, to_float32

if TYPE_CHECKING:
    from llmfit_core.tensors import Array

_SLAB = 8 << 20
"""How many weights are unpacked at once; what that takes beside them is at most four times as many bytes."""
_BLOCK = 1 << 18
"""How many weights are computed at once: small enough for a core's cache."""


@dataclass(frozen=True)
class Turned:
    """A matrix with its axes swapped, read by columns: `[in / group, out]` scales as `[out, in / group]`.

    Attributes:
        source: `[K, N]`.
    """

    source: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """`[N, K]`."""
        return self.source.shape[::-1]

    @property
    def dtype(self) -> str:
        """Unchanged."""
        return self.source.dtype

    def rows(self, start: int, stop: int) -> Array:
        """Reads those columns of the source."""
        import numpy as np

        return np.ascontiguousarray(read_columns(self.source, start, stop).T)

    def files(self) -> tuple[str, ...]:
        """The source's."""
        return self.source.files()


@dataclass(frozen=True, kw_only=True)
class Packed:
    """A matrix of small numbers `[rows, columns]`, packed into 32-bit words along one of its axes.

    Attributes:
        source: The words; `[.., rows, columns]` with the packed axis shorter, or that with the last two axes swapped.
        bits: Per number.
        shape: What is in it.
        along_rows: Whether the words run along the rows' axis (a column's neighbours share a word), not the columns'.
        turned: Whether the source has its axes swapped; only of matrices.
        order: As of `llmfit_core.packing.unpack`.
    """

    source: Tensor
    bits: int
    shape: tuple[int, ...]
    along_rows: bool = False
    turned: bool = False
    order: tuple[int, ...] = ()

    @property
    def dtype(self) -> str:
        """`u8`."""
        return "u8"

    def rows(self, start: int, stop: int) -> Array:
        """Reads the words that hold these rows."""
        import numpy as np

        if not self.along_rows:
            words = read_columns(self.source, start, stop).T if self.turned else self.source.rows(start, stop)
            return unpack(np.ascontiguousarray(words), self.bits, count=self.shape[-1], order=self.order)
        per = period(self.bits)
        first = start // per
        last = -(-stop // per)
        scale = per * self.bits // 32
        if self.turned:
            words = read_columns(self.source, first * scale, min(last * scale, self.source.shape[-1])).T
        else:
            words = self.source.rows(first * scale, min(last * scale, row_count(self.source.shape)))
        values = unpack(np.ascontiguousarray(words), self.bits, axis=0, order=self.order)
        return values[start - first * per : stop - first * per]

    def files(self) -> tuple[str, ...]:
        """The source's."""
        return self.source.files()


@dataclass(frozen=True, kw_only=True)
class Dequantized:
    """`(code - zero) * scale`, with a scale and a zero for each group of columns.

    The difference is exact, and the product is rounded once, to the scales' own type: what a kernel that multiplies in
    float16 (or bfloat16, or float32) computes, and what the packages' own dequantizers give.

    Attributes:
        name: The weight's name, for messages.
        codes: `[.., N, K]` of whole numbers, signed or not.
        scales: `[.., N, G]`, or `[1, 1]` for all rows; f16, bf16 or f32.
        zeros: `[.., N, G]` like the codes, or `None` where `zero` is that of all.
        zero: The zero point where none are stored.
        lift: What is added to stored zeros, modulo `2 ** bits`: 1 for GPTQ's first format, which stores `z - 1`.
        bits: Of the zeros.
        group: Columns a group; the last one may be short.
        index: `[K]`, the group of each column, where the columns were sorted by their activations. All zero with more
            than one group, or all `-1`, says nothing: the groups then follow each other.
        ordered: Whether the index must say something.
        even: Whether all groups must have `group` columns, since readers differ otherwise.
        bias: A stored bias that has to be zero, since the model has none there.
    """

    name: str
    codes: Tensor
    scales: Tensor
    zeros: Tensor | None = None
    zero: int = 0
    lift: int = 0
    bits: int = 4
    group: int
    index: Tensor | None = None
    ordered: bool = False
    even: bool = False
    bias: Tensor | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The codes'."""
        return self.codes.shape

    @property
    def dtype(self) -> str:
        """The scales'."""
        return self.scales.dtype

    def rows(self, start: int, stop: int) -> Array:
        """Row-local, but for a transposed file: that is read by columns.

        Raises:
            SourceError: `group-index`, `bias-not-zero`.
        """
        import numpy as np

        width = self.shape[-1]
        self._require_no_bias(start, stop)
        index = self._index()
        step = max(1, _SLAB // max(1, width))
        if step > 32:
            step -= step % 32  # whole words, whatever the packing
        out = np.empty((stop - start, width), dtype=numpy_dtype(self.dtype))
        for at in range(start, stop, step):
            self._fill(out[at - start : at - start + step], at, min(stop, at + step), index)
        return out

    def files(self) -> tuple[str, ...]:
        """Those of all parts."""
        parts = (self.codes, self.scales, self.zeros, self.index, self.bias)
        return tuple(dict.fromkeys(f for p in parts if p is not None for f in p.files()))

    def _fill(self, out: Array, start: int, stop: int, index: Array | None) -> None:
        import numpy as np

        codes = self.codes.rows(start, stop)
        one = row_count(self.scales.shape) == 1 < row_count(self.shape)
        scales = to_float32(self.scales.rows(0, 1) if one else self.scales.rows(start, stop))
        zeros = None
        if self.zeros is not None:
            stored = (self.zeros.rows(0, 1) if one else self.zeros.rows(start, stop)).astype(np.int32)
            zeros = ((stored + self.lift) & ((1 << self.bits) - 1) if self.lift else stored).astype(np.float32)
        width = self.shape[-1]
        step = max(1, _BLOCK // max(1, width))
        with np.errstate(over="ignore", invalid="ignore"):
            for at in range(0, stop - start, step):
                block = codes[at : at + step].astype(np.float32)
                pick = slice(None) if one else slice(at, at + step)
                apart = block if index is not None or width % self.group else block.reshape(len(block), -1, self.group)
                apart -= np.float32(self.zero) if zeros is None else self._spread(zeros[pick], apart, index)
                apart *= self._spread(scales[pick], apart, index)
                out[at : at + step] = cast(block, self.dtype)

    def _spread(self, by_group: Array, values: Array, index: Array | None) -> Array:
        """What belongs to groups, to go with values `[rows, columns]` or, where groups are whole, `[rows, groups, columns]`."""
        import numpy as np

        if values.ndim == 3:
            return by_group[:, :, None]
        if index is not None:
            return by_group[:, index]
        return np.repeat(by_group, self.group, axis=1)[:, : values.shape[1]]

    def _index(self) -> Array | None:
        """The group of each column, or `None` where they follow each other."""
        import numpy as np

        if self.index is None:
            return None
        stored: Array = self.index.rows(0, 1)[0]
        groups = self.scales.shape[-1]
        if stored.size and bool((stored == stored[0]).all()) and (stored[0] == -1 or (stored[0] == 0 and groups > 1)):
            if self.ordered:
                raise self._odd_index("says the same of every column, where the config promises an order (desc_act, actorder)")
            return None
        if stored.size and (int(stored.min()) < 0 or int(stored.max()) >= groups):
            odd = int(stored.min()) if int(stored.min()) < 0 else int(stored.max())
            raise self._odd_index(f"names group {odd}, and there are {groups} ({list(self.scales.shape)} scales)")
        if self.even:
            counts = np.bincount(stored, minlength=groups)
            if (counts != self.group).any():
                odd = int(np.flatnonzero(counts != self.group)[0])
                raise self._odd_index(f"gives group {odd} {int(counts[odd])} columns where group_size is {self.group}")
        if np.array_equal(stored, np.arange(stored.size) // self.group):
            return None
        return stored.astype(np.intp)

    def _odd_index(self, what: str) -> SourceError:
        return SourceError(
            "group-index", f"the group index of {self.name} {what}", "The checkpoint is damaged or its config wrong; fetch both again."
        )

    def _require_no_bias(self, start: int, stop: int) -> None:
        if self.bias is not None and self.bias.rows(0, 1)[0, start:stop].any():
            raise SourceError(
                "bias-not-zero",
                f"{self.name.removesuffix('.weight')}.bias is not zero, and the model has no bias there by its config",
                "Correct config.json (attention_bias, mlp_bias), or fetch the checkpoint again.",
            )


def read_columns(tensor: Tensor, start: int, stop: int) -> Array:
    """Columns `start` to `stop` of a matrix `[K, N]`, as `[K, stop - start]`.

    A small part of a stored matrix is read row by row, the rest in bounded blocks of whole rows.

    Raises:
        SourceError: `truncated-file`, `unreadable-source`.
    """
    import numpy as np

    height, width = row_count(tensor.shape), tensor.shape[-1]
    size = DTYPES[tensor.dtype].size
    out = np.empty((height, stop - start), dtype=numpy_dtype(tensor.dtype))
    if isinstance(tensor, Stored) and (stop - start) * 4 < width and width * size >= 4096:
        _read_stored(tensor, start, out)
        return out
    step = max(1, CHUNK_BYTES // 4 // max(1, width * size))
    for at in range(0, height, step):
        out[at : at + step] = tensor.rows(at, min(height, at + step))[:, start:stop]
    return out


def _read_stored(tensor: Stored, start: int, out: Array) -> None:
    size = DTYPES[tensor.dtype].size
    try:
        with open(tensor.path, "rb", buffering=0) as file:
            for row, line in enumerate(out.view("u1")):
                file.seek(tensor.offset + (row * tensor.shape[-1] + start) * size)
                target = memoryview(line)
                while target.nbytes:
                    count = file.readinto(target)
                    if not count:
                        end = tensor.offset + math.prod(tensor.shape) * size
                        raise SourceError(
                            "truncated-file", f"{tensor.path} ends before byte {end}", "Fetch the file again; it was cut short."
                        )
                    target = target[count:]
    except OSError as error:
        raise SourceError(
            "unreadable-source", f"{tensor.path}: {error.strerror}", "Check the file, or fetch it again."
        ) from error


def packed_shape(shape: tuple[int, int], bits: int, *, along_rows: bool = False, turned: bool = False) -> tuple[int, int]:
    """The shape of the words that hold a matrix (see `Packed`)."""
    rows, columns = shape
    whole = (word_count(rows, bits), columns) if along_rows else (rows, word_count(columns, bits))
    return (whole[1], whole[0]) if turned else whole
