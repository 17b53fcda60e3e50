"""Proof that a runtime cuts text as the tokenizer's own library does: the texts, and the library's ids."""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llmfit_core.errors import SourceError, UnsupportedError
from llmfit_core.tokenizer.known import known_difference
from llmfit_core.tokenizer.vocab import TokenType, Vocab

PROOF_TEXT: tuple[str, ...] = (
    "Hello, world! The quick brown fox jumps over the lazy dog.",
    " leading and  double   spaces    and trailing  ",
    "   ",
    "\n",
    "a\n\nb\n \nc \n\t d\r\n\r\ne\t\tf",
    "tabs\tand\ttabs\t\t\tend\t",
    "no\u00a0break\u3000ideographic\u2003em\u200bzero",
    "I've you'll WE'RE it's I'M he'D they'LL 'tis 'S DON'T we'Ve 're'",
    "3 33 333 3333 33333 333333 3333333 33333333 1234567890123456789012345678901234567890",
    "3.14 1,000,000 2024-01-31 0x1F 1e-9 v1.2.3 50% $5 #1 \u00bd \u00b2 \u0664\u0662 \u2167",
    "def f(x: int) -> str:\n    return f\"{x!r}\\n\"  # comment\n\n\nclass A(B):\n\t@property\n\tdef y(self): ...",
    "<html><body class=\"a b\">&amp; </body></html> {\"key\": [1, 2.5, null]} SELECT * FROM t WHERE a>=1;",
    "https://example.com/a/b?c=d&e=f#g user@example.org C:\\path\\to ~/x ../y",
    "!?.,;:-_()[]{}<>/\\|@#$%^&*+=~`'\" ... -- === ***** ????? !!!!",
    "camelCase PascalCase snake_case SCREAMING_CASE HTTPServer iPhone McDonald",
    "Stra\u00dfe \u00dcbergr\u00f6\u00dfe na\u00efve caf\u00e9 \u00c9COLE \u0141\u00f3d\u017a \u00f1and\u00fa \u0130stanbul",
    "cafe\u0301 a\u030a n\u0303 decomposed",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \u041d\u0415\u0429\u041e \u043d\u0430 \u0411\u044a\u043b\u0433\u0430\u0440\u0441\u043a\u0438",
    "\u039a\u03b1\u03bb\u03b7\u03bc\u03ad\u03c1\u03b1 \u03ba\u03cc\u03c3\u03bc\u03b5 \u0391\u0398\u0397\u039d\u0391",
    "\u6211\u60f3\u5728apple\u5de5\u4f5c1314151\u5929\uff5e\u4f60\u597d\uff0c\u4e16\u754c\uff01\u6f22\u5b57",
    "\u3053\u3093\u306b\u3061\u306f\u4e16\u754c\u30ab\u30bf\u30ab\u30ca\u3001\u6f22\u5b57\u3068\u304b\u306a\u3002",
    "\uc548\ub155\ud558\uc138\uc694 \uc138\uacc4 123\uba85",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645\u060c \u0643\u064a\u0641 \u062d\u0627\u0644\u0643\u061f \u0661\u0662\u0663",
    "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e, \u0939\u093f\u0928\u094d\u0926\u0940 \u092e\u0947\u0902 \u0967\u0968\u0969",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01 \u1780\u17b6\u1793\u17cb\u178f\u17c2\u1796\u17b7\u179f\u17c1\u179f",
    "\U0001f680 (normal) \U0001f636\u200d\U0001f32b\ufe0f (joined) \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd \u2705 \U0001f1e9\U0001f1ea",
    "\u2211 x\u00b2 \u2264 \u221e \u2200\u2203 \u00a9\u00ae\u2122 \u20ac\u00a3\u00a5 \u201cquoted\u201d \u2018x\u2019 \u2013 \u2014 \u2026",
    "\ufb01ligature \uff21\uff22\uff23 full\uff11\uff12 \u212b \u0132",
    "\U00010348 \U0001d54f \U00020000 \ue000 \u0001\u0007 \ufffd",
    "\ufeffbyte order mark",
)  # fmt: skip
"""Texts on which tokenizers are known to differ; none needs a special token."""


