"""sentence-transformers: how the vectors of a text's tokens become the one of the text, told by files beside the model.

`modules.json` lists the modules in order; the pooling one has a `config.json` in a folder of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmfit_core.errors import SourceError
from llmfit_core.events import Event
from llmfit_core.tokenizer.sources import read_json, read_object

POOLINGS: dict[str, int] = {"none": 0, "mean": 1, "cls": 2, "last": 3, "rank": 4}
"""llama.cpp's numbers for them (`pooling_type`); `rank` goes through a classifier."""


_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean by the root of the length",
    "pooling_mode_weightedmean_tokens": "weighted mean",
    "pooling_mode_lasttoken": "last",
}
_NAMES = {"lasttoken": "last"}
_HARMLESS = ("Transformer", "Pooling", "Normalize")


@dataclass(frozen=True)
class Pooling:
    """What the files say: one of `POOLINGS` or empty, and what was noticed."""

    name: str = ""
    events: tuple[Event, ...] = ()


def read_pooling(side: Mapping[str, Path]) -> Pooling:
    """The pooling that sentence-transformers does with a folder; nothing where it has no `modules.json`.

    Raises:
        SourceError: Files are damaged.
    """
    if "modules.json" not in side:
        return Pooling()
    modules = read_json(side["modules.json"])
    if not isinstance(modules, list) or not all(isinstance(m, dict) for m in modules):
        raise SourceError("bad-json", "modules.json: no list of modules", "Get the file anew.")
    events: list[Event] = []
    name = ""
    for module in modules:
        kind = str(module.get("type") or "").rpartition(".")[2]
        if kind == "Pooling":
            name, said = _pooled(side, f"{module.get('path') or ''}/config.json")
            events += said
        elif kind not in _HARMLESS:
            message = f"the module {kind} of modules.json comes behind the model and is left out; its vectors differ without it"
            events.append(Event(code="module-left-out", message=message, subject="modules.json"))
    return Pooling(name, tuple(events))


def _pooled(side: Mapping[str, Path], place: str) -> tuple[str, list[Event]]:
    if place not in side:
        raise SourceError("missing-file", f"modules.json names {place}, which is not there", "Fetch it into the folder.")
    settings = read_object(side, place)
    stated = settings.get("pooling_mode")
    names = [_NAMES.get(n, n) for n in (stated if isinstance(stated, list) else [stated]) if isinstance(n, str)]
    names = names or [name for key, name in _MODES.items() if settings.get(key)]
    events = []
    if settings.get("include_prompt") is False:
        message = f"{place} leaves the prompt's tokens out of the pooling, runtimes count them"
        events.append(Event(code="prompt-pooled", message=message, severity="bound", subject=place))
    if len(names) == 1 and names[0] in ("mean", "cls", "last"):
        return names[0], events
    how = " and ".join(names) or "nothing that is known"
    message = f"{place} pools by {how}; runtimes pool by mean, first or last token: the file says nothing, and gives one vector a token"
    return "", [*events, Event(code="pooling-left-out", message=message, subject=place)]


def pooling_files(name: str, width: int) -> dict[str, bytes]:
    """The files that say so to sentence-transformers; none where there is no pooling, or one by a classifier."""
    if name not in ("mean", "cls", "last"):
        return {}
    kinds = ("Transformer", "Pooling")
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    modes = {key: mode == name for key, mode in _MODES.items()}
    settings: dict[str, Any] = {"word_embedding_dimension": width, **modes, "include_prompt": True}
    return {"modules.json": _json(modules), "1_Pooling/config.json": _json(settings)}


def is_pooled(path: Path) -> bool:
    """Whether a GGUF file says how to make one vector of a text's."""
    return bool(_value(path, "pooling_type"))


def sees_backwards_alone(path: Path) -> bool:
    """Whether in a GGUF file's model each token sees only those before it, so that it can generate."""
    return _value(path, "attention.causal") is not False


def _value(path: Path, key: str) -> object:
    from llmfit_core.readers.gguf import read_gguf

    kv = read_gguf(path).kv
    graph = kv.get("general.architecture")
    found = kv.get(f"{graph.value}.{key}") if graph is not None else None
    return None if found is None else found.value


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()
