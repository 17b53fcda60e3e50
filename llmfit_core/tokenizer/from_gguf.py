"""The `tokenizer.*` keys of a GGUF file as a `Vocab`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from llmfit_core.errors import SourceError, UnsupportedError
from llmfit_core.events import Event
from llmfit_core.tokenizer import known
from llmfit_core.tokenizer.sources import integer
from llmfit_core.tokenizer.specials import END_TEXTS
from llmfit_core.tokenizer.to_gguf import NORMALIZER_KEY, SPECIAL_KEYS
from llmfit_core.tokenizer.vocab import TokenType, Vocab

_MODELS = ("gpt2", "llama", "t5", "bert")
_SCORED = ("llama", "t5")
_DEFAULT_ADD: dict[str, tuple[bool, bool, bool]] = {
    "gpt2": (False, False, False),
    "llama": (True, False, True),
    "t5": (False, True, False),
    "bert": (True, True, False),
}
"""What llama.cpp assumes without keys: `add_bos`, `add_eos`, `add_space_prefix`. A WordPiece text always gets both."""
_BOS_BY_PRE = frozenset({"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano", "tekken", "chameleon"})  # fmt: skip


def vocab_from_gguf(kv: Mapping[str, object]) -> Vocab:
    """A `Vocab` from a GGUF file's keys.

    Args:
        kv: Values by key: texts, numbers, booleans; arrays as any sequence (lists, tuples, numpy arrays).

    Raises:
        SourceError: Keys are missing, of a wrong type, or of unequal lengths.
        UnsupportedError: A tokenizer model that this version does not read.
    """
    model = kv.get("tokenizer.ggml.model")
    if model not in _MODELS:
        if "tokenizer.ggml.tokens" not in kv:
            raise SourceError(
                "no-tokenizer", "the GGUF file has no tokenizer.ggml.tokens", "Take a file with its vocabulary."
            )
        raise UnsupportedError(
            "unsupported-tokenizer",
            f"tokenizer.ggml.model is {ascii(model)[:40]}; {', '.join(_MODELS)} are read",
            "Use another file.",
        )
    tokens = _texts(kv, "tokenizer.ggml.tokens")
    types = _numbers(kv, "tokenizer.ggml.token_type", len(tokens)) or (int(TokenType.NORMAL),) * len(tokens)
    types = tuple(int(t) if 1 <= t <= 6 else int(TokenType.NORMAL) for t in types)
    scores = tuple(float(s) for s in _numbers(kv, "tokenizer.ggml.scores", len(tokens))) if model in _SCORED else ()
    if model in _SCORED and not scores:
        scores = (0.0,) * len(tokens)
    specials = _specials(kv, len(tokens))
    pre = kv.get("tokenizer.ggml.pre")
    pre = pre if isinstance(pre, str) and pre else "default"
    bos, eos, space = _DEFAULT_ADD[str(model)]
    bos |= model == "gpt2" and pre in _BOS_BY_PRE
    normalizer = kv.get(NORMALIZER_KEY)
    if not isinstance(normalizer, str):
        normalizer = "NFC" if pre in known.NORMALIZED_NFC else ""
    lowercase = _flag(kv, "normalizer.lowercase", True) and model == "bert"
    separated = kv.get("tokenizer.ggml.add_sep_token")
    templates, default = _templates(kv)
    ends = [specials[r] for r in ("eos", "eot", "eom") if r in specials]
    ends += _ends_by_text(tokens, types)
    return Vocab(
        model=cast("Literal['gpt2', 'llama', 't5', 'bert']", model),
        pre=pre,
        tokens=tokens,
        types=types,
        scores=scores,
        merges=_texts(kv, "tokenizer.ggml.merges", empty=True) if model == "gpt2" else (),
        specials=specials,
        stops=tuple(dict.fromkeys(ends)),
        add_bos=_flag(kv, "add_bos_token", bos) and "bos" in specials,
        add_eos=_flag(kv, "add_eos_token", eos) and "eos" in specials,
        add_space_prefix=_flag(kv, "add_space_prefix", space) and model in _SCORED,
        remove_extra_whitespaces=_flag(kv, "remove_extra_whitespaces", False),
        charsmap=bytes(int(b) & 255 for b in _numbers(kv, "tokenizer.ggml.precompiled_charsmap", None)),
        normalizer=normalizer,
        lowercase=lowercase,
        strip_accents=_flag(kv, "normalizer.strip_accents", lowercase) and model == "bert",
        add_sep=separated if isinstance(separated, bool) else None,
        chat_template=default,
        chat_templates=templates,
        events=(*_events(model == "gpt2", pre), *_spacing(model, _flag(kv, "add_space_prefix", space), types)),
    )


def _ends_by_text(tokens: tuple[str, ...], types: tuple[int, ...]) -> list[int]:
    """Control tokens that end a text in llama.cpp for what they are called, its exceptions included."""
    found = {t: i for i, t in enumerate(tokens) if t in END_TEXTS and types[i] == TokenType.CONTROL}
    if ("<|call|>" in found and "<|return|>" in found) or (
        ("<|call|>" in found or "<|calls|>" in found) and "<|flush|>" in found
    ):
        found.pop("<|end|>", None)
    if "<|tool_response>" in found:
        found.pop("</s>", None)
    return list(found.values())


def _events(byte_level: bool, pre: str) -> tuple[Event, ...]:
    if not byte_level or known.row_of(pre) is not None:
        return ()
    return (
        Event(
            code="pretokenizer-unknown",
            message=f"the file's pre-tokenizer {ascii(pre)[:60]} has no known structure",
            subject="tokenizer.ggml.pre",
        ),
    )


def _spacing(model: object, prefix: bool, types: Sequence[int]) -> tuple[Event, ...]:
    """What the keys cannot say: whether the model's own tokenizer puts its space before the text only."""
    if model != "llama" or not prefix or not {TokenType.CONTROL, TokenType.USER_DEFINED} & set(types):
        return ()
    return (
        Event(
            code="space-scheme-unknown",
            message="GGUF has no word for where the model's own tokenizer put its space; as in llama.cpp it is put in front of every "
            "stretch between special tokens, and of text that begins with a space",
            severity="info",
            subject="tokenizer.ggml.add_space_prefix",
        ),
    )