def proof_texts(vocab: Vocab, limit: int = 24) -> tuple[str, ...]:
    """`PROOF_TEXT`, and texts with up to `limit` of the vocabulary's own special and added tokens inside."""
    control = [t for t, k in zip(vocab.tokens, vocab.types, strict=True) if k == TokenType.CONTROL]
    user = [t for t, k in zip(vocab.tokens, vocab.types, strict=True) if k == TokenType.USER_DEFINED]
    named = [vocab.tokens[i] for i in dict.fromkeys([*vocab.specials.values(), *vocab.stops])]
    picked = [t for t in dict.fromkeys([*named, *control[:limit], *user[:limit], *user[-2:]]) if t.strip()]
    texts = list(PROOF_TEXT)
    for token in picked:
        texts.append(f"before{token}after {token} between {token}\n{token}{token}, end")
    for token in user[:limit]:
        if token.isalnum():
            texts.append(f"un{token}ed {token.upper()} {token.lower()} {token}s '{token}'")
    if len(picked) > 1:
        texts.append("\n".join(f"{a}user text{b} 12 {a}" for a, b in itertools.pairwise(picked)))
    return tuple(texts)


def explained_difference(vocab: Vocab, text: str) -> str:
    """Why llama.cpp's ids of `text` may differ from the library's without a fault of the file; else empty.

    What this names stands among the vocabulary's events too: pre-tokenizers that llama.cpp knows only nearly,
    Unicode normal forms that it leaves out, added tokens that swallow white space, spaces after special tokens.
    """
    reason = known_difference(vocab.pre, text) if vocab.model == "gpt2" else ""
    if reason:
        return reason
    special = (TokenType.CONTROL, TokenType.USER_DEFINED)
    has_special = any(k in special and t in text for t, k in zip(vocab.tokens, vocab.types, strict=True))
    white = text.strip() != text or "  " in text or any(c in text for c in "\n\t\r")
    if vocab.model == "bert":
        from llmfit_core.tokenizer.wordpiece import wordpiece_difference

        reason = wordpiece_difference(vocab, text)
        if reason:
            return reason
    for event in vocab.events:
        if event.code in ("space-after-special", "leading-space") and event.subject == "tokenizer_config.json":
            continue  # transformers' own way with a tokenizer.model, which the judge, sentencepiece, has not
        shows = {
            "normalizer": not text.isascii() and not (vocab.normalizer and unicodedata.is_normalized("NFC", text)),
            "normalizer-map": not text.isascii() or white,
            "normalizer-spaces": white,
            "space-after-special": has_special or text.startswith(" "),
            "leading-space": has_special or text.startswith(" "),
            "added-token-lstrip": has_special,
            "added-token-rstrip": has_special,
            "added-token-single-word": has_special,
            "added-token-normalized": has_special,
        }.get(event.code, False)
        if event.code == "no-byte-fallback":
            known = set("".join(vocab.tokens)) | {" "}
            shows = any(c not in known for c in text)
        if shows:
            return event.message
    if vocab.model == "t5" and vocab.add_space_prefix and (has_special or not text.strip(" ")):
        return "llama.cpp's Unigram puts no space in front of a stretch that is all spaces"
    if "\u2581" in text and vocab.model != "gpt2":
        return "U+2581 itself in a text is taken for a space, and by llama.cpp not as part of added tokens"
    return ""


def reference_ids(side: Mapping[str, Path], texts: Sequence[str], *, add_special: bool = False) -> list[list[int]]:
    """Ids by the tokenizer's own library, special tokens in the text parsed.

    `tokenizers` where the folder has a `tokenizer.json`, else `sentencepiece`, which parses no control tokens
    itself: the text is cut at them first, longest first, as llama.cpp does.

    Args:
        side: As for `read_vocab`.
        texts: What to encode.
        add_special: Whether to add `bos` and `eos` by the tokenizer's rule (`tokenizer.json` only).

    Raises:
        SourceError: The library does not load the file.
        UnsupportedError: Neither file is there, or `add_special` without a `tokenizer.json`; `missing-library`.
    """
    if "tokenizer.json" in side or ("vocab.txt" in side and "tokenizer.model" not in side and "vocab.json" not in side):
        return _by_tokenizers(side, texts, add_special)
    if "tokenizer.model" in side and not add_special:
        return _by_sentencepiece(side, texts)
    raise UnsupportedError(
        "no-judge", "no library reads this tokenizer to compare with", "Add the model's tokenizer.json."
    )


