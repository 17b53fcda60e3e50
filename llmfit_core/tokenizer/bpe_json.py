"""BPE from `tokenizer.json`: byte-level (`gpt2`) and SentencePiece-like (`llama`)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping

from llmfit_core.errors import SourceError, UnsupportedError
from llmfit_core.events import Event
from llmfit_core.tokenizer import bytelevel, normalizers, pretokenizer
from llmfit_core.tokenizer.draft import Draft
from llmfit_core.tokenizer.pieces import (
    ADDED_SCORE,
    Added,
    Pieces,
    flag_events,
    from_ids,
    lay_added,
    leading_event,
    require_distinct,
    spacing_event,
)
from llmfit_core.tokenizer.sources import object_at
from llmfit_core.tokenizer.vocab import TokenType

_FILE = "tokenizer.json"
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE = "\u2581"


def read_merges(value: object, vocab: Mapping[str, object], where: str = _FILE) -> list[tuple[str, str]]:
    """Merges as pairs by rank, from `"a b"` texts or `["a", "b"]` pairs; of equal ones the last counts.

    Raises:
        SourceError: Something else, or a merge of texts that are no tokens.
    """
    if not isinstance(value, list):
        raise SourceError("bad-tokenizer", f"{where}: `merges` is no list", "Get the file anew.")
    pairs: list[tuple[str, str]] = []
    for rank, item in enumerate(value):
        pair = item.split(" ") if isinstance(item, str) else item
        if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) and isinstance(pair[1], str)):
            raise SourceError(
                "bad-tokenizer", f"{where}: merge {rank} is no pair: {ascii(item)[:60]}", "Get the file anew."
            )
        left, right = pair
        if left not in vocab or right not in vocab or left + right not in vocab:
            raise SourceError(
                "bad-tokenizer",
                f"{where}: merge {rank} ({ascii(left)[:40]} {ascii(right)[:40]}) is of no tokens",
                "Get the file anew.",
            )
        pairs.append((left, right))
    if len(set(pairs)) != len(pairs):
        pairs = list(reversed(dict.fromkeys(reversed(pairs))))
    return pairs


def is_byte_level(data: Mapping[str, object]) -> bool:
    """Whether a `tokenizer.json` spells bytes by GPT-2's alphabet."""
    parts = [
        *pretokenizer.flatten(data.get("pre_tokenizer"), "pretokenizers"),
        *pretokenizer.flatten(data.get("normalizer"), "normalizers"),
    ]
    if any(p["type"] == "ByteLevel" for p in parts):
        return True
    decoders = [p["type"] for p in pretokenizer.flatten(data.get("decoder"), "decoders")]
    return "ByteLevel" in decoders and "ByteFallback" not in decoders


def refuse_oddities(model: Mapping[str, object]) -> list[Event]:
    """Raise for BPE options that no runtime has; events for those that change little."""
    for key in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            raise UnsupportedError(
                "unsupported-bpe",
                f"{_FILE}: the BPE model has a {key} ({model[key]!r}), which llama.cpp lacks",
                "Such a tokenizer has no GGUF form.",
            )
    if model.get("dropout"):
        return [
            Event(
                code="bpe-dropout", message="the tokenizer drops merges at random; llama.cpp never does", subject=_FILE
            )
        ]
    return []


def read_byte_level(data: Mapping[str, object], added: list[Added], *, model_type: str, pre: str | None) -> Draft:
    """A `gpt2` vocabulary from a parsed `tokenizer.json`.

    Raises:
        SourceError: The file is damaged.
        UnsupportedError: Its structure is not one of llama.cpp's and `pre` is `None`.
    """
    model = object_at(data, "model", _FILE)
    pieces = from_ids(model.get("vocab"), _FILE)
    pieces.events += refuse_oddities(model)
    vocab = object_at(model, "vocab", _FILE)
    pairs = read_merges(model.get("merges"), vocab)
    merges = tuple(
        f"{a} {b}" for a, b in pairs if " " not in a and " " not in b
    )  # A raw space is no byte letter: unreachable.
    lay_added(pieces, added, _FILE, escaped=False, base=len(vocab))
    pieces.events += flag_events(added, _FILE)
    rules = normalizers.read_normalizer(data.get("normalizer"))
    others = [o for o in rules.others if o != "ByteLevel"]
    others += [
        w
        for w, on in (("Prepend", rules.prefix), ("Replace", rules.escape or rules.squeeze), ("Strip", rules.strip))
        if on
    ]
    others += ["Precompiled"] if rules.charsmap else []
    pieces.events += normalizers.form_events(rules.form) + normalizers.refuse_others(others, pre is not None)
    normal = [t for t, kind in zip(pieces.texts, pieces.types, strict=True) if kind == TokenType.NORMAL]
    structure = pretokenizer.structure_of(data.get("pre_tokenizer"))
    name, events = pretokenizer.recognise(
        structure,
        ignore_merges=bool(model.get("ignore_merges", False)),
        tokens=normal,
        merges=merges,
        model_type=model_type,
        override=pre,
    )
    pieces.events += events
    _require_alphabet(pieces, model)
    require_distinct(pieces.texts, _FILE)
    return Draft(
        model="gpt2",
        pieces=pieces,
        pre=name,
        merges=merges,
        normalizer=rules.form if rules.form == "NFC" else "",
        post_processor=data.get("post_processor"),
    )


