"""`Model`: a checkpoint that is understood."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llmfit_core.architecture import Architecture
    from llmfit_core.checkpoint import Checkpoint
    from llmfit_core.events import Event
    from llmfit_core.rope import Rope
    from llmfit_core.tensors import Tensor, TensorRef
    from llmfit_core.tokenizer.vocab import Vocab


@dataclass(frozen=True)
class Key:
    """Where a tensor belongs: its role, its layer (`None` for the whole model) and its part."""

    role: str
    layer: int | None = None
    part: str = "weight"


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """What became of everything in the source: nothing is dropped silently.

    Attributes:
        claimed: Source tensors in use.
        waived: Source tensors that are not needed, with the reason.
        consumed: Config keys that were read, with the hparam each became.
        asserted: Config keys whose value was checked.
        ignored: Config keys known to be irrelevant.
        unknown: Config keys nobody knows.
        evidence: How the architecture was recognised (`class`, `model_type`, `tensor names`).
    """

    claimed: tuple[str, ...]
    waived: Mapping[str, str]
    consumed: Mapping[str, str]
    asserted: tuple[str, ...]
    ignored: tuple[str, ...]
    unknown: tuple[str, ...]
    evidence: str


@dataclass(frozen=True, kw_only=True)
class Model:
    """An understood checkpoint.

    Attributes:
        architecture: Its table.
        plugin: Who stated the table, `distribution version`.
        hparams: See `llmfit_core.architecture.Hparams`.
        rope: Its rotary embedding.
        refs: The source's tensors with their roles, as stored, under their (unwrapped) names.
        tensors: The same by meaning: fused tensors apart, experts stacked, every matrix `[out, in]`,
            norms as they multiply. In layer order.
        checkpoint: Where it comes from.
        vocab: Its tokenizer, or `None` where the folder has none.
        name: What to call it; leaks no folder name.
        ledger: What became of everything.
        events: What was noticed.
        same_head: Whether a stored head equals the embedding it is declared tied to; `None` while unknown.
    """

    architecture: Architecture
    plugin: str
    hparams: Mapping[str, object]
    rope: Rope
    refs: tuple[TensorRef, ...]
    tensors: Mapping[Key, Tensor]
    checkpoint: Checkpoint
    vocab: Vocab | None
    name: str
    ledger: Ledger
    events: tuple[Event, ...] = field(default=())
    same_head: bool | None = None

    def integer(self, hparam: str, default: int = 0) -> int:
        """An hparam as an integer."""
        value = self.hparams.get(hparam)
        return default if value is None else int(value)  # type: ignore[call-overload]

    @property
    def layers(self) -> int:
        """How many decoder layers."""
        return self.integer("block_count")
