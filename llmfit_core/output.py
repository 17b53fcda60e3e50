"""Putting an artifact in its place: staged beside it, journalled, synced, renamed; nothing half-made is ever final."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llmfit_core import manifest
from llmfit_core.disk import MAX_NAME, amount, output_errors, sync
from llmfit_core.errors import LaunchError, LlmfitError, OutputError, SourceError
from llmfit_core.export import Exporter, Filled, FillOptions, Written
from llmfit_core.journal import NAME as JOURNAL
from llmfit_core.journal import Journal, open_journal

if TYPE_CHECKING:
    from llmfit_core.plan import Plan

_PART = re.compile(r"-\d{5}-of-\d{5}$")
_ELSEWHERE = "Choose another place with -o."
_LOADED = re.compile(
    r".*\.(safetensors|bin|model|jinja)|.*\.index\.json|(tokenizer|vocab|merges|added_tokens|special_tokens|generation_config"
    r"|chat_template|adapter_).*"
)
"""Files that a loader of the folder would take for a part of the model."""


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where an artifact goes.

    Attributes:
        folder: The folder that holds the files.
        files: Final paths, one per planned file.
        whole_folder: The folder itself is the artifact (`hf`).
        stage: The folder where everything lies until it is whole, on the same file system as the final place.
    """

    folder: Path
    files: tuple[Path, ...]
    whole_folder: bool
    stage: Path

    @property
    def staged(self) -> tuple[Path, ...]:
        """The files in their stage, under their final names."""
        return tuple(self.stage / f.relative_to(self.folder) for f in self.files)


def places(plan: Plan, exporter: Exporter, out: Path) -> Places:
    """`out` is a file where it ends in the format's suffix and is no folder, else a folder of conventional names.

    A folder that is there already is filled and not replaced, so its stage lies inside it: it may be a mount point.
    """
    out = Path(os.path.abspath(out))
    names = [f.name for f in plan.files]
    if not exporter.suffix:
        stage = out / "llmfit.partial" if out.is_dir() else _partial(out)
        return Places(folder=out, files=tuple(out / n for n in names), whole_folder=True, stage=stage)
    cut = len(exporter.suffix)
    if out.name.lower().endswith(exporter.suffix) and not out.is_dir():
        folder, stem, suffix = out.parent, out.name[:-cut], out.name[-cut:]
    else:
        folder, stem, suffix = out, _PART.sub("", names[0][:-cut]), exporter.suffix
    parts = (_PART.search(n[:-cut]) for n in names)
    files = tuple(folder / (stem + (part[0] if part else "") + suffix) for part in parts)
    return Places(folder=folder, files=files, whole_folder=False, stage=_partial(folder / (stem + suffix)))


def _partial(path: Path) -> Path:
    name = path.name + ".partial"
    if len(os.fsencode(name)) > MAX_NAME:
        name = hashlib.sha256(os.fsencode(path.name)).hexdigest()[:32] + ".partial"
    return path.with_name(name)


def refuse_existing(where: Places, *, overwrite: bool, sources: tuple[Path, ...] = ()) -> None:
    """Raise `OutputError` where something is in the way.

    Args:
        where: See `places`.
        overwrite: An earlier artifact may be replaced.
        sources: Files and folders that are being read; they are never overwritten, whatever is asked.
    """
    for file in where.files:
        if len(os.fsencode(file.name)) > MAX_NAME:
            raise OutputError("name-too-long", f"{file.name[:60]}... has more than {MAX_NAME} bytes", "Shorten it.")
    with output_errors(where.folder):
        _refuse_source(where, sources)
        _refuse_occupied(where, overwrite)
        parent = _nearest(where.folder)
        if not parent.is_dir():
            raise OutputError("not-writable", f"{parent} is no folder", _ELSEWHERE)
        if not os.access(parent, os.W_OK | os.X_OK):
            raise OutputError("not-writable", f"{parent} cannot be written to", _ELSEWHERE)


