"""A `Vocab` as the files that transformers and `tokenizers` load."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping

from llmfit_core.errors import UnsupportedError
from llmfit_core.tokenizer import known
from llmfit_core.tokenizer.vocab import TokenType, Vocab

_SPACE = "\u2581"
_NAMED = {
    "bos": "bos_token",
    "eos": "eos_token",
    "unk": "unk_token",
    "sep": "sep_token",
    "pad": "pad_token",
    "mask": "mask_token",
}
Json = dict[str, object]


def vocab_files(vocab: Vocab) -> dict[str, bytes]:
    """`tokenizer.json`, `tokenizer_config.json`, `special_tokens_map.json` and templates, by file name.

    The bytes depend on `vocab` alone. `tokenizers` gives the ids that llama.cpp gives for the GGUF file: a
    byte-level model is cut as its pre-tokenizer's name means, a SentencePiece-like one gets merges rebuilt
    from its scores.

    Raises:
        UnsupportedError: A byte-level model whose pre-tokenizer has no known structure.
    """
    maker = {"gpt2": _byte_level, "llama": _spm_like, "t5": _unigram, "bert": _word_pieces}.get(vocab.model)
    if maker is None:
        raise UnsupportedError(
            "unsupported-tokenizer",
            f"a {vocab.model} vocabulary cannot be written yet",
            "Keep the original tokenizer files.",
        )
    tokenizer: Json = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added(vocab),
        **maker(vocab),
    }
    files = {
        "tokenizer.json": _dump(tokenizer),
        "tokenizer_config.json": _dump(_config(vocab)),
        "special_tokens_map.json": _dump(_names(vocab)),
    }
    if vocab.chat_template is not None:
        files["chat_template.jinja"] = vocab.chat_template.encode()
    for name, template in vocab.chat_templates.items():
        plain = "".join(c if c.isalnum() or c in "-_" else "_" for c in name)
        files[f"additional_chat_templates/{plain}.jinja"] = template.encode()
    return files


def _dump(value: object) -> bytes:
    return (json.dumps(value, ensure_ascii=False, indent=1) + "\n").encode()


def _names(vocab: Vocab) -> Json:
    return {key: vocab.tokens[vocab.specials[role]] for role, key in _NAMED.items() if role in vocab.specials}


def _config(vocab: Vocab) -> Json:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": vocab.add_bos,
        "add_eos_token": vocab.add_eos,
        "add_prefix_space": vocab.add_space_prefix,
        "clean_up_tokenization_spaces": False,
        **_names(vocab),
    }


def _added(vocab: Vocab) -> list[Json]:
    named = set(vocab.specials.values())
    out: list[Json] = []
    for token, (text, kind) in enumerate(zip(vocab.tokens, vocab.types, strict=True)):
        if kind in (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN) or (
            token in named and kind == TokenType.NORMAL
        ):
            out.append(
                {
                    "id": token,
                    "content": text,
                    "single_word": False,
                    "lstrip": False,
                    "rstrip": False,
                    "normalized": False,
                    "special": kind != TokenType.USER_DEFINED,
                }
            )
    return out


def _template(vocab: Vocab, otherwise: Json | None) -> Json | None:
    """The post-processor that adds `bos` and `eos`."""
    front = [vocab.specials["bos"]] if vocab.add_bos and "bos" in vocab.specials else []
    behind = [vocab.specials["eos"]] if vocab.add_eos and "eos" in vocab.specials else []
    if not front and not behind:
        return otherwise

    def special(token: int, kind: int) -> Json:
        return {"SpecialToken": {"id": vocab.tokens[token], "type_id": kind}}

    def around(name: str, kind: int) -> list[Json]:
        sequence: Json = {"Sequence": {"id": name, "type_id": kind}}
        return [*(special(t, kind) for t in front), sequence, *(special(t, kind) for t in behind)]

    second = around("B", 1)
    between: list[int] = []
    if vocab.add_sep is not None:  # one `bos` for both, as BERT has it
        second = second[len(front) :]
        between = [vocab.specials["sep"]] if vocab.add_sep and "sep" in vocab.specials else []
    tokens = {
        vocab.tokens[t]: {"id": vocab.tokens[t], "ids": [t], "tokens": [vocab.tokens[t]]} for t in (*front, *behind, *between)
    }
    return {
        "type": "TemplateProcessing",
        "single": around("A", 0),
        "pair": [*around("A", 0), *(special(t, 0) for t in between), *second],
        "special_tokens": tokens,
    }


def _byte_level(vocab: Vocab) -> Json:
    row = known.row_of(vocab.pre)
    if row is None:
        raise UnsupportedError(
            "unknown-pretokenizer",
            f"the structure of llama.cpp's pre-tokenizer {vocab.pre!r} is not known",
            "Copy tokenizer.json from the model's source instead.",
        )
    byte_level: Json = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    splits: list[Json] = [
        {"type": "Split", "pattern": {"Regex": step}, "behavior": "Isolated", "invert": False} for step in row.steps
    ]
    return {
        "normalizer": {"type": vocab.normalizer} if vocab.normalizer else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, byte_level]},
        "post_processor": _template(vocab, {**byte_level, "use_regex": True}),
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            **_BPE,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": row.ignore_merges,
            "vocab": _ids(vocab),
            "merges": [list(m) for m in _pairs(vocab)],
        },
    }


_BPE: Json = {
    "type": "BPE",
    "dropout": None,
    "unk_token": None,
    "continuing_subword_prefix": None,
    "end_of_word_suffix": None,
}


def _ids(vocab: Vocab) -> dict[str, int]:
    return {text: token for token, text in enumerate(vocab.tokens)}


def _pairs(vocab: Vocab) -> list[tuple[str, str]]:
    """Merges whose parts and outcome are tokens, which `tokenizers` insists on; the others can never apply."""
    ids = _ids(vocab)
    pairs = []
    for merge in vocab.merges:
        at = merge.find(" ", 1)
        left, right = merge[:at], merge[at + 1 :]
        if at > 0 and left in ids and right in ids and left + right in ids:
            pairs.append((left, right))
    return pairs


def merges_from_scores(vocab: Vocab) -> list[tuple[str, str]]:
    """Every way to join two pieces to a third, best score first: what llama.cpp's bigram queue does, as BPE merges."""
    scores: Mapping[str, float] = {
        text: vocab.scores[token]
        for token, text in enumerate(vocab.tokens)
        if vocab.types[token] in (TokenType.NORMAL, TokenType.UNUSED)
    }
    found: list[tuple[float, int, str, str]] = []
    for place, (text, score) in enumerate(scores.items()):
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if left in scores and right in scores:
                found.append((-score, place, left, right))
    return [(left, right) for _, _, left, right in sorted(found, key=lambda f: (f[0], f[1], len(f[2])))]