def _bad(key: str, what: str) -> SourceError:
    return SourceError("bad-tokenizer", f"{key}: {what}", "Get the file anew.")


def _sequence(kv: Mapping[str, object], key: str) -> list[Any]:
    value: Any = kv.get(key)
    if value is None:
        return []
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise _bad(key, "no array")
    return list(value)


def _texts(kv: Mapping[str, object], key: str, *, empty: bool = False) -> tuple[str, ...]:
    values = _sequence(kv, key)
    if key not in kv or not (values or empty):
        raise _bad(key, "missing or empty")
    if not all(isinstance(v, str) for v in values):
        raise _bad(key, "holds something that is no text")
    return tuple(values)


def _numbers(kv: Mapping[str, object], key: str, length: int | None) -> tuple[Any, ...]:
    values = _sequence(kv, key)
    if values and length is not None and len(values) != length:
        raise _bad(key, f"{len(values)} values for {length} tokens")
    if not all(isinstance(v, int | float) and math.isfinite(v) for v in values):
        raise _bad(key, "holds something that is no number")
    return tuple(values)


def _flag(kv: Mapping[str, object], name: str, default: bool) -> bool:
    value = kv.get(f"tokenizer.ggml.{name}")
    return default if value is None else bool(value)


def _specials(kv: Mapping[str, object], size: int) -> dict[str, int]:
    found: dict[str, int] = {}
    for role, key in SPECIAL_KEYS.items():
        token = integer(kv.get(key))
        if token is not None and 0 <= token < size:
            found[role] = token
    return found


def _templates(kv: Mapping[str, object]) -> tuple[dict[str, str], str | None]:
    prefix = "tokenizer.chat_template."
    named = {k.removeprefix(prefix): v for k, v in kv.items() if k.startswith(prefix) and isinstance(v, str)}
    default = kv.get("tokenizer.chat_template")
    return dict(sorted(named.items())), default if isinstance(default, str) else None