def _refuse_source(where: Places, sources: tuple[Path, ...]) -> None:
    given = {p.resolve() for p in sources}
    for file in where.files:
        if file.resolve() in given:
            raise OutputError("output-is-source", f"{file} is what is being read", _ELSEWHERE)
    if where.whole_folder and any(p.is_relative_to(where.folder.resolve()) for p in given):
        raise OutputError("output-is-source", f"{where.folder} holds what is being read", _ELSEWHERE)


def _refuse_occupied(where: Places, overwrite: bool) -> None:
    for file in where.files:
        if file.is_dir():
            raise OutputError("output-exists", f"{file} is a folder", _ELSEWHERE)
    if where.whole_folder and os.path.lexists(where.folder):
        if not where.folder.is_dir():
            raise OutputError("output-exists", f"{where.folder} is no folder", _ELSEWHERE)
        occupied = any(p != where.stage for p in where.folder.iterdir())
        target = where.folder
        if occupied and overwrite:
            _refuse_strangers(where)
    else:
        target = next((f for f in where.files if os.path.lexists(f)), where.files[0])
        occupied = os.path.lexists(target)
    if occupied and not overwrite:
        raise OutputError("output-exists", f"{target} is already there", "Give --overwrite to replace it, or another -o.")


def _nearest(folder: Path) -> Path:
    """The folder, or the nearest one above that is there."""
    while not os.path.lexists(folder):
        folder = folder.parent
    return folder


def require_space(plan: Plan, where: Places) -> None:
    """Raise `OutputError` where the disk has too little room for the plan."""
    with output_errors(where.folder):
        parent = _nearest(where.folder)
        free = shutil.disk_usage(parent).free
        present = sum(p.stat().st_blocks * 512 for p in where.staged if p.is_file())
    if free + present < plan.size:
        raise OutputError(
            "disk-full",
            f"{parent} has {amount(free)} free, the artifact needs {amount(plan.size)}",
            "Free the space or choose another place with -o.",
        )


@contextlib.contextmanager
def staging(plan: Plan, where: Places) -> Iterator[Journal]:
    """The stage of an artifact, locked against other processes until it is published or given up.

    Where the work fails, what is whole is kept for the next run unless it was found to be wrong.
    """
    with contextlib.ExitStack() as stack:
        with output_errors(where.stage):
            if os.path.lexists(where.stage) and (where.stage.is_symlink() or not where.stage.is_dir()):
                raise OutputError("stranger-partial", f"{where.stage} is there and is not ours", "Move it away.")
            where.stage.mkdir(parents=True, exist_ok=True)
            sizes = {p: f.size for p, f in zip(where.staged, plan.files, strict=True)}
            journal = stack.enter_context(open_journal(where.stage, sizes, _digest(plan)))
        try:
            yield journal
        except (OutputError, LaunchError, KeyboardInterrupt):
            with contextlib.suppress(OSError, OutputError):
                journal.flush()
            raise
        except LlmfitError:
            discard(where)
            raise


def write(
    plan: Plan,
    exporter: Exporter,
    where: Places,
    journal: Journal,
    *,
    workers: int = 0,
    judge: Callable[[str, Written], None],
    progress: Callable[[int, int], None] | None = None,
) -> list[Filled]:
    """Write every file of `plan` to its staged place, but for what the journal says is whole.

    Args:
        plan: What to write.
        exporter: Who writes it.
        where: See `places`.
        journal: Of the stage.
        workers: See `FillOptions`.
        judge: Told each tensor's name and outcome; raises for what must not be.
        progress: Called with bytes written and bytes in all.

    Raises:
        SourceError: `source-changed`: a source file is not what it was when the work began.
    """
    before = source_state(plan)
    base, results = 0, []
    with output_errors(where.stage):
        for index, (file, staged) in enumerate(zip(plan.files, where.staged, strict=True)):
            staged.parent.mkdir(parents=True, exist_ok=True)
            done = journal.done.get(index, {})
            names = [t.name for t, _ in file.tensors]

            def told(job: int, outcome: Written, at: int = index, names: list[str] = names, path: Path = staged) -> None:
                judge(names[job], outcome)
                journal.add(at, job, outcome, path)

            def moved(written: int, _: int, base: int = base) -> None:
                if progress is not None:
                    progress(base + written, plan.size)

            for job, outcome in done.items():
                judge(names[job], outcome)
            options = FillOptions(workers=workers, done=frozenset(done), on_done=told, on_progress=moved)
            filled = exporter.fill(file, staged, options)
            results.append(Filled(sha256=filled.sha256, written={**done, **filled.written}))
            base += file.size
            sync(staged)
        journal.flush()
    if source_state(plan) != before:
        raise SourceError(
            "source-changed", f"{plan.model.checkpoint.label} was changed while it was read", "Let it rest, and run again."
        )
    return results


