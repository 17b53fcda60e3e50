"""Putting an artifact in its place: staged beside it, journalled, synced, renamed; nothing half-made is ever final."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmfit_core.errors import LlmfitError, OutputError
from llmfit_core.export import Exporter, Filled, FillOptions, Written

if TYPE_CHECKING:
    from llmfit_core.plan import Plan

_PART = re.compile(r"-\d{5}-of-\d{5}$")
SYNC_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where an artifact goes.

    Attributes:
        folder: The folder that holds the files.
        files: Final paths, one per planned file.
        whole_folder: The folder itself is the artifact (`hf`), staged and renamed as one.
    """

    folder: Path
    files: tuple[Path, ...]
    whole_folder: bool

    @property
    def stage(self) -> Path:
        """The folder beside the final place where everything lies until it is whole."""
        last = self.folder if self.whole_folder else self.files[0]
        return last.with_name(last.name + ".partial")

    @property
    def staged(self) -> tuple[Path, ...]:
        """The files in their stage, under their final names."""
        return tuple(self.stage / f.relative_to(self.folder) for f in self.files)

    @property
    def journal(self) -> Path:
        """The file that says what is whole in a staged artifact."""
        return self.stage / "llmfit.journal"


def places(plan: Plan, exporter: Exporter, out: Path) -> Places:
    """`out` is a file where it ends in the format's suffix, else a folder of conventional names."""
    out = Path(os.path.abspath(out))
    if not exporter.suffix:
        return Places(folder=out, files=tuple(out / f.name for f in plan.files), whole_folder=True)
    if out.name.endswith(exporter.suffix) and not out.is_dir():
        stem = out.name.removesuffix(exporter.suffix)
        names = []
        for file in plan.files:
            part = _PART.search(file.name.removesuffix(exporter.suffix))
            names.append(stem + (part[0] if part else "") + exporter.suffix)
        return Places(folder=out.parent, files=tuple(out.parent / n for n in names), whole_folder=False)
    return Places(folder=out, files=tuple(out / f.name for f in plan.files), whole_folder=False)


def refuse_existing(where: Places, *, overwrite: bool, sources: tuple[Path, ...] = ()) -> None:
    """Raise `OutputError` where something is in the way; a source is never overwritten, whatever is asked."""
    given = {p.resolve() for p in sources}
    for file in where.files:
        if file.exists() and file.resolve() in given:
            raise OutputError("output-is-source", f"{file} is what is being read", "Choose another place with -o.")
        if file.is_dir():
            raise OutputError("output-exists", f"{file} is a folder", "Choose another place with -o.")
    target = where.folder if where.whole_folder else where.files[0]
    if where.whole_folder and any(p.resolve().is_relative_to(where.folder.resolve()) for p in given):
        raise OutputError("output-is-source", f"{where.folder} holds what is being read", "Choose another place with -o.")
    if where.whole_folder:
        occupied = target.exists() and (not target.is_dir() or any(target.iterdir()))
    else:
        occupied = any(os.path.lexists(f) for f in where.files)
        target = next((f for f in where.files if os.path.lexists(f)), target)
    if occupied and not overwrite:
        raise OutputError("output-exists", f"{target} is already there", "Give --overwrite to replace it, or another -o.")
    if occupied and where.whole_folder and not target.is_dir():
        raise OutputError("output-exists", f"{target} is a file", "Choose another place with -o.")
    parent = where.folder
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise OutputError("not-writable", f"{parent} cannot be written to", "Choose another place with -o.")


def require_space(plan: Plan, where: Places) -> None:
    """Raise `OutputError` where the disk has too little room for the plan."""
    parent = where.folder
    while not parent.exists():
        parent = parent.parent
    free = shutil.disk_usage(parent).free
    present = sum(p.stat().st_blocks * 512 for p in where.staged if p.exists())
    if free + present < plan.size:
        raise OutputError(
            "disk-full",
            f"{parent} has {free / 1e9:.2f} GB free, the artifact needs {plan.size / 1e9:.2f} GB",
            "Free the space or choose another place with -o.",
        )


