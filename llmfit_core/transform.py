"""The named operations: what formats do to tensors, each with a known shape and, where nothing is lost, an inverse.

Operations are nodes of a tensor tree (`llmfit_core.tensors`): frozen values that read rows lazily.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmfit_core.dtypes import DTYPES, numpy_dtype
from llmfit_core.tensors import CHUNK_BYTES, Tensor, row_count

if TYPE_CHECKING:
    from llmfit_core.tensors import Array


_MANY = 8
"""Runs of a cut that are worth reading together with what lies between them."""


@dataclass(frozen=True)
class PermuteRope:
    """Reorder rows between the two layouts of rotary halves.

    Hugging Face stores each head's rows as all first halves, then all second halves ("neox"); ggml's
    "norm" rope wants the pairs beside each other. For head dimension D, row `2 * i + j` of the result
    is row `i + j * D / 2` of the source. `inverse=True` goes back.

    Attributes:
        source: `[heads * D, K]`, or a bias `[heads * D]`.
        heads: How many heads the rows form.
        inverse: From pairs back to halves.
        turned: How many rows of each head, from its first, rope turns; the others stay. 0 for all of them.
    """

    source: Tensor
    heads: int
    inverse: bool = False
    turned: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """Unchanged."""
        return self.source.shape

    @property
    def dtype(self) -> str:
        """Unchanged."""
        return self.source.dtype

    def _order(self) -> Array:
        import numpy as np

        size = self.shape[0] // self.heads
        turned = self.turned or size
        order = np.arange(turned).reshape(2, turned // 2).T.reshape(-1)
        return np.concatenate([np.argsort(order) if self.inverse else order, np.arange(turned, size)])

    def rows(self, start: int, stop: int) -> Array:
        """Reads the heads that the rows lie in."""
        import numpy as np

        size = self.shape[0] // self.heads
        order = self._order()
        if len(self.shape) == 1:
            whole = self.source.rows(0, 1).reshape(self.heads, size)
            return whole[:, order].reshape(1, -1)[start:stop]
        first, last = start // size, -(-stop // size)
        block = self.source.rows(first * size, last * size)
        index = (np.arange(first, last)[:, None] * size + order - first * size).reshape(-1)
        return block[index[start - first * size : stop - first * size]]

    def files(self) -> tuple[str, ...]:
        """The source's."""
        return self.source.files()


