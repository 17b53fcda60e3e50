"""The header of one GGUF file, read as if a stranger had written it.

Layout: ggml's `docs/gguf.md`. Every count, length and offset is held against the bytes that are there
before anything is made of it, so that no header can cost more than a second or 100 MB.
"""

from __future__ import annotations

import mmap
import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmfit_core.errors import SourceError, UnsupportedError
from llmfit_core.readers.folder import read_head, require_file
from llmfit_core.readers.ggml_types import GGML_TYPES, GgmlType
from llmfit_core.readers.gguf_values import KV, GgufTensor, Strings
from llmfit_core.readers.sniff import HEAD_BYTES, refuse

if TYPE_CHECKING:
    from pathlib import Path

HEADER_BYTES = 48 << 20
"""The largest vocabularies in use (260,000 tokens, half a million merges) make 15 MB of header."""
_NUMBER_BYTES = 24 << 20
_STRINGS = 3_000_000
_KEYS = 65_536
_TENSORS = 65_536
_NAME_BYTES = 63
_KEY_BYTES = 512
_AXES = 4
_ALIGNMENTS = (8, 1 << 20)

_SCALARS: dict[int, tuple[str, struct.Struct]] = {
    0: ("uint8", struct.Struct("<B")),
    1: ("int8", struct.Struct("<b")),
    2: ("uint16", struct.Struct("<H")),
    3: ("int16", struct.Struct("<h")),
    4: ("uint32", struct.Struct("<I")),
    5: ("int32", struct.Struct("<i")),
    6: ("float32", struct.Struct("<f")),
    7: ("bool", struct.Struct("<B")),
    10: ("uint64", struct.Struct("<Q")),
    11: ("int64", struct.Struct("<q")),
    12: ("float64", struct.Struct("<d")),
}
_STRING, _ARRAY = 8, 9
_U32 = struct.Struct("<I").unpack_from
_U64 = struct.Struct("<Q").unpack_from
_IDENTIFIER_KEYS = frozenset({"general.architecture", "tokenizer.ggml.model", "tokenizer.ggml.pre"})
_CLIMBS = re.compile(r"(^|[/\\])\.\.([/\\]|$)")


@dataclass(frozen=True, kw_only=True)
class GgufPart:
    """The header of one file.

    Attributes:
        version: 2 or 3.
        alignment: Of the tensors' bytes.
        kv: By key, in the file's order.
        tensors: By name, in the file's order.
    """

    version: int
    alignment: int
    kv: dict[str, KV]
    tensors: dict[str, GgufTensor]


def read_part(path: Path) -> GgufPart:
    """The header of the GGUF file at `path`.

    Raises:
        SourceError: `not-gguf` or what the file is instead, `truncated-file`, `bad-gguf` naming key or tensor,
            `unsafe-name`.
        UnsupportedError: `gguf-version`, `big-endian`, `unknown-ggml-type`.
    """
    size = require_file(path)
    head = read_head(path, HEAD_BYTES)
    label = str(path)
    if head[:4] in (b"lmgg", b"fmgg", b"tjgg", b"algg"):
        raise UnsupportedError(
            "gguf-version", f"{label} is in a ggml format of before GGUF (2023)", "Convert the original model anew."
        )
    if head[:4] != b"GGUF":
        raise refuse(label, head, size, "gguf")
    if size < 24:
        raise _truncated(label, size)
    version = int.from_bytes(head[4:8], "little")
    if version not in (2, 3):
        if version & 0xFFFF == 0 and version:
            raise UnsupportedError("big-endian", f"{label} is a big-endian GGUF file", "Convert the original anew.")
        raise UnsupportedError(
            "gguf-version", f"{label} is GGUF version {version}; 2 and 3 can be read", "Look for a newer llmfit."
        )
    with path.open("rb") as file, mmap.mmap(file.fileno(), min(size, HEADER_BYTES), access=mmap.ACCESS_READ) as window:
        cursor = _Cursor(window, len(window), size, label)
        try:
            return _part(cursor, version)
        except struct.error:
            # Fixed-size fields are read unguarded: beyond the window there is nothing to read.
            raise cursor.ended() from None


