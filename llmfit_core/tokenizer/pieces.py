"""The table of pieces that the readers fill: ids checked, gaps padded, added tokens laid over it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from llmfit_core.errors import SourceError, UnsupportedError
from llmfit_core.events import Event
from llmfit_core.tokenizer.sources import integer
from llmfit_core.tokenizer.vocab import TokenType

PAD_SCORE = -10000.0
ADDED_SCORE = -1000.0
_MAX_ID = 16_000_000
_MAX_GAPS = 100_000


@dataclass(frozen=True, kw_only=True)
class Added:
    """A token that is looked for in the text before anything else.

    Attributes:
        content: Its text.
        id: The id its file gives, or `None`.
        special: Whether it is left out of decoded text.
        lstrip: Whether it swallows white space before it.
        rstrip: Whether it swallows white space behind it.
        single_word: Whether it counts only between word ends.
        normalized: Whether it is looked for in normalized text.
    """

    content: str
    id: int | None = None
    special: bool = False
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False


@dataclass
class Pieces:
    """Tokens by id while they are being read.

    Attributes:
        texts: By id.
        types: By id, a `TokenType`.
        scores: By id, for the models that have scores; filled with zero otherwise.
        added: Ids of added tokens, in their order.
        events: What came up.
    """

    texts: list[str] = field(default_factory=list)
    types: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    added: list[int] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def ids(self) -> dict[str, int]:
        """Ids by text, padding left out."""
        if TokenType.UNUSED not in self.types:
            return dict(zip(self.texts, range(len(self.texts)), strict=True))
        return {t: i for i, t in enumerate(self.texts) if self.types[i] != TokenType.UNUSED}


def from_ids(vocab: object, where: str) -> Pieces:
    """Pieces from a JSON object of text to id; raises `SourceError` on ids that are no dense numbering."""
    if not isinstance(vocab, Mapping) or not vocab:
        raise SourceError("bad-tokenizer", f"{where}: `vocab` is no object or empty", "Get the file anew.")
    top = -1
    for text, token in vocab.items():
        if not isinstance(token, int) or isinstance(token, bool) or token < 0:
            raise SourceError(
                "token-ids", f"{where}: the id of {_shown(text)} is {_shown(token)}", "Get the file anew."
            )
        top = max(top, token)
    if top >= _MAX_ID or top + 1 - len(vocab) > max(_MAX_GAPS, len(vocab)):
        raise SourceError(
            "token-ids", f"{where}: {len(vocab)} tokens, but ids up to {_shown(top)}", "Get the file anew."
        )
    slots: list[str | None] = [None] * (top + 1)
    for text, token in vocab.items():
        if slots[token] is not None:
            raise SourceError(
                "token-ids",
                f"{where}: id {token} belongs to {_shown(slots[token])} and to {_shown(text)}",
                "Get the file anew.",
            )
        slots[token] = text
    gaps = [token for token, known in enumerate(slots) if known is None]
    pieces = Pieces(types=[TokenType.NORMAL] * len(slots), scores=[0.0] * len(slots))
    for token in gaps:
        slots[token] = pad_name(token, vocab)
        pieces.types[token], pieces.scores[token] = TokenType.UNUSED, PAD_SCORE
    pieces.texts = [text for text in slots if text is not None]
    return pieces


def pad_name(token: int, taken: Mapping[str, object] | set[str] | tuple[()] = ()) -> str:
    """The text of an id that no token has: `[PAD7]`, with more brackets where that is a token already."""
    name = f"[PAD{token}]"
    while name in taken:
        name = f"[{name}]"
    return name


def looks_special(text: str) -> bool:
    """Whether an added token is a control token whatever its flag says; llama.cpp's loader and converter think so too."""
    return (
        text in ("<pad>", "<mask>", "<2mass>", "[@BOS@]")
        or (text.startswith(("<|", "<\uff5c")) and text.endswith(("|>", "\uff5c>")))
        or (text.startswith("<unused") and text.endswith(">"))
    )


def parse_added(value: object, where: str, token: int | None = None) -> Added:
    """An added token from its JSON: a text, or an object with `content` and flags; raises `SourceError`."""
    if isinstance(value, str):
        return Added(content=value, id=token, special=False)
    content = value.get("content") if isinstance(value, Mapping) else None
    if not isinstance(value, Mapping) or not isinstance(content, str) or not content:
        raise SourceError("bad-tokenizer", f"{where}: an added token without `content`", "Get the file anew.")
    special = bool(value.get("special", False))
    return Added(
        content=content,
        id=integer(value["id"]) if token is None and "id" in value else token,
        special=special,
        lstrip=bool(value.get("lstrip", False)),
        rstrip=bool(value.get("rstrip", False)),
        single_word=bool(value.get("single_word", False)),
        normalized=bool(value.get("normalized", not special)),
    )


