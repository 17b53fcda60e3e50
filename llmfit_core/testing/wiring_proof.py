"""Wiring: its words are real, and, where the model can be computed, a scale that moves along it changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llmfit_core.architecture import slot_roles
from llmfit_core.roles import PRE_NORM_DECODER, Role
from llmfit_core.testing import with_transformers
from llmfit_core.testing.outcome import NotRun, few, require
from llmfit_core.wiring import scale_groups

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from numpy.typing import NDArray

    from llmfit_core.architecture import Architecture
    from llmfit_core.testing.bench import Bench
    from llmfit_core.wiring import Block, ScaleGroup

UNCHANGED = 1e-4
CHANGED = 1e-3
"""Of the logits' spread: what rounding may do, and what a forgotten sink does at least."""


def check_words(architecture: Architecture) -> None:
    """Links speak of roles of the table, or of roles that others share; each source has a sink; conditions are known.

    Raises:
        NotRun: No wiring is stated, which formats that move scales refuse.
    """
    if not architecture.wiring:
        raise NotRun(f"{architecture.name} states no wiring; formats that move scales refuse it")
    table = {role for p in architecture.tensors for role in slot_roles(architecture.slot(p))}
    known = table | {str(r) for r in Role}
    named = {r for link in architecture.wiring for r in (link.source, *link.sinks)}
    require(named <= known, f"the wiring names what is no role: {few(sorted(named - known))}")
    common = set(PRE_NORM_DECODER)
    for link in architecture.wiring:
        own = link not in common  # the usual wiring speaks of experts and biases that this table need not have
        require(link.sinks, f"the link from {link.source} has no sink")
        if own:
            require(link.source in table, f"the wiring has a link from {link.source}, which the table has not")
        if link.source in table:
            sinks = [s for s in link.sinks if s in table]
            conditional = link.when not in ("", "no_gqa")
            require(sinks or not own or conditional, f"no sink of {link.source} is in the table: {few(link.sinks)}")
    require(any(link.source in table for link in architecture.wiring), "the wiring says nothing of this table")


def check_groups(bench: Bench, case: str) -> tuple[ScaleGroup, ...]:
    """The links can be followed to blocks of stored tensors: channels of sources and sinks agree."""
    if not bench.architecture.wiring:
        raise NotRun(f"{bench.architecture.name} states no wiring; formats that move scales refuse it")
    groups = scale_groups(bench.model(case))
    require(groups, "the wiring gives this checkpoint no group that a scale could move in")
    return groups


def check_true(bench: Bench, case: str, *, forget: bool = True) -> None:
    """All scales at once change no logit; with `forget`, a scale with any one of its sinks forgotten does.

    Raises:
        NotRun: Nothing here computes the model.
    """
    import numpy as np

    groups = check_groups(bench, case)
    folder = bench.built(case).folder
    if bench.sample.reference is None and not with_transformers.knows(bench.built(case).config):
        raise NotRun(f"transformers has no {bench.architecture.hf_classes[0]}: give `reference`")
    plain = _logits(bench, folder)
    random = np.random.default_rng(7)
    scaled = [(g, np.exp2(random.uniform(-1, 1, g.channels))) for g in groups]
    far = _distance(bench, case, plain, scaled, None)
    require(far < UNCHANGED, f"scales that move along the wiring change the logits by {far:.1e} of their spread")
    if not forget:
        return
    first: dict[object, tuple[ScaleGroup, NDArray[Any]]] = {}
    for group, scale in scaled:
        if group.expert in (None, 0):
            first.setdefault(group.link, (group, scale))
    for group, scale in first.values():
        for sink in group.sinks[:3] if group.expert is None and len(group.sinks) > 6 else group.sinks:
            far = _distance(bench, case, plain, [(group, scale)], sink)
            require(far > CHANGED, f"{sink.name} does not read {group.link.source}: forgotten, it changes {far:.1e} of the spread")


def _distance(
    bench: Bench, case: str, plain: NDArray[Any], scaled: Iterable[tuple[ScaleGroup, NDArray[Any]]], left_out: Block | None
) -> float:
    """The largest change of a log-probability, in terms of their spread."""
    import shutil

    import numpy as np

    from llmfit_core.testing.safetensor_files import write_file

    built = bench.built(case)
    stored = {n: np.array(t, dtype=np.float32) if t.dtype.name in ("bfloat16", "float16", "float32") else np.array(t)
              for n, t in built.tensors.items()}  # fmt: skip
    names = _stored_names(bench, case)
    for group, scale in scaled:
        for block in group.sources:
            _multiply(stored[names[block.name]], block, 1 / scale)
        for block in group.sinks:
            if block is not left_out:
                _multiply(stored[names[block.name]], block, scale)
    folder = bench.work / "scaled"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(built.folder, folder)
    write_file(folder / "model.safetensors", stored)
    return float(np.abs(_logits(bench, folder) - plain).max() / plain.std())


def _stored_names(bench: Bench, case: str) -> dict[str, str]:
    model = bench.model(case)
    by_tensor = {id(ref.tensor): name for name, ref in model.checkpoint.tensors.items()}
    return {ref.name: by_tensor[id(ref.tensor)] for ref in model.refs}


def _multiply(stored: NDArray[Any], block: Block, scale: NDArray[Any]) -> None:
    """Scale a block of a stored tensor in place."""
    shape = [1] * stored.ndim
    shape[block.axis] = -1
    at = tuple(slice(*span) for span in block.index)
    stored[at] = (stored[at] + block.shift) * scale.reshape(shape) - block.shift


def _logits(bench: Bench, folder: Path) -> NDArray[Any]:
    """Log-probabilities with each position's own constant taken off: logits as far as they matter."""
    import numpy as np

    ids = list(range(12, 60))
    if bench.sample.reference is not None:
        rows = np.asarray(bench.sample.reference(folder, ids), dtype=np.float64)
    elif bench.gives_vectors:
        vectors: NDArray[Any] = with_transformers.Network(folder, waived=tuple(bench.architecture.waived)).vectors(ids)
        return vectors
    else:
        rows = with_transformers.Network(folder).log_probabilities(ids, range(1, len(ids) + 1))
    centred: NDArray[Any] = rows - rows.mean(-1, keepdims=True)
    return centred
