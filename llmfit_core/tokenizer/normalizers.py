"""What a `tokenizer.json` does to text before it cuts it, and what of that llama.cpp does too."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field

from llmfit_core.errors import SourceError, UnsupportedError
from llmfit_core.events import Event
from llmfit_core.tokenizer.pretokenizer import flatten

_SPACE = "\u2581"
_UNICODE = ("NFC", "NFD", "NFKC", "NFKD")


@dataclass
class Normalizer:
    """A normalizer in the terms of SentencePiece.

    Attributes:
        prefix: Whether a U+2581 goes in front.
        escape: Whether spaces become U+2581.
        squeeze: Whether runs of spaces shrink to one.
        strip: Whether white space at both ends goes.
        charsmap: A precompiled map, decoded.
        form: The Unicode normal form, or empty.
        others: Steps that have no place above, in words.
    """

    prefix: bool = False
    escape: bool = False
    squeeze: bool = False
    strip: bool = False
    charsmap: bytes = b""
    form: str = ""
    others: list[str] = field(default_factory=list)


def read_normalizer(node: object) -> Normalizer:
    """The normalizer of a `tokenizer.json`; raises `SourceError`."""
    found = Normalizer()
    for part in flatten(node, "normalizers"):
        kind = str(part["type"])
        if kind in _UNICODE:
            found.form = kind
        elif kind == "Prepend" and part.get("prepend") == _SPACE:
            found.prefix = True
        elif kind == "Replace":
            _replace(part, found)
        elif kind == "Strip":
            found.strip = bool(
                part.get("strip_left") or part.get("left") or part.get("strip_right") or part.get("right")
            )
        elif kind == "Precompiled":
            found.charsmap = _charsmap(part.get("precompiled_charsmap"))
        else:
            found.others.append(kind)
    return found


def _replace(part: Mapping[str, object], found: Normalizer) -> None:
    pattern = part.get("pattern")
    pattern = pattern if isinstance(pattern, Mapping) else {}
    text, regex, content = pattern.get("String"), pattern.get("Regex"), part.get("content")
    if (text == " " or regex == " ") and content == _SPACE:
        found.escape = True
    elif regex in (" {2,}", " +", "\\s{2,}", "\\s+") and content in (" ", _SPACE):
        found.squeeze = True
    else:
        found.others.append(f"Replace {text if text is not None else regex!r} by {content!r}")


def _charsmap(value: object) -> bytes:
    if value is None:
        return b""
    try:
        return base64.b64decode(str(value), validate=True)
    except (binascii.Error, ValueError):
        raise SourceError(
            "bad-tokenizer", "tokenizer.json: precompiled_charsmap is no base64", "Get the file anew."
        ) from None


def form_events(form: str) -> list[Event]:
    """Events for a Unicode normal form, which llama.cpp applies to none of its BPE models."""
    if not form:
        return []
    return [
        Event(
            code="normalizer",
            message=f"the tokenizer brings text to Unicode {form} first, llama.cpp does not: exact for text that is in {form}",
            severity="bound" if form == "NFC" else "warning",
            subject="tokenizer.json",
        )
    ]


def sentencepiece_events(name: str, *, mapped: bool, squeezed: bool, where: str) -> list[Event]:
    """Events for SentencePiece's normalization under a BPE model, which llama.cpp gives none.

    Args:
        name: The rule's name, where known.
        mapped: Whether characters are mapped (`nmt_nfkc` and the like).
        squeezed: Whether runs of spaces shrink or ends are trimmed.
        where: The file.
    """
    events: list[Event] = []
    if mapped:
        by = name or "a map of characters"
        events.append(
            Event(
                code="normalizer-map",
                message=f"the tokenizer normalizes text by {by}, llama.cpp does not",
                subject=where,
            )
        )
    if squeezed:
        events.append(
            Event(
                code="normalizer-spaces",
                message="the tokenizer shrinks runs of spaces or trims text, llama.cpp does not",
                subject=where,
            )
        )
    return events


def refuse_others(others: list[str], overridden: bool) -> list[Event]:
    """Raise `UnsupportedError` for normalizer steps that change ordinary text, or events under an override."""
    if others and not overridden:
        raise UnsupportedError(
            "unknown-normalizer",
            f"tokenizer.json: the normalizer has steps that llama.cpp lacks: {', '.join(others)[:200]}",
            "Ids of ordinary text would differ; if you know that they do not, name the pre-tokenizer with --pre.",
        )
    return [
        Event(code="normalizer", message=f"llama.cpp leaves out the normalizer's {step}", subject="tokenizer.json")
        for step in others
    ]
