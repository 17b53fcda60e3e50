"""`llmfit.json`: what an artifact was made of, and how; one file a folder, one entry an artifact."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from llmfit_core.disk import output_errors
from llmfit_core.errors import OutputError, SourceError
from llmfit_core.tensors import element_count

if TYPE_CHECKING:
    import threading

    from llmfit_core.events import Event
    from llmfit_core.export import Filled
    from llmfit_core.plan import Plan

NAME = "llmfit.json"
SCHEMA = 1
_BLOCK = 1 << 20


def bits_per_weight(plan: Plan) -> float:
    """True bits per weight: all bytes of all tensors against all their elements."""
    elements = sum(element_count(t.shape) for t in plan.tensors)
    return sum(t.nbytes for t in plan.tensors) * 8 / elements if elements else 0.0


def type_shares(plan: Plan) -> dict[str, dict[str, int]]:
    """Tensors, weights and bytes by element type, most bytes first."""
    tensors, weights, size = Counter[str](), Counter[str](), Counter[str]()
    for t in plan.tensors:
        tensors[t.type] += 1
        weights[t.type] += element_count(t.shape)
        size[t.type] += t.nbytes
    return {k: {"tensors": tensors[k], "weights": weights[k], "bytes": n} for k, n in size.most_common()}


def make_manifest(
    plan: Plan,
    *,
    version: str,
    sources: Mapping[str, str],
    filled: Sequence[Filled],
    names: Sequence[str],
    events: Sequence[Event],
    verified: Mapping[str, object],
) -> dict[str, object]:
    """The entry of one artifact. Names neither folder nor date, so that the same work gives the same text.

    Args:
        plan: What was planned.
        version: llmfit-core's.
        sources: Source file name to sha256.
        filled: What became of each file.
        names: The files' final names.
        events: Everything worth knowing.
        verified: What was proven.
    """
    recipe = {k: v for k, v in asdict(plan.recipe).items() if v not in (None, (), False)}
    return {
        "format": plan.recipe.exporter,
        "scheme": plan.recipe.scheme,
        "llmfit": version,
        "plugins": dict(plan.plugins),
        "source": {
            "repo": plan.model.checkpoint.repo,
            "revision": plan.model.checkpoint.revision,
            "files": dict(sources),
            "decoders": list(plan.decoders),
        },
        "recipe": recipe,
        "architecture": plan.model.architecture.name,
        "graph": plan.graph,
        "engine": plan.engine,
        "files": {
            n: {"bytes": f.size, "sha256": done.sha256} for n, f, done in zip(names, plan.files, filled, strict=True)
        },
        "bits_per_weight": round(bits_per_weight(plan), 4),
        "exact_context": plan.exact_context,
        "types": type_shares(plan),
        "tensors": {
            t.name: {"type": t.type, "shape": list(t.shape)} | ({"reason": t.reason} if t.reason else {})
            for t in plan.tensors
        },
        "waived": dict(plan.model.ledger.waived),
        "events": [e.as_json() for e in events],
        "verified": dict(verified),
    }


def read_manifest(folder: Path) -> dict[str, dict[str, object]]:
    """The entries of a folder's manifest by artifact; none where there is no manifest.

    Raises:
        OutputError: `stranger-manifest`: a file of that name that is not ours.
    """
    path = folder / NAME
    if not os.path.lexists(path):
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        artifacts = value["artifacts"]
        if value["schema"] == SCHEMA and all(isinstance(a["files"], dict) for a in artifacts.values()):
            return dict(artifacts)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    raise OutputError("stranger-manifest", f"{path} is there and is no manifest of llmfit", "Move it away.")


def write_manifest(folder: Path, name: str, entry: Mapping[str, object]) -> None:
    """Add or replace the entry of one artifact, atomically; entries of other artifacts stay.

    Raises:
        OutputError: `disk-full`, `not-writable`, `stranger-manifest`.
    """
    with output_errors(folder / NAME), _alone(folder):
        artifacts = {**read_manifest(folder), name: entry}
        text = json.dumps({"schema": SCHEMA, "artifacts": dict(sorted(artifacts.items()))}, indent=1, ensure_ascii=False)
        partial = folder / f"{NAME}.{os.getpid()}.partial"
        try:
            with open(partial, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, folder / NAME)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """No other llmfit changes the folder's manifest meanwhile, where the system has locks."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def known_files(folder: Path, artifact: str) -> frozenset[str]:
    """Names of the files that the folder's manifest lists for an artifact; none that lies elsewhere."""
    entry = read_manifest(folder).get(artifact, {})
    files = entry.get("files", {})
    assert isinstance(files, dict)
    root = folder.resolve()
    return frozenset(n for n in files if ".." not in PurePath(n).parts and (root / n).parent.resolve().is_relative_to(root))


def sha256_of(path: Path, stop: threading.Event | None = None) -> str:
    """A file's sha256; taken from the name of a hub cache's blob, which is that hash, where it is one.

    Args:
        path: The file.
        stop: Once set, the work is given up and the result is empty.

    Raises:
        SourceError: `unreadable-source`.
    """
    target = Path(os.path.realpath(path))
    if target != path and target.parent.name == "blobs" and re.fullmatch(r"[0-9a-f]{64}", target.name):
        return target.name
    digest = hashlib.sha256()
    block = bytearray(_BLOCK)
    try:
        with open(path, "rb", buffering=0) as file:
            while count := file.readinto(block):
                if stop is not None and stop.is_set():
                    return ""
                digest.update(memoryview(block)[:count])
    except OSError as error:
        raise SourceError("unreadable-source", f"{path}: {error.strerror}", "Check the file, or fetch it again.") from error
    return digest.hexdigest()
