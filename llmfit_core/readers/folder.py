"""Files of a model folder: which there are, and reading the small ones without trusting them."""

from __future__ import annotations

import json
import os
import re
import stat
from typing import TYPE_CHECKING, Any

from llmfit_core.errors import SourceError

if TYPE_CHECKING:
    from pathlib import Path

SIDE_SUFFIXES = frozenset({".json", ".model", ".txt", ".jinja", ".tiktoken"})
"""Configuration, tokenizers and chat templates: what a model folder holds beside its weights."""
WEIGHT_SUFFIXES = frozenset({".safetensors", ".bin", ".gguf"})
TEMPLATE_FOLDER = "additional_chat_templates"
SIDE_FILE_BYTES = 128 << 20
"""More than any tokenizer in use (Gemma's `tokenizer.json` has 33 MB), less than hurts."""
_NAMES = 100_000
_MODULES = 64
MODULE_FILE = re.compile(r"[0-9]+_[A-Za-z0-9_-]+/config\.json")
"""Where a module of sentence-transformers has its settings, below the model's folder."""


def require_file(path: Path) -> int:
    """The size in bytes of the regular file at `path`, links followed.

    Raises:
        SourceError: `dangling-link` naming link and target, `missing-file`, `not-a-file` (a folder, a
            pipe, a device: opening one could wait for ever), `unreadable-file`.
    """
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError, RuntimeError):
        if path.is_symlink():
            raise SourceError(
                "dangling-link",
                f"{path} links to {os.readlink(path)}, which is not there",
                "Download the model again, or remove the link; a hub cache whose blobs were deleted looks like this.",
            ) from None
        raise SourceError("missing-file", f"{path} does not exist", "Check the path for a slip.") from None
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    if not stat.S_ISREG(status.st_mode):
        raise SourceError("not-a-file", f"{path} is not a regular file", "Give the file itself.")
    return status.st_size


def read_head(path: Path, length: int) -> bytes:
    """Up to `length` first bytes of the regular file at `path`.

    Raises:
        SourceError: See `require_file`.
    """
    require_file(path)
    try:
        with path.open("rb") as file:
            return file.read(length)
    except OSError as error:
        raise _unreadable(path, error) from None


def read_side_file(path: Path, limit: int = SIDE_FILE_BYTES) -> bytes:
    """The whole of a small file.

    Raises:
        SourceError: See `require_file`; `file-too-large` beyond `limit` bytes.
    """
    size = require_file(path)
    if size > limit:
        raise SourceError(
            "file-too-large",
            f"{path} has {size} bytes; at most {limit} are read of such a file",
            "This is hardly what its name says; fetch the file again.",
        )
    return read_head(path, limit)


def read_json_object(path: Path, limit: int = SIDE_FILE_BYTES) -> dict[str, Any]:
    """The JSON object that a small file holds.

    Raises:
        SourceError: See `read_side_file` and `parse_json_object`.
    """
    return parse_json_object(read_side_file(path, limit), str(path))


def parse_json_object(data: bytes, label: str) -> dict[str, Any]:
    """The JSON object in `data`; `label` names its origin in errors.

    Raises:
        SourceError: `bad-json` where it is no UTF-8, no JSON, no object, nested too deeply, or names a
            key twice (which value counts would depend on the reader).
    """
    from llmfit_core.readers.sniff import refuse_known

    try:
        value = json.loads(data.decode("utf-8-sig"), object_pairs_hook=_unique)
    except _DuplicateKeyError as error:
        raise _bad_json(label, f"names the key {error.args[0]!r:.80} twice") from None
    except RecursionError:
        raise _bad_json(label, "is nested too deeply") from None
    except UnicodeDecodeError as error:
        refuse_known(label, data[:1024], len(data), json_expected=True)
        raise _bad_json(label, f"is not UTF-8 text (byte {error.start})") from None
    except ValueError as error:
        refuse_known(label, data[:1024], len(data), json_expected=True)
        raise _bad_json(label, f"is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise _bad_json(label, f"holds a JSON {type(value).__name__}, not an object")
    return value


def folder_files(root: Path) -> dict[str, Path]:
    """The plain files of a model folder by name, sorted: `{"config.json": Path(...)}`.

    Files of `additional_chat_templates/` are included under `additional_chat_templates/NAME`, and the `config.json` of
    folders named like sentence-transformers' modules (`1_Pooling`); other folders and hidden files are not. Paths stay as they are named: links into a hub cache's blobs are
    not resolved, since the blob's name says nothing. Dangling links of weight files stay in the
    mapping, so that only who needs them stumbles (`require_file` names link and target); those of side files
    are refused here; others are left out.

    Raises:
        SourceError: `missing-folder`, `not-a-folder`, `unreadable-file`, `dangling-link`.
    """
    found: dict[str, Path] = {}
    _collect(root, "", found)
    templates = root / TEMPLATE_FOLDER
    if templates.is_dir():
        _collect(templates, f"{TEMPLATE_FOLDER}/", found)
    if "modules.json" in found:
        for config in sorted(root.glob("[0-9]*_*/config.json"))[:_MODULES]:
            name = config.relative_to(root).as_posix()
            if MODULE_FILE.fullmatch(name) and config.is_file():
                found[name] = config
    return dict(sorted(found.items()))


def _collect(folder: Path, prefix: str, found: dict[str, Path]) -> None:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                path = folder / entry.name
                if entry.is_file() or (entry.is_symlink() and _keep_dangling(path)):
                    found[prefix + entry.name] = path
                if len(found) > _NAMES:
                    raise SourceError(
                        "not-a-model-folder",
                        f"{folder} holds more than {_NAMES} files",
                        "Give the folder of one model.",
                    )
    except FileNotFoundError:
        raise SourceError("missing-folder", f"{folder} does not exist", "Check the path for a slip.") from None
    except NotADirectoryError:
        raise SourceError("not-a-folder", f"{folder} is not a folder", "Give the model's folder.") from None
    except OSError as error:
        raise _unreadable(folder, error) from None


def _keep_dangling(link: Path) -> bool:
    if link.is_dir():
        return False
    if link.suffix in SIDE_SUFFIXES:
        require_file(link)
    return link.suffix in WEIGHT_SUFFIXES


class _DuplicateKeyError(Exception):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _DuplicateKeyError(key)
            seen.add(key)
    return result


def _bad_json(label: str, what: str) -> SourceError:
    return SourceError("bad-json", f"{label} {what}", "Fetch the file again, or mend it.")


def _unreadable(path: Path, error: OSError | ValueError) -> SourceError:
    reason = getattr(error, "strerror", None) or str(error)
    return SourceError("unreadable-file", f"{path} cannot be read: {reason}", "Check its permissions and the path.")
