"""Which distribution is to be used where several claim one name: a small file of the user's."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from llmfit_core.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA = 1


def preferences_path(env: Mapping[str, str] = os.environ) -> Path:
    """`preferences.json` in `LLMFIT_CONFIG_DIR`, or else in the user's configuration folder for llmfit."""
    folder = env.get("LLMFIT_CONFIG_DIR")
    if folder:
        return Path(folder) / "preferences.json"
    import platformdirs

    return Path(platformdirs.user_config_dir("llmfit", appauthor=False)) / "preferences.json"


def read_preferences(path: Path) -> dict[str, str]:
    """Distributions by the name they are preferred for; empty where there is no file.

    Raises:
        PluginError: `preferences-unreadable`: the file is there and cannot be understood.
    """
    return dict(_prefer_part(_read(path), path))


def write_preference(path: Path, name: str, distribution: str | None) -> dict[str, str]:
    """Record (or with `None` forget) a preference; the file is replaced whole or not at all.

    Returns:
        All preferences after the change.

    Raises:
        PluginError: The file that is there cannot be understood, or the new one cannot be written.
    """
    import tempfile

    content = _read(path)
    prefer = dict(_prefer_part(content, path))
    if distribution is None:
        prefer.pop(name, None)
    else:
        prefer[name] = distribution
    text = json.dumps({**content, "schema": SCHEMA, "prefer": dict(sorted(prefer.items()))}, indent=2) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(prefix=".preferences-", suffix=".partial", dir=path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        except BaseException:
            Path(partial).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise PluginError(
            "preferences-unwritable",
            f"{path} cannot be written: {error.strerror or error}",
            "Make the folder writable, or point LLMFIT_CONFIG_DIR at another.",
        ) from None
    return prefer


def _read(path: Path) -> dict[str, object]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(path, str(getattr(error, "strerror", None) or error)) from None
    if not isinstance(content, dict):
        raise _unreadable(path, "it is no JSON object")
    if content.get("schema") != SCHEMA:
        raise _unreadable(path, f"its schema is {content.get('schema')!r}, and this llmfit knows {SCHEMA}")
    return content


def _prefer_part(content: Mapping[str, object], path: Path) -> Mapping[str, str]:
    prefer = content.get("prefer", {})
    if not isinstance(prefer, dict) or not all(isinstance(v, str) for v in prefer.values()):
        raise _unreadable(path, "`prefer` has to map names to distributions")
    return prefer


def _unreadable(path: Path, why: str) -> PluginError:
    return PluginError(
        "preferences-unreadable",
        f"{path} cannot be understood: {why}",
        "Mend or delete the file; it only holds choices made with `llmfit plugins prefer`.",
    )
