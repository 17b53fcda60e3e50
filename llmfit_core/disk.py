"""The disk's own words: system errors of output as ours, and forcing bytes down to it."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from llmfit_core.errors import OutputError

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
MAX_NAME = 255
"""Bytes of a file name on every common file system."""


def amount(nbytes: float) -> str:
    """Bytes for people, in decimal units that fit."""
    for unit in ("B", "kB", "MB"):
        if nbytes < 999.95:
            return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.2f} GB"


@contextlib.contextmanager
def output_errors(place: Path) -> Iterator[None]:
    """Whatever the operating system says about output, as an `OutputError` that names the file.

    Raises:
        OutputError: `disk-full`, `not-writable`.
    """
    try:
        yield
    except OSError as error:
        said = f"{error.filename or place}: {error.strerror or error}"
        if error.errno in FULL:
            remedy = "Free the space or choose another place with -o; what was finished is kept for the next run."
            raise OutputError("disk-full", said, remedy) from error
        raise OutputError("not-writable", said, "Check the folder, or choose another place with -o.") from error


def sync(path: Path) -> None:
    """Force a file or folder to disk; where a folder cannot be synced, nothing is.

    Raises:
        OutputError: See `output_errors`.
    """
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        with output_errors(path):
            os.fsync(fd)
    except OutputError:
        if not path.is_dir():
            raise
    finally:
        os.close(fd)