class _Cursor:
    def __init__(self, data: mmap.mmap, end: int, size: int, label: str) -> None:
        self.data = data
        self.end = end
        self.size = size
        self.label = label
        self.at = 8
        self.strings = 0
        self.numbers = 0

    def u64(self) -> int:
        (value,) = _U64(self.data, self.at)
        self.at += 8
        return int(value)

    def u32(self) -> int:
        (value,) = _U32(self.data, self.at)
        self.at += 4
        return int(value)

    def take(self, length: int) -> bytes:
        if length > self.end - self.at:
            raise self.ended()
        piece = self.data[self.at : self.at + length]
        self.at += length
        return piece

    def ended(self) -> SourceError:
        if self.end < self.size:
            return self.bad(f"its header is longer than {HEADER_BYTES} bytes, or a length in it is wrong")
        return _truncated(self.label, self.size)

    def bad(self, what: str) -> SourceError:
        return SourceError("bad-gguf", f"{self.label}: {what}", "Fetch the file again; it is damaged or hostile.")


def _part(cursor: _Cursor, version: int) -> GgufPart:
    tensor_count, key_count = cursor.u64(), cursor.u64()
    # Within these limits, counting on costs little until the bytes end.
    if key_count > _KEYS:
        raise cursor.bad(f"it claims {key_count} keys in {cursor.size} bytes")
    if tensor_count > _TENSORS:
        raise cursor.bad(f"it claims {tensor_count} tensors in {cursor.size} bytes")
    kv: dict[str, KV] = {}
    for _ in range(key_count):
        key = _name(cursor, "key", _KEY_BYTES)
        if key in kv:
            raise cursor.bad(f"it has the key {key} twice")
        kv[key] = _value(cursor, key, cursor.u32())
        _check_text(cursor, key, kv[key])
    alignment = _alignment(cursor, kv)
    infos = []
    for _ in range(tensor_count):
        name = _name(cursor, "tensor", _NAME_BYTES)
        axes = cursor.u32()
        if axes > _AXES:
            raise cursor.bad(f"tensor {name} claims {axes} axes")
        shape = tuple(cursor.u64() for _ in range(axes))[::-1]
        infos.append((name, shape, cursor.u32(), cursor.u64()))
    start = -(-cursor.at // alignment) * alignment
    return GgufPart(version=version, alignment=alignment, kv=kv, tensors=_tensors(cursor, infos, start, alignment))


def _name(cursor: _Cursor, kind: str, limit: int) -> str:
    length = cursor.u64()
    if not 0 < length <= limit:
        raise cursor.bad(f"the name of a {kind} claims {length} bytes; at most {limit} are allowed")
    raw = cursor.take(length)
    try:
        name = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise cursor.bad(f"the name {raw!r} of a {kind} is not UTF-8") from None
    if not name.isprintable() or "/" in name or "\\" in name or name.startswith(".."):
        raise _unsafe(cursor, kind, name)
    return name


def _value(cursor: _Cursor, key: str, kind: int) -> KV:
    if kind == _STRING:
        raw = cursor.take(cursor.u64())
        try:
            return KV("string", raw.decode("utf-8"))
        except UnicodeDecodeError:
            raise cursor.bad(f"the value of {key} is not UTF-8") from None
    if kind == _ARRAY:
        return _array(cursor, key)
    if kind not in _SCALARS:
        raise cursor.bad(f"{key} has the unknown type {kind}")
    name, form = _SCALARS[kind]
    (value,) = form.unpack(cursor.take(form.size))
    if name == "bool":
        if value > 1:
            raise cursor.bad(f"the bool {key} holds {value}")
        value = bool(value)
    return KV(name, value)


def _array(cursor: _Cursor, key: str) -> KV:
    kind, count = cursor.u32(), cursor.u64()
    if kind == _STRING:
        return KV("array[string]", _strings(cursor, key, count))
    if kind not in _SCALARS:
        what = "arrays" if kind == _ARRAY else f"the unknown type {kind}"
        raise cursor.bad(f"{key} is an array of {what}")
    name, form = _SCALARS[kind]
    cursor.numbers += count * form.size
    if cursor.numbers > _NUMBER_BYTES:
        raise cursor.bad(f"{key} claims {count} numbers in {cursor.size} bytes")
    import numpy as np

    values = np.frombuffer(cursor.take(count * form.size), dtype=np.dtype("uint8" if name == "bool" else name))
    if name == "bool":
        if values.max(initial=0) > 1:
            raise cursor.bad(f"the bools {key} hold other values than 0 and 1")
        values = values.view(np.bool_)
    return KV(f"array[{name}]", values)


def _strings(cursor: _Cursor, key: str, count: int) -> Strings:
    cursor.strings += count
    if cursor.strings > _STRINGS:
        raise cursor.bad(f"{key} claims {count} strings in {cursor.size} bytes")
    data, start, end = cursor.data, cursor.at, cursor.end - 8
    at, read = start, _U64
    for _ in range(count):
        if at > end:
            raise cursor.ended()
        at += read(data, at)[0] + 8
    cursor.at = start
    return Strings(cursor.take(at - start), count)


def _check_text(cursor: _Cursor, key: str, value: KV) -> None:
    """Refuse texts that could serve as a way out of a folder where a reader builds names from them."""
    if key in _IDENTIFIER_KEYS:
        if value.type != "string":
            raise cursor.bad(f"{key} is no string but {value.type}")
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", value.value):
            raise _unsafe(cursor, key, value.value)
    elif key.startswith("general.") and value.type == "string" and not key.endswith(("url", "description")):
        text = value.value
        if "\0" in text or _CLIMBS.search(text):
            raise _unsafe(cursor, key, text)


def _alignment(cursor: _Cursor, kv: dict[str, KV]) -> int:
    given = kv.get("general.alignment", KV("uint32", 32))
    low, high = _ALIGNMENTS
    value = given.value
    if given.type != "uint32" or not low <= value <= high or value & (value - 1):
        raise cursor.bad(f"general.alignment is {str(value)[:40]} ({given.type}), not a power of two from {low}")
    return int(value)


def _tensors(
    cursor: _Cursor, infos: list[tuple[str, tuple[int, ...], int, int]], start: int, alignment: int
) -> dict[str, GgufTensor]:
    tensors: dict[str, GgufTensor] = {}
    for name, shape, type_id, offset in infos:
        kind = GGML_TYPES.get(type_id)
        if kind is None:
            raise UnsupportedError(
                "unknown-ggml-type",
                f"tensor {name} of {cursor.label} has the unknown ggml type {type_id}",
                "Look for a newer llmfit; where the type was withdrawn (q4_0_4_4 ...), convert the original anew.",
            )
        if name in tensors:
            raise cursor.bad(f"it has the tensor {name} twice")
        nbytes = _tensor_bytes(cursor, name, shape, kind)
        if offset % alignment:
            raise cursor.bad(f"tensor {name} begins at {offset}, which {alignment} does not divide")
        if start + offset + nbytes > cursor.size:
            raise SourceError(
                "truncated-file",
                f"{cursor.label} is cut short: it has {cursor.size} bytes, and tensor {name} would end at "
                f"{start + offset + nbytes}",
                "Fetch the file again; the download did not finish.",
            )
        tensors[name] = GgufTensor(name, shape, kind.name, start + offset, nbytes, cursor.label)
    end, before = 0, ""
    for tensor in sorted(tensors.values(), key=lambda t: (t.offset, t.nbytes)):
        if tensor.offset < end:
            raise cursor.bad(f"tensors {before} and {tensor.name} overlap")
        end, before = tensor.offset + tensor.nbytes, tensor.name
    return tensors


def _tensor_bytes(cursor: _Cursor, name: str, shape: tuple[int, ...], kind: GgmlType) -> int:
    if any(not 0 < n < 1 << 63 for n in shape):
        raise cursor.bad(f"tensor {name} has the impossible shape {list(shape)}")
    if kind.block > 1 and (not shape or shape[-1] % kind.block):
        raise cursor.bad(f"tensor {name} of shape {list(shape)} cannot be {kind.name}: {kind.block} to a block")
    return kind.bytes_for(shape)


def _unsafe(cursor: _Cursor, kind: str, name: str) -> SourceError:
    return SourceError(
        "unsafe-name",
        f"{cursor.label}: the {kind} name {name[:80]!r} holds path parts or control characters",
        "Do not trust this file; ask who made it.",
    )


def _truncated(label: str, size: int) -> SourceError:
    return SourceError(
        "truncated-file",
        f"{label} is cut short: it ends after {size} bytes, inside its header",
        "Fetch the file again; the download did not finish.",
    )
