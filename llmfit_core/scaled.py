"""Small numbers times scales: how fp8 and int8 weights become floats, block by block, and which blocks fit which shapes.

A scale tensor holds one factor for each block of rows and columns of a matrix `[N, K]`; a block may be a single row
(scales "per channel"), a piece of a row ("per group") or the whole matrix ("per tensor"). The last block of an axis may
be ragged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from llmfit_core.tensors import Tensor, row_count

if TYPE_CHECKING:
    from llmfit_core.tensors import Array

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Scaled:
    """`source * scale` in float32, each product rounded once.

    Attributes:
        source: `[.., N, K]` or `[K]`, of any one-byte or float dtype.
        scale: `[.., ceil(N / rows), ceil(K / columns)]`, of any float dtype; without leading axes one matrix of scales
            serves all.
        block: Rows and columns of a block.
    """

    source: Tensor
    scale: Tensor
    block: tuple[int, int]

    @property
    def shape(self) -> Shape:
        """Unchanged."""
        return self.source.shape

    @property
    def dtype(self) -> str:
        """Always float32."""
        return "f32"

    def rows(self, start: int, stop: int) -> Array:
        """Reads those rows and the scales of the blocks they lie in."""
        height, width = (1, *self.shape)[-2:]
        tall, wide = self.block
        count = -(-height // tall)
        one = row_count(self.scale.shape) == count
        out = widen(self.source.rows(start, stop))
        at = start
        while at < stop:
            matrix, within = divmod(at, height)
            end = min(height, within + stop - at)
            base = 0 if one else matrix * count
            first, last = within // tall, -(-end // tall)
            scales = spread(widen(self.scale.rows(base + first, base + last)), wide, width)
            rows = out[at - start : at - start + end - within]
            if tall == 1:
                rows *= scales
            else:
                for index in range(first, last):
                    low, high = max(index * tall, within) - within, min((index + 1) * tall, end) - within
                    rows[low:high] *= scales[index - first]
            at += end - within
        return out

    def files(self) -> tuple[str, ...]:
        """Both tensors'."""
        return tuple(dict.fromkeys((*self.source.files(), *self.scale.files())))


def spread(scales: Array, wide: int, width: int) -> Array:
    """Scales of pieces of rows, `[R, ceil(width / wide)]`, as one for each column, `[R, width]`, or `[R, 1]`."""
    import numpy as np

    return scales if scales.shape[1] == 1 else np.repeat(scales, wide, axis=1)[:, :width]


def widen(x: Array) -> Array:
    """Any values as a float32 array of its own; one-byte types by a table of their 256 values, which is exact and quick."""
    import numpy as np

    if x.dtype.itemsize == 1:
        return _values(x.dtype.name)[x.view(np.uint8)]
    return x.astype(np.float32)


@cache
def _values(name: str) -> Array:
    """What each of the 256 codes of a one-byte dtype means."""
    import ml_dtypes
    import numpy as np

    codes = np.arange(256, dtype=np.uint8)
    kind = np.dtype(getattr(ml_dtypes, name)) if name.startswith("float8") else np.dtype(name)
    return codes.view(kind).astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class Fit:
    """How a scale tensor lies over a weight.

    Attributes:
        view: The scale's shape as `Scaled` wants it.
        block: Rows and columns of a block.
    """

    view: Shape
    block: tuple[int, int]


def fit_scale(weight: Shape, scale: Shape, block: tuple[int, int] | None = None) -> Fit | None:
    """How scales of one shape lie over a weight of another, or `None` where they do not.

    Args:
        weight: `[.., N, K]` or `[K]`.
        scale: One number; `[N]` or `[N, 1]` (per row); `[E]`, `[E, 1]`, `[E, N]` for weights `[E, N, K]`; or as many axes as
            the weight has. Blocks with unit axes between, `[a, 1, b, 1]` for `[N, K]`, are taken as `[a, b]`.
        block: Rows and columns of a block, which both axes then have to agree with. Without it no axis may be cut into
            blocks.
    """
    *lead, high, wide = weight if len(weight) > 1 else (1, *weight)
    view = _with_axes(tuple(lead), high, scale)
    if view is None:
        return None
    down, across = view[-2:]
    if block is not None:
        fits = down == -(-high // block[0]) and across == -(-wide // block[1]) and len(view) == len(lead) + 2
        return Fit(view=view, block=block) if fits else None
    if len(weight) == 2 and down == 1 < high and across > 1:  # nobody scales columns; a row of scales is something else
        return None
    sizes = [n if s == 1 else 1 if s == n else 0 for n, s in ((high, down), (wide, across))]
    return Fit(view=view, block=(sizes[0], sizes[1])) if all(sizes) else None


def _with_axes(lead: Shape, high: int, scale: Shape) -> Shape | None:
    """A scale's shape with an axis for each of the weight's; `(1, 1)` for one number that serves several matrices."""
    if 0 in scale:
        return None
    if math.prod(scale) == 1:
        return (*lead, 1, 1) if math.prod(lead) == 1 else (1, 1)
    if len(scale) == 4 and not lead and scale[1] == scale[3] == 1:
        return (scale[0], scale[2])
    if len(scale) == len(lead) + 2:
        return scale if scale[:-2] == lead else None
    if scale == (*lead, high):
        return (*scale, 1)
    return (*lead, 1, 1) if lead and scale in (lead, (*lead, 1)) else None


def is_blocks(weight: Shape, scale: Shape) -> bool:
    """Whether scales are for blocks: along some axis more than one of them, and fewer than there are rows or columns."""
    *lead, high, wide = weight if len(weight) > 1 else (1, *weight)
    view = _with_axes(tuple(lead), high, scale)
    return view is not None and any(1 < s < n for n, s in zip((high, wide), view[-2:], strict=True))


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The sizes of a block along one axis that explain the shapes of weights and scales.

    Attributes:
        low: The least.
        high: The largest; `None` where no axis is cut, so that one block covers each.
        least: Index of the pair that sets the least.
        most: Index of the pair that sets the largest.
    """

    low: int = 1
    high: int | None = None
    least: int = 0
    most: int = 0


def possible_blocks(pairs: Iterable[tuple[Shape, Shape]]) -> tuple[Limits, Limits]:
    """What the axes that are cut into blocks leave open for rows and columns; nothing where the least exceeds the largest.

    An axis with several scales says much; one with a single scale fits many blocks and is to be checked afterwards.
    """
    out = [Limits(), Limits()]
    longest = [1, 1]
    for index, (weight, scale) in enumerate(pairs):
        *lead, tall, wide = weight if len(weight) > 1 else (1, *weight)
        view = _with_axes(tuple(lead), tall, scale) or (1, 1)
        for axis, (n, s) in enumerate(zip((tall, wide), view[-2:], strict=True)):
            if s == 1:
                longest[axis] = max(longest[axis], n)
                continue
            at = out[axis]
            low, high = -(-n // s), -(-n // (s - 1)) - 1
            if low > at.low:
                at = replace(at, low=low, least=index)
            if at.high is None or high < at.high:
                at = replace(at, high=high, most=index)
            out[axis] = at
    rows, columns = (replace(at, low=n) if at.high is None else at for at, n in zip(out, longest, strict=True))
    return rows, columns


def only_block(low: int, high: int | None) -> int | None:
    """The one size between limits that anybody would have meant: the only one there is, or the only power of two."""
    if high is None or low == high:
        return low
    powers = [1 << i for i in range(31) if low <= 1 << i <= high]
    return powers[0] if len(powers) == 1 else None
