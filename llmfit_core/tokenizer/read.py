"""`read_vocab`: from the files of a model folder to a `Vocab`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from llmfit_core.errors import SourceError, UnsupportedError
from llmfit_core.events import Event
from llmfit_core.tokenizer import known
from llmfit_core.tokenizer.bpe_json import is_byte_level, read_byte_level, read_spm_like
from llmfit_core.tokenizer.pieces import Added, lay_added, leading_event, parse_added, require_distinct, spacing_event
from llmfit_core.tokenizer.sentencepiece_model import SentencePieceModel, parse_model
from llmfit_core.tokenizer.sources import object_at, read_bytes, read_object, read_text
from llmfit_core.tokenizer.specials import gather, named_tokens, template_of
from llmfit_core.tokenizer.templates import read_templates
from llmfit_core.tokenizer.unigram import read_sentencepiece, read_unigram
from llmfit_core.tokenizer.vocab import TokenType, Vocab
from llmfit_core.tokenizer.wordpiece import DEFAULT_NAMES, read_wordpiece, wordpiece_object

if TYPE_CHECKING:
    from llmfit_core.tokenizer.draft import Draft

BY_SETTINGS = "tokenizer_config.json"
"""The subject of events on what transformers does by its settings, and the `sentencepiece` library does not."""

_SLOW_STRUCTURES: dict[str, tuple[str, str]] = {
    "GPT2Tokenizer": (known.GPT2, ""),
    "CodeGenTokenizer": (known.GPT2, ""),
    "GPTNeoXTokenizer": (known.GPT2, ""),
    "WhisperTokenizer": (known.GPT2, ""),
    "Qwen2Tokenizer": (known.QWEN2, "NFC"),
}
"""The expression and normal form that transformers' classes bring along, for folders without a `tokenizer.json`."""


def read_vocab(side: Mapping[str, Path], config: Mapping[str, object], *, pre: str | None = None) -> Vocab:
    """Read a tokenizer from the side files of a model folder.

    Args:
        side: Local paths by plain file name: `tokenizer.json`, `tokenizer.model`, `vocab.json`, `merges.txt`,
            `vocab.txt`, `tokenizer_config.json`, `special_tokens_map.json`, `added_tokens.json`,
            `generation_config.json`, `chat_template.jinja`, `chat_template.json`,
            `additional_chat_templates/NAME.jinja`. Others are not looked at.
        config: The text part of `config.json`, raw: for `model_type` and `*_token_id`.
        pre: llama.cpp's pre-tokenizer name to take instead of recognising it; recorded as an event.

    Raises:
        SourceError: Files are missing, damaged or hostile.
        UnsupportedError: No GGUF tokenizer gives the same ids.
    """
    settings = read_object(side, "tokenizer_config.json")
    special_map = read_object(side, "special_tokens_map.json")
    names = named_tokens(settings, special_map)
    draft, templated = _read_draft(side, settings, special_map, names, str(config.get("model_type") or ""), pre)
    pieces = draft.pieces
    ids = pieces.ids()
    if draft.model == "bert":
        names = {role: text for role, text in DEFAULT_NAMES.items() if text in ids} | names
    specials = gather(
        tokens=pieces.texts,
        ids=ids,
        names=names,
        defaults=draft.defaults,
        tokenizer_config=settings,
        generation=read_object(side, "generation_config.json"),
        config=config,
        default_class="" if templated else {"llama": "LlamaTokenizer"}.get(draft.model, ""),
        template=template_of(draft.post_processor, ids),
        has_post_processor=templated and draft.post_processor is not None,
    )
    template, templates, template_events = read_templates(side, settings)
    return Vocab(
        model=draft.model,
        pre=draft.pre,
        tokens=tuple(pieces.texts),
        types=tuple(int(t) for t in pieces.types),
        scores=() if draft.model in ("gpt2", "bert") else tuple(pieces.scores),
        merges=draft.merges,
        specials=specials.ids,
        stops=specials.stops,
        add_bos=specials.add_bos,
        add_eos=specials.add_eos,
        add_space_prefix=draft.add_space_prefix,
        remove_extra_whitespaces=draft.remove_extra_whitespaces,
        charsmap=draft.charsmap,
        normalizer=draft.normalizer,
        lowercase=draft.lowercase,
        strip_accents=draft.strip_accents,
        add_sep=specials.add_sep,
        chat_template=template,
        chat_templates=templates,
        events=(*pieces.events, *specials.events, *template_events, *_code_events(settings)),
    )


