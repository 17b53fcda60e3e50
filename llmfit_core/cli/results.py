"""Standard output: results and nothing else, whatever a plugin, a library or an engine prints."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from typing import TextIO

from llmfit_core.errors import OutputError

SCHEMA = 1
_streams: list[TextIO] = []


def print_json(body: Mapping[str, object]) -> None:
    """Print a command's one JSON object, `{"schema": 1, **body}`, in plain ASCII, so that any locale can hold it.

    Raises:
        OutputError: `write-failed`.
    """
    value = _finite({"schema": SCHEMA, **body})
    try:
        print(json.dumps(value, default=str, allow_nan=False), file=_streams[-1] if _streams else sys.stdout, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError("write-failed", f"standard output: {error.strerror}", "Send it elsewhere.") from error


@contextlib.contextmanager
def only_json(asked: bool) -> Iterator[None]:
    """Where asked, keep standard output for `print_json`; all that others write to it goes to standard error."""
    if not asked:
        yield
        return
    results = sys.stdout
    kept = None
    if results is sys.__stdout__ and results is not None:
        results.flush()
        kept = os.dup(1)  # engines write to the descriptor itself
        os.dup2(2, 1)
        results = open(os.dup(kept), "w", encoding="ascii")
    _streams.append(results)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        _streams.pop()
        if kept is not None:
            os.dup2(kept, 1)
            os.close(kept)
            with contextlib.suppress(OSError):
                results.close()


def prepare_streams() -> None:
    """Make printing safe: a closed stream becomes the null device, and no character is too odd for an encoding."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:  # else the next file opened, the model itself maybe, would be standard output
            os.open(os.devnull, os.O_RDONLY if fd == 0 else os.O_WRONLY)
            setattr(sys, name, open(fd, "r" if fd == 0 else "w", encoding="utf-8", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            utf8 = stream.encoding.lower().replace("-", "") == "utf8"
            stream.reconfigure(errors="surrogateescape" if utf8 else "backslashreplace")


def abandon_stdout() -> None:
    """Point a standard output that nobody reads, or that cannot be written, at the null device."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def _finite(value: object) -> object:
    """JSON has no infinity and no NaN; they become `null`."""
    if isinstance(value, Mapping):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
