"""`Exporter.fill` for files of plain and block types: jobs for the streaming engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmfit_core.export import Filled, FillOptions, Written
from llmfit_gguf.stream import Job, JobResult, fill

if TYPE_CHECKING:
    from pathlib import Path

    from llmfit_core.plan import OutputFile


def fill_file(file: OutputFile, path: Path, options: FillOptions) -> Filled:
    """Write head and tensors of `file` into `path`, which becomes exactly `file.size` bytes long."""
    jobs = [
        Job(name=t.name, tensor=t.tensor, type=t.type, offset=offset, nbytes=t.nbytes) for t, offset in file.tensors
    ]

    def told(index: int, result: JobResult) -> None:
        if options.on_done is not None:
            options.on_done(index, _written(result))

    report = fill(
        path,
        file.head,
        jobs,
        file.size,
        workers=options.workers or None,
        done=options.done,
        on_done=told,
        on_progress=options.on_progress,
        digest=True,
    )
    return Filled(sha256=report.sha256 or "", written={i: _written(r) for i, r in report.results.items()})


def _written(result: JobResult) -> Written:
    losses = result.losses
    return Written(overflow=losses.overflow, underflow=losses.underflow, nonfinite=losses.nonfinite)