def write(
    plan: Plan,
    exporter: Exporter,
    where: Places,
    *,
    workers: int = 0,
    judge: Callable[[str, Written], None],
    progress: Callable[[int, int], None] | None = None,
) -> list[Filled]:
    """Write every file of `plan` to its staged place, resuming what an interrupted run left whole.

    Args:
        plan: What to write.
        exporter: Who writes it.
        where: See `places`.
        workers: See `FillOptions`.
        judge: Told each tensor's name and outcome; raises for what must not be.
        progress: Called with bytes written and bytes in all.
    """
    try:
        where.stage.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError("not-writable", f"{where.stage}: {error.strerror}", "Choose another place with -o.") from None
    total, before = plan.size, 0
    results = []
    with _Journal.open(where, _digest(plan)) as journal:
        try:
            for index, (file, staged) in enumerate(zip(plan.files, where.staged, strict=True)):
                staged.parent.mkdir(parents=True, exist_ok=True)
                done = journal.done.get(index, {})
                names = [t.name for t, _ in file.tensors]

                def told(job: int, outcome: Written, at: int = index, names: list[str] = names, path: Path = staged) -> None:
                    judge(names[job], outcome)
                    journal.add(at, job, outcome, path)

                def moved(written: int, _: int, base: int = before) -> None:
                    if progress is not None:
                        progress(base + written, total)

                for job, outcome in done.items():
                    judge(names[job], outcome)
                options = FillOptions(workers=workers, done=frozenset(done), on_done=told, on_progress=moved)
                filled = exporter.fill(file, staged, options)
                results.append(Filled(sha256=filled.sha256, written={**done, **filled.written}))
                before += file.size
                sync(staged)
        except (OutputError, KeyboardInterrupt):
            journal.flush()
            raise
        except LlmfitError:
            discard(where)
            raise
    return results


def publish(where: Places, *, overwrite: bool, known: frozenset[str] = frozenset()) -> None:
    """Give staged files their final names, and remove the stage.

    Args:
        where: See `places`.
        overwrite: Replace what is there.
        known: For a whole folder, names in it that an earlier manifest of ours lists; they make room for the new files.

    Raises:
        OutputError: `output-exists`, `stranger-in-folder`; the stage is kept.
    """
    refuse_existing(where, overwrite=overwrite)
    if where.whole_folder and where.folder.exists():
        _make_room(where, known)
    if where.whole_folder and not where.folder.exists():
        where.journal.unlink(missing_ok=True)
        os.replace(where.stage, where.folder)
    else:
        for source, target in zip(where.staged, where.files, strict=True):
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(source, target)
        where.journal.unlink(missing_ok=True)
        _remove_stage(where)
    sync(where.folder)
    sync(where.folder.parent)


def discard(where: Places) -> None:
    """Remove what was staged, and nothing else."""
    for path in (*where.staged, where.journal):
        path.unlink(missing_ok=True)
    _remove_stage(where)


def _make_room(where: Places, known: frozenset[str]) -> None:
    """Remove an earlier artifact's files that the new one does not replace; strangers' weights are an error."""
    present = list(where.folder.iterdir())
    if not present:
        where.folder.rmdir()
        return
    for path in present:
        weights = path.suffix in (".safetensors", ".bin") or path.name.endswith(".index.json")
        if weights and path.name not in known and path not in where.files:
            raise OutputError(
                "stranger-in-folder",
                f"{where.folder} holds {path.name}, which is no part of the new model and is not ours to delete",
                "Remove it or choose another place with -o.",
            )
    for name in known:
        old = where.folder / name
        if old not in where.files and old.is_file():
            old.unlink()


def _remove_stage(where: Places) -> None:
    """Remove the stage's folders where they are empty; a stranger's file keeps them."""
    for folder in sorted({p.parent for p in where.staged} | {where.stage}, key=lambda p: -len(p.parts)):
        with contextlib.suppress(OSError):
            folder.rmdir()


