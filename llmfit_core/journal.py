"""The journal of a staged artifact: which of its tensors are whole, so that an interrupted run can be resumed."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from llmfit_core.disk import sync
from llmfit_core.errors import OutputError
from llmfit_core.export import Written

NAME = "llmfit.journal"
SYNC_SECONDS = 2.0
_FIRST = "llmfit-journal 1 "


class Journal:
    """What is whole in a staged artifact: data are synced first, then the word of it is written.

    Attributes:
        done: Outcomes of finished tensors, by file and by index within it.
    """

    def __init__(self, handle: TextIO, done: dict[int, dict[int, Written]]) -> None:
        self.done = done
        self._handle = handle
        self._waiting: dict[Path, list[str]] = {}
        self._last = time.monotonic()

    def add(self, file: int, job: int, outcome: Written, path: Path) -> None:
        """Note that tensor `job` of file `file`, which lies at `path`, has been written."""
        line = f"{file} {job} {outcome.overflow} {outcome.underflow} {outcome.nonfinite} .\n"
        self._waiting.setdefault(path, []).append(line)
        if time.monotonic() - self._last > SYNC_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Sync the data, then write down what is whole."""
        for path, lines in self._waiting.items():
            sync(path)
            self._handle.write("".join(lines))
        self._handle.flush()
        self._waiting.clear()
        self._last = time.monotonic()


@contextlib.contextmanager
def open_journal(stage: Path, files: dict[Path, int], digest: str) -> Iterator[Journal]:
    """Lock a stage, and find out what an earlier run left whole in it; what another plan left is removed.

    Args:
        stage: An existing folder.
        files: The files to be staged, with their sizes.
        digest: What a run must agree in to be resumed.

    Raises:
        OutputError: `stranger-partial`: something there is not ours. `output-busy`: another process has the lock.
    """
    path = stage / NAME
    if not path.is_file() and (stranger := next(iter(sorted(stage.iterdir())), None)):
        raise _stranger(stranger)
    with open(path, "a+", encoding="utf-8", errors="surrogateescape") as handle:
        _lock(handle, path)
        handle.seek(0)
        text = handle.read(64 << 20)
        if text and not text.startswith(_FIRST):
            raise _stranger(path)
        lines = text.split("\n")
        if lines[0] == _FIRST + digest:
            done = _read(lines[1:], files)
        else:
            done = {}
            for old in {*files, *_earlier_files(stage, lines)}:
                old.unlink(missing_ok=True)
            handle.truncate(0)
            handle.write(f"{_FIRST}{digest}\n")
            handle.writelines(f"file {p.relative_to(stage).as_posix()}\n" for p in files)
            handle.flush()
        yield Journal(handle, done)


def _stranger(path: Path) -> OutputError:
    return OutputError("stranger-partial", f"{path} is there and is not ours", "Move it away or choose another -o.")


def _earlier_files(stage: Path, lines: list[str]) -> list[Path]:
    """Files that an earlier plan staged; never one outside the stage."""
    names = [Path(line[5:]) for line in lines if line.startswith("file ")]
    return [stage / n for n in names if not n.is_absolute() and ".." not in n.parts and (stage / n).is_file()]


def _read(lines: list[str], files: dict[Path, int]) -> dict[int, dict[int, Written]]:
    """Finished tensors by file; a file that is gone or of another size, having been published or cut, has none."""
    whole = {i for i, (p, size) in enumerate(files.items()) if p.is_file() and p.stat().st_size == size}
    done: dict[int, dict[int, Written]] = {}
    for line in lines:
        words = line.split(" ")
        if len(words) == 6 and words[5] == "." and all(w.isdecimal() for w in words[:5]):
            file, job, over, under, odd = map(int, words[:5])
            if file in whole:
                done.setdefault(file, {})[job] = Written(overflow=over, underflow=under, nonfinite=odd)
    return done


def _lock(handle: TextIO, path: Path) -> None:
    """Take the journal's lock. File systems without locks go without, as does Windows, which shares no open file."""
    try:
        import fcntl
    except ImportError:
        return
    busy = OutputError("output-busy", f"another llmfit is writing in {path.parent}", "Wait for it, or choose another -o.")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise busy from None
        return
    if not path.exists() or os.fstat(handle.fileno()).st_ino != path.stat().st_ino:
        raise busy  # it was published and removed just now
