"""What a GGUF header gives: typed values, arrays of strings, the places of tensors."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

_LENGTH = struct.Struct("<Q").unpack_from


class Strings(Sequence[str]):
    """An array of strings, decoded when first looked at.

    Bytes that are no UTF-8 (old vocabularies have pieces of characters) become surrogate escapes and come back with
    `encode("utf-8", "surrogateescape")`.
    """

    def __init__(self, data: bytes, count: int) -> None:
        """Keep `data`, `count` strings one after the other as GGUF has them, lengths already checked."""
        self._data = data
        self._count = count

    @cached_property
    def _values(self) -> tuple[str, ...]:
        data, at, values = self._data, 0, []
        for _ in range(self._count):
            (length,) = _LENGTH(data, at)
            end = at + 8 + length
            values.append(data[at + 8 : end].decode("utf-8", "surrogateescape"))
            at = end
        return tuple(values)

    def __len__(self) -> int:
        """How many strings."""
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        """One string, or several as a tuple."""
        return self._values[index]

    def __iter__(self) -> Iterator[str]:
        """The strings in order."""
        return iter(self._values)

    def __eq__(self, other: object) -> bool:
        """Equal to any sequence of the same strings."""
        if isinstance(other, Strings):
            return self._data == other._data
        return isinstance(other, list | tuple) and self._values == tuple(other)

    def __hash__(self) -> int:
        """By the bytes."""
        return hash(self._data)

    def __repr__(self) -> str:
        """Short."""
        return f"Strings({self._count})"


@dataclass(frozen=True)
class KV:
    """A value with its GGUF type.

    Attributes:
        type: `uint32`, `float32`, `bool`, `string` ..., `array[string]`, `array[int32]` ...
        value: int, float, bool or str; a numpy array for arrays of numbers; `Strings` for arrays of strings.
    """

    type: str
    value: Any


@dataclass(frozen=True)
class GgufTensor:
    """Where a GGUF tensor lies.

    Attributes:
        name: In the file.
        shape: Outermost axis first: the reverse of the file's order.
        ggml_type: Lower case: `q4_k`.
        offset: Byte offset in the file.
        nbytes: How many bytes it has.
        path: The file, which for split models is one of several.
    """

    name: str
    shape: tuple[int, ...]
    ggml_type: str
    offset: int
    nbytes: int
    path: str
