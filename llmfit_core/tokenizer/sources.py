"""Reading a model folder's small text files without trusting them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from llmfit_core.errors import SourceError

MAX_BYTES = 512 * 1024 * 1024
"""The largest tokenizer files in the wild have 35 MB."""
MAX_TEMPLATE_BYTES = 4 * 1024 * 1024


def read_bytes(path: Path, limit: int = MAX_BYTES) -> bytes:
    """The bytes of a side file, at most `limit`; raises `SourceError`."""
    try:
        size = path.stat().st_size
        if size > limit:
            raise SourceError("file-too-large", f"{path.name}: {size} bytes, more than {limit}", "Get the file anew.")
        return path.read_bytes()
    except OSError as error:
        raise SourceError(
            "unreadable-file", f"{path.name}: {error.strerror or error}", "Check the path and its permissions."
        ) from None


def read_text(path: Path, limit: int = MAX_BYTES) -> str:
    """A side file as UTF-8 text; raises `SourceError`."""
    try:
        return read_bytes(path, limit).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SourceError("not-utf8", f"{path.name}: no UTF-8 at byte {error.start}", "Get the file anew.") from None


def read_json(path: Path) -> object:
    """A side file as JSON; raises `SourceError`."""
    text = read_text(path)
    try:
        return json.loads(text)
    except RecursionError:
        raise SourceError("bad-json", f"{path.name}: nested too deeply", "Get the file anew.") from None
    except ValueError as error:
        hint = "a git-lfs pointer" if text.startswith("version https://git-lfs") else str(error).splitlines()[0][:120]
        raise SourceError("bad-json", f"{path.name}: not JSON ({hint})", "Get the file anew.") from None


def read_object(side: Mapping[str, Path], name: str) -> dict[str, object]:
    """A side file that has to hold a JSON object, or `{}` where it is absent; raises `SourceError`."""
    if name not in side:
        return {}
    value = read_json(side[name])
    if not isinstance(value, dict):
        raise SourceError("bad-json", f"{name}: a {type(value).__name__} where an object belongs", "Get the file anew.")
    return value


def object_at(parent: Mapping[str, object], key: str, where: str) -> dict[str, object]:
    """The object under `key`, `{}` where it is absent or null; raises `SourceError`."""
    value = parent.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise SourceError("bad-tokenizer", f"{where}: `{key}` is no object", "Get the file anew.")
    return value


def integer(value: object) -> int | None:
    """`value` if it is an integer and no boolean."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None