def lay_added(pieces: Pieces, tokens: Iterable[Added], where: str, *, escaped: bool, base: int | None = None) -> None:
    """Mark or append added tokens.

    Args:
        pieces: Changed in place.
        tokens: In the file's order.
        where: The file, for messages.
        escaped: Whether the model writes a space as U+2581, which a user-defined token's text does not.
        base: The number of tokens in the model of a `tokenizer.json`: a token whose text the model has takes
            that id, any other the next behind the model and the added tokens before it, as `tokenizers`
            does; the file's `id` is a claim, and an event where it is wrong. `None`: ids are as given.

    Raises:
        SourceError: An id lies beyond any table, or on another token.
    """
    tokens = list(tokens)
    if not tokens:
        return
    known = pieces.ids()
    top = max(pieces.added, default=-1)
    for token in tokens:
        shown = _shown(token.content)
        if token.id is not None and not 0 <= token.id < _MAX_ID:
            raise SourceError(
                "token-ids", f"{where}: the id of added token {shown} is {_shown(token.id)}", "Get the file anew."
            )
        at = known.get(token.content)
        if at is None and base is not None:
            at = max(base, top + 1)
            if at < len(pieces.texts) and pieces.types[at] != TokenType.UNUSED:
                raise SourceError(
                    "token-ids",
                    f"{where}: added token {shown} falls on id {at} of {_shown(pieces.texts[at])}",
                    "Get the file anew.",
                )
        elif base is None and token.id is not None and at != token.id:
            if at is not None:
                pieces.texts[at], pieces.types[at] = pad_name(at, known), TokenType.UNUSED
                pieces.events.append(_moved(token, at, where))
            elif token.id < len(pieces.texts) and pieces.types[token.id] != TokenType.UNUSED:
                pieces.events.append(_renamed(pieces.texts[token.id], token, where))
            at = token.id
        elif at is None:
            at = max(len(pieces.texts), top + 1)
        if at - len(pieces.texts) > _MAX_GAPS:
            raise SourceError(
                "token-ids", f"{where}: added token {shown} leaves a gap up to id {at}", "Get the file anew."
            )
        while len(pieces.texts) <= at:
            pieces.texts.append(pad_name(len(pieces.texts), known))
            pieces.types.append(TokenType.UNUSED)
            pieces.scores.append(PAD_SCORE)
        if token.id is not None and token.id != at:
            pieces.events.append(_moved(token, at, where))
        known[token.content] = at
        top = max(top, at)
        _mark(pieces, at, token, escaped)


def _moved(token: Added, at: int, where: str) -> Event:
    return Event(
        code="added-token-id",
        message=f"{where}: added token {_shown(token.content)} says id {token.id}, another file says {at}"
        if where != "tokenizer.json"
        else f"{where}: added token {_shown(token.content)} says id {token.id}, but loading gives it {at}",
        subject=where,
    )


def _renamed(old: str, token: Added, where: str) -> Event:
    return Event(
        code="added-token-renames",
        message=f"{where}: id {token.id} is renamed from {_shown(old)} to {_shown(token.content)}",
        severity="info",
        subject=where,
    )


def _mark(pieces: Pieces, at: int, token: Added, escaped: bool) -> None:
    control = token.special or looks_special(token.content)
    pieces.texts[at] = token.content if control or not escaped else token.content.replace("\u2581", " ")
    pieces.types[at] = TokenType.CONTROL if control else TokenType.USER_DEFINED
    pieces.scores[at] = ADDED_SCORE
    if at not in pieces.added:
        pieces.added.append(at)


def flag_events(tokens: Iterable[Added], where: str, *, prefixed: bool = False) -> list[Event]:
    """Events for flags of added tokens that llama.cpp does not know.

    Args:
        tokens: The added tokens.
        where: The file.
        prefixed: Whether the normalizer puts a U+2581 in front, of tokens to be found in normalized text too.
    """
    events: list[Event] = []
    tokens = list(tokens)
    found = [t.content for t in tokens if t.normalized]
    if prefixed and found:
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        events.append(
            Event(
                code="added-token-normalized",
                message=f"{where}: {', '.join(found[:3])}{more} is found only behind a space (`normalized`), by llama.cpp everywhere",
                subject=where,
            )
        )
    for flag, doing in (
        ("lstrip", "swallow white space before them"),
        ("rstrip", "swallow white space behind them"),
        ("single_word", "count only as whole words"),
    ):
        named = [t.content for t in tokens if getattr(t, flag)]
        if named:
            more = f" and {len(named) - 3} more" if len(named) > 3 else ""
            events.append(
                Event(
                    code=f"added-token-{flag.replace('_', '-')}",
                    message=f"{where}: {', '.join(named[:3])}{more} {doing}; llama.cpp does not do that",
                    severity="bound",
                    subject=where,
                )
            )
    return events


def spacing_event(where: str) -> Event:
    """The event for a leading space that llama.cpp puts more often than the tokenizer does."""
    return Event(
        code="space-after-special",
        message="the tokenizer puts one space in front of the text, llama.cpp one in front of every stretch between special "
        "and added tokens",
        severity="bound",
        subject=where,
    )


def leading_event(where: str) -> Event:
    """The event for a text that begins with a space, which the tokenizer leaves at that."""
    return Event(
        code="leading-space",
        message="the tokenizer puts no space in front of text that begins with one, llama.cpp and SentencePiece do",
        severity="bound",
        subject=where,
    )


def require_distinct(texts: list[str], where: str) -> None:
    """Raise where two tokens have one text (llama.cpp aborts on it) or a text is no Unicode."""
    if len(set(texts)) != len(texts):
        seen: dict[str, int] = {}
        for i, text in enumerate(texts):
            if text in seen:
                raise UnsupportedError(
                    "equal-tokens",
                    f"{where}: ids {seen[text]} and {i} both read {_shown(text)}; llama.cpp holds each text once",
                    "Rename one of them in the tokenizer's files.",
                )
            seen[text] = i
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        raise SourceError(
            "bad-tokenizer", f"{where}: a token holds half of a surrogate pair", "Get the file anew."
        ) from None


def _shown(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."
