"""GGUF models: one file or several parts, as keys and lazy tensors."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmfit_core.errors import SourceError
from llmfit_core.readers.ggml_types import PLAIN, Blocked
from llmfit_core.readers.gguf_header import GgufPart, read_part
from llmfit_core.readers.gguf_values import KV, GgufTensor, Strings
from llmfit_core.tensors import Stored, Tensor

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["KV", "Blocked", "GgufFile", "GgufTensor", "Strings", "read_gguf", "tensor_of"]

_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_PARTS = 4096


@dataclass(frozen=True, kw_only=True)
class GgufFile:
    """A GGUF model, all parts together.

    Attributes:
        version: Of the format: 2 or 3.
        alignment: Of the tensors' bytes.
        kv: By key; of a split model the first part's.
        tensors: By name, in the order of parts and files.
        files: The files, in order.
    """

    version: int
    alignment: int
    kv: dict[str, KV]
    tensors: dict[str, GgufTensor]
    files: tuple[Path, ...]


def read_gguf(path: Path) -> GgufFile:
    """The GGUF model at `path`; of a split one, given any part, all parts. Headers only.

    Raises:
        SourceError: As `read_part`; `missing-shard` naming the part; `bad-split` where parts do not fit together.
        UnsupportedError: As `read_part`.
    """
    given = read_part(path)
    number, count = _split(given, path)
    if count <= 1:
        return GgufFile(
            version=given.version, alignment=given.alignment, kv=given.kv, tensors=given.tensors, files=(path,)
        )
    match = _PART.fullmatch(path.name)
    if match is None or int(match["count"]) != count or int(match["number"]) != number + 1:
        raise _bad_split(
            path,
            f"it is part {number + 1} of {count}, but its name does not end in -{number + 1:05d}-of-{count:05d}.gguf",
        )
    paths = [path.with_name(f"{match['stem']}-{n:05d}-of-{count:05d}.gguf") for n in range(1, count + 1)]
    absent = [p.name for p in paths if not p.exists() and not p.is_symlink()]
    if absent:
        more = f" and {len(absent) - 3} more" if len(absent) > 3 else ""
        raise SourceError(
            "missing-shard",
            f"{path.name} is one of {count} parts; missing in {path.parent}: {', '.join(absent[:3])}{more}",
            "Download the missing parts into the same folder.",
        )
    parts = [given if p == path else read_part(p) for p in paths]
    return _join(paths, parts, count)


def _join(paths: list[Path], parts: list[GgufPart], count: int) -> GgufFile:
    tensors: dict[str, GgufTensor] = {}
    for index, (path, part) in enumerate(zip(paths, parts, strict=True)):
        if _split(part, path) != (index, count):
            raise _bad_split(path, f"inside, it is not part {index + 1} of {count}")
        doubled = tensors.keys() & part.tensors.keys()
        if doubled:
            raise _bad_split(path, f"its tensor {min(doubled)} is in an earlier part too")
        tensors.update(part.tensors)
    promised = parts[0].kv.get("split.tensors.count")
    if promised is not None and promised.value != len(tensors):
        raise _bad_split(paths[0], f"it promises {str(promised.value)[:20]} tensors; the parts hold {len(tensors)}")
    return GgufFile(
        version=parts[0].version,
        alignment=parts[0].alignment,
        kv=parts[0].kv,
        tensors=tensors,
        files=tuple(paths),
    )


def _split(part: GgufPart, path: Path) -> tuple[int, int]:
    """Number from nought, and how many parts there are."""
    values = []
    for key, default in (("split.no", 0), ("split.count", 1)):
        kv = part.kv.get(key, KV("uint16", default))
        if type(kv.value) is not int:
            raise _bad_split(path, f"{key} is no whole number")
        values.append(kv.value)
    number, count = values
    if not 0 <= number < max(count, 1) or not 0 <= count <= _PARTS:
        raise _bad_split(path, f"it claims to be part {number + 1} of {count}")
    return number, count


def _bad_split(path: Path, what: str) -> SourceError:
    return SourceError("bad-split", f"{path}: {what}", "Keep the names and parts that llama-gguf-split gave.")


def tensor_of(tensor: GgufTensor) -> Tensor:
    """The lazy tensor at a GGUF tensor's place: `Stored` for plain types, else `Blocked`."""
    make = Stored if tensor.ggml_type in PLAIN else Blocked
    return make(tensor.path, tensor.offset, tensor.shape, tensor.ggml_type)
