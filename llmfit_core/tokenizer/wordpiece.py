"""WordPiece: `tokenizer.json` or `vocab.txt` as the `bert` vocabulary of GGUF.

GGUF marks where a word begins and not where it goes on: `the` is written U+2581 + `the`, `##ing` is written `ing`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from llmfit_core.errors import SourceError, UnsupportedError
from llmfit_core.events import Event
from llmfit_core.tokenizer.draft import Draft
from llmfit_core.tokenizer.pieces import Added, Pieces, flag_events, from_ids, lay_added, pad_name, require_distinct
from llmfit_core.tokenizer.pretokenizer import flatten
from llmfit_core.tokenizer.sources import integer, object_at, read_object, read_text
from llmfit_core.tokenizer.specials import named_tokens
from llmfit_core.tokenizer.vocab import TokenType

if TYPE_CHECKING:
    from llmfit_core.tokenizer.vocab import Vocab

SPACE = "\u2581"
DEFAULT_NAMES = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
"""Special tokens of transformers' BERT tokenizers, for folders that name none."""
_CLASSES = frozenset(
    f"{name}Tokenizer" for name in "Bert DistilBert Electra MobileBert ConvBert SqueezeBert RetriBert LayoutLM".split()
)
_TYPES = frozenset(("bert", "distilbert", "electra", "mobilebert", "convbert", "squeezebert", "nomic_bert", "layoutlm"))
_LONGEST = 100
_FILE = "tokenizer.json"


@dataclass
class _Rules:
    """What happens to text before it is cut, in the terms of `BertNormalizer`."""

    lowercase: bool = False
    strip: bool = False
    clean: bool = False
    chinese: bool = False
    form: str = ""
    others: list[str] = field(default_factory=list)


def is_bert_class(settings: Mapping[str, object], model_type: str) -> bool:
    """Whether transformers loads a class of its own that makes normalizer and post-processor anew from its settings."""
    kind = str(settings.get("tokenizer_class") or "").removesuffix("Fast")
    return kind in _CLASSES if kind else model_type in _TYPES


def wordpiece_object(side: Mapping[str, Path], model_type: str = "") -> tuple[dict[str, object], list[Event]]:
    """The folder's tokenizer in the form of a `tokenizer.json`, as transformers makes it; and what was noticed.

    Where the class is BERT's own, `do_lower_case`, `strip_accents` and `tokenize_chinese_chars` of
    `tokenizer_config.json` decide, whatever `tokenizer.json` says (transformers 4 and 5 alike).

    Raises:
        SourceError: Files are damaged.
    """
    settings = read_object(side, "tokenizer_config.json")
    own = is_bert_class(settings, model_type or str(read_object(side, "config.json").get("model_type") or ""))
    events: list[Event] = []
    data = read_object(side, _FILE) if _FILE in side else _from_lines(side["vocab.txt"], settings)
    if not own and _FILE in side:
        return data, events
    strip = settings.get("strip_accents")
    stated: dict[str, object] = {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": bool(settings.get("tokenize_chinese_chars", True)),
        "strip_accents": strip if isinstance(strip, bool) else None,
        "lowercase": bool(settings.get("do_lower_case", True)),
    }
    if _FILE in side and own:
        mine, theirs = _read_rules(data.get("normalizer")), _read_rules(stated)
        odd = [
            f"{key} is {getattr(theirs, key)} and not {getattr(mine, key)}".lower()
            for key in ("lowercase", "strip", "chinese")
            if getattr(mine, key) != getattr(theirs, key)
        ]
        if odd:
            events.append(
                Event(
                    code="tokenizers-disagree",
                    message=f"tokenizer.json and tokenizer_config.json contradict each other; by the latter, which transformers "
                    f"follows for its BERT tokenizers, {', '.join(odd)}",
                    subject="tokenizer_config.json",
                )
            )
    data["normalizer"] = stated
    data["post_processor"] = _template(data, DEFAULT_NAMES | named_tokens(settings, read_object(side, "special_tokens_map.json")))
    return data, events


def _template(data: Mapping[str, object], names: Mapping[str, str]) -> dict[str, object] | None:
    """What BERT's own class puts around a text, and between two."""
    listed = data.get("added_tokens")
    ids = dict(object_at(object_at(data, "model", _FILE), "vocab", _FILE))
    ids |= {a["content"]: a.get("id") for a in (listed if isinstance(listed, list) else ()) if isinstance(a, dict) and "content" in a}
    cls, sep = names["cls"], names["sep"]
    if not (isinstance(ids.get(cls), int) and isinstance(ids.get(sep), int)):
        return None

    def special(text: str, kind: int) -> dict[str, object]:
        return {"SpecialToken": {"id": text, "type_id": kind}}

    def sequence(name: str, kind: int) -> dict[str, object]:
        return {"Sequence": {"id": name, "type_id": kind}}

    single = [special(cls, 0), sequence("A", 0), special(sep, 0)]
    tokens = {t: {"id": t, "ids": [ids[t]], "tokens": [t]} for t in (cls, sep)}
    pair = [*single, sequence("B", 1), special(sep, 1)]
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens}


