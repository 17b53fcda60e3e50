"""`Vocab`: a tokenizer as data, in the terms of GGUF's `tokenizer.ggml.*` keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from llmfit_core.events import Event


class TokenType(IntEnum):
    """GGUF's token types."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, kw_only=True)
class Vocab:
    """A tokenizer without its files.

    Attributes:
        model: `gpt2` (byte-level BPE), `llama` (SentencePiece-like BPE with byte fallback), `t5`
            (Unigram) or `bert` (WordPiece): the values of `tokenizer.ggml.model`.
        pre: llama.cpp's name of the pre-tokenizer (`default` where the model needs none).
        tokens: Texts by id. Byte-level BPE keeps its printable byte alphabet, SentencePiece its U+2581.
        types: A `TokenType` per token.
        scores: A score per token (`llama`, `t5`), else empty.
        merges: `"left right"` by rank (`gpt2`), else empty.
        specials: Ids by GGUF's names: `bos`, `eos`, `eot`, `eom`, `unk`, `sep`, `pad`, `mask`,
            `fim_pre`, `fim_suf`, `fim_mid`.
        stops: Every id that ends a generation, `eos` and `eot` included, without repeats.
        add_bos: Whether encoding puts `bos` in front.
        add_eos: Whether encoding puts `eos` behind.
        add_space_prefix: Whether text gets a leading space (`llama`, `t5`).
        remove_extra_whitespaces: SentencePiece's normalizer flag (`t5`).
        charsmap: SentencePiece's precompiled normalization map; empty where there is none.
        normalizer: The Unicode normal form (`NFC`) that the tokenizer asks for and llama.cpp leaves out, or empty.
        lowercase: Whether text is brought to lower case first (`bert`).
        strip_accents: Whether accents come off (`bert`).
        add_sep: Whether a `sep` stands between two texts besides the `eos` of the first; `None` where nothing says so.
        chat_template: The default template, or `None`.
        chat_templates: Further templates by name, without the default.
        events: What fell back or is worth a warning.
    """

    model: Literal["gpt2", "llama", "t5", "bert"]
    pre: str
    tokens: tuple[str, ...]
    types: tuple[int, ...]
    scores: tuple[float, ...] = ()
    merges: tuple[str, ...] = ()
    specials: Mapping[str, int] = field(default_factory=dict)
    stops: tuple[int, ...] = ()
    add_bos: bool = False
    add_eos: bool = False
    add_space_prefix: bool = False
    remove_extra_whitespaces: bool = False
    charsmap: bytes = b""
    normalizer: str = ""
    lowercase: bool = False
    strip_accents: bool = False
    add_sep: bool | None = None
    chat_template: str | None = None
    chat_templates: Mapping[str, str] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
