"""From options and a recipe file to a `Recipe`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from llmfit_core.errors import LlmfitError, SourceError
from llmfit_core.plan import Recipe

DEFAULT_TO = "gguf"
FILE_KEYS = (
    "to name tensor_types metadata context_length rope_freq_base rope_freq_scale pre graph split_max_size strict force".split()
)
MAX_BYTES = 1 << 20
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}


class UsageError(LlmfitError):
    """The command's words are off."""

    exit_code = 2


def recipe_from(
    file: Path | None,
    to: str | None,
    *,
    tensor_types: Sequence[str] | None,
    settings: Sequence[str] | None,
    **options: Any,
) -> Recipe:
    """A recipe of the options; those left out come from `file`.

    Raises:
        UsageError: `bad-option`.
        SourceError: `bad-recipe`: the file is no TOML, or has keys that no recipe has.
    """
    given: dict[str, Any] = _read(file) if file is not None else {}
    given |= {k: v for k, v in options.items() if v is not None and v is not False}
    if tensor_types:
        given["tensor_types"] = tuple(_pair(t, "--tensor-type", "REGEX=TYPE", last=True) for t in tensor_types)
    if settings:
        given["metadata"] = tuple(_pair(s, "--set", "KEY=VALUE", last=False) for s in settings)
    exporter, scheme = _target(given.pop("to", DEFAULT_TO) if to is None else to)
    given.pop("to", None)
    known = {f.name for f in fields(Recipe)}
    return Recipe(exporter=exporter, scheme=scheme, **{k: v for k, v in given.items() if k in known})


def _target(to: str) -> tuple[str, str]:
    """Format and scheme; an empty scheme is the format's usual one."""
    exporter, colon, scheme = to.strip().lower().partition(":")
    if not exporter or (colon and not scheme):
        missing = "scheme" if exporter else "format"
        raise UsageError("bad-option", f"--to {to!r} names no {missing}", "Write it like gguf:q4_k_m.")
    return exporter, scheme


def _read(path: Path) -> dict[str, Any]:
    try:
        if path.exists() and not path.is_file():
            raise SourceError("bad-recipe", f"{path} is no file", "Check the path.")
        with open(path, "rb") as file:
            value = tomllib.loads(file.read(MAX_BYTES).decode())
    except OSError as error:
        raise SourceError("bad-recipe", f"{path}: {error.strerror}", "Check the path.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SourceError("bad-recipe", f"{path} is not TOML: {error}", "Mend it.") from None
    odd = [k for k in value if k not in FILE_KEYS]
    if odd:
        raise SourceError("bad-recipe", f"{path}: a recipe has no key {odd[0]}", f"Its keys: {', '.join(FILE_KEYS)}.")
    kinds: dict[str, type | tuple[type, ...]] = {
        "tensor_types": dict, "metadata": dict, "context_length": int, "rope_freq_base": (int, float),
        "rope_freq_scale": (int, float), "split_max_size": (str, int), "strict": bool, "force": bool,
    }  # fmt: skip
    for key, item in value.items():
        wanted = kinds.get(key, str)
        if not isinstance(item, wanted) or (isinstance(item, bool) and wanted is not bool):
            raise SourceError("bad-recipe", f"{path}: {key} is a {type(item).__name__}", "Give it the right kind of value.")
    for key in ("tensor_types", "metadata"):
        if key in value:
            value[key] = tuple((k, _text(v)) for k, v in value[key].items())
    if "split_max_size" in value:
        value["split_max_bytes"] = parse_size(str(value.pop("split_max_size")))
    return value


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _pair(text: str, option: str, form: str, *, last: bool) -> tuple[str, str]:
    left, equals, right = text.rpartition("=") if last else text.partition("=")
    if not equals or not left:
        raise UsageError("bad-option", f"{option} {text} is not {form}", f"Write it as {form}.")
    return left, right


def parse_size(text: str | None) -> int | None:
    """Bytes from `2G`, `500M` or a plain number, in decimal units."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,15})([KMG]?)B?", text.strip().upper())
    if not match or int(match[1]) == 0:
        raise UsageError("bad-option", f"{text!r} is no size", "Write it like 2G or 500M.")
    return int(match[1]) * _UNITS[match[2]]


