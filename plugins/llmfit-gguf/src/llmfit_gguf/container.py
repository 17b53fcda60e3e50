"""The GGUF container: a header from values, and where each tensor lies behind it.

Layout of version 3, little-endian: magic, version, two counts, the keys in the order given, the tensor infos, padding
to `ALIGNMENT`, then each tensor at an aligned offset. The same values give the same bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llmfit_core.errors import UnsupportedError
from llmfit_core.readers.ggml_types import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llmfit_core.readers.gguf_values import KV

ALIGNMENT = 32
"""What tensors are aligned to, from the end of the header on; GGUF's default, so no key says it."""
MAX_NAME = 63
"""Bytes of a tensor name that ggml can hold."""
MAX_AXES = 4

# GGUF's value types: number, numpy type.
_NUMBERS: dict[str, tuple[int, str]] = {
    "uint8": (0, "<u1"),
    "int8": (1, "<i1"),
    "uint16": (2, "<u2"),
    "int16": (3, "<i2"),
    "uint32": (4, "<u4"),
    "int32": (5, "<i4"),
    "float32": (6, "<f4"),
    "bool": (7, "<u1"),
    "uint64": (10, "<u8"),
    "int64": (11, "<i8"),
    "float64": (12, "<f8"),
}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True, kw_only=True)
class Info:
    """A tensor's entry in the header.

    Attributes:
        name: At most `MAX_NAME` bytes.
        shape: Outermost axis first (GGUF writes the reverse).
        type: ggml type, lower case.
        offset: From the end of the padded header; a multiple of `ALIGNMENT`.
    """

    name: str
    shape: tuple[int, ...]
    type: str
    offset: int


def padded(nbytes: int) -> int:
    """`nbytes` rounded up to `ALIGNMENT`."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def layout(tensors: Sequence[tuple[str, tuple[int, ...], str]]) -> tuple[list[Info], int]:
    """One tensor after the other, each aligned.

    Args:
        tensors: `(name, shape, type)` in file order.

    Returns:
        The infos, and how many bytes follow the header, the last padding included.
    """
    infos = []
    offset = 0
    for name, shape, kind in tensors:
        infos.append(Info(name=name, shape=shape, type=kind, offset=offset))
        offset += padded(BY_NAME[kind].bytes_for(shape))
    return infos, offset


def header_bytes(kv: Mapping[str, KV], infos: Sequence[Info]) -> bytes:
    """Everything before the first tensor's bytes.

    Raises:
        UnsupportedError: `gguf-value`: a value does not fit its type; `gguf-name`: a tensor name is too long or
            there twice, or a tensor has too many axes.
    """
    out = bytearray(b"GGUF")
    out += struct.pack("<IQQ", 3, len(infos), len(kv))
    for key, value in kv.items():
        out += _string(key)
        out += _value(key, value)
    seen: set[str] = set()
    for info in infos:
        _require_writable(info, seen)
        axes = info.shape or (1,)
        out += _string(info.name)
        out += struct.pack(f"<I{len(axes)}QIQ", len(axes), *reversed(axes), BY_NAME[info.type].id, info.offset)
    return bytes(out) + bytes(-len(out) % ALIGNMENT)


def _require_writable(info: Info, seen: set[str]) -> None:
    if len(info.name.encode()) > MAX_NAME or len(info.shape) > MAX_AXES or info.name in seen:
        raise UnsupportedError(
            "gguf-name",
            f"GGUF cannot hold tensor {info.name} of shape {list(info.shape)}: names have at most {MAX_NAME} bytes "
            f"and differ, shapes have at most {MAX_AXES} axes",
            "Give it another name or shape in the architecture.",
        )
    seen.add(info.name)


def _string(text: str) -> bytes:
    data = text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(data)) + data


def _value(key: str, kv: KV) -> bytes:
    try:
        if kv.type.startswith("array[") and kv.type.endswith("]"):
            return _array(kv.type[6:-1], kv.value)
        if kv.type == "string":
            return struct.pack("<I", _STRING) + _string(kv.value)
        number, _ = _NUMBERS[kv.type]
        return struct.pack("<I", number) + _numbers(kv.type, [kv.value])
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise UnsupportedError(
            "gguf-value", f"{key}: {str(kv.value)[:60]!r} is no {kv.type} ({error})", "Give another value with --set."
        ) from None


def _array(item: str, values: Any) -> bytes:
    if item == "string":
        return struct.pack("<IIQ", _ARRAY, _STRING, len(values)) + b"".join(_string(v) for v in values)
    number, _ = _NUMBERS[item]
    return struct.pack("<IIQ", _ARRAY, number, len(values)) + _numbers(item, values)


def _numbers(kind: str, values: Any) -> bytes:
    """Numbers in GGUF's type, refusing what the type cannot hold."""
    import numpy as np

    given = np.frombuffer(values, np.uint8) if isinstance(values, bytes) else np.asarray(values)
    if given.size == 0:
        return b""
    if kind == "bool":
        if given.dtype != np.bool_:
            raise TypeError("bool expected")
        return given.astype("<u1").tobytes()
    target = np.dtype(_NUMBERS[kind][1])
    if given.ndim != 1 or given.dtype.kind not in ("iuf" if target.kind == "f" else "iu"):
        raise TypeError("number expected")
    if target.kind in "iu":
        limits = np.iinfo(target)
        if int(given.min()) < limits.min or int(given.max()) > limits.max:
            raise OverflowError("out of range")
    with np.errstate(over="ignore"):
        return given.astype(target).tobytes()
