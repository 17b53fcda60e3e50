"""Log-probabilities by transformers and by llama.cpp, and how far apart they are."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

POSITIONS = range(33, 57)
"""Prefix lengths that are compared: beyond every window and original context of the tiny models."""


def ids_of(model: Path) -> list[int]:
    """The 56 fixed token ids of a tiny model."""
    found: list[int] = json.loads((model / "golden.json").read_text(encoding="utf-8"))["ids"]
    return found


@cache
def reference(model: Path) -> Any:
    """The model in transformers: float32, eager attention."""
    import torch
    import transformers

    torch.set_num_threads(2)
    loaded, said = transformers.AutoModelForCausalLM.from_pretrained(
        model, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not any(said[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys")), said
    return loaded.eval()


def by_transformers(model: Path, ids: Sequence[int], positions: Sequence[int] = POSITIONS) -> NDArray[np.float64]:
    """Log-probabilities after each prefix, each prefix on its own, as a rope that looks at the length wants it."""
    import torch

    kind = json.loads((model / "config.json").read_text(encoding="utf-8"))
    kind = kind.get("rope_parameters") or kind.get("rope_scaling") or {}
    by_length = kind.get("rope_type", kind.get("type")) in ("longrope", "dynamic", "su")
    rows = []
    with torch.inference_mode():
        net = reference(model)
        if by_length:
            rows = [net(torch.tensor([list(ids[:n])])).logits[0, -1] for n in positions]
        else:
            every = net(torch.tensor([list(ids)])).logits[0]
            rows = [every[n - 1] for n in positions]
        return torch.stack(rows).double().log_softmax(-1).numpy()


def by_llamacpp(
    path: Path, ids: Sequence[int], positions: Sequence[int] = POSITIONS, *, context: int = 256
) -> NDArray[np.float64]:
    """The same from a GGUF file in llama.cpp."""
    from llmfit_core.runtime import LaunchOptions
    from llmfit_llamacpp import LLAMACPP

    assert LLAMACPP.score is not None
    rows = LLAMACPP.score(path, list(ids)[: max(positions)], LaunchOptions(context=context, threads=2))
    return np.array([rows[n - 1] for n in positions], dtype=np.float64)


def divergence(p: NDArray[np.float64], q: NDArray[np.float64]) -> NDArray[np.float64]:
    """Kullback-Leibler divergence of `q` from `p` by position, in nats."""
    result: NDArray[np.float64] = (np.exp(p) * (p - q)).sum(-1)
    return result