def _by_tokenizers(side: Mapping[str, Path], texts: Sequence[str], add_special: bool) -> list[list[int]]:
    from llmfit_core.tokenizer.sources import read_object
    from llmfit_core.tokenizer.specials import named_tokens
    from llmfit_core.tokenizer.wordpiece import DEFAULT_NAMES

    tokenizers = _library("tokenizers")
    try:
        judge = tokenizers.Tokenizer.from_str(_json_text(side))
    except Exception as error:
        raise SourceError(
            "bad-tokenizer", f"tokenizer.json: tokenizers does not load it: {error}", "Get the file anew."
        ) from None
    judge.no_truncation()
    judge.no_padding()
    if getattr(judge.model, "dropout", None):
        judge.model.dropout = None  # of training: it cuts the same text differently each time
    names = named_tokens(read_object(side, "tokenizer_config.json"), read_object(side, "special_tokens_map.json"))
    if type(judge.model).__name__ == "WordPiece":
        names = DEFAULT_NAMES | names
    judge.add_special_tokens([n for n in names.values() if judge.token_to_id(n) is not None])
    return [list(e.ids) for e in judge.encode_batch(list(texts), add_special_tokens=add_special)]


def _json_text(side: Mapping[str, Path]) -> str:
    """The tokenizer as `tokenizers` reads it: the file, or what transformers makes of it for BERT's own class."""
    import json

    from llmfit_core.tokenizer.sources import object_at, read_object
    from llmfit_core.tokenizer.wordpiece import wordpiece_object

    if "tokenizer.json" in side:
        text = side["tokenizer.json"].read_text(encoding="utf-8")
        model = object_at(read_object(side, "tokenizer.json"), "model", "tokenizer.json") if "WordPiece" in text else {}
        if model.get("type", "WordPiece" if "merges" not in model else "BPE") != "WordPiece" or not model:
            return text
    data = wordpiece_object(side)[0]
    return json.dumps({"version": "1.0", "added_tokens": [], "decoder": None} | data)


def _by_sentencepiece(side: Mapping[str, Path], texts: Sequence[str]) -> list[list[int]]:
    from llmfit_core.tokenizer.read import read_vocab

    sentencepiece = _library("sentencepiece")
    try:
        judge = sentencepiece.SentencePieceProcessor(model_proto=side["tokenizer.model"].read_bytes())
    except Exception as error:
        raise SourceError(
            "bad-tokenizer", f"tokenizer.model: sentencepiece does not load it: {error}", "Get the file anew."
        ) from None
    vocab = read_vocab({k: v for k, v in side.items() if "template" not in k}, {})
    special = (TokenType.CONTROL, TokenType.USER_DEFINED)
    own = {i for i in range(judge.vocab_size()) if judge.IdToPiece(i).replace("\u2581", " ") == vocab.tokens[i]}
    cut = {
        t: i
        for i, (t, k) in enumerate(zip(vocab.tokens, vocab.types, strict=True))
        if k in special
        and not (k == TokenType.USER_DEFINED and i in own)  # The library knows its own user-defined pieces.
    }
    pattern = (
        re.compile("(" + "|".join(re.escape(t) for t in sorted(cut, key=lambda t: -len(t.encode()))) + ")")
        if cut
        else None
    )
    out: list[list[int]] = []
    for text in texts:
        ids: list[int] = []
        for part in pattern.split(text) if pattern else [text]:
            if part in cut:
                ids.append(cut[part])
            elif part:
                ids.extend(judge.encode(part))
        out.append(ids)
    return out


def _library(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except (ImportError, OSError):  # a library that cannot load its own parts is as good as none
        raise UnsupportedError("missing-library", f"proving tokens needs {name}", f"pip install {name}") from None
