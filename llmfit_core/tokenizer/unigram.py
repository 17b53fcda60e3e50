"""Unigram from `tokenizer.json`, and SentencePiece's `tokenizer.model` of either kind."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from llmfit_core.errors import SourceError, UnsupportedError
from llmfit_core.events import Event
from llmfit_core.tokenizer import normalizers
from llmfit_core.tokenizer.bpe_json import read_spaces, require_bytes
from llmfit_core.tokenizer.draft import Draft
from llmfit_core.tokenizer.pieces import (
    ADDED_SCORE,
    Added,
    Pieces,
    flag_events,
    lay_added,
    require_distinct,
    spacing_event,
)
from llmfit_core.tokenizer.sentencepiece_model import (
    BPE,
    BYTE,
    CONTROL,
    UNIGRAM,
    UNKNOWN,
    USER_DEFINED,
    SentencePieceModel,
)
from llmfit_core.tokenizer.sources import integer, object_at
from llmfit_core.tokenizer.vocab import TokenType

_FILE = "tokenizer.json"
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")


def read_unigram(data: Mapping[str, object], added: list[Added], *, pre: str | None) -> Draft:
    """A `t5` vocabulary (llama.cpp's Unigram) from a parsed `tokenizer.json`.

    Raises:
        SourceError: The file is damaged.
        UnsupportedError: The text is cut or normalized in ways that llama.cpp lacks.
    """
    model = object_at(data, "model", _FILE)
    vocab = model.get("vocab")
    if not isinstance(vocab, list) or not vocab:
        raise SourceError(
            "bad-tokenizer", f"{_FILE}: `vocab` of a Unigram model is no list or empty", "Get the file anew."
        )
    pieces = Pieces()
    for at, item in enumerate(vocab):
        good = isinstance(item, list) and len(item) == 2 and isinstance(item[0], str)
        score = item[1] if good else None
        if not isinstance(score, int | float) or isinstance(score, bool) or not math.isfinite(score):
            raise SourceError("bad-tokenizer", f"{_FILE}: piece {at} is no text with a score", "Get the file anew.")
        pieces.texts.append(item[0])
        pieces.scores.append(float(score))
        pieces.types.append(TokenType.BYTE if _BYTE.fullmatch(item[0]) else TokenType.NORMAL)
    unk = integer(model.get("unk_id"))
    if unk is not None and not 0 <= unk < len(pieces.texts):
        raise SourceError("bad-tokenizer", f"{_FILE}: unk_id {unk} is no piece", "Get the file anew.")
    if unk is not None:
        pieces.types[unk] = TokenType.UNKNOWN
    if not model.get("byte_fallback"):
        pieces.types = [TokenType.NORMAL if k == TokenType.BYTE else k for k in pieces.types]
    lay_added(pieces, added, _FILE, escaped=True, base=len(vocab))
    rules = normalizers.read_normalizer(data.get("normalizer"))
    spaces = read_spaces(data, rules)
    if not spaces.escape:
        raise UnsupportedError(
            "unsupported-unigram",
            f"{_FILE}: a Unigram model that does not write spaces as U+2581",
            "llama.cpp has no such tokenizer.",
        )
    pieces.events += normalizers.form_events(rules.form) + normalizers.refuse_others(
        list(rules.others), pre is not None
    )
    pieces.events += spaces.events(pieces) + flag_events(added, _FILE, prefixed=rules.prefix)
    if model.get("byte_fallback"):
        pieces.events.append(_no_bytes(pieces))
    if unk is None:
        raise _no_unknown(_FILE)
    require_distinct(pieces.texts, _FILE)
    return Draft(
        model="t5",
        pieces=pieces,
        add_space_prefix=spaces.prefix,
        remove_extra_whitespaces=rules.squeeze or spaces.white,
        charsmap=rules.charsmap,
        defaults={"unk": unk},
        post_processor=data.get("post_processor"),
        escaped=True,
    )


def _no_bytes(pieces: Pieces) -> Event:
    newlines = "" if any("\n" in t for t in pieces.texts) else ", line ends among them"
    return Event(
        code="no-byte-fallback",
        message=f"the tokenizer spells characters that are no tokens{newlines} by bytes; llama.cpp's Unigram writes its unknown token for them",
        subject="tokenizer.ggml.model",
    )


def _no_unknown(where: str) -> UnsupportedError:
    return UnsupportedError(
        "unsupported-unigram",
        f"{where}: a Unigram model without an unknown token, which llama.cpp needs",
        "Use another model.",
    )


def read_sentencepiece(model: SentencePieceModel, where: str = "tokenizer.model") -> Draft:
    """A `llama` (BPE) or `t5` (Unigram) vocabulary from a parsed `tokenizer.model`.

    Raises:
        UnsupportedError: A kind of model, or a treatment of spaces, that llama.cpp lacks.
    """
    if model.kind not in (BPE, UNIGRAM):
        raise UnsupportedError(
            "unsupported-sentencepiece",
            f"{where}: a SentencePiece model of kind {model.kind}; llama.cpp has BPE and Unigram",
            "Use another model.",
        )
    if model.whitespace_as_suffix or not model.escape_whitespaces:
        raise UnsupportedError(
            "unsupported-sentencepiece",
            f"{where}: spaces behind words, or not escaped; llama.cpp has neither",
            "Use another model.",
        )
    pieces = Pieces(texts=list(model.texts), types=[int(t) for t in model.types], scores=list(model.scores))
    for at, kind in enumerate(model.types):
        if kind in (CONTROL, UNKNOWN):
            pieces.types[at] = TokenType.CONTROL
            pieces.scores[at] = ADDED_SCORE
        elif kind == USER_DEFINED:  # llama.cpp looks for these before it writes spaces as U+2581.
            pieces.texts[at] = model.texts[at].replace("\u2581", " ")
    if model.kind == BPE:
        require_bytes(sum(k == BYTE for k in model.types), where)
        pieces.events += normalizers.sentencepiece_events(
            model.normalizer, mapped=bool(model.charsmap), squeezed=model.remove_extra_whitespaces, where=where
        )
    elif not 0 <= model.unk < len(pieces.texts):
        raise _no_unknown(where)
    elif model.byte_fallback:
        pieces.events.append(_no_bytes(pieces))
    if model.add_dummy_prefix and USER_DEFINED in model.types:
        pieces.events.append(spacing_event(where))
    require_distinct(pieces.texts, where)
    return Draft(
        model="llama" if model.kind == BPE else "t5",
        pieces=pieces,
        add_space_prefix=model.add_dummy_prefix,
        remove_extra_whitespaces=model.remove_extra_whitespaces and model.kind == UNIGRAM,
        charsmap=model.charsmap if model.kind == UNIGRAM else b"",
        defaults={"unk": model.unk, "bos": model.bos, "eos": model.eos, "pad": model.pad},
        escaped=True,
    )
