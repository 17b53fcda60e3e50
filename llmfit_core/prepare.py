"""From what the user named to a `Model`: open, decode, recognise, read the tokenizer, resolve."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from llmfit_core.checkpoint import Checkpoint, open_checkpoint
from llmfit_core.errors import LlmfitError, UnsupportedError
from llmfit_core.foreign import is_known, refusal, refuse_undecoded, stated
from llmfit_core.pooling import POOLINGS, Pooling, read_pooling
from llmfit_core.recognise import recognise, screen
from llmfit_core.resolve import resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from llmfit_core.architecture import Architecture
    from llmfit_core.config import Config
    from llmfit_core.model import Model
    from llmfit_core.plugins import PluginRegistry
    from llmfit_core.tokenizer.vocab import Vocab

_BY_FOREIGN_WEIGHTS = ("unsafe-pickle", "bad-pickle", "not-a-state-dict", "unknown-dtype", "no-weights", "remote-pickle")
"""What opening weights fails of where their tensors are of a kind of their own."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A model, and the names of the decoders and plugins that had a part in it."""

    model: Model
    decoders: tuple[str, ...]
    plugins: dict[str, str]


def prepare(
    source: str | Path,
    registry: PluginRegistry,
    *,
    pre: str | None = None,
    weights: bool = False,
    same_head: bool | None = None,
    on_known: Callable[[Checkpoint], None] | None = None,
) -> Prepared:
    """Understand a source without reading a weight.

    Args:
        source: A folder, a `.gguf` file or a hub id.
        registry: The plugins.
        pre: Override of the pre-tokenizer's name.
        weights: Download the weights of a hub id.
        same_head: The answer to the data check of that name, once known.
        on_known: Told the checkpoint as soon as its architecture is known, before its tokenizer is read.

    Raises:
        SourceError, UnsupportedError, PluginError: See `docs/reference/errors.md`.
    """
    provided = registry.architectures()
    architectures = [p.value for p in provided]
    checkpoint = _open(source, registry, architectures, weights)
    registry.require_decided((*checkpoint.config.architectures, checkpoint.config.model_type))
    plugins: dict[str, str] = {}
    decoders = []
    for decoder in registry.decoders():
        if decoder.value.detects(checkpoint):
            chosen = registry.decoder(decoder.value.name)
            checkpoint = chosen.value.decode(checkpoint, architectures)
            decoders.append(chosen.value.name)
            plugins[f"decoder {chosen.value.name}"] = f"{chosen.plugin.distribution} {chosen.plugin.version}"
    if checkpoint.gguf is not None and not decoders:
        raise registry.missing("decoder", "gguf", [d.value.name for d in registry.decoders()])
    if not decoders:
        refuse_undecoded(checkpoint, [d.value.name for d in registry.decoders()])
    architecture, evidence, noticed = recognise(checkpoint, architectures)
    owner = registry.architecture(architecture.name)
    plugins[f"architecture {architecture.name}"] = f"{owner.plugin.distribution} {owner.plugin.version}"
    if on_known is not None:
        on_known(checkpoint)
    vocab = _vocab(checkpoint, registry, pre)
    model = resolve(
        checkpoint,
        owner.value,
        plugin=plugins[f"architecture {architecture.name}"],
        evidence=evidence,
        vocab=vocab,
        name=model_name(checkpoint, owner.value),
        same_head=same_head,
    )
    if model.vocab is not None:
        from llmfit_core.tokenizer.fit import fit_vocab

        rows = model.integer("vocab_rows")
        stated = checkpoint.config.values.get("vocab_size")
        fitted = fit_vocab(model.vocab, rows, stated if isinstance(stated, int) else None)
        model = replace(model, vocab=fitted)
    pooling = read_pooling(checkpoint.side) if not checkpoint.pooling else Pooling(checkpoint.pooling)
    if pooling.name and "pooling_type" not in model.hparams:
        model = replace(model, hparams={**model.hparams, "pooling_type": POOLINGS[pooling.name]})
    events = (*noticed, *model.events, *pooling.events)
    return Prepared(model=replace(model, events=events), decoders=tuple(decoders), plugins=plugins)


def _screen(config: Config, label: str, registry: PluginRegistry, architectures: Sequence[Architecture]) -> None:
    """Refuse by the config alone what nobody here knows, and tell of a plugin that would, had it loaded."""
    registry.require_decided((*config.architectures, *config.outer_classes, config.model_type))
    try:
        screen(config, label, architectures)
    except UnsupportedError as error:
        if error.code == "unknown-architecture" and config.architectures:
            hint = registry.missing("class", config.architectures[0], [])
            if "failed" in hint.remedy or "failed" in hint.cause or "LLMFIT_PLUGINS" in hint.remedy:
                raise UnsupportedError(error.code, error.cause, hint.remedy) from error
        raise


def _vocab(checkpoint: Checkpoint, registry: PluginRegistry, pre: str | None) -> Vocab | None:
    if checkpoint.vocab is not None:
        if pre:
            return replace(checkpoint.vocab, pre=pre)
        return checkpoint.vocab
    for reader in registry.tokenizers():
        if reader.value.detects(checkpoint.side, checkpoint.config.values):
            return reader.value.read(checkpoint.side, checkpoint.config.values)
    names = {"tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt"}
    if not names & set(checkpoint.side):
        return None
    from llmfit_core.tokenizer.read import read_vocab

    return read_vocab(checkpoint.side, checkpoint.config.values, pre=pre)


def _open(source: str | Path, registry: PluginRegistry, architectures: Sequence[Architecture], weights: bool) -> Checkpoint:
    """Open the source; where its weights cannot even be opened and it states a foreign quantization, that is the cause."""
    seen: list[Config] = []

    def look(config: Config) -> None:
        seen.append(config)
        _screen(config, str(source), registry, architectures)

    try:
        return open_checkpoint(source, weights=weights, screen=look)
    except LlmfitError as error:
        said = stated(seen[-1], {}) if seen and error.code in _BY_FOREIGN_WEIGHTS else None
        decoders = [d.value.name for d in registry.decoders()]
        if said is None or said.method in decoders or not is_known(said):
            raise
        raise refusal(str(source), said, decoders) from error


def model_name(checkpoint: Checkpoint, architecture: Architecture) -> str:
    """What to call the model, leaking neither folder nor commit.

    A repo id, a GGUF file's own name, `_name_or_path` where it is an id or a plain name and no path, or the class.
    """
    if checkpoint.repo:
        return checkpoint.repo.rsplit("/", 1)[-1]
    if checkpoint.gguf is not None:
        name = checkpoint.gguf.kv.get("general.name")
        if name is not None and isinstance(name.value, str) and name.value:
            return name.value
    path = checkpoint.config.raw.get("_name_or_path")
    if isinstance(path, str) and re.fullmatch(r"([A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w. -]*", path):
        return path.rsplit("/", 1)[-1]
    return architecture.name