def _require_alphabet(pieces: Pieces, model: Mapping[str, object]) -> None:
    known = {t for t in pieces.texts if len(t) == 1}
    missing = sum(c not in known for c in bytelevel.CHAR_TO_BYTE)
    if missing and model.get("unk_token"):
        pieces.events.append(
            Event(
                code="bytes-missing",
                message=f"{missing} of the 256 bytes are no tokens: the tokenizer writes {model['unk_token']} for them, llama.cpp nothing",
                severity="bound",
                subject=_FILE,
            )
        )


def read_spm_like(data: Mapping[str, object], added: list[Added], *, pre: str | None) -> Draft:
    """A `llama` vocabulary from the `tokenizer.json` of a SentencePiece-like BPE, its scores from the order of pieces.

    Raises:
        SourceError: The file is damaged.
        UnsupportedError: llama.cpp would cut other tokens.
    """
    model = object_at(data, "model", _FILE)
    pieces = from_ids(model.get("vocab"), _FILE)
    pieces.events += refuse_oddities(model)
    vocab = object_at(model, "vocab", _FILE)
    pairs = read_merges(model.get("merges"), vocab)
    rules = normalizers.read_normalizer(data.get("normalizer"))
    spaces = read_spaces(data, rules)
    if not spaces.escape:
        raise UnsupportedError(
            "unsupported-bpe",
            f"{_FILE}: a BPE that is neither byte-level nor writes spaces as U+2581",
            "llama.cpp has no such tokenizer; a model with another tokenizer is needed.",
        )
    _mark_bytes(pieces, bool(model.get("byte_fallback")))
    unk = model.get("unk_token")
    unk_id = vocab.get(unk) if isinstance(unk, str) else None
    if isinstance(unk_id, int):
        pieces.types[unk_id], pieces.scores[unk_id] = TokenType.CONTROL, ADDED_SCORE
    lay_added(pieces, added, _FILE, escaped=True, base=len(vocab))
    _score(pieces, pairs)
    pieces.events += normalizers.form_events(rules.form) + normalizers.refuse_others(rules.others, pre is not None)
    pieces.events += normalizers.sentencepiece_events(
        "", mapped=bool(rules.charsmap), squeezed=rules.squeeze or rules.strip, where=_FILE
    )
    pieces.events += spaces.events(pieces) + flag_events(added, _FILE, prefixed=rules.prefix)
    require_distinct(pieces.texts, _FILE)
    return Draft(
        model="llama",
        pieces=pieces,
        add_space_prefix=spaces.prefix,
        defaults={"unk": unk_id} if isinstance(unk_id, int) else {},
        post_processor=data.get("post_processor"),
        escaped=True,
    )