def _spm_like(vocab: Vocab) -> Json:
    replace: Json = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    prepend: list[Json] = [{"type": "Prepend", "prepend": _SPACE}] if vocab.add_space_prefix else []
    unk = vocab.specials.get("unk")
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*prepend, replace]},
        "pre_tokenizer": None,
        "post_processor": _template(vocab, None),
        "decoder": _decoder(vocab, byte_fallback=True),
        "model": {
            **_BPE,
            "unk_token": None if unk is None else vocab.tokens[unk],
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": _ids(vocab),
            "merges": [list(m) for m in merges_from_scores(vocab)],
        },
    }


def _decoder(vocab: Vocab, *, byte_fallback: bool) -> Json:
    steps: list[Json] = [{"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}]
    steps += [{"type": "ByteFallback"}] if byte_fallback else []
    steps.append({"type": "Fuse"})
    if vocab.add_space_prefix:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": steps}


def _word_pieces(vocab: Vocab) -> Json:
    from llmfit_core.tokenizer.wordpiece import word_text

    texts = [word_text(t, k) for t, k in zip(vocab.tokens, vocab.types, strict=True)]
    unk = vocab.specials.get("unk")
    return {
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": vocab.strip_accents,
            "lowercase": vocab.lowercase,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": _template(vocab, None),
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": texts[unk] if unk is not None else None,
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {text: token for token, text in enumerate(texts)},
        },
    }


def _unigram(vocab: Vocab) -> Json:
    steps: list[Json] = []
    if vocab.charsmap:
        steps.append({"type": "Precompiled", "precompiled_charsmap": base64.b64encode(vocab.charsmap).decode("ascii")})
    if vocab.remove_extra_whitespaces:
        steps.append({"type": "Strip", "strip_left": True, "strip_right": True})
        steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    if vocab.add_space_prefix:
        steps.append({"type": "Prepend", "prepend": _SPACE})
    steps.append({"type": "Replace", "pattern": {"String": " "}, "content": _SPACE})
    return {
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": None,
        "post_processor": _template(vocab, None),
        "decoder": _decoder(vocab, byte_fallback=False),
        "model": {
            "type": "Unigram",
            "unk_id": vocab.specials.get("unk"),
            "vocab": [[text, score] for text, score in zip(vocab.tokens, vocab.scores, strict=True)],
            "byte_fallback": False,
        },
    }
