"""What a file is that is not what its name says: a git-lfs pointer, an error page, half a download."""

from __future__ import annotations

import re
from dataclasses import dataclass

from llmfit_core.errors import SourceError

HEAD_BYTES = 1024
"""How much of a file's beginning `sniff` wants."""

_AGAIN = "Fetch the file again and compare its size with the hub's."
_REMEDIES = {
    "git-lfs-pointer": "Run `git lfs pull` in the folder, or download the model with `hf download`.",
    "html-page": "A login, licence or error page was saved in its place; fetch the file again, logged in if need be.",
    "xml-page": "A storage service's error message was saved in its place; fetch the file again.",
    "json-page": "A server's message was saved in its place; fetch the file again, logged in if need be.",
    "text-page": "A message was saved in its place; fetch the file again.",
    "zip-file": "If `torch.save` wrote it, name it `pytorch_model.bin`; otherwise unpack it.",
    "pickle-file": "Load it with the tool that wrote it and save it as safetensors.",
    "gguf-file": "Give it a name that ends in .gguf.",
    "safetensors-file": "Give it a name that ends in .safetensors.",
    "archive-file": "Unpack it first.",
    "foreign-file": "Save the weights as safetensors.",
}

_MAGICS: tuple[tuple[int, bytes, str, str], ...] = (
    (0, b"PK\x03\x04", "zip-file", "a zip archive (such as torch.save writes)"),
    (0, b"PK\x05\x06", "zip-file", "an empty zip archive"),
    (0, b"GGUF", "gguf-file", "a GGUF file"),
    (0, b"\x1f\x8b", "archive-file", "gzip-compressed"),
    (0, b"\x28\xb5\x2f\xfd", "archive-file", "zstd-compressed"),
    (0, b"\xfd7zXZ\x00", "archive-file", "xz-compressed"),
    (0, b"BZh", "archive-file", "bzip2-compressed"),
    (0, b"7z\xbc\xaf\x27\x1c", "archive-file", "a 7z archive"),
    (0, b"Rar!", "archive-file", "a RAR archive"),
    (257, b"ustar", "archive-file", "a tar archive"),
    (0, b"\x89HDF\r\n", "foreign-file", "an HDF5 file"),
    (0, b"\x93NUMPY", "foreign-file", "a numpy file"),
    (0, b"%PDF-", "foreign-file", "a PDF document"),
    (0, b"\x89PNG\r\n", "foreign-file", "a PNG image"),
)


@dataclass(frozen=True, kw_only=True)
class Sniffed:
    """What a file turned out to be.

    Attributes:
        code: An error code: `git-lfs-pointer`, `html-page`, `empty-file` ...
        what: Completes "FILE is ...".
    """

    code: str
    what: str


def sniff(head: bytes, size: int, *, json_expected: bool = False) -> Sniffed | None:
    """Name what a file of `size` bytes that begins with `head` is, or `None` where nothing known fits.

    `json_expected` keeps JSON and plain text, for files that should be just that, from being named.
    """
    if size == 0:
        return Sniffed(code="empty-file", what="empty")
    if re.match(rb"version https://(git-lfs|hawser)\.github\.com/spec/", head):
        told = re.search(rb"^size (\d{1,19})\s*$", head, re.MULTILINE)
        real = f" for a file of {int(told[1])} bytes" if told else ""
        return Sniffed(code="git-lfs-pointer", what=f"a git-lfs pointer{real}, not the file itself")
    if head.startswith((b"# xet version", b"#xet ")):
        return Sniffed(code="git-lfs-pointer", what="a Xet pointer, not the file itself")
    for at, magic, code, what in _MAGICS:
        if head[at : at + len(magic)] == magic:
            return Sniffed(code=code, what=what)
    if len(head) > 9 and head[8:9] == b"{" and head[6:8] == b"\0\0" and head[0:1] not in b"{[":
        return Sniffed(code="safetensors-file", what="a safetensors file")
    if re.match(rb"\x80[\x02-\x05][\x00-\xff]", head):
        return Sniffed(code="pickle-file", what="a Python pickle")
    if not head.strip(b"\0"):
        return Sniffed(code="zero-filled", what="filled with zeros, as an interrupted download leaves it")
    return _sniff_text(head, json_expected)


def _sniff_text(head: bytes, json_expected: bool) -> Sniffed | None:
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    low = start[:64].lower()
    excerpt = " ".join(start[:120].decode("utf-8", "replace").split())
    if low.startswith((b"<!doctype html", b"<html", b"<head", b"<body", b"<!--")):
        return Sniffed(code="html-page", what="an HTML page")
    if low.startswith((b"<?xml", b"<error", b"<svg")):
        return Sniffed(code="xml-page", what=f"an XML document ({excerpt[:90]})")
    if json_expected or not start:
        return None
    text = all(byte >= 32 or byte in b"\t\r\n\f" for byte in start)
    if text and low.startswith((b"{", b"[")):
        return Sniffed(code="json-page", what=f"a JSON text ({excerpt[:90]})")
    if text and excerpt.isprintable() and "\ufffd" not in excerpt[:-1]:
        return Sniffed(code="text-page", what=f"plain text ({excerpt[:90]})")
    return None


def refuse_known(label: str, head: bytes, size: int, *, json_expected: bool = False) -> None:
    """Raise the `SourceError` that names what `label` is, where that is known; else return."""
    found = sniff(head, size, json_expected=json_expected)
    if found is not None:
        raise SourceError(found.code, f"{label} is {found.what}", _REMEDIES.get(found.code, _AGAIN))


def refuse(label: str, head: bytes, size: int, expected: str) -> SourceError:
    """The error for a file that is no `expected`: named by what it is where that is known.

    Args:
        label: The file.
        head: Its first bytes (`HEAD_BYTES`, or all).
        size: Its length.
        expected: `safetensors`, `gguf`, `torch`.
    """
    found = sniff(head, size)
    if found is None:
        return SourceError(f"not-{expected}", f"{label} is no {expected} file", _AGAIN)
    if found.code == f"{expected}-file":
        return SourceError("bad-header", f"{label} begins as a {expected} file, but its header is damaged", _AGAIN)
    return SourceError(found.code, f"{label} is {found.what}", _REMEDIES.get(found.code, _AGAIN))