def publish(where: Places, artifact: str, entry: Mapping[str, object]) -> None:
    """Give staged files their final names, the one that is opened first at last, and remove the stage.

    A folder that is not there yet gets all at once; in another, the files of an earlier artifact make room.

    Args:
        where: See `places`.
        artifact: Its name in the manifest.
        entry: Its entry there.
    """
    with output_errors(where.folder):
        if where.whole_folder and not where.folder.exists():
            manifest.write_manifest(where.stage, artifact, entry)
            (where.stage / JOURNAL).unlink()
            os.replace(where.stage, where.folder)
        else:
            opened_first = where.folder / "config.json" if where.whole_folder else where.files[0]
            if len(where.files) > 1:
                opened_first.unlink(missing_ok=True)
            if where.whole_folder:
                for old in (where.folder / n for n in manifest.known_files(where.folder, ".")):
                    if old not in where.files and old.is_file():
                        old.unlink()
            pairs = sorted(zip(where.staged, where.files, strict=True), key=lambda p: p[1] == opened_first)
            for source, target in pairs:
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(source, target)
            manifest.write_manifest(where.folder, artifact, entry)
            discard(where)
        sync(where.folder)
        sync(where.folder.parent)


def _refuse_strangers(where: Places) -> None:
    """Files that a loader would read together with the new ones, and that no artifact of ours left there."""
    known = manifest.known_files(where.folder, ".")
    for path in (*where.folder.iterdir(), *where.folder.glob("additional_chat_templates/*")):
        name = path.relative_to(where.folder).as_posix()
        if path.is_file() and _LOADED.fullmatch(path.name) and name not in known and path not in where.files:
            raise OutputError(
                "stranger-in-folder",
                f"{where.folder} holds {name}, which is no part of the new model and is not ours to delete",
                "Remove it or choose another place with -o.",
            )


def discard(where: Places) -> None:
    """Remove what was staged, and nothing else; a stranger's file keeps its folder."""
    for path in (*where.staged, where.stage / JOURNAL):
        path.unlink(missing_ok=True)
    for folder in sorted({p.parent for p in where.staged} | {where.stage}, key=lambda p: -len(p.parts)):
        with contextlib.suppress(OSError):
            folder.rmdir()


def source_state(plan: Plan) -> list[tuple[str, int, int]]:
    """Path, size and time of change of every file that is read.

    Raises:
        SourceError: `source-changed`: one is gone.
    """
    paths: dict[str, None] = {}
    for tensor in plan.tensors:
        paths.update(dict.fromkeys(tensor.tensor.files()))
    state = []
    for path in paths:
        try:
            stat = os.stat(path)
        except OSError as error:
            raise SourceError("source-changed", f"{path}: {error.strerror}", "Fetch the file again.") from None
        state.append((path, stat.st_size, stat.st_mtime_ns))
    return state


def _digest(plan: Plan) -> str:
    """What a staged artifact must agree in to be resumed: heads, tensors, versions, and the state of the sources."""
    from llmfit_core.version import __version__

    digest = hashlib.sha256()
    for file in plan.files:
        digest.update(file.name.encode() + file.head)
        for tensor, offset in file.tensors:
            digest.update(f"{tensor.name} {tensor.type} {offset} {tensor.tensor!r}".encode())
    digest.update(json.dumps([__version__, dict(plan.plugins), source_state(plan)], sort_keys=True).encode())
    return digest.hexdigest()