def _code_events(settings: Mapping[str, object]) -> tuple[Event, ...]:
    if not settings.get("auto_map"):
        return ()
    return (
        Event(
            code="auto-map",
            message="tokenizer_config.json names Python code of its own (auto_map); it is never run, the files alone were read",
            severity="info",
            subject="tokenizer_config.json",
        ),
    )


def _read_draft(
    side: Mapping[str, Path],
    settings: Mapping[str, object],
    special_map: Mapping[str, object],
    names: Mapping[str, str],
    model_type: str,
    pre: str | None,
) -> tuple[Draft, bool]:
    """The vocabulary proper, and whether a `tokenizer.json` gave it."""
    further = _further_added(side, settings, special_map, names)
    if "tokenizer.json" in side:
        return _from_json(side, further, names, model_type, pre), True
    if "tokenizer.model" in side:
        if pre not in (None, "default"):
            raise _no_choice(pre)
        draft = read_sentencepiece(_sentencepiece(side["tokenizer.model"]))
        if draft.add_space_prefix and settings.get("legacy") is False:
            # transformers then cuts otherwise than SentencePiece does: its prefix goes before the text and no further.
            have = {e.code for e in draft.pieces.events}
            told = (spacing_event(BY_SETTINGS), leading_event(BY_SETTINGS))
            # Said once and no bound: the file is what the tokenizer's own library makes of it.
            draft.pieces.events += [replace(e, severity="info") for e in told if e.code not in have]
        lay_added(draft.pieces, further, "tokenizer_config.json", escaped=True)
        _mark_named(draft, names)
        require_distinct(draft.pieces.texts, "tokenizer.model")
        return draft, False
    if "vocab.txt" in side and not ("vocab.json" in side and "merges.txt" in side):
        return _word_pieces(side, further, names, model_type, pre), True
    if "vocab.json" in side and "merges.txt" in side:
        return _from_vocab_and_merges(side, settings, further, names, model_type, pre), False
    foreign = [n for n in side if n in ("tekken.json", "tiktoken.model") or n.endswith(".tiktoken")]
    if foreign:
        raise UnsupportedError(
            "unsupported-tokenizer",
            f"the folder's only tokenizer is {sorted(foreign)[0]}, a format that is not read",
            "Add the model's tokenizer.json.",
        )
    raise SourceError(
        "no-tokenizer",
        "the folder has no tokenizer.json, no tokenizer.model, no vocab.txt, and no vocab.json with merges.txt",
        "Add the tokenizer's files from the model's source.",
    )


def _no_choice(pre: str | None) -> UnsupportedError:
    return UnsupportedError(
        "unknown-pretokenizer",
        f"--pre {pre}: this SentencePiece-like tokenizer has no pre-tokenizer to choose",
        "Leave out --pre.",
    )