@dataclass(frozen=True)
class Stack:
    """Tensors of equal shape and dtype along a new first axis: experts, one per part."""

    parts: tuple[Tensor, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """`[len(parts), *part]`."""
        return (len(self.parts), *self.parts[0].shape)

    @property
    def dtype(self) -> str:
        """The parts'."""
        return self.parts[0].dtype

    def rows(self, start: int, stop: int) -> Array:
        """Reads from each part that the rows lie in."""
        return _rows_of_parts(self.parts, start, stop)

    def files(self) -> tuple[str, ...]:
        """All the parts'."""
        return _files(self.parts)


@dataclass(frozen=True)
class Concat:
    """Tensors joined along one axis, the first by default: q, k and v into one matrix.

    Attributes:
        parts: Alike but for that axis.
        axis: The axis they are joined along.
    """

    parts: tuple[Tensor, ...]
    axis: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes along the axis added up."""
        s = self.parts[0].shape
        return (*s[: self.axis], sum(p.shape[self.axis] for p in self.parts), *s[self.axis + 1 :])

    @property
    def dtype(self) -> str:
        """The parts'."""
        return self.parts[0].dtype

    def rows(self, start: int, stop: int) -> Array:
        """Reads from each part that the rows lie in; from all where the last axis is joined."""
        import numpy as np

        if self.axis == len(self.shape) - 1:
            if self.axis == 0:
                return np.concatenate([p.rows(0, 1) for p in self.parts], axis=1)[start:stop]
            return np.concatenate([p.rows(start, stop) for p in self.parts], axis=1)
        if self.axis == 0:
            return _rows_of_parts(self.parts, start, stop)
        heights = [row_count(p.shape[self.axis :]) for p in self.parts]
        pieces, at = [], start
        while at < stop:
            outer, within = divmod(at, sum(heights))
            for part, height in zip(self.parts, heights, strict=True):
                if within < height:
                    end = min(height, within + stop - at)
                    pieces.append(part.rows(outer * height + within, outer * height + end))
                    at += end - within
                    break
                within -= height
        return np.concatenate(pieces) if pieces else self.parts[0].rows(0, 0)

    def files(self) -> tuple[str, ...]:
        """All the parts'."""
        return _files(self.parts)


@dataclass(frozen=True)
class Slice:
    """Part of a tensor along one axis: one expert of a stack, the gate half of gate_up.

    Attributes:
        source: Any tensor.
        start: First index along `axis`.
        stop: One past the last.
        axis: The axis that is cut.
        squeeze: Drop the axis afterwards (needs `stop == start + 1`).
    """

    source: Tensor
    start: int
    stop: int
    axis: int = 0
    squeeze: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """With the axis cut, or dropped."""
        s = self.source.shape
        kept = () if self.squeeze else (self.stop - self.start,)
        return (*s[: self.axis], *kept, *s[self.axis + 1 :])

    @property
    def dtype(self) -> str:
        """Unchanged."""
        return self.source.dtype

    def rows(self, start: int, stop: int) -> Array:
        """Row-local unless the last axis is cut, which cuts each row."""
        import numpy as np

        s = self.source.shape
        if self.axis == len(s) - 1:
            return self.source.rows(start, stop)[:, self.start : self.stop]
        inner = row_count(s[self.axis + 1 :]) if self.axis + 1 < len(s) else 1
        block = inner * (self.stop - self.start)
        whole = inner * s[self.axis]
        first, last = (start // block, -(-stop // block)) if block else (0, 0)
        if last - first > _MANY and whole <= 4 * block:
            # Many short runs, such as every other row: one read of all, cut afterwards.
            every = self.source.rows(first * whole, last * whole)
            kept = every.reshape(last - first, whole, -1)[:, self.start * inner : self.stop * inner]
            return kept.reshape((last - first) * block, -1)[start - first * block : stop - first * block]
        pieces = []
        at = start
        while at < stop:
            outer, within = divmod(at, block)
            end = min(stop, (outer + 1) * block)
            base = outer * whole + self.start * inner
            pieces.append(self.source.rows(base + within, base + within + end - at))
            at = end
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces) if pieces else self.source.rows(0, 0)

    def files(self) -> tuple[str, ...]:
        """The source's."""
        return self.source.files()


@dataclass(frozen=True)
class Transpose:
    """The last two axes swapped (Conv1D weights, experts stored `[E, in, out]`). Its own inverse."""

    source: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Last two axes swapped."""
        s = self.source.shape
        return (*s[:-2], s[-1], s[-2])

    @property
    def dtype(self) -> str:
        """Unchanged."""
        return self.source.dtype

    def rows(self, start: int, stop: int) -> Array:
        """Gathers columns, reading the source in bounded blocks."""
        import numpy as np

        height, width = self.source.shape[-2:]
        out = np.empty((stop - start, height), dtype=numpy_dtype(self.dtype))
        step = max(1, CHUNK_BYTES // max(1, width * DTYPES[self.dtype].size))
        at = start
        while at < stop:
            matrix, first = divmod(at, width)
            last = min(width, first + stop - at)
            for row in range(0, height, step):
                end = min(height, row + step)
                block = self.source.rows(matrix * height + row, matrix * height + end)
                out[at - start : at - start + last - first, row:end] = block[:, first:last].T
            at += last - first
        return out

    def files(self) -> tuple[str, ...]:
        """The source's."""
        return self.source.files()


@dataclass(frozen=True)
class Reshape:
    """The same elements in another shape with the same last axis, or of one row."""

    source: Tensor
    shape: tuple[int, ...]

    @property
    def dtype(self) -> str:
        """Unchanged."""
        return self.source.dtype

    def rows(self, start: int, stop: int) -> Array:
        """Row-local where the last axis stays; else the (small) whole is read."""
        if self.shape and self.source.shape and self.shape[-1] == self.source.shape[-1]:
            return self.source.rows(start, stop)
        whole = self.source.rows(0, row_count(self.source.shape))
        return whole.reshape(row_count(self.shape), -1)[start:stop]

    def files(self) -> tuple[str, ...]:
        """The source's."""
        return self.source.files()


@dataclass(frozen=True)
class Affine:
    """`source * scale + shift`, computed in float32: Gemma's norms stored minus one, folded factors.

    Its inverse divides and subtracts; exact only where float32 holds the result.
    """

    source: Tensor
    scale: float = 1.0
    shift: float = 0.0

    @property
    def shape(self) -> tuple[int, ...]:
        """Unchanged."""
        return self.source.shape

    @property
    def dtype(self) -> str:
        """Always float32."""
        return "f32"

    def rows(self, start: int, stop: int) -> Array:
        """Row-local."""
        import numpy as np

        x = to_float32(self.source.rows(start, stop))
        return x * np.float32(self.scale) + np.float32(self.shift)

    def files(self) -> tuple[str, ...]:
        """The source's."""
        return self.source.files()


@dataclass(frozen=True)
class Cast:
    """Another float type, rounded to nearest even."""

    source: Tensor
    dtype: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Unchanged."""
        return self.source.shape

    def rows(self, start: int, stop: int) -> Array:
        """Row-local."""
        return cast(self.source.rows(start, stop), self.dtype)

    def files(self) -> tuple[str, ...]:
        """The source's."""
        return self.source.files()


def transpose(tensor: Tensor) -> Tensor:
    """The last two axes swapped; twice is not at all."""
    return tensor.source if isinstance(tensor, Transpose) else Transpose(tensor)


def to_float32(x: Array) -> Array:
    """Any float array as float32, by integer shifts for bfloat16, which numpy converts slowly."""
    import numpy as np

    if x.dtype == np.float32:
        return x
    if x.dtype.name == "bfloat16":
        out = np.empty(x.shape, np.uint32)
        np.left_shift(x.view(np.uint16), np.uint32(16), out=out, casting="unsafe", dtype=np.uint32)
        return out.view(np.float32)
    return x.astype(np.float32)


def cast(x: Array, dtype: str) -> Array:
    """A float array in another float dtype, rounded to nearest even; NaNs stay NaNs.

    float32 to bfloat16 works on the integers: add half of the last kept place, ties to even, and shift.
    """
    import numpy as np

    target = numpy_dtype(dtype)
    if x.dtype == target:
        return x
    if dtype == "bf16":
        wide = np.ascontiguousarray(to_float32(x))
        bits = wide.view(np.uint32)
        half = bits >> np.uint32(16)
        out = half & np.uint32(1)
        out += np.uint32(0x7FFF)
        out += bits
        out >>= np.uint32(16)
        nan = np.isnan(wide)
        if nan.any():
            out[nan] = half[nan] | np.uint32(64)
        return out.astype(np.uint16).view(target)
    if dtype == "f32":
        return to_float32(x)
    with np.errstate(over="ignore"):
        return to_float32(x).astype(target)


def _rows_of_parts(parts: tuple[Tensor, ...], start: int, stop: int) -> Array:
    import numpy as np

    pieces = []
    base = 0
    for part in parts:
        count = row_count(part.shape)
        low, high = max(start, base), min(stop, base + count)
        if low < high:
            pieces.append(part.rows(low - base, high - base))
        base += count
    if not pieces:
        return parts[0].rows(0, 0)
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def _files(parts: tuple[Tensor, ...]) -> tuple[str, ...]:
    seen: dict[str, None] = {}
    for part in parts:
        seen.update(dict.fromkeys(part.files()))
    return tuple(seen)
