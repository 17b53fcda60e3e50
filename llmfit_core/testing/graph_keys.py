"""The hparams that a graph speaks of: with a value where a loader cannot do without, and spelt as somebody gives them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmfit_core.architecture import Reads
from llmfit_core.hparams import COMMON_CONFIG, DECODER_CONFIG
from llmfit_core.roles import SHAPES
from llmfit_core.testing.outcome import few, require

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from llmfit_core.architecture import Architecture, Graph, Use
    from llmfit_core.roles import Dim
    from llmfit_core.testing.bench import Bench

NEEDED = ("block_count", "context_length", "embedding_length", "attention.head_count", "feed_forward_length", "vocab_size")
"""Keys that no loader does without, where it reads them; and one of an epsilon's."""
OF_ROPE = (
    "rope.dimension_count", "rope.freq_base", "rope.freq_base_swa", "rope.freq_scale", "rope.scaling.type", "rope.scaling.factor",
    "rope.scaling.original_context_length", "rope.scaling.attn_factor", "rope.scaling.yarn_log_multiplier",
    "rope.dimension_sections",
)  # fmt: skip
"""Keys that follow from the rope and from no one hparam."""


def check(bench: Bench, graph: Graph, cases: Iterable[str], optional: Collection[str]) -> None:
    """Look at one graph, over the cases of a sample until nothing is open."""
    known = _vocabulary(bench) | set(optional)
    lost: list[str] = []
    for case in cases:
        model = bench.model(case)
        hparams = {**model.hparams, **(graph.values(model.hparams) if graph.values is not None else {})}
        given = {k for k, v in hparams.items() if v is not None}
        absent = [k for k in NEEDED if k in graph.keys and k not in given]
        require(not absent, f"the graph {graph.name} reads {few(absent)}, which {case} does not give")
        epsilons = [k for k in graph.keys if k.endswith("epsilon")]
        require(not epsilons or given & set(epsilons), f"the graph {graph.name} reads {few(epsilons)}, and {case} gives none")
        known |= given
        spoken = dict.fromkeys((*graph.keys, *graph.fixes, *(limit.hparam for limit in graph.limits)))
        lost = [k for k in spoken if k not in known]
        if not lost:
            return
    require(not lost, f"the graph {graph.name} reads, fixes or limits {few(lost)}, which no config key and no function gives")


def _vocabulary(bench: Bench) -> set[str]:
    """Hparams that somebody gives: the table, the usual ones, and the other families, with which graphs are shared."""
    words = {*OF_ROPE, *_stated(DECODER_CONFIG.values()), *_stated(COMMON_CONFIG.values()), *_dims(SHAPES.values())}
    words |= _of(bench.architecture)
    for provided in bench.registry.architectures():
        words |= _of(provided.value)
    return words


def _of(architecture: Architecture) -> set[str]:
    return _stated(architecture.config.values()) | _dims(architecture.shapes.values())


def _stated(uses: Iterable[Use]) -> set[str]:
    return {use.hparam for use in uses if isinstance(use, Reads)}


def _dims(shapes: Iterable[tuple[Dim, ...]]) -> set[str]:
    found: set[str] = set()
    for dim in (d for shape in shapes for d in shape):
        found |= {w for w in (dim if isinstance(dim, tuple) else (dim,)) if isinstance(w, str)}
    return found
