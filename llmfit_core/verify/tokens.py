"""The proof of tokens: the written file, loaded by its runtime, gives the ids that the reference library gives."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from llmfit_core.errors import VerificationError
from llmfit_core.events import Event
from llmfit_core.tokenizer.proof import proof_texts, reference_ids

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llmfit_core.model import Model
    from llmfit_core.plugins import PluginRegistry
    from llmfit_core.runtime import Runtime


def prove_tokens(
    model: Model, path: Path, format: str, registry: PluginRegistry
) -> tuple[dict[str, object], tuple[Event, ...]]:
    """Compare token ids on the proof texts.

    Args:
        model: The source, as understood.
        path: The written file; its first part where there are several.
        format: The exporter's name.
        registry: To find a runtime of that format that can tokenize.

    Returns:
        What was proven, for the manifest, and an event where nothing could be.

    Raises:
        VerificationError: `tokens-differ`, with the text and the first ids that differ.
    """
    runtime = tokenizing_runtime(format, registry)
    if model.vocab is None or runtime is None or runtime.tokenize is None:
        why = "the model has no tokenizer" if model.vocab is None else f"no runtime for {format} is installed here"
        event = Event(code="tokens-not-proven", message=f"token ids were not proven: {why}", severity="info")
        return {"tokens": False}, (event,)
    texts = proof_texts(model.vocab)
    expected = _reference(model, texts)
    found = runtime.tokenize(path, texts, False)
    for text, want, have in zip(texts, expected, found, strict=True):
        if list(want) != list(have):
            at = next((i for i, (a, b) in enumerate(zip(want, have, strict=False)) if a != b), min(len(want), len(have)))
            raise VerificationError(
                "tokens-differ",
                f"{runtime.name} reads {text[:40]!r} as other tokens from the {at + 1}th on: {have[at : at + 4]} for "
                f"{want[at : at + 4]}",
                "Name the right pre-tokenizer with --pre, or report this tokenizer.",
            )
    return {"tokens": True, "runtime": runtime.name, "texts": len(texts)}, ()


def tokenizing_runtime(format: str, registry: PluginRegistry) -> Runtime | None:
    """The first installed runtime of a format that can tokenize."""
    for provided in registry.runtimes():
        runtime = provided.value
        if format in runtime.formats and runtime.tokenize is not None and runtime.probe().available:
            return runtime
    return None


def _reference(model: Model, texts: Sequence[str]) -> list[list[int]]:
    """Ids by the `tokenizers` or `sentencepiece` library from the source's files, or from files rebuilt from a GGUF's keys."""
    if model.checkpoint.gguf is None:
        return reference_ids(model.checkpoint.side, texts)
    from llmfit_core.tokenizer.write import vocab_files

    assert model.vocab is not None
    with tempfile.TemporaryDirectory() as folder:
        side = {}
        for name, data in vocab_files(model.vocab).items():
            side[name] = Path(folder, name)
            side[name].parent.mkdir(parents=True, exist_ok=True)
            side[name].write_bytes(data)
        return reference_ids(side, texts)