def sync(path: Path) -> None:
    """Force a file or folder to disk; where a folder cannot be synced, nothing is."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(fd)
    except OSError as error:
        if not path.is_dir():
            raise OutputError("write-failed", f"{path}: {error.strerror}", "Check the disk.") from error
    finally:
        os.close(fd)


def _digest(plan: Plan) -> str:
    """What a staged artifact must agree in to be resumed: heads, tensors, and the identity of the source files."""
    digest = hashlib.sha256()
    paths: dict[str, None] = {}
    for file in plan.files:
        digest.update(file.name.encode() + file.head)
        for tensor, offset in file.tensors:
            digest.update(f"{tensor.name} {tensor.type} {offset} {tensor.tensor!r}".encode())
            paths.update(dict.fromkeys(tensor.tensor.files()))
    for path in paths:
        stat = os.stat(path)
        digest.update(f"{path} {stat.st_size} {stat.st_mtime_ns}".encode())
    digest.update(json.dumps(dict(plan.plugins), sort_keys=True).encode())
    return digest.hexdigest()


class _Journal:
    """What is whole in a staged artifact; synced data first, then the word of it."""

    def __init__(self, handle: Any, where: Places, done: dict[int, dict[int, Written]]) -> None:
        self.handle, self.where, self.done = handle, where, done
        self._waiting: list[str] = []
        self._path = where.staged[0]
        self._last = time.monotonic()

    @classmethod
    @contextlib.contextmanager
    def open(cls, where: Places, digest: str) -> Iterator[_Journal]:
        path = where.journal
        leftovers = [p for p in where.staged if p.exists()] if path.exists() else list(where.stage.iterdir())
        if leftovers and not path.exists():
            raise OutputError(
                "stranger-partial", f"{leftovers[0]} is there and is not ours", "Move it away or choose another -o."
            )
        handle = open(path, "a+", encoding="utf-8")  # noqa: SIM115 - closed below
        try:
            _lock(handle, path)
            handle.seek(0)
            lines = handle.read().split("\n")
            done = _read_journal(lines, digest)
            if done is None:
                earlier = [where.stage / line[5:] for line in lines if line.startswith("file ")]
                for leftover in {*leftovers, *earlier}:
                    leftover.unlink(missing_ok=True)
                handle.truncate(0)
                handle.write(f"llmfit-journal 1 {digest}\n")
                handle.writelines(f"file {p.relative_to(where.stage).as_posix()}\n" for p in where.staged)
                handle.flush()
            yield cls(handle, where, done or {})
        finally:
            handle.close()

    def add(self, file: int, job: int, outcome: Written, path: Path) -> None:
        self._waiting.append(f"{file} {job} {outcome.overflow} {outcome.underflow} {outcome.nonfinite} .\n")
        self._path = path
        if time.monotonic() - self._last > SYNC_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Sync the data, then note down what is whole."""
        if self._waiting:
            sync(self._path)
            self.handle.write("".join(self._waiting))
            self.handle.flush()
            self._waiting.clear()
        self._last = time.monotonic()


def _read_journal(lines: list[str], digest: str) -> dict[int, dict[int, Written]] | None:
    """Finished jobs by file, or `None` where the journal is of another plan."""
    if not lines or lines[0] != f"llmfit-journal 1 {digest}":
        return None
    done: dict[int, dict[int, Written]] = {}
    for line in lines[1:]:
        words = line.split(" ")
        if len(words) == 6 and words[5] == ".":
            file, job, over, under, odd = map(int, words[:5])
            done.setdefault(file, {})[job] = Written(overflow=over, underflow=under, nonfinite=odd)
    return done


def _lock(handle: Any, path: Path) -> None:
    try:
        import fcntl
    except ImportError:  # Windows opens the partial file exclusively anyway
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise OutputError(
            "output-busy", f"another llmfit is writing {path.parent.name.removesuffix('.partial')}", "Wait for it."
        ) from None
