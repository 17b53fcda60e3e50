"""Tensors that are not loaded: where the bytes are, and what to do to them, as values.

A tensor is a small tree. Its leaves say where bytes lie (`Stored`) or give them (`Given`); its
inner nodes are the named operations of `llmfit_core.transform`. Every node knows its shape and
dtype without reading anything, can be pickled, and reads any range of rows on its own, so that
nothing ever has to hold a whole large tensor.

*Rows* are what remains when all axes but the last are flattened: a tensor of shape
`[E, N, K]` has `E * N` rows of length `K`; a vector `[K]` has one row. `rows(a, b)` gives an
array of shape `[b - a, K]`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from llmfit_core.dtypes import DTYPES, numpy_dtype
from llmfit_core.errors import SourceError

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

CHUNK_BYTES = 16 << 20
"""How much one read aims at; no buffer of ours is larger than four times this."""


class Tensor(Protocol):
    """What every node of a tensor tree offers. Nodes are frozen dataclasses."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Outermost axis first, as safetensors and torch write it."""
        ...

    @property
    def dtype(self) -> str:
        """A name of `llmfit_core.dtypes.DTYPES`, or a GGUF block type such as `q4_1`."""
        ...

    def rows(self, start: int, stop: int) -> Array:
        """Rows `start` to `stop` as an array `[stop - start, K]` of the node's dtype."""
        ...

    def files(self) -> tuple[str, ...]:
        """The files the bytes come from, without repeats."""
        ...


def row_count(shape: tuple[int, ...]) -> int:
    """How many rows a tensor of `shape` has (see the module's text)."""
    return math.prod(shape[:-1])


def element_count(shape: tuple[int, ...]) -> int:
    """How many elements a tensor of `shape` has; a scalar has one."""
    return math.prod(shape)


def read_bytes(path: str, offset: int, length: int) -> memoryview:
    """Read `length` bytes of `path` at `offset`.

    The file is read and not mapped, because a file that is cut while it is mapped kills the process.

    Raises:
        SourceError: `truncated-file`, `unreadable-source`.
    """
    import numpy as np

    buffer = np.empty(length, np.uint8).data  # not zeroed first, unlike bytearray
    try:
        with open(path, "rb", buffering=0) as file:
            file.seek(offset)
            at = 0
            while at < length:
                count = file.readinto(buffer[at:])
                if not count:
                    raise SourceError(
                        "truncated-file", f"{path} ends before byte {offset + length}", "Fetch the file again; it was cut short."
                    )
                at += count
    except OSError as error:
        raise SourceError("unreadable-source", f"{path}: {error.strerror}", "Check the file, or fetch it again.") from error
    return buffer


@dataclass(frozen=True)
class Stored:
    """Bytes in a file, row after row, little-endian.

    Attributes:
        path: The file.
        offset: Byte offset of the first element.
        shape: Outermost axis first.
        dtype: A plain dtype name.
    """

    path: str
    offset: int
    shape: tuple[int, ...]
    dtype: str

    def rows(self, start: int, stop: int) -> Array:
        """Rows as a view of what was read."""
        import numpy as np

        width = self.shape[-1] if self.shape else 1
        step = width * DTYPES[self.dtype].size
        view = read_bytes(self.path, self.offset + start * step, (stop - start) * step)
        return np.frombuffer(view, dtype=numpy_dtype(self.dtype)).reshape(stop - start, width)

    def files(self) -> tuple[str, ...]:
        """The one file."""
        return (self.path,)


@dataclass(frozen=True)
class Given:
    """A small tensor made, not read: rope factors, say.

    Attributes:
        data: The elements as little-endian bytes.
        shape: Outermost axis first.
        dtype: A plain dtype name.
    """

    data: bytes
    shape: tuple[int, ...]
    dtype: str

    def rows(self, start: int, stop: int) -> Array:
        """Rows as a read-only view of the bytes."""
        import numpy as np

        width = self.shape[-1] if self.shape else 1
        return np.frombuffer(self.data, dtype=numpy_dtype(self.dtype)).reshape(-1, width)[start:stop]

    def files(self) -> tuple[str, ...]:
        """None: nothing is read."""
        return ()


@dataclass(frozen=True, kw_only=True)
class TensorRef:
    """A source tensor and what it means. Annotated, never renamed.

    Attributes:
        name: The name in the source, without wrapper prefixes (`model.layers.0.mlp.up_proj.weight`).
        tensor: Where its bytes come from.
        role: What it is (`llmfit_core.roles`); empty until resolved.
        part: `weight`, `bias` or `scale`.
        layer: Index of the decoder layer, or `None`.
        expert: Index of the expert, or `None`.
    """

    name: str
    tensor: Tensor
    role: str = ""
    part: str = "weight"
    layer: int | None = None
    expert: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape."""
        return self.tensor.shape

    @property
    def dtype(self) -> str:
        """The tensor's dtype name."""
        return self.tensor.dtype


def read(tensor: Tensor) -> Array:
    """The whole tensor in its shape. For small ones: vectors, norms, tests."""
    import numpy as np

    shape = tensor.shape
    rows = np.asarray(tensor.rows(0, row_count(shape)))
    return rows.reshape(shape)
