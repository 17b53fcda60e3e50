"""How far a graph that rounds yarn's correction range is from a model that does not.

ggml interpolates between two dimensions that it rounds to whole numbers, and most of llama.cpp's loaders fix the betas
that those follow from. Where a graph loads factors, `llmfit_gguf.rope_keys` tells it the rope exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from llmfit_core.resolve import rotated
from llmfit_core.rope import yarn_factors, yarn_range

if TYPE_CHECKING:
    from llmfit_core.architecture import Graph
    from llmfit_core.model import Model
    from llmfit_core.rope import Rope

_SAME = 1e-6
_NOTICED = 0.1


@dataclass(frozen=True, kw_only=True)
class Rounding:
    """The largest differences over all pairs of dimensions.

    Attributes:
        phase: Radians a token by which a pair turns too far or not far enough.
        share: Of a pair's frequency.
        model: The correction range as the model has it.
        graph: As the graph has it.
    """

    phase: float
    share: float
    model: tuple[float, float]
    graph: tuple[float, float]

    def __str__(self) -> str:
        """In words."""
        (a, b), (c, d) = self.model, self.graph
        return (
            f"yarn interpolates from dimension {a:.4g} to {b:.4g} and the graph from {c:.4g} to {d:.4g}: phases are off by up to "
            f"{self.phase:.2g} radians a token ({_NOTICED:g} after {_NOTICED / self.phase:.0f} tokens), frequencies by up to "
            f"{100 * self.share:.0f} %"
        )


def as_computed(rope: Rope, graph: Graph) -> Rope:
    """The rope as this graph computes it: without factors, yarn has the usual betas and a rounded range.

    `rounding` says how far that is from the model's.
    """
    if rope.type != "yarn" or graph.rope_factors:
        return rope
    return replace(rope, beta_fast=32.0, beta_slow=1.0, truncate=True)


def rounding(model: Model, graph: Graph) -> Rounding | None:
    """How far the graph's rope is from the model's; `None` where it is the same."""
    computed = as_computed(model.rope, graph)
    if computed == model.rope or "rope.freq_base" not in model.hparams:
        return None
    base, dims = float(model.hparams["rope.freq_base"]), rotated(model.hparams)  # type: ignore[arg-type]
    phase = share = 0.0
    for i, (a, b) in enumerate(zip(yarn_factors(model.rope, base, dims), yarn_factors(computed, base, dims), strict=True)):
        own, graphs = base ** (-2 * i / dims) / a, base ** (-2 * i / dims) / b
        phase, share = max(phase, abs(own - graphs)), max(share, abs(own - graphs) / own)
    if share < _SAME:
        return None
    return Rounding(
        phase=phase, share=share, model=yarn_range(model.rope, base, dims), graph=yarn_range(computed, base, dims)
    )