class Spaces:
    """How a SentencePiece-like `tokenizer.json` treats spaces: escape, prefix, its scheme, and other cuts."""

    def __init__(self, escape: bool, prefix: bool) -> None:
        self.escape = escape
        self.prefix = prefix
        self.first_only = False
        self.metaspace = False
        self.split = False
        self.digits = False
        self.white = False
        self.others: list[str] = []

    def events(self, pieces: Pieces) -> list[Event]:
        """What of it llama.cpp does otherwise; raises `UnsupportedError` for cuts that tokens cross."""
        normal = [t for t, k in zip(pieces.texts, pieces.types, strict=True) if k == TokenType.NORMAL]
        if self.digits and any(
            len(t.lstrip(_SPACE)) + t.startswith(_SPACE) > 1 and any(c.isnumeric() for c in t) for t in normal
        ):
            self.others.append("Digits")
        if self.split and any(_SPACE in t[1:] for t in normal):
            self.others.append("a Metaspace that splits, with tokens across words")
        if self.others:
            raise UnsupportedError(
                "unknown-pretokenizer",
                f"{_FILE}: a SentencePiece-like BPE that also cuts text by {', '.join(self.others)[:160]}; llama.cpp does not",
                "Ids of ordinary text would differ; a model with another tokenizer is needed.",
            )
        events: list[Event] = []
        if self.prefix and self.first_only:
            events.append(spacing_event(_FILE))
        if self.prefix and self.metaspace and not self.white:  # which leaves no leading space
            events.append(leading_event(_FILE))
        return events


def read_spaces(data: Mapping[str, object], rules: normalizers.Normalizer) -> Spaces:
    """The treatment of spaces, from the normalizer's `rules` and the pre-tokenizer."""
    spaces = Spaces(rules.escape, rules.prefix)
    for part in pretokenizer.flatten(data.get("pre_tokenizer"), "pretokenizers"):
        kind = part["type"]
        if kind == "Metaspace" and part.get("replacement", _SPACE) == _SPACE:
            spaces.escape = spaces.metaspace = True
            default = "always" if part.get("add_prefix_space", True) else "never"
            scheme = part.get("prepend_scheme", default)
            spaces.prefix |= scheme in ("always", "first")
            spaces.first_only = scheme == "first"
            spaces.split |= bool(part.get("split", True))
        elif kind == "WhitespaceSplit":
            spaces.white = True
        elif kind == "Split" and spaces.escape and _splits_at_space(part):
            continue  # No space is left to split at.
        elif kind == "Digits":
            spaces.digits = True
        else:
            spaces.others.append(str(kind))
    return spaces


def _splits_at_space(part: Mapping[str, object]) -> bool:
    pattern = part.get("pattern")
    return isinstance(pattern, Mapping) and (pattern.get("String") == " " or pattern.get("Regex") == " ")


def _mark_bytes(pieces: Pieces, byte_fallback: bool) -> None:
    seen = set()
    for at, text in enumerate(pieces.texts):
        match = _BYTE.fullmatch(text)
        if match:
            seen.add(int(match.group(1), 16))
            pieces.types[at] = TokenType.BYTE
    require_bytes(len(seen) if byte_fallback else 0, _FILE)


def require_bytes(count: int, where: str) -> None:
    """Raise unless every byte has a token: llama.cpp cannot tokenize unknown characters without."""
    if count < 256:
        raise UnsupportedError(
            "no-byte-fallback",
            f"{where}: a SentencePiece-like BPE with {count} of 256 byte tokens; llama.cpp fails on characters that are no tokens",
            "Such a tokenizer has no GGUF form.",
        )


def _score(pieces: Pieces, pairs: list[tuple[str, str]]) -> None:
    """SentencePiece's scores: 0, -1, -2, ... in the order in which pieces were made, which the merges tell."""
    normal = [i for i, kind in enumerate(pieces.types) if kind == TokenType.NORMAL]
    first: dict[str, int] = {}
    for rank, (left, right) in enumerate(pairs):
        first.setdefault(left + right, rank)
    ranks = [first[pieces.texts[i]] for i in normal if pieces.texts[i] in first]
    in_order = all(a < b for a, b in itertools.pairwise(ranks))
    ordered = normal if in_order else sorted(normal, key=lambda i: (first.get(pieces.texts[i], len(pairs)), i))
    for place, token in enumerate(ordered):
        pieces.scores[token] = -float(place)
    closed = _missing_merge(pieces, normal, set(pairs))
    if closed:
        pieces.events.append(
            Event(
                code="merges-incomplete",
                message=f"{closed[0]!a} and {closed[1]!a} join to a token, but no merge says so: llama.cpp joins them, the tokenizer does not",
                subject=_FILE,
            )
        )


def _missing_merge(pieces: Pieces, normal: list[int], pairs: set[tuple[str, str]]) -> tuple[str, str] | None:
    """Two tokens whose joint text is a token that no merge makes of them."""
    texts = {pieces.texts[i] for i in normal}
    for text in texts:
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if left in texts and right in texts and (left, right) not in pairs:
                return left, right
    return None
