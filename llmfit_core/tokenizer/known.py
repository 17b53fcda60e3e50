"""The table of byte-level pre-tokenizers: how files spell them, and what llama.cpp calls them.

A byte-level tokenizer cuts text by a list of expressions, one after the other: what an expression
matches becomes a piece of its own, and so does what lies between (`Isolated` in tokenizer.json).
llama.cpp holds such a list under each name of `tokenizer.ggml.pre`, with a flag `ignore_merges`
(a piece that is a token is taken whole). One row here is one behaviour; `names` starts with the
name we write, the others behave alike and are preferred where the model's type says so.

To add a row: state `steps` as tokenizer.json spells them and compare the ids in
`tests/core/tokenizer/test_llamacpp.py`, which trains a tokenizer for each row.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_REST}"
QWEN2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_REST}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LEAD = r"[^\r\n\p{L}\p{N}]?"
_SLASHED = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT4O = rf"{_LEAD}{_UPPER}*{_LOWER}+{_CONTRACTION}?|{_LEAD}{_UPPER}+{_LOWER}*{_CONTRACTION}?|\p{{N}}{{1,3}}|{_SLASHED}"
TEKKEN = rf"{_LEAD}{_UPPER}*{_LOWER}+|{_LEAD}{_UPPER}+{_LOWER}*|\p{{N}}|{_SLASHED}"
_CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"""
    r"""|\s*[\r\n]+|\s+(?!\S)|\s+"""
)
_CJK_DEEPSEEK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
PUNCTUATION = r"[\p{P}\$\+<=>\^~\|`]"
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_LATIN_DEEPSEEK = (
    "\\s?[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d"
    "\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4"
    "\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d"
    "\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a"
    "\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943]+"
)
_MARKS_DEEPSEEK = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
_KIMI = r"[{}&&[^\p{{Han}}]]"
_KIMI_UPPER, _KIMI_LOWER = _KIMI.format(_UPPER[1:-1]), _KIMI.format(_LOWER[1:-1])
KIMI = (
    rf"[\p{{Han}}]+|{_LEAD}{_KIMI_UPPER}*{_KIMI_LOWER}+{_CONTRACTION}?|{_LEAD}{_KIMI_UPPER}+{_KIMI_LOWER}*{_CONTRACTION}?"
    rf"|\p{{N}}{{1,3}}|{_REST}"
)


def _marks_or_foreign_case(text: str) -> bool:
    """Whether text has combining marks, or letters beyond ASCII that have case."""
    return any(unicodedata.category(c) in ("Mn", "Mc", "Me") or (ord(c) > 127 and c.lower() != c.upper()) for c in text)


def _cased(text: str) -> bool:
    return any(c.lower() != c.upper() for c in text) or _marks_or_foreign_case(text)


def _cased_or_digits(text: str) -> bool:
    return _cased(text) or any(c.isdecimal() for c in text)


def _foreign_digits(text: str) -> bool:
    return any(c.isdecimal() and not c.isascii() for c in text)


def _foreign_space(text: str) -> bool:
    return any(c.isspace() and not c.isascii() for c in text)


@dataclass(frozen=True, kw_only=True)
class Known:
    """One behaviour of llama.cpp.

    Attributes:
        names: Its names, ours first.
        steps: Expressions in order, as tokenizer.json spells them.
        ignore_merges: Whether a piece that is a token is taken whole.
        unmixed: Other lists of steps, which cut alike where no merge joins a digit to something else.
        differs: What the runtime does otherwise than `steps` say; empty where it does the same.
        differs_on: Whether a text can show `differs`.
    """

    names: tuple[str, ...]
    steps: tuple[str, ...]
    ignore_merges: bool = False
    unmixed: tuple[tuple[str, ...], ...] = ()
    differs: str = ""
    differs_on: Callable[[str], bool] | None = None


_CASE = "llama.cpp tells upper from lower case only in ASCII and cuts words at combining marks (Hindi, Thai, decomposed accents)"
_SPACES = "llama.cpp takes the spaces from U+2000 to U+3000 out of the ranges of CJK characters and marks"

