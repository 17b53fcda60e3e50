"""The proof of tokens: the file's vocabulary, loaded by its runtime, gives the ids that the reference library gives.

It needs the file's head and no weight, so it comes before the work: a tokenizer that no runtime reads rightly is known
in a second and not after an hour.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from llmfit_core.errors import LaunchError, SourceError, UnsupportedError, VerificationError
from llmfit_core.events import Event
from llmfit_core.tokenizer.proof import explained_difference, proof_texts, reference_ids

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llmfit_core.model import Model
    from llmfit_core.plan import Plan
    from llmfit_core.plugins import PluginRegistry
    from llmfit_core.runtime import Runtime


def prove_plan(plan: Plan, runtime: Runtime | None) -> tuple[dict[str, object], tuple[Event, ...]]:
    """`prove_tokens` of a planned file, by a stand-in: its heads, and nothing where its tensors will be."""
    with tempfile.TemporaryDirectory(prefix="llmfit-") as folder:
        for file in plan.files:
            with open(Path(folder, file.name), "wb") as stand_in:
                stand_in.write(file.head)
                stand_in.truncate(file.size)
        return prove_tokens(plan.model, Path(folder, plan.files[0].name), runtime, force=plan.recipe.force)


def prove_tokens(
    model: Model, path: Path, runtime: Runtime | None, *, force: bool = False
) -> tuple[dict[str, object], tuple[Event, ...]]:
    """Compare token ids on the proof texts.

    Args:
        model: The source, as understood.
        path: A file with its vocabulary; the first part where there are several.
        runtime: One that can tokenize, if there is one.
        force: Tell a difference instead of raising.

    Returns:
        What was proven, for the manifest, and events where nothing could be or where the runtime is known to differ.

    Raises:
        VerificationError: `tokens-differ`, with the text and the first ids that differ; `vocabulary-refused`.
    """
    if model.vocab is None or runtime is None or runtime.tokenize is None:
        return _unproven("the model has no tokenizer" if model.vocab is None else "no runtime for it is installed here")
    texts = proof_texts(model.vocab)
    try:
        expected = _reference(model, texts)
    except UnsupportedError as error:
        if error.code not in ("missing-library", "no-judge"):  # the file may be right all the same
            raise
        return _unproven(error.cause)
    try:
        found = runtime.tokenize(path, texts, False)
    except (LaunchError, UnsupportedError) as error:  # the runtime here is broken or too old; the file may be right
        return _unproven(error.cause)
    except SourceError as error:
        raise VerificationError(
            "vocabulary-refused", f"{runtime.name} refuses the vocabulary: {error.cause}", error.remedy
        ) from error
    known: dict[str, str] = {}
    for text, want, have in zip(texts, expected, found, strict=True):
        if list(want) == list(have):
            continue
        why = explained_difference(model.vocab, text)
        if not why and not force:
            raise _difference(runtime.name, text, want, have)
        known.setdefault(why or "forced", text)
    events = tuple(
        Event(code="tokens-known-difference", message=f"{runtime.name} reads {text[:40]!r} otherwise: {why}", severity="bound")
        for why, text in known.items()
    )
    return {"tokens": True, "runtime": runtime.name, "texts": len(texts), "known_differences": len(known)}, events


def _difference(name: str, text: str, want: Sequence[int], have: Sequence[int]) -> VerificationError:
    at = next((i for i, (a, b) in enumerate(zip(want, have, strict=False)) if a != b), min(len(want), len(have)))
    return VerificationError(
        "tokens-differ",
        f"{name} reads {text[:40]!r} as other tokens from number {at + 1} on: {list(have[at : at + 4])} for "
        f"{list(want[at : at + 4])}",
        "Name the right pre-tokenizer with --pre, or report this tokenizer.",
    )


def _unproven(why: str) -> tuple[dict[str, object], tuple[Event, ...]]:
    event = Event(code="tokens-not-proven", message=f"token ids were not proven: {why}", severity="info")
    return {"tokens": False}, (event,)


def tokenizing_runtime(format: str, registry: PluginRegistry, engine: str = "") -> Runtime | None:
    """The first installed runtime of a format that can tokenize, and that has this engine's graphs, where one is named."""
    for provided in registry.runtimes():
        runtime = provided.value
        if engine and runtime.engine and runtime.engine != engine:
            continue
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
