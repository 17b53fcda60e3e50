"""safetensors files: an eight-byte length, a JSON header, the tensors' bytes.

Only the header is read. Nothing in it is believed: its length is held against the file's, its
offsets against its shapes, as the format's specification demands
(https://huggingface.co/docs/safetensors/index#format).
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llmfit_core.dtypes import BY_SAFETENSORS
from llmfit_core.errors import LlmfitError, SourceError, UnsupportedError
from llmfit_core.readers.folder import parse_json_object, read_head, require_file
from llmfit_core.readers.sniff import HEAD_BYTES, refuse
from llmfit_core.tensors import Stored, Tensor, TensorRef

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HEADER_BYTES = 100_000_000
"""The longest header that the safetensors library accepts."""
NAME_CHARACTERS = 1024
_AXES = 64
_SIZES = {name: dtype.size for name, dtype in BY_SAFETENSORS.items()}
_OURS = {name: dtype.name for name, dtype in BY_SAFETENSORS.items()}


@dataclass(frozen=True)
class Entry:
    """One tensor of a header.

    Attributes:
        dtype: Our dtype name.
        shape: Outermost axis first.
        offset: Byte offset of the first element in the file.
    """

    dtype: str
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True, kw_only=True)
class Header:
    """What a safetensors header says.

    Attributes:
        entries: By tensor name, in the header's order.
        metadata: The free texts under `__metadata__`.
        data_start: Where the tensors' bytes begin in the file.
    """

    entries: dict[str, Entry]
    metadata: dict[str, str]
    data_start: int


def read_safetensors(path: Path) -> dict[str, TensorRef]:
    """The tensors of a safetensors file, by name; no weight is read.

    Raises:
        SourceError: Named by its cause: `git-lfs-pointer`, `html-page`, `truncated-file`,
            `empty-file`, `not-safetensors`, `bad-header` ...
        UnsupportedError: `unknown-dtype`, naming the tensor.
    """
    header = read_header(path)
    file = str(path)
    return refs(header, lambda e: Stored(file, e.offset, e.shape, e.dtype))


def read_metadata(path: Path) -> dict[str, str]:
    """The `__metadata__` texts of a safetensors file (`{"format": "pt"}`).

    Raises:
        SourceError: As `read_safetensors`.
    """
    return read_header(path).metadata


def refs(header: Header, tensor: Callable[[Entry], Tensor]) -> dict[str, TensorRef]:
    """A `TensorRef` for each entry, its bytes found as `tensor` says."""
    return {name: TensorRef(name=name, tensor=tensor(entry)) for name, entry in header.entries.items()}


def read_header(path: Path) -> Header:
    """The header of the safetensors file at `path`.

    Raises:
        SourceError: As `read_safetensors`.
    """
    size = require_file(path)
    label = str(path)
    head = read_head(path, HEAD_BYTES)
    length = header_length(head, size, label)
    if 8 + length > len(head):
        head = read_head(path, 8 + length)
    return read_safetensors_header_bytes(head[: 8 + length], size, label)


def header_length(head: bytes, file_size: int, label: str) -> int:
    """How many bytes of header follow the first eight.

    Args:
        head: The file's first bytes: eight do; `HEAD_BYTES` let a stranger be named.
        file_size: The length of the whole file.
        label: What to call the file in errors.

    Raises:
        SourceError: Where this is no safetensors file, or is cut short.
    """
    length = int.from_bytes(head[:8], "little")
    plausible = file_size >= 8 and len(head) >= 8 and 2 <= length <= HEADER_BYTES
    if not plausible or (len(head) > 8 and head[8:9] != b"{"):
        raise refuse(label, head[:HEAD_BYTES], file_size, "safetensors")
    if 8 + length > file_size:
        raise _truncated(label, file_size, f"its header alone ends at byte {8 + length}")
    return length


def read_safetensors_header_bytes(head: bytes, file_size: int, label: str) -> Header:
    """Parse a header, length prefix included, of a file that may be elsewhere.

    Args:
        head: The file's first `8 + length` bytes.
        file_size: The length of the whole file.
        label: What to call the file in errors.

    Raises:
        SourceError: `bad-header`, naming the tensor; `truncated-file`; what `header_length` raises.
        UnsupportedError: `unknown-dtype`, naming the tensor.
    """
    length = header_length(head, file_size, label)
    if len(head) != 8 + length:
        raise _truncated(label, file_size, f"{8 + length} bytes of header were promised and {len(head)} came")
    try:
        raw = parse_json_object(head[8:], f"the header of {label}")
    except SourceError as error:
        raise SourceError("bad-header", error.cause, error.remedy) from None
    metadata = _metadata(raw.pop("__metadata__", None), label)
    start = 8 + length
    spans: list[tuple[int, int, str]] = []
    entries: dict[str, Entry] = {}
    for name, info in raw.items():
        try:
            dtype = info["dtype"]
            shape = info["shape"]
            first, last = info["data_offsets"]
            sound = (
                len(info) == 3
                and type(first) is type(last) is int
                and 0 <= first <= last
                and type(shape) is list
                and len(shape) <= _AXES
                and all(type(n) is int and 0 <= n < 1 << 63 for n in shape)
                and last - first == _SIZES[dtype] * math.prod(shape)
            )
        except (TypeError, KeyError, ValueError, IndexError):
            sound = False
        if not sound or not name or len(name) > NAME_CHARACTERS or not name.isprintable():
            raise _bad_entry(name, info, label)
        entries[name] = Entry(_OURS[dtype], tuple(shape), start + first)
        spans.append((first, last, name))
    _check_spans(spans, file_size - start, label, file_size)
    return Header(entries=entries, metadata=metadata, data_start=start)


def _check_spans(spans: list[tuple[int, int, str]], room: int, label: str, file_size: int) -> None:
    spans.sort()
    at = 0
    before = "the header"
    for first, last, name in spans:
        if first != at:
            how = "overlaps" if first < at else "leaves a gap after"
            raise _bad(label, f"tensor {name!r} {how} {before}: it begins at {first}, not {at}")
        at, before = last, repr(name)
    if at > room:
        raise _truncated(label, file_size, f"its tensors need {file_size - room + at}")
    if at < room:
        raise _bad(label, f"{room - at} bytes follow the last tensor that no tensor claims")


def _bad_entry(name: str, info: object, label: str) -> LlmfitError:
    """Why an entry that failed the quick check is wrong, in words."""
    if not name or len(name) > NAME_CHARACTERS or not name.isprintable():
        return _bad(label, f"the tensor name {name[:80]!r} is empty, over-long or holds control characters")
    if not isinstance(info, dict) or set(info) != {"dtype", "shape", "data_offsets"}:
        return _bad(label, f"tensor {name!r} does not have dtype, shape and data_offsets alone")
    dtype, shape, offsets = info["dtype"], info["shape"], info["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BY_SAFETENSORS:
        return UnsupportedError(
            "unknown-dtype",
            f"tensor {name!r} of {label} has the element type {str(dtype)[:40]!r}, which llmfit cannot read",
            f"Save it in one of {', '.join(sorted(BY_SAFETENSORS))}, or look for a newer llmfit.",
        )
    if not _is_counts(shape) or len(shape) > _AXES:
        return _bad(label, f"tensor {name!r} has the impossible shape {_short(shape)}")
    if not _is_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        return _bad(label, f"tensor {name!r} has the impossible offsets {_short(offsets)}")
    need = math.prod(shape) * _SIZES[dtype]
    return _bad(
        label,
        f"tensor {name!r} of shape {_short(shape)} and type {dtype} needs {need} bytes, not {offsets[1] - offsets[0]}",
    )


def _is_counts(value: object) -> bool:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 1 << 63 for n in value)


def _short(value: object) -> str:
    try:
        return json.dumps(value)[:80]
    except ValueError:
        return "beyond words"


def _metadata(raw: Any, label: str) -> dict[str, str]:
    if raw is None:
        return {}
    if not isinstance(raw, dict) or not all(isinstance(v, str) for v in raw.values()):
        raise _bad(label, "__metadata__ is not an object of strings")
    return raw


def _bad(label: str, what: str) -> SourceError:
    return SourceError("bad-header", f"{label}: {what}", "Fetch the file again, or ask who made it.")


def _truncated(label: str, size: int, need: str) -> SourceError:
    return SourceError(
        "truncated-file",
        f"{label} is cut short: it has {size} bytes, and {need}",
        "Fetch the file again; the download did not finish.",
    )
