"""Where the uncompressed entries of a zip archive lie in the file (PKWARE's APPNOTE, zip64 included).

`zipfile` would do for honest archives; it believes counts and sizes that this reader checks first.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmfit_core.errors import SourceError
from llmfit_core.readers.folder import require_file

if TYPE_CHECKING:
    from pathlib import Path

_DIRECTORY_BYTES = 64 << 20
_ENTRIES = 200_000
_END = b"PK\x05\x06"
_END64 = b"PK\x06\x06"
_LOCATOR64 = b"PK\x06\x07"


@dataclass(frozen=True)
class ZipEntry:
    """One file of the archive.

    Attributes:
        name: Its name, folders included.
        method: 0 where it is stored as it is.
        flags: Bit 0: encrypted.
        packed: Bytes in the archive.
        size: Bytes when unpacked.
        header: Offset of its local header.
    """

    name: str
    method: int
    flags: int
    packed: int
    size: int
    header: int


def read_zip_entries(path: Path) -> dict[str, ZipEntry]:
    """The entries of the zip archive at `path`, by name.

    Raises:
        SourceError: `truncated-file` where the directory at its end is missing, `bad-zip`.
    """
    size = require_file(path)
    with path.open("rb") as file:
        tail_at = max(0, size - 65_557 - 20)
        file.seek(tail_at)
        tail = file.read()
        end = tail.rfind(_END)
        if end < 0 or len(tail) - end < 22:
            raise SourceError(
                "truncated-file",
                f"{path} is cut short: the directory at the end of the zip archive is missing",
                "Fetch the file again; the download did not finish.",
            )
        count, length, start = struct.unpack_from("<HII", tail, end + 10)
        locator = tail[max(0, end - 20) : end]
        if locator.startswith(_LOCATOR64) and len(locator) == 20:
            (at,) = struct.unpack_from("<Q", locator, 8)
            file.seek(min(at, size))
            record = file.read(56)
            if len(record) != 56 or not record.startswith(_END64):
                raise _bad(path, "its zip64 end record is not where it should be")
            count, length, start = struct.unpack_from("<QQQ", record, 32)
        if count > _ENTRIES or length > _DIRECTORY_BYTES or start + length > size:
            raise _bad(path, f"its directory claims {count} entries in {length} bytes at {start}")
        file.seek(start)
        directory = file.read(length)
    return _entries(path, directory, count, size)


def _entries(path: Path, directory: bytes, count: int, file_size: int) -> dict[str, ZipEntry]:
    entries: dict[str, ZipEntry] = {}
    at = 0
    for _ in range(count):
        if directory[at : at + 4] != b"PK\x01\x02" or len(directory) < at + 46:
            raise _bad(path, f"its directory ends after {len(entries)} of {count} entries")
        flags, method = struct.unpack_from("<HH", directory, at + 8)
        packed, size, name_length, extra_length, comment_length = struct.unpack_from("<IIHHH", directory, at + 20)
        (header,) = struct.unpack_from("<I", directory, at + 42)
        name_end = at + 46 + name_length
        name = directory[at + 46 : name_end].decode("utf-8", "replace")
        extra = directory[name_end : name_end + extra_length]
        size, packed, header = _widen(extra, size, packed, header)
        if header + packed > file_size:
            raise _bad(path, f"its entry {name[:80]!r} claims {packed} bytes at {header}")
        if name in entries:
            raise _bad(path, f"it names the entry {name[:80]!r} twice")
        entries[name] = ZipEntry(name, method, flags, packed, size, header)
        at = name_end + extra_length + comment_length
    return entries


def _widen(extra: bytes, *fields: int) -> list[int]:
    """Take 64-bit values from the zip64 extra field for those that are all ones."""
    values = list(fields)
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == 1:
            body = extra[at + 4 : at + 4 + length]
            for index, value in enumerate(values):
                if value == 0xFFFFFFFF and len(body) >= 8:
                    (values[index],) = struct.unpack_from("<Q", body)
                    body = body[8:]
        at += 4 + length
    return values


def data_offset(path: Path, entry: ZipEntry) -> int:
    """Where the bytes of a stored entry begin in the file.

    Raises:
        SourceError: `compressed-entry` where they are packed or encrypted; `bad-zip`.
    """
    if entry.method != 0 or entry.flags & 1 or entry.packed != entry.size:
        raise SourceError(
            "compressed-entry",
            f"the entry {entry.name[:80]!r} of {path} is compressed or encrypted, which torch.save never does",
            "Load the file with the tool that wrote it and save it as safetensors.",
        )
    with path.open("rb") as file:
        file.seek(entry.header)
        local = file.read(30)
        if len(local) != 30 or not local.startswith(b"PK\x03\x04"):
            raise _bad(path, f"its entry {entry.name[:80]!r} is not where its directory says")
        name_length, extra_length = int.from_bytes(local[26:28], "little"), int.from_bytes(local[28:30], "little")
        name = file.read(name_length).decode("utf-8", "replace")
    start = entry.header + 30 + name_length + extra_length
    if name != entry.name or start + entry.size > require_file(path):
        raise _bad(path, f"its entry {entry.name[:80]!r} is not where its directory says")
    return start


def _bad(path: Path, what: str) -> SourceError:
    return SourceError("bad-zip", f"{path} is a damaged zip archive: {what}", "Fetch the file again.")
