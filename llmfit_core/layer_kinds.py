"""Layers that see a window and layers that see everything, by a config's words and by GGUF's key."""

from __future__ import annotations

from typing import Final

from llmfit_core.errors import SourceError

FULL_ATTENTION: Final = "full_attention"
SLIDING_ATTENTION: Final = "sliding_attention"
WINDOW_PATTERN: Final = "attention.sliding_window_pattern"
"""GGUF's key for `kinds_by_pattern`."""
ENDLESS_WINDOW: Final = 1 << 22
"""Tokens of a window that nothing leaves; few enough that llama.cpp multiplies them by its sequences without overflow."""


def kinds_by_pattern(pattern: object, layers: int) -> tuple[str, ...]:
    """Each layer's kind by llama.cpp's rule (`load_swa_pattern`).

    Args:
        pattern: A flag for each layer (true: it slides), or n: every n-th layer sees everything (0: none does).
        layers: How many there are.

    Raises:
        SourceError: `gguf-key-type` for anything else.
    """
    if isinstance(pattern, (list, tuple)) and len(pattern) == layers and all(f in (0, 1) for f in pattern):
        return tuple(SLIDING_ATTENTION if flag else FULL_ATTENTION for flag in pattern)
    if isinstance(pattern, int) and not isinstance(pattern, bool) and pattern >= 0:
        return tuple(SLIDING_ATTENTION if not pattern or (i + 1) % pattern else FULL_ATTENTION for i in range(layers))
    raise SourceError(
        "gguf-key-type",
        f"{WINDOW_PATTERN} is {pattern!r:.80}, neither a number nor a flag for each of {layers} layers",
        "The file is damaged.",
    )
