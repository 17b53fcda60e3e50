"""Ternary weights as lazy tensors: packed four to a byte, scaled, made from full weights, or kept as they are.

The arithmetic is that of transformers' `integrations/bitnet.py`, in float32.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np  # noqa: TID253 - no entry module imports this one

from llmfit_core.errors import SourceError
from llmfit_core.tensors import CHUNK_BYTES, row_count
from llmfit_core.transform import to_float32

if TYPE_CHECKING:
    from llmfit_core.tensors import Array, Tensor

PER_BYTE = 4
LEAST_MEAN = 1e-5
"""What the mean of the absolute weights is raised to, so that nothing is divided by zero."""
_FETCH = "The checkpoint is damaged; fetch it again."


@dataclass(frozen=True)
class Packed:
    """Ternary values, packed four to a byte along the outputs.

    Of the `4 R` rows that `R` stored rows stand for, row `i * R + r` holds its value plus one in bits `2 i` and `2 i + 1`
    of stored row `r`.

    Attributes:
        source: uint8 `[R, K]`.
        name: For messages.
    """

    source: Tensor
    name: str

    @property
    def shape(self) -> tuple[int, ...]:
        """`[4 R, K]`."""
        stored, width = self.source.shape
        return (PER_BYTE * stored, width)

    @property
    def dtype(self) -> str:
        """float32: -1, 0 and 1."""
        return "f32"

    def rows(self, start: int, stop: int) -> Array:
        """Row-local, quarter by quarter."""
        stored, width = self.source.shape
        out = np.empty((stop - start, width), np.float32)
        at = start
        while at < stop:
            quarter, first = divmod(at, stored)
            last = min(stored, first + stop - at)
            codes = (self.source.rows(first, last) >> np.uint8(2 * quarter)) & np.uint8(3)
            if (codes == 3).any():
                raise SourceError("not-ternary", f"{self.name} holds the code 3, which stands for no ternary value", _FETCH)
            np.subtract(codes, np.float32(1), out=out[at - start : at - start + last - first], casting="unsafe")
            at += last - first
        return out

    def files(self) -> tuple[str, ...]:
        """The source's."""
        return self.source.files()


@dataclass(frozen=True)
class Scaled:
    """A tensor times the one number of another, or divided by it.

    Attributes:
        source: Any tensor.
        scale: Of one element.
        divide: Which of the two.
        name: Of the scale, for messages.
    """

    source: Tensor
    scale: Tensor
    divide: bool
    name: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Unchanged."""
        return self.source.shape

    @property
    def dtype(self) -> str:
        """Always float32."""
        return "f32"

    def rows(self, start: int, stop: int) -> Array:
        """Row-local; the scale is read anew, since it is one number."""
        factor = to_float32(self.scale.rows(0, 1)).reshape(-1)[0]
        if not np.isfinite(factor) or factor == 0:
            raise SourceError("bad-scale", f"{self.name} is {factor}, by which nothing can be scaled", _FETCH)
        rows = to_float32(self.source.rows(start, stop))
        scaled: Array = rows / factor if self.divide else rows * factor
        return scaled

    def files(self) -> tuple[str, ...]:
        """Both."""
        return tuple(dict.fromkeys((*self.source.files(), *self.scale.files())))


@dataclass(frozen=True)
class Ternarised:
    """Full weights rounded to -s, 0 and s, where s is the mean of their absolute values.

    Attributes:
        source: A matrix of floats.
        once: Leave as they are weights that hold but -s, 0 and s already.
    """

    source: Tensor
    once: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Unchanged."""
        return self.source.shape

    @property
    def dtype(self) -> str:
        """Always float32."""
        return "f32"

    def rows(self, start: int, stop: int) -> Array:
        """Row-local, once the whole has been read for its mean."""
        found = _measured(self)
        rows = to_float32(self.source.rows(start, stop))
        if self.once and found.ternary:
            return rows
        with np.errstate(invalid="ignore"):
            inverse = np.float32(1) / np.maximum(np.float32(found.mean), np.float32(LEAST_MEAN))
            rounded: Array = np.clip(np.rint(rows * inverse), -1, 1) / inverse
        return rounded

    def files(self) -> tuple[str, ...]:
        """The source's."""
        return self.source.files()


@dataclass(frozen=True)
class Proven:
    """Weights that are said to be ternary already, and are proven to be before they are used.

    Attributes:
        source: A matrix of floats.
        name: For messages.
    """

    source: Tensor
    name: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Unchanged."""
        return self.source.shape

    @property
    def dtype(self) -> str:
        """Unchanged."""
        return self.source.dtype

    def rows(self, start: int, stop: int) -> Array:
        """Row-local, once the whole has been looked at.

        Raises:
            SourceError: `not-ternary`.
        """
        if not _measured(self).ternary:
            raise SourceError(
                "not-ternary",
                f"{self.name} is stored as full weights, unpacked and without weight_scale, and holds more than -s, 0 and s",
                "Correct linear_class and quantization_mode in quantization_config of config.json, as the model's authors "
                "published it.",
            )
        return self.source.rows(start, stop)

    def files(self) -> tuple[str, ...]:
        """The source's."""
        return self.source.files()


@dataclass(frozen=True)
class Measured:
    """What a matrix is.

    Attributes:
        mean: Of the absolute values, in float64, rounded to float32.
        ternary: It holds but -s, 0 and s, for one s.
    """

    mean: float
    ternary: bool


_LOCKS = tuple(threading.Lock() for _ in range(16))


def _measured(node: Ternarised | Proven) -> Measured:
    """What the node's source is, found out once; the answer stays with the node, whose source does not change."""
    with _LOCKS[id(node) // 64 % len(_LOCKS)]:
        found = node.__dict__.get("_measured")
        if found is None:
            found = node.__dict__["_measured"] = measure(node.source)
        return found


def measure(tensor: Tensor) -> Measured:
    """Read a whole matrix once, in bounded chunks."""
    width, rows = tensor.shape[-1], row_count(tensor.shape)
    step = max(1, CHUNK_BYTES // (4 * max(1, width)))
    total, size, ternary = 0.0, np.float32(0), True
    for start in range(0, rows, step):
        x = np.abs(to_float32(tensor.rows(start, min(rows, start + step))))
        total += float(x.sum(dtype=np.float64))
        if ternary:
            size = size or x.max(initial=np.float32(0))
            ternary = bool(((x == 0) | (x == size)).all())
    return Measured(mean=float(np.float32(total / max(1, rows * width))), ternary=ternary)
