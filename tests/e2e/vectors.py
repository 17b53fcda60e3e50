"""Vectors of texts by transformers and by llama.cpp."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Rows = NDArray[np.float64]

LENGTHS = (1, 56)


@cache
def reference(model: Path) -> Any:
    """The base model in transformers: float32, eager attention."""
    import torch
    import transformers

    torch.set_num_threads(2)
    loaded = transformers.AutoModel.from_pretrained(model, dtype=torch.float32, attn_implementation="eager")
    return loaded.eval()


def by_transformers(model: Path, ids: Sequence[int]) -> Rows:
    """A vector for each token."""
    import torch

    with torch.inference_mode():
        rows: Rows = reference(model)(torch.tensor([list(ids)])).last_hidden_state[0].double().numpy()
    return rows


def by_llamacpp(path: Path, ids: Sequence[int], pooling: str = "none") -> Rows:
    """The same from a GGUF file, or what is made of them."""
    from llmfit_core.runtime import LaunchOptions
    from llmfit_llamacpp import LLAMACPP

    assert LLAMACPP.embed is not None
    return np.array(LLAMACPP.embed(path, list(ids), LaunchOptions(threads=2, pooling=pooling)))


def some_ids(model: Path, length: int, seed: int = 1) -> list[int]:
    """Random ids that are no special tokens."""
    size = reference(model).config.vocab_size
    return [int(i) for i in np.random.default_rng(seed).integers(5, size - 1, length)]


def apart(a: Rows, b: Rows) -> float:
    """One minus the smallest cosine."""
    lengths = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    return float(1 - ((a * b).sum(-1) / lengths).min())


def same_vectors(
    model: Path,
    path: Path,
    *,
    within: float = 1e-6,
    most: float = 5e-3,
    lengths: Sequence[int] = LENGTHS,
    poolings: Sequence[str] = ("mean",),
) -> None:
    """Hold all tokens' vectors, and those made of them, against transformers'."""
    for length in lengths:
        ids = some_ids(model, length)
        want = by_transformers(model, ids)
        have = by_llamacpp(path, ids)
        assert have.shape == want.shape
        assert np.abs(have - want).max() < most, length
        assert apart(have, want) < within, length
    for pooling in poolings:
        pooled = {"mean": want.mean(0), "cls": want[0], "last": want[-1]}[pooling]
        assert apart(by_llamacpp(path, ids, pooling)[0], pooled) < within, pooling