def _from_lines(path: Path, settings: Mapping[str, object]) -> dict[str, object]:
    lines = read_text(path).split("\n")
    if lines and not lines[-1]:
        lines.pop()
    vocab: dict[str, int] = {}
    for number, line in enumerate(lines):
        text = line.removesuffix("\r")
        if text in vocab:
            raise SourceError(
                "token-ids", f"{path.name}: lines {vocab[text] + 1} and {number + 1} are the same token", "Get the file anew."
            )
        vocab[text] = number
    unk = settings.get("unk_token")
    unk = unk.get("content") if isinstance(unk, Mapping) else unk
    return {
        "model": {
            "type": "WordPiece",
            "unk_token": unk if isinstance(unk, str) else DEFAULT_NAMES["unk"],
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": _LONGEST,
            "vocab": vocab,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
    }


def read_wordpiece(data: Mapping[str, object], added: list[Added], names: Mapping[str, str], where: str = _FILE) -> Draft:
    """A `bert` vocabulary from a parsed `tokenizer.json`.

    Args:
        data: The file, or what `wordpiece_object` makes of a `vocab.txt`.
        added: Its added tokens.
        names: Texts of special tokens by role.
        where: The file, for messages.

    Raises:
        SourceError: The file is damaged.
        UnsupportedError: Text is cut in ways that llama.cpp lacks, or tokens are missing that it needs.
    """
    model = object_at(data, "model", where)
    mark = model.get("continuing_subword_prefix", "##")
    if not isinstance(mark, str) or not mark:
        raise UnsupportedError(
            "unsupported-wordpiece",
            f"{where}: pieces inside a word have no mark (continuing_subword_prefix is {mark!r})",
            "llama.cpp has no such tokenizer; a model with another tokenizer is needed.",
        )
    pieces = from_ids(model.get("vocab"), where)
    known = pieces.ids()
    unk = model.get("unk_token")
    for role, text in (("unk", unk), *((r, names.get(r)) for r in ("cls", "sep"))):
        if not isinstance(text, str) or text not in {*known, *(a.content for a in added)}:
            raise UnsupportedError(
                "unsupported-wordpiece",
                f"{where}: the {role} token {text!r} is no token of the vocabulary, and llama.cpp's WordPiece cannot do without",
                "Name it in tokenizer_config.json, or add it to the vocabulary.",
            )
    lay_added(pieces, added, where, escaped=False, base=len(pieces.texts))
    # A folder without a list of added tokens has its special tokens by name alone.
    missing = [Added(content=t, id=known[t], special=True) for t in names.values() if t in known]
    lay_added(pieces, missing, where, escaped=False)
    rules = _read_rules(data.get("normalizer"))
    if rules.others:
        raise UnsupportedError(
            "unknown-normalizer",
            f"{where}: the normalizer has steps that llama.cpp lacks: {', '.join(rules.others)[:200]}",
            "Ids of ordinary text would differ; a model with another tokenizer is needed.",
        )
    _require_words(data, where)
    pieces.events += _events(rules, integer(model.get("max_input_chars_per_word")) or _LONGEST, where)
    pieces.events += flag_events(added, where) + _normalized(added, rules, where)
    _mark_words(pieces, mark)
    require_distinct(pieces.texts, where)
    return Draft(
        model="bert",
        pieces=pieces,
        defaults={"unk": known[str(unk)]} if unk in known else {},
        post_processor=data.get("post_processor"),
        lowercase=rules.lowercase,
        strip_accents=rules.strip,
    )


def _mark_words(pieces: Pieces, mark: str) -> None:
    """Write the texts as GGUF has them; what no text can become is named as unused."""
    taken = set(pieces.texts)
    for at, text in enumerate(pieces.texts):
        if pieces.types[at] != TokenType.NORMAL:
            continue
        inside = text.startswith(mark)
        # U+2581 alone would let every word begin with nothing; a piece that goes on with it would look like a beginning.
        if (text.removeprefix(mark).startswith(SPACE) and inside) or text in ("", mark):
            pieces.texts[at], pieces.types[at] = pad_name(at, taken), TokenType.UNUSED
        else:
            pieces.texts[at] = text[len(mark) :] if inside else SPACE + text


def _read_rules(node: object) -> _Rules:
    rules = _Rules()
    for part in flatten(node, "normalizers"):
        kind = str(part["type"])
        if kind == "BertNormalizer":
            lower, strip = bool(part.get("lowercase", True)), part.get("strip_accents")
            rules.lowercase |= lower
            rules.strip |= lower if strip is None else bool(strip)
            rules.clean |= bool(part.get("clean_text", True))
            rules.chinese |= bool(part.get("handle_chinese_chars", True))
        elif kind == "Lowercase":
            rules.lowercase = True
        elif kind == "StripAccents":
            rules.strip = True
        elif kind in ("NFC", "NFD", "NFKC", "NFKD"):
            rules.form = kind
        else:
            rules.others.append(kind)
    if rules.form == "NFD" and rules.strip:
        rules.form = ""  # which is how accents come off
    return rules


def _require_words(data: Mapping[str, object], where: str) -> None:
    """Text has to be cut at white space and around each mark of punctuation, as BERT does."""
    parts = [
        (str(p["type"]), str(p.get("behavior", "Isolated"))) for p in flatten(data.get("pre_tokenizer"), "pretokenizers")
    ]
    kinds = [k for k, _ in parts]
    plain = kinds == ["WhitespaceSplit", "Punctuation"] and parts[1][1] == "Isolated"
    if not (plain or kinds == ["BertPreTokenizer"]):
        raise UnsupportedError(
            "unknown-pretokenizer",
            f"{where}: a WordPiece model that cuts text by {' and '.join(kinds) or 'nothing'}; llama.cpp does as BERT does",
            "Ids of ordinary text would differ; a model with another tokenizer is needed.",
        )


def _events(rules: _Rules, longest: int, where: str) -> list[Event]:
    """What llama.cpp's WordPiece does otherwise, each measured over all characters of Unicode."""
    message = f"the tokenizer takes a word of more than {longest} characters for unknown, llama.cpp cuts it up"
    events = [Event(code="wordpiece-long-words", message=message, severity="bound", subject=where)]
    if rules.strip:
        message = (
            "llama.cpp takes the spacing marks of Indic and other scripts for accents and drops them, and does not take Hangul "
            "apart: exact for text without them"
        )
        events.append(Event(code="wordpiece-marks", message=message, severity="bound", subject=where))
    if not rules.chinese:
        message = "llama.cpp makes each CJK ideograph a word, the tokenizer does not"
        events.append(Event(code="wordpiece-chinese", message=message, severity="bound", subject=where))
    if not rules.clean:
        message = "llama.cpp drops control characters, the tokenizer does not"
        events.append(Event(code="wordpiece-control", message=message, severity="bound", subject=where))
    if rules.form:
        events.append(
            Event(
                code="normalizer",
                message=f"the tokenizer brings text to Unicode {rules.form} first, llama.cpp does not: exact for text that is in {rules.form}",
                severity="bound" if rules.form == "NFC" else "warning",
                subject=where,
            )
        )
    return events


def _normalized(added: list[Added], rules: _Rules, where: str) -> list[Event]:
    """Added tokens that are looked for in the normalized text: in any case, with or without accents."""
    found = [t.content for t in added if t.normalized and not t.special and (rules.lowercase or rules.strip)]
    if not found:
        return []
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return [
        Event(
            code="added-token-normalized",
            message=f"{where}: {', '.join(found[:3])}{more} is found whatever its case and accents (`normalized`), by llama.cpp "
            "only as it is written here",
            subject=where,
        )
    ]


_ODD_CONTROL = re.compile("[\x0b\x0c\x1c-\x1f\x85]")


def wordpiece_difference(vocab: Vocab, text: str) -> str:
    """Why llama.cpp's ids of `text` may differ from the library's without a fault of the file; else empty."""
    by_code = {e.code: e.message for e in vocab.events}
    if "wordpiece-long-words" in by_code and any(len(word) > _LONGEST for word in text.split()):
        return by_code["wordpiece-long-words"]
    if vocab.strip_accents and any(_is_odd(c) for c in text):
        return by_code.get("wordpiece-marks", "")
    if "wordpiece-chinese" in by_code and any(unicodedata.name(c, "").startswith("CJK") for c in text):
        return by_code["wordpiece-chinese"]
    if "wordpiece-control" in by_code and any(unicodedata.category(c).startswith("C") or c == "\ufffd" for c in text):
        return by_code["wordpiece-control"]
    if _ODD_CONTROL.search(text):
        return "llama.cpp takes the control characters that end lines and records for white space, the tokenizer drops them"
    if "\u0130" in text and vocab.lowercase and not vocab.strip_accents:
        return "the tokenizer keeps the dot of a capital dotted I in lower case, llama.cpp does not"
    if any(_is_new(c) for c in text):
        return "it holds marks of newer versions of Unicode, which the tokenizer takes for letters"
    return ""


def _is_new(char: str) -> bool:
    """A mark of punctuation or accent that the tables of `tokenizers` may be too old for (measured: those after Unicode 8)."""
    return unicodedata.ucd_3_2_0.category(char) == "Cn" and unicodedata.category(char)[0] in "PMC"


def _is_odd(char: str) -> bool:
    """A spacing mark, or what falls apart into more than a letter and its accents."""
    apart = unicodedata.normalize("NFD", char)
    return any(unicodedata.category(c) in ("Mc", "Me") for c in apart) or (
        len(apart) > 1 and any(unicodedata.category(c) != "Mn" for c in apart[1:])
    )


def word_text(text: str, kind: int, mark: str = "##") -> str:
    """A token's text as WordPiece has it, from the one in a GGUF file."""
    if kind != TokenType.NORMAL:
        return text
    return text[len(SPACE) :] if text.startswith(SPACE) else mark + text
