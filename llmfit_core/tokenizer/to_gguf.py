"""A `Vocab` as GGUF keys, in the order and of the types that llama.cpp's own files have."""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import Literal

from llmfit_core.tokenizer.known import NORMALIZED_NFC
from llmfit_core.tokenizer.vocab import TokenType, Vocab

KVType = Literal["string", "bool", "uint32", "array[string]", "array[float32]", "array[int32]", "array[uint8]"]

SPECIAL_KEYS: dict[str, str] = {
    "bos": "tokenizer.ggml.bos_token_id",
    "eos": "tokenizer.ggml.eos_token_id",
    "eot": "tokenizer.ggml.eot_token_id",
    "eom": "tokenizer.ggml.eom_token_id",
    "unk": "tokenizer.ggml.unknown_token_id",
    "sep": "tokenizer.ggml.seperator_token_id",
    "pad": "tokenizer.ggml.padding_token_id",
    "mask": "tokenizer.ggml.mask_token_id",
    "fim_pre": "tokenizer.ggml.fim_pre_token_id",
    "fim_suf": "tokenizer.ggml.fim_suf_token_id",
    "fim_mid": "tokenizer.ggml.fim_mid_token_id",
}
"""GGUF's key of each special token; `seperator` is how GGUF spells it."""

NORMALIZER_KEY = "tokenizer.llmfit.normalizer"
"""Our own key: the Unicode normal form of the source's tokenizer, for the way back; runtimes do not read it."""


@dataclass(frozen=True, kw_only=True)
class KV:
    """A GGUF value with its type.

    Attributes:
        type: As in `gguf-dump`; `array[...]` for arrays.
        value: `str`, `bool`, `int`, a tuple of them or of `float`, or `bytes` for `array[uint8]`.
    """

    type: KVType
    value: str | bool | int | bytes | tuple[str, ...] | tuple[float, ...] | tuple[int, ...]


def gguf_keys(vocab: Vocab) -> dict[str, KV]:
    """The `tokenizer.*` keys of a GGUF file, in order."""
    keys: dict[str, KV] = {
        "tokenizer.ggml.model": KV(type="string", value=vocab.model),
        "tokenizer.ggml.pre": KV(type="string", value=vocab.pre),
        "tokenizer.ggml.tokens": KV(type="array[string]", value=vocab.tokens),
    }
    if vocab.scores:
        keys["tokenizer.ggml.scores"] = KV(type="array[float32]", value=vocab.scores)
    keys["tokenizer.ggml.token_type"] = KV(type="array[int32]", value=vocab.types)
    if vocab.model == "gpt2":
        keys["tokenizer.ggml.merges"] = KV(type="array[string]", value=vocab.merges)
    for role, token in _specials(vocab).items():
        keys[SPECIAL_KEYS[role]] = KV(type="uint32", value=token)
    keys["tokenizer.ggml.add_bos_token"] = KV(type="bool", value=vocab.add_bos)
    keys["tokenizer.ggml.add_eos_token"] = KV(type="bool", value=vocab.add_eos)
    keys["tokenizer.ggml.add_space_prefix"] = KV(type="bool", value=vocab.add_space_prefix)
    if vocab.add_sep is not None:
        keys["tokenizer.ggml.add_sep_token"] = KV(type="bool", value=vocab.add_sep)
    if vocab.model == "bert":
        keys["tokenizer.ggml.normalizer.lowercase"] = KV(type="bool", value=vocab.lowercase)
        if vocab.strip_accents != vocab.lowercase:  # which is what llama.cpp takes without the key
            keys["tokenizer.ggml.normalizer.strip_accents"] = KV(type="bool", value=vocab.strip_accents)
    if vocab.model == "t5":
        keys["tokenizer.ggml.remove_extra_whitespaces"] = KV(type="bool", value=vocab.remove_extra_whitespaces)
        if vocab.charsmap:
            keys["tokenizer.ggml.precompiled_charsmap"] = KV(type="array[uint8]", value=vocab.charsmap)
    if vocab.normalizer or vocab.pre in NORMALIZED_NFC:
        keys[NORMALIZER_KEY] = KV(type="string", value=vocab.normalizer)
    names: list[str] = []
    for name, template in vocab.chat_templates.items():
        plain = "".join(c if c in string.ascii_letters + string.digits else "_" for c in name)
        if plain and plain not in names:
            names.append(plain)
            keys[f"tokenizer.chat_template.{plain}"] = KV(type="string", value=template)
    if names:
        keys["tokenizer.chat_templates"] = KV(type="array[string]", value=tuple(names))
    if vocab.chat_template is not None:
        keys["tokenizer.chat_template"] = KV(type="string", value=vocab.chat_template)
    return keys


def _specials(vocab: Vocab) -> dict[str, int]:
    """The special tokens to write: a file without `eos` would get llama.cpp's default, an id of any token at all."""
    specials = {role: vocab.specials[role] for role in SPECIAL_KEYS if role in vocab.specials}
    if "eos" not in specials:
        control = [i for i, kind in enumerate(vocab.types) if kind == TokenType.CONTROL]
        stand_in = next(
            (specials[r] for r in ("eot", "pad", "bos", "unk") if r in specials), control[-1] if control else None
        )
        if stand_in is not None:
            specials["eos"] = stand_in
    return {role: specials[role] for role in SPECIAL_KEYS if role in specials}
