"""Fill a file with tensors: several workers, bounded memory, no intermediate file.

The header and every offset are known before, so each chunk of rows is read, converted and written at its place by
whichever worker is free. Workers are threads: numpy, ctypes and the system calls release the interpreter lock. The
calling thread waits, reports, hashes what lies behind it complete, while it is still in the page cache, and tells the
kernel to start writing that to the disk, so that the sync at the end finds little left to do.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import queue
import sys
import threading
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from llmfit_core.errors import LlmfitError, OutputError, PluginError
from llmfit_core.tensors import row_count
from llmfit_gguf.engine import row_bytes
from llmfit_gguf.rows import NONE, Losses, convert, source_row_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path

    import numpy as np

    from llmfit_core.tensors import Tensor

MEMORY = 192 << 20
"""Bytes that all workers together may hold in chunks."""
PER_WORKER = 24 << 20
"""And each of them; larger chunks leave the caches and gain nothing."""
COPY = 4 << 20
"""A chunk that is only copied: small enough to be checked and written while it is in the cache."""
BASE_MEMORY = 80 << 20
"""What the interpreter, its libraries and the plan of a usual model take."""
_HASH_STEP = 1 << 20
_FLUSH_STEP = 32 << 20
_WRITE_STEP = 1 << 20  # one write of 8 MiB took up to ten times as long as eight of 1 MiB (ext4, Linux 6.18)
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@dataclass(frozen=True, kw_only=True)
class Job:
    """One tensor to write. Picklable where its tensor is.

    Attributes:
        name: For messages.
        tensor: The source.
        type: ggml type to write.
        offset: Absolute, in the file.
        nbytes: Bytes it takes there.
    """

    name: str
    tensor: Tensor
    type: str
    offset: int
    nbytes: int


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """What became of a job.

    Attributes:
        type: As written.
        nbytes: As written.
        losses: What the type could not hold.
    """

    type: str
    nbytes: int
    losses: Losses


@dataclass(frozen=True, kw_only=True)
class FillReport:
    """What became of a file.

    Attributes:
        results: By index of the job; those done before are not among them.
        sha256: Of the whole file, where it was asked for.
    """

    results: dict[int, JobResult]
    sha256: str | None


@dataclass(frozen=True)
class _Unit:
    """Rows `start` to `stop` of job `job`, whose bytes begin at `offset` in the file."""

    job: int
    start: int
    stop: int
    offset: int


def peak_memory(heads: int, workers: int | None = None) -> int:
    """About how many bytes a conversion holds at its peak; it grows with neither model nor tensors.

    Args:
        heads: Bytes of all headers.
        workers: See `fill`.
    """
    count = workers if workers and workers > 0 else os.cpu_count() or 1
    return int(BASE_MEMORY + min(MEMORY, count * PER_WORKER) + 4 * heads)


def fill(
    path: Path,
    head: bytes,
    jobs: Sequence[Job],
    size: int,
    *,
    workers: int | None = None,
    done: Collection[int] = (),
    on_done: Callable[[int, JobResult], None] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    digest: bool = False,
) -> FillReport:
    """Write header and tensors into `path`, which is made if it is not there.

    Args:
        path: The file; the caller renames it when it is whole.
        head: What precedes the first tensor.
        jobs: In any order; their byte ranges do not overlap.
        size: Of the whole file; what lies between tensors becomes zero.
        workers: Threads; as many as there are cores by default.
        done: Indexes of jobs whose bytes are in the file already (a resumed run).
        on_done: Called with index and result as each job's bytes have been written (not yet synced), by the
            calling thread.
        on_progress: Called with bytes written and bytes in all, by the calling thread.
        digest: Compute the file's sha256 on the way.

    Raises:
        OutputError: `disk-full`, `write-failed`.
        LlmfitError: What reading or converting a tensor raised, with the tensor named. No worker runs on.
    """
    count = workers if workers and workers > 0 else os.cpu_count() or 1
    for job in jobs:
        _require_size(job)
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        fd = os.open(path, flags, 0o666)
    except OSError as error:
        raise _output_error(path, size, error) from error
    try:
        try:
            if not done:
                os.ftruncate(fd, 0)  # whatever another run left
            _reserve(fd, size)
            _write_at(fd, memoryview(head), 0)
            _clear_gaps(fd, len(head), jobs, size)
        except OSError as error:
            raise _output_error(path, size, error) from error
        return _Run(fd, path, jobs, size, count, set(done), digest).run(on_done, on_progress)
    finally:
        os.close(fd)


class _Run:
    """One call of `fill`: the units, who has taken how many, and what came of them."""

    def __init__(
        self, fd: int, path: Path, jobs: Sequence[Job], size: int, workers: int, done: set[int], digest: bool
    ) -> None:
        self.fd, self.path, self.jobs, self.size, self.done = fd, path, jobs, size, done
        self.budget = min(PER_WORKER, MEMORY // workers)
        self.units = [u for i in sorted(range(len(jobs)), key=lambda i: jobs[i].offset) for u in self._cut(i)]
        self.workers = min(workers, max(1, len(self.units)))
        self.taken = 0
        self.stop = False
        self.lock = threading.Lock()
        self.news: queue.SimpleQueue[tuple[int, Losses] | BaseException] = queue.SimpleQueue()
        self.hash = hashlib.sha256() if digest else None
        self.hashed = self.flushed = 0

    def _cut(self, index: int) -> Iterator[_Unit]:
        """Chunks of a job; a finished one is skipped."""
        if index in self.done:
            return
        job = self.jobs[index]
        rows, width = row_count(job.tensor.shape), _width(job.tensor)
        cost = source_row_bytes(job.tensor.dtype, width)
        if job.tensor.dtype != job.type:
            cost += 12 * width  # float32 and the two temporaries that rounding makes
        budget = self.budget if job.tensor.dtype != job.type else min(self.budget, COPY)
        step = max(1, budget // max(1, cost))
        wide = row_bytes(job.type, width)
        for start in range(0, max(rows, 1), step):
            yield _Unit(index, start, min(rows, start + step), job.offset + start * wide)

    def run(
        self,
        on_done: Callable[[int, JobResult], None] | None,
        on_progress: Callable[[int, int], None] | None,
    ) -> FillReport:
        threads = [threading.Thread(target=self._work, name=f"llmfit-fill-{i}") for i in range(self.workers)]
        try:
            for thread in threads:
                thread.start()
            results = self._follow(on_done, on_progress)
        finally:
            self.stop = True
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
        if self.hash is not None:
            while self.hashed < self.size:
                self._hash_to(self.size)
        return FillReport(results=results, sha256=self.hash.hexdigest() if self.hash else None)

    def _work(self) -> None:
        while True:
            with self.lock:
                if self.stop or self.taken == len(self.units):
                    return
                at = self.taken
                self.taken += 1
            try:
                self.news.put((at, self._convert(self.units[at])))
            except BaseException as error:
                self.stop = True
                self.news.put(error)
                return

    def _convert(self, unit: _Unit) -> Losses:
        job = self.jobs[unit.job]
        try:
            data, losses = convert(job.tensor, unit.start, unit.stop, job.type)
        except LlmfitError as error:
            if error.cause.startswith(job.name):
                raise
            raise type(error)(error.code, f"{job.name}: {error.cause}", error.remedy) from error
        except Exception as error:
            raise PluginError(
                "tensor-failed",
                f"{job.name}: {type(error).__name__}: {error}",
                "Check that the source is whole; if it is, report this.",
            ) from error
        try:
            _write_at(self.fd, _bytes_of(data), unit.offset)
        except OSError as error:
            raise _output_error(self.path, self.size, error) from error
        return losses

    def _follow(
        self,
        on_done: Callable[[int, JobResult], None] | None,
        on_progress: Callable[[int, int], None] | None,
    ) -> dict[int, JobResult]:
        """Gather news until every unit is written, hashing in between what lies complete before the first gap."""
        left: dict[int, int] = {}
        for unit in self.units:
            left[unit.job] = left.get(unit.job, 0) + 1
        lost = dict.fromkeys(left, NONE)
        total = sum(self.jobs[i].nbytes for i in left)
        results: dict[int, JobResult] = {}
        finished: set[int] = set()
        frontier = written = 0
        while len(finished) < len(self.units):
            behind = self.units[frontier].offset if frontier < len(self.units) else self.size
            try:
                news = self.news.get_nowait() if self.hash and self.hashed < behind else self.news.get()
            except queue.Empty:
                self._hash_to(behind)
                continue
            if isinstance(news, BaseException):
                raise news
            at, losses = news
            finished.add(at)
            while frontier in finished:
                frontier += 1
            unit = self.units[at]
            job = self.jobs[unit.job]
            lost[unit.job] += losses
            left[unit.job] -= 1
            written += (unit.stop - unit.start) * row_bytes(job.type, _width(job.tensor))
            if on_progress is not None:
                on_progress(written, total)
            if left[unit.job] == 0:
                results[unit.job] = JobResult(type=job.type, nbytes=job.nbytes, losses=lost[unit.job])
                if on_done is not None:
                    on_done(unit.job, results[unit.job])
        return results

    def _hash_to(self, end: int) -> None:
        """Hash one step further, at most to `end`."""
        if self.hash is None:
            return
        data = _read_at(self.fd, min(_HASH_STEP, end - self.hashed), self.hashed)
        if not data:
            raise OutputError(
                "write-failed", f"{self.path} ends at {self.hashed} bytes", "Another program cut it; run again."
            )
        self.hash.update(data)
        self.hashed += len(data)
        if self.hashed - self.flushed >= _FLUSH_STEP:
            start_writeback(self.fd, self.flushed, self.hashed - self.flushed)
            self.flushed = self.hashed


def _width(tensor: Tensor) -> int:
    return tensor.shape[-1] if tensor.shape else 1


def _require_size(job: Job) -> None:
    need = row_count(job.tensor.shape) * row_bytes(job.type, _width(job.tensor))
    if need != job.nbytes:
        raise PluginError(
            "layout", f"{job.name} takes {need} bytes as {job.type}, the plan says {job.nbytes}", "Report this."
        )


def _bytes_of(data: np.ndarray[Any, Any]) -> memoryview:
    return data.reshape(-1).view("u1").data if data.size else memoryview(b"")


_seek_lock = threading.Lock()


def _write_at(fd: int, data: memoryview, offset: int) -> None:
    while data:
        if hasattr(os, "pwrite"):
            written = os.pwrite(fd, data[:_WRITE_STEP], offset)
        else:
            with _seek_lock:
                os.lseek(fd, offset, os.SEEK_SET)
                written = os.write(fd, data[: 1 << 30])
        data = data[written:]
        offset += written


def _read_at(fd: int, count: int, offset: int) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(fd, count, offset)
    with _seek_lock:
        os.lseek(fd, offset, os.SEEK_SET)
        return os.read(fd, count)


@cache
def _sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """Linux's call of that name, which Python does not offer; `None` elsewhere."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        function = ctypes.CDLL(None).sync_file_range
    except (OSError, AttributeError):
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return function