KNOWN: tuple[Known, ...] = (
    Known(
        names=(
            "gpt-2", "olmo", "mpt", "jais", "exaone4", "trillion", "granite-docling", "phi-2", "gigachat", "a.x-4.0",
            "mellum", "modern-bert", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de",
        ),
        steps=(GPT2,),
    ),
    Known(
        names=("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"),
        steps=(r"\p{N}", GPT2),
    ),
    Known(
        names=("llama-bpe", "glm4", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano", "glm5"),
        steps=(LLAMA3,),
        ignore_merges=True,
    ),
    Known(names=("smaug-bpe", "dbrx", "chatglm-bpe"), steps=(LLAMA3,)),
    Known(
        names=(
            "qwen2", "stablelm2", "hunyuan", "solar-open", "grok-2", "bailingmoe", "bailingmoe2", "llada-moe", "megrez",
            "deepseek-r1-qwen", "kormo", "f2llmv2",
        ),
        steps=(QWEN2,),
    ),
    Known(
        names=("qwen35",),
        steps=(
            rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*"
            r"|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
    ),
    Known(
        names=("seed-coder",),
        steps=(rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",),
    ),
    Known(names=("ufakzeka",), steps=(rf"{_WORD}|\p{{N}}|{_REST}",)),
    Known(
        names=("minicpm5",),
        steps=(r"\p{N}{1,3}", rf"{_CONTRACTION}|{_WORD}|\p{{N}}+|{_REST}"),
        ignore_merges=True,
    ),
    Known(
        names=("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"),
        steps=(GPT4O,),
        differs=_CASE,
        differs_on=_marks_or_foreign_case,
    ),
    Known(
        names=("tekken",), steps=(TEKKEN,), ignore_merges=True, differs=_CASE, differs_on=_marks_or_foreign_case
    ),
    Known(
        names=("tiny_aya", "cohere2moe"),
        steps=(r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O),
        differs="llama.cpp does not tell upper from lower case here, and groups digits even before letters",
        differs_on=_cased_or_digits,
    ),
    Known(names=("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), steps=(r"\p{N}{1,3}", _CJK, _DEEPSEEK3)),
    Known(
        names=("deepseek-llm",),
        steps=("[\r\n]", _LATIN_DEEPSEEK, _MARKS_DEEPSEEK, r"\s+$", _CJK_DEEPSEEK, r"\p{N}+"),
        differs=_SPACES,
        differs_on=_foreign_space,
    ),
    Known(
        names=("deepseek-coder",),
        steps=("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK_DEEPSEEK, r"\p{N}"),
        differs=_SPACES,
        differs_on=_foreign_space,
    ),
    Known(
        names=("falcon",),
        steps=(rf"{PUNCTUATION}+", GPT2, "[0-9][0-9][0-9]"),
        unmixed=((rf"{PUNCTUATION}+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),),
    ),
    Known(names=("bloom", "poro-chat", "gpt3-finnish"), steps=(_BLOOM,)),
    Known(names=("viking",), steps=(_BLOOM, r"\p{N}")),
    Known(
        names=("superbpe",),
        steps=(r"\p{N}+", r"(?=(\d{3})+(?!\d))"),
        differs="llama.cpp groups only ASCII digits by three here",
        differs_on=_foreign_digits,
    ),
    Known(
        names=("jais-2",),
        steps=(
            rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+"
            + "".join(rf"|\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4))
            + r"|\s{1,2}(?!\S)|\s{1}",
        ),
    ),
    Known(
        names=("kimi-k2",),
        steps=(KIMI,),
        differs="llama.cpp ignores case and combining marks in words here",
        differs_on=_cased,
    ),
    Known(
        names=("exaone-moe",),
        steps=(
            rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        ),
    ),
    Known(names=("laguna",), steps=(r"[^\n]+|[\n]+", QWEN2)),
    Known(
        names=("default",),
        steps=(r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
    ),
)  # fmt: skip

OTHER_NAMES: tuple[str, ...] = (
    "afmoe", "chameleon", "gemma4", "granite-embed-multi-311m", "granite-embed-multi-97m", "jina-v1-en", "jina-v2-code",
    "roberta-bpe", "sarvam-moe", "spark2_5", "whitespace", "youtu",
)  # fmt: skip
"""Names that llama.cpp knows and no row describes: usable as an override."""

PREFERRED: dict[str, tuple[str, ...]] = {
    "cohere": ("command-r",), "cohere2": ("command-r",), "granite": ("refact",), "granitemoe": ("refact",),
    "starcoder2": ("starcoder",), "gpt_bigcode": ("starcoder", "refact"), "smollm3": ("smaug-bpe",), "llama": ("llama-bpe", "smollm"),
    "stablelm": ("stablelm2",), "olmo": ("olmo",), "olmoe": ("olmo",), "gpt_neox": ("olmo",), "mpt": ("mpt",),
    "exaone4": ("exaone4",), "exaone": ("exaone",), "dbrx": ("dbrx",), "olmo2": ("dbrx",), "glm4": ("glm4", "chatglm-bpe"),
    "glm": ("glm4", "chatglm-bpe"), "chatglm": ("chatglm-bpe",), "llama4": ("llama4",), "minimax_m2": ("minimax-m2",),
    "hunyuan_v1_dense": ("hunyuan-dense",), "codeshell": ("codeshell",), "jais": ("jais",), "bailing_moe": ("bailingmoe",),
    "hunyuan_v1_moe": ("hunyuan",), "solar_open": ("solar-open",), "lfm2": ("lfm2",), "falcon_h1": ("falcon-h1",),
}  # fmt: skip
"""By a config's `model_type`: the name to write among those that behave alike."""

NORMALIZED_NFC = frozenset({"qwen2", "qwen35"})
"""Names whose models' files ask for Unicode NFC, which llama.cpp leaves out."""


def all_names() -> tuple[str, ...]:
    """Every name this module knows, sorted."""
    return tuple(sorted({n for row in KNOWN for n in row.names} | set(OTHER_NAMES)))


def row_of(name: str) -> Known | None:
    """The row of a pre-tokenizer name."""
    return next((row for row in KNOWN if name in row.names), None)


def known_difference(name: str, text: str) -> str:
    """Why ids of `text` may differ in llama.cpp under `name` although all is right with the file; else empty."""
    row = row_of(name)
    return row.differs if row is not None and row.differs_on is not None and row.differs_on(text) else ""
