"""A tiny tokenizer of GPT-2's kind, made without any training: all bytes, a few merges, one special token."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MERGES = (
    ("t", "h"), ("th", "e"), ("Ġ", "t"), ("i", "n"), ("e", "r"), ("Ġ", "a"), ("o", "n"), ("Ġ", "the"), ("r", "e"),
    ("a", "n"), ("e", "n"), ("Ġ", "s"), ("o", "r"), ("in", "g"), ("Ġ", "w"), ("e", "s"),
)  # fmt: skip
END = "<|end|>"


def alphabet() -> list[str]:
    """The 256 characters that stand for bytes in byte-level vocabularies (GPT-2's `bytes_to_unicode`)."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    moved = range(256, 256 + 256 - len(plain))
    return [chr(c) for c in (*plain, *moved)]


def tokens() -> list[str]:
    """The vocabulary, in the order of ids."""
    return [*alphabet(), *("".join(pair) for pair in MERGES), END]


VOCABULARY = 256 + len(MERGES) + 1
"""How many tokens it has."""
END_ID = VOCABULARY - 1


def write_tokenizer(folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json."""
    vocab = {token: number for number, token in enumerate(tokens())}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    added = {"id": END_ID, "content": END, "special": True}
    added |= dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [added],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": [list(pair) for pair in MERGES],
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
    said = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END,
        "eos_token": END,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(said), encoding="utf-8")