def start_writeback(fd: int, offset: int, length: int) -> None:
    """Let the kernel begin to write a range to the disk. A hint: its failure changes nothing but the time."""
    function = _sync_file_range()
    if function is not None:
        function(fd, offset, length, 2)  # SYNC_FILE_RANGE_WRITE


def _clear_gaps(fd: int, start: int, jobs: Sequence[Job], size: int) -> None:
    """Zero the padding, so that no bytes of another run shine through."""
    ends = sorted((job.offset, job.offset + job.nbytes) for job in jobs)
    for begin, end in [*ends, (size, size)]:
        if begin > start:
            _write_at(fd, memoryview(bytes(begin - start)), start)
        start = end


def _reserve(fd: int, size: int) -> None:
    """Take the disk space before the work, so that a full disk is known at once; then set the size."""
    if hasattr(os, "posix_fallocate") and size:
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError as error:
            if error.errno in _FULL:
                raise
    os.ftruncate(fd, size)


def _output_error(path: Path, size: int, error: OSError) -> OutputError:
    if error.errno in _FULL:
        return OutputError(
            "disk-full",
            f"{path} needs {size} bytes ({size / 1e9:.2f} GB) and its disk has no room for them",
            "Free the space or choose another place with -o; finished tensors are kept for the next run.",
        )
    return OutputError("write-failed", f"{path}: {error.strerror or error}", "Check the folder and its permissions.")