def _from_json(
    side: Mapping[str, Path], further: list[Added], names: Mapping[str, str], model_type: str, pre: str | None
) -> Draft:
    data = read_object(side, "tokenizer.json")
    model = object_at(data, "model", "tokenizer.json")
    listed = data.get("added_tokens") or []
    if not isinstance(listed, list):
        raise SourceError("bad-tokenizer", "tokenizer.json: `added_tokens` is no list", "Get the file anew.")
    added = [parse_added(item, "tokenizer.json") for item in listed]
    kind = _kind(model)
    if kind == "BPE" and is_byte_level(data):
        draft = read_byte_level(data, added, model_type=model_type, pre=pre)
    elif pre not in (None, "default"):
        raise _no_choice(pre)
    elif kind == "BPE":
        draft = read_spm_like(data, added, pre=pre)
    elif kind == "Unigram":
        draft = read_unigram(data, added, pre=pre)
    elif kind == "WordPiece":
        return _word_pieces(side, further, names, model_type, pre)
    else:
        raise UnsupportedError(
            "unsupported-tokenizer",
            f"tokenizer.json: a {kind} model; BPE, Unigram and WordPiece are supported",
            "Use a model with another tokenizer.",
        )
    have = {token.content for token in added}
    lay_added(
        draft.pieces,
        [token for token in further if token.content not in have],
        "tokenizer_config.json",
        escaped=draft.escaped,
        base=len(draft.pieces.texts),
    )
    _mark_named(draft, names)
    require_distinct(draft.pieces.texts, "tokenizer.json")
    if draft.model != "gpt2" and "tokenizer.model" in side:
        _compare(draft, side["tokenizer.model"])
    return draft


def _word_pieces(
    side: Mapping[str, Path], further: list[Added], names: Mapping[str, str], model_type: str, pre: str | None
) -> Draft:
    """WordPiece from `tokenizer.json`, or from a `vocab.txt` alone."""
    where = "tokenizer.json" if "tokenizer.json" in side else "vocab.txt"
    if pre not in (None, "default"):
        raise UnsupportedError(
            "unknown-pretokenizer", f"--pre {pre}: a WordPiece tokenizer has no pre-tokenizer to choose", "Leave out --pre."
        )
    data, events = wordpiece_object(side, model_type)
    names = DEFAULT_NAMES | dict(names)
    listed = data.get("added_tokens") or []
    if not isinstance(listed, list):
        raise SourceError("bad-tokenizer", "tokenizer.json: `added_tokens` is no list", "Get the file anew.")
    added = [parse_added(item, where) for item in listed]
    have = {token.content for token in added}
    draft = read_wordpiece(data, [*added, *(t for t in further if t.content not in have)], names, where)
    draft.pieces.events += events
    return draft


def _kind(model: Mapping[str, object]) -> str:
    kind = model.get("type")
    if isinstance(kind, str):
        return kind
    if "merges" in model:
        return "BPE"
    return "Unigram" if isinstance(model.get("vocab"), list) else "WordPiece"


def _further_added(
    side: Mapping[str, Path],
    settings: Mapping[str, object],
    special_map: Mapping[str, object],
    names: Mapping[str, str],
) -> list[Added]:
    """Added tokens of the files beside `tokenizer.json`, by text; `added_tokens_decoder` knows their flags."""
    special = set(names.values())
    for source in (settings, special_map):
        for key in ("additional_special_tokens", "extra_special_tokens"):
            value = source.get(key)
            for item in (
                value if isinstance(value, list) else list(value.values()) if isinstance(value, Mapping) else []
            ):
                content = item.get("content") if isinstance(item, Mapping) else item
                if isinstance(content, str):
                    special.add(content)
    found: dict[str, Added] = {}
    for content, token in read_object(side, "added_tokens.json").items():
        entry = {"content": content, "id": token, "special": content in special}
        found[content] = parse_added(entry, "added_tokens.json")
    for key, item in object_at(settings, "added_tokens_decoder", "tokenizer_config.json").items():
        if not key.isdecimal() or len(key) > 9:
            raise SourceError(
                "token-ids",
                f"tokenizer_config.json: {ascii(key)[:40]} is no id of an added token",
                "Get the file anew.",
            )
        token = parse_added(item, "tokenizer_config.json", int(key))
        found[token.content] = token
    return sorted(found.values(), key=lambda t: -1 if t.id is None else t.id)


def _mark_named(draft: Draft, names: Mapping[str, str]) -> None:
    """Make the named special tokens control tokens, which transformers does although no list of added tokens has them."""
    wanted = set(names.values())
    missing = [
        Added(content=text, id=token, special=True)
        for token, (text, kind) in enumerate(zip(draft.pieces.texts, draft.pieces.types, strict=True))
        if text in wanted and kind in (TokenType.NORMAL, TokenType.USER_DEFINED)
    ]
    lay_added(draft.pieces, missing, "tokenizer_config.json", escaped=draft.escaped)


