"""Layers that slide and layers that see everything: their kinds by a config's words and by llama.cpp's keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from llmfit_core import SourceError
from llmfit_open.common import kinds_of_layer, wrong

FULL, SLIDING = "full_attention", "sliding_attention"
WINDOW: Final = "attention.sliding_window"
PATTERN: Final = "attention.sliding_window_pattern"
ENDLESS: Final = 1 << 22
"""Tokens of a window that nothing leaves; few enough that llama.cpp multiplies them by its sequences without overflow."""


def kinds_by(pattern: object, layers: int) -> tuple[str, ...]:
    """The layers' kinds by llama.cpp's rule: a flag for each layer, or every n-th (0: none) sees everything.

    Raises:
        SourceError: `gguf-key-type` for anything else.
    """
    if isinstance(pattern, (list, tuple)) and len(pattern) == layers and all(f in (0, 1) for f in pattern):
        return tuple(SLIDING if flag else FULL for flag in pattern)
    if isinstance(pattern, int) and not isinstance(pattern, bool) and pattern >= 0:
        return tuple(SLIDING if not pattern or (i + 1) % pattern else FULL for i in range(layers))
    raise SourceError(
        "gguf-key-type",
        f"{PATTERN} is {pattern!r:.80}, neither a number nor a flag for each of {layers} layers",
        "The file is damaged.",
    )


def pattern_of(kinds: Sequence[str], usual: int) -> list[bool] | None:
    """A flag for each layer, or nothing where every `usual`-th sees everything, as the loader takes it."""
    return None if tuple(kinds) == kinds_by(usual, len(kinds)) else [k == SLIDING for k in kinds]


def kinds_or_every(hparams: Mapping[str, Any], usual: int) -> tuple[str, ...]:
    """Each layer's kind, as written down or with every n-th that sees everything.

    Raises:
        UnsupportedError: `config-value`, for kinds that nobody knows, and for a window that is missing.
    """
    every = hparams.get("window_every", usual)
    found = kinds_of_layer(hparams)
    if found is None and not every:
        raise wrong("sliding_window_pattern in config.json is 0")
    found = found or kinds_by(every, hparams["block_count"])
    if SLIDING in found and not hparams.get(WINDOW):
        raise wrong(f"sliding_window in config.json is {hparams.get(WINDOW)!r}, and {found.count(SLIDING)} layers need one")
    return found
