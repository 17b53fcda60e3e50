"""Models saved without their head, by transformers' bare classes: the same files as with it, and told."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.e2e.test_golden import tensors_of
from tests.expert_forms import load, save

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from llmfit_core.events import Event


@pytest.mark.parametrize(
    ("family", "bare", "prefix"),
    [
        ("gpt2", "GPT2Model", "transformer."),
        ("gptneox", "GPTNeoXModel", "gpt_neox."),
        ("bloom", "BloomModel", "transformer."),
        ("starcoder2", "Starcoder2Model", "model."),
    ],
)
def test_a_tied_model_saved_without_its_head(
    family: str,
    bare: str,
    prefix: str,
    variation: Callable[..., Path],
    to_gguf: Callable[..., tuple[Path, tuple[Event, ...]]],
    tmp_path: Path,
) -> None:
    whole = variation(family, {"tie_word_embeddings": True})
    tensors = {n.removeprefix(prefix): t for n, t in load(whole).items() if n.startswith(prefix)}
    alone = save(whole, tensors, tmp_path / "alone")
    config = json.loads((alone / "config.json").read_text(encoding="utf-8")) | {"architectures": [bare]}
    (alone / "config.json").write_text(json.dumps(config), encoding="utf-8")
    file, events = to_gguf(alone, "bf16", name="alone")
    assert tensors_of(file) == tensors_of(to_gguf(whole, "bf16", name="whole")[0])
    assert {"class-without-head", "prefix-normalised"} <= {e.code for e in events}