def _sentencepiece(path: Path) -> SentencePieceModel:
    data = read_bytes(path)
    if re.match(rb"[A-Za-z0-9+/=]+ \d+\r?\n", data[:200]):
        raise UnsupportedError(
            "unsupported-tokenizer",
            f"{path.name}: a tiktoken vocabulary, not SentencePiece's",
            "Add the model's tokenizer.json.",
        )
    return parse_model(data, "tokenizer.model")


def _compare(draft: Draft, path: Path) -> None:
    """Take `tokenizer.model`'s scores where it agrees with `tokenizer.json`, which decides; say where it does not."""
    try:
        model = _sentencepiece(path)
    except (SourceError, UnsupportedError) as error:
        draft.pieces.events.append(
            Event(
                code="tokenizers-disagree",
                message=f"tokenizer.model is left aside: {error.cause}",
                subject="tokenizer.model",
            )
        )
        return
    pieces = draft.pieces
    normal = [i for i, kind in enumerate(pieces.types) if kind == TokenType.NORMAL]
    other = next((i for i in normal if i >= len(model.texts) or model.texts[i] != pieces.texts[i]), None)
    if other is not None:
        theirs = model.texts[other] if other < len(model.texts) else None
        difference = f"id {other} is {ascii(pieces.texts[other])[:40]} in tokenizer.json and {ascii(theirs)[:40]} in tokenizer.model"
    else:
        ours = sorted(normal, key=lambda i: (-pieces.scores[i], i))
        same_order = draft.model == "t5" or ours == sorted(normal, key=lambda i: (-model.scores[i], i))
        if same_order:
            for i in normal:
                pieces.scores[i] = model.scores[i]
            if model.add_dummy_prefix == draft.add_space_prefix:
                return
            difference = (
                f"the leading space (add_dummy_prefix {str(model.add_dummy_prefix).lower()} in tokenizer.model)"
            )
        else:
            difference = "the order in which pieces join"
    pieces.events.append(
        Event(
            code="tokenizers-disagree",
            message=f"tokenizer.json and tokenizer.model contradict each other ({difference}); tokenizer.json is taken, as in transformers",
            subject="tokenizer.model",
        )
    )


def _from_vocab_and_merges(
    side: Mapping[str, Path],
    settings: Mapping[str, object],
    further: list[Added],
    names: Mapping[str, str],
    model_type: str,
    pre: str | None,
) -> Draft:
    """A GPT-2 style pair of files, its structure that of the transformers class which `tokenizer_config.json` names."""
    lines = [
        line for line in read_text(side["merges.txt"]).split("\n") if line.strip() and not line.startswith("#version")
    ]
    kind = str(settings.get("tokenizer_class") or "").removesuffix("Fast")
    step, form = _SLOW_STRUCTURES.get(kind, (known.GPT2, ""))
    split = {"type": "Split", "pattern": {"Regex": step}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": bool(settings.get("add_prefix_space", False)), "use_regex": False}
    data = {
        "model": {
            "type": "BPE",
            "vocab": read_object(side, "vocab.json"),
            "merges": [line.rstrip("\r") for line in lines],
        },
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
        "normalizer": {"type": form} if form else None,
    }
    draft = read_byte_level(data, further, model_type=model_type, pre=pre)
    if kind not in _SLOW_STRUCTURES:
        draft.pieces.events.append(
            Event(
                code="pretokenizer-assumed",
                message=f"vocab.json and merges.txt do not say how text is cut ({kind or 'no tokenizer_class'}); GPT-2's way is assumed",
                severity="fallback",
                subject="tokenizer_config.json",
            )
        )
    _mark_named(draft, names)
    require_distinct(draft.pieces.texts, "vocab.json")
    return draft
