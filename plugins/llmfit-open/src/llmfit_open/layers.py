"""Layers that slide and layers that see everything: their kinds by a config's words and by llama.cpp's keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from llmfit_core import SLIDING_ATTENTION, kinds_by_pattern
from llmfit_open.common import kinds_of_layer, wrong

WINDOW: Final = "attention.sliding_window"


def pattern_of(kinds: Sequence[str], usual: int) -> list[bool] | None:
    """A flag for each layer, or nothing where every `usual`-th sees everything, as the loader takes it."""
    return None if tuple(kinds) == kinds_by_pattern(usual, len(kinds)) else [k == SLIDING_ATTENTION for k in kinds]


def kinds_or_every(hparams: Mapping[str, Any], usual: int) -> tuple[str, ...]:
    """Each layer's kind, as written down or with every n-th that sees everything.

    Raises:
        UnsupportedError: `config-value`, for kinds that nobody knows, and for a window that is missing.
    """
    every = hparams.get("window_every", usual)
    found = kinds_of_layer(hparams)
    if found is None and not every:
        raise wrong("sliding_window_pattern in config.json is 0")
    found = found or kinds_by_pattern(every, hparams["block_count"])
    if SLIDING_ATTENTION in found and not hparams.get(WINDOW):
        raise wrong(f"sliding_window in config.json is {hparams.get(WINDOW)!r}, and {found.count(SLIDING_ATTENTION)} layers need one")
    return found
