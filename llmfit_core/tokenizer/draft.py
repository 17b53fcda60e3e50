"""What a reader of one tokenizer format hands on: everything of a `Vocab` but specials and templates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from llmfit_core.tokenizer.pieces import Pieces


@dataclass
class Draft:
    """A vocabulary in the making; fields as in `Vocab`.

    Attributes:
        pieces: Tokens, types, scores and the events so far.
        defaults: Ids by role (`bos`, `eos`, `unk`, `pad`) that the file itself gives.
        post_processor: That of `tokenizer.json`.
        escaped: Whether a space is written U+2581.
    """

    model: Literal["gpt2", "llama", "t5", "bert"]
    pieces: Pieces
    pre: str = "default"
    merges: tuple[str, ...] = ()
    add_space_prefix: bool = False
    remove_extra_whitespaces: bool = False
    charsmap: bytes = b""
    normalizer: str = ""
    defaults: Mapping[str, int] = field(default_factory=dict)
    post_processor: object = None
    escaped: bool = False
    lowercase: bool = False
    strip_accents: bool = False
