"""Reading folders: recognition by structure, special tokens, sizes, and files not to be trusted."""

from __future__ import annotations

import copy
import json
import time
from pathlib import Path
from typing import Any

import pytest

from llmfit_core.errors import LlmfitError, SourceError, StrictError, UnsupportedError
from llmfit_core.events import require_none_strict
from llmfit_core.tokenizer import known
from llmfit_core.tokenizer.fit import fit_vocab
from llmfit_core.tokenizer.read import read_vocab
from llmfit_core.tokenizer.regexes import RegexSyntaxError, normal_form
from tests.core.tokenizer.training import byte_level, folder, side

TOK = Path(__file__).parents[2] / "golden" / "tok"


@pytest.fixture
def gpt2() -> dict[str, Any]:
    return dict(json.loads((TOK / "bpe-gpt-2" / "tokenizer.json").read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("(?i:'s|'t|'re)|x", "(?:'[sS]|'[tT]|'[rR][eE])|x"),
        ("'(?i:[sdmt]|ll|ve|re)|x", "(?i:'s|'t|'re|'ve|'m|'ll|'d)|x"),
        (r"\p{N}{1}", r"\p{N}"),
        (r"\s*[\r\n]+|\s+(?!\S)|\s+", r"\s*[\r\n]|\s+(?!\S)|\s"),
        (r"[^\s\p{L}\r\n]+", r"[^\s\p{L}]+"),
        (r"[^\r\n\p{L}\p{N}]?+\p{L}+", r"[^\r\n\p{L}\p{N}]?\p{L}+"),
        (r" ?[^\s\p{L}\p{N}]++[\r\n]*", r" ?[^\s\p{L}\p{N}]+[\r\n]*"),
        (r"\p{N}{1,3}+", r"\p{N}+"),
        (r"[[a-c]x]", r"[a-cx]"),
        (r"[\p{Lu}\p{L}]", r"\p{L}"),
    ],
)
def test_equal_expressions(a: str, b: str) -> None:
    assert normal_form(a) == normal_form(b)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (r"\p{N}{1,3}", r"\p{N}{1,2}"),
        (r"a|ab", r"ab|a"),
        (r"\p{L}++x", r"\p{N}++x"),
        (r"a++a", r"a+a"),
        (r"\s+(?!\S)|\s+|x", r"\s+(?!\S)|x|\s+"),
        (r"(?i:'s)", r"'s"),
        (r"(?:a++|b)a", r"(?:a+|b)a"),
        (r"\d", r"\p{N}"),
    ],
)
def test_different_expressions(a: str, b: str) -> None:
    assert normal_form(a) != normal_form(b)


@pytest.mark.parametrize("bad", ["(", "[a", "a{", "*", "\\", "(?<x>a)", "[z-a]", "(" * 5000, "a" * 30000, "\\p{L"])
def test_odd_expressions(bad: str) -> None:
    with pytest.raises(RegexSyntaxError):
        normal_form(bad)


def test_unknown_structure_says_what_differs(tmp_path: Path) -> None:
    data = byte_level([known.LLAMA3.replace("{1,3}", "{1,2}")])
    files = folder(tmp_path, data, tokenizer_config={"eos_token": "<|endoftext|>"})
    with pytest.raises(UnsupportedError) as caught:
        read_vocab(files, {})
    assert caught.value.code == "unknown-pretokenizer"
    assert r"\p{N}{1,2}" in caught.value.cause
    assert r"\p{N}{1,3}" in caught.value.cause
    assert "--pre" in caught.value.remedy
    vocab = read_vocab(files, {}, pre="llama-bpe")
    assert vocab.pre == "llama-bpe"
    assert [(e.code, e.severity) for e in vocab.events] == [("pretokenizer-override", "warning")]
    with pytest.raises(UnsupportedError, match="llama-bpe"):
        read_vocab(files, {}, pre="llama-bpo")


def test_override_that_is_right_passes_strict(gpt2: dict[str, Any], tmp_path: Path) -> None:
    files = folder(tmp_path, gpt2, tokenizer_config={"eos_token": "<|endoftext|>"})
    vocab = read_vocab(files, {}, pre="mpt")
    assert vocab.pre == "mpt"
    require_none_strict(vocab.events)


@pytest.mark.parametrize(
    ("normalizer", "code"),
    [
        ({"type": "Lowercase"}, "unknown-normalizer"),
        ({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "StripAccents"}]}, "unknown-normalizer"),
        ({"type": "Replace", "pattern": {"String": "``"}, "content": '"'}, "unknown-normalizer"),
        ({"type": "Prepend", "prepend": "\u2581"}, "unknown-normalizer"),
        ({"type": 3}, "bad-tokenizer"),
    ],
)
def test_normalizers_that_change_text(normalizer: Any, code: str, gpt2: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(LlmfitError) as caught:
        read_vocab(folder(tmp_path, {**gpt2, "normalizer": normalizer}), {})
    assert caught.value.code == code


def test_nfc_is_a_bound_nfkc_a_warning(gpt2: dict[str, Any], tmp_path: Path) -> None:
    for form, severity in (("NFC", "bound"), ("NFKC", "warning")):
        files = folder(
            tmp_path / form, {**gpt2, "normalizer": {"type": form}}, tokenizer_config={"eos_token": "<|endoftext|>"}
        )
        assert [e.severity for e in read_vocab(files, {}).events] == [severity]


def test_prefix_space_is_refused(gpt2: dict[str, Any], tmp_path: Path) -> None:
    gpt2["pre_tokenizer"]["add_prefix_space"] = True
    with pytest.raises(UnsupportedError, match="space in front"):
        read_vocab(folder(tmp_path, gpt2), {})


def test_merges_as_texts_and_as_pairs(gpt2: dict[str, Any], tmp_path: Path) -> None:
    texts = copy.deepcopy(gpt2)
    texts["model"]["merges"] = [" ".join(m) for m in gpt2["model"]["merges"]]
    assert read_vocab(folder(tmp_path / "a", gpt2), {}) == read_vocab(folder(tmp_path / "b", texts), {})


def test_vocab_json_and_merges_txt(gpt2: dict[str, Any], tmp_path: Path) -> None:
    config = {"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>"}
    fast = read_vocab(folder(tmp_path / "fast", gpt2, tokenizer_config=config), {})
    special = {str(t["id"]): t for t in gpt2["added_tokens"]}
    slow = folder(
        tmp_path / "slow", vocab=gpt2["model"]["vocab"], tokenizer_config={**config, "added_tokens_decoder": special}
    )
    merges = tmp_path / "slow" / "merges.txt"
    merges.write_text(
        "#version: 0.2\n" + "".join(" ".join(m) + "\n" for m in gpt2["model"]["merges"]), encoding="utf-8"
    )
    assert read_vocab({**slow, "merges.txt": merges}, {}) == fast


def test_special_tokens_of_all_sources(gpt2: dict[str, Any], tmp_path: Path) -> None:
    files = folder(
        tmp_path,
        gpt2,
        tokenizer_config={"eos_token": {"content": "<|im_end|>"}, "pad_token": "[nowhere]", "add_bos_token": True},
        special_tokens_map={"unk_token": "<|endoftext|>", "eos_token": "<|im_start|>"},
        generation_config={"eos_token_id": [0, 7], "bos_token_id": 1, "pad_token_id": 999999},
    )
    vocab = read_vocab(files, {"eos_token_id": 5, "bos_token_id": 3, "mask_token_id": 4})
    assert vocab.specials["eos"] == 2
    assert vocab.stops == (2, 5, 0, 7)
    assert {r: vocab.specials[r] for r in ("bos", "unk", "mask")} == {"bos": 3, "unk": 0, "mask": 4}
    assert "pad" not in vocab.specials
    assert {"special-token-missing", "special-token-range"} <= {e.code for e in vocab.events}


@pytest.mark.parametrize("eos", [True, "2", 2.0, -5, 10**30, [[2]], {"a": 1}])
def test_impossible_special_ids_are_left_out(eos: Any, gpt2: dict[str, Any], tmp_path: Path) -> None:
    vocab = read_vocab(folder(tmp_path, gpt2, generation_config={"eos_token_id": eos}), {})
    assert vocab.stops == ()
    assert {"special-token-range", "no-eos"} <= {e.code for e in vocab.events}


def _template(first: str | None, last: str | None) -> dict[str, Any]:
    single = [{"SpecialToken": {"id": first, "type_id": 0}}] if first else []
    single += [{"Sequence": {"id": "A", "type_id": 0}}]
    single += [{"SpecialToken": {"id": last, "type_id": 0}}] if last else []
    return {"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": {}}


@pytest.mark.parametrize(
    ("post", "config", "expected"),
    [
        (_template("<|im_start|>", None), {}, (True, False)),
        (_template(None, "<|im_end|>"), {}, (False, True)),
        (
            {"type": "Sequence", "processors": [{"type": "ByteLevel"}, _template("<|im_start|>", "<|im_end|>")]},
            {},
            (True, True),
        ),
        (None, {"add_bos_token": True, "add_eos_token": True}, (True, True)),
        (None, {"tokenizer_class": "LlamaTokenizerFast"}, (True, False)),
        (None, {"tokenizer_class": "Qwen2Tokenizer"}, (False, False)),
        (_template(None, None), {"add_bos_token": True}, (False, False)),
    ],
)
def test_what_encoding_adds(
    post: Any, config: dict[str, Any], expected: tuple[bool, bool], gpt2: dict[str, Any], tmp_path: Path
) -> None:
    config = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", **config}
    vocab = read_vocab(folder(tmp_path, {**gpt2, "post_processor": post}, tokenizer_config=config), {})
    assert (vocab.add_bos, vocab.add_eos) == expected


def test_code_in_the_folder_is_reported(gpt2: dict[str, Any], tmp_path: Path) -> None:
    config = {"eos_token": "<|endoftext|>", "auto_map": {"AutoTokenizer": ["evil.Evil", None]}}
    (tmp_path / "evil.py").write_text("raise SystemExit(1)", encoding="utf-8")
    vocab = read_vocab(folder(tmp_path, gpt2, tokenizer_config=config), {})
    assert [e.code for e in vocab.events] == ["auto-map"]


def test_contradicting_files_are_warned_of(tmp_path: Path) -> None:
    from llmfit_core.tokenizer.write import vocab_files
    from tests.core.tokenizer.training import sentencepiece_model

    sentencepiece_model(tmp_path / "a")
    vocab = read_vocab(side(tmp_path / "a"), {})
    data = json.loads(vocab_files(vocab)["tokenizer.json"])
    other = tmp_path / "a" / "tokenizer.model"
    same = read_vocab({**folder(tmp_path / "b", data), "tokenizer.model": other}, {})
    assert not [e for e in same.events if e.code == "tokenizers-disagree"]
    swap = {t: i for t, i in data["model"]["vocab"].items()}
    swap["e"], swap["t"] = swap["t"], swap["e"]
    data["model"]["vocab"] = swap
    files = {**folder(tmp_path / "c", data), "tokenizer.model": other}
    assert "tokenizers-disagree" in {e.code for e in read_vocab(files, {}).events}


# Sizes.


def test_sizes(gpt2: dict[str, Any], tmp_path: Path) -> None:
    vocab = read_vocab(folder(tmp_path, gpt2, tokenizer_config={"eos_token": "<|endoftext|>"}), {})
    assert fit_vocab(vocab, 640, 640) is vocab
    padded = fit_vocab(vocab, 648, 648)
    assert padded.tokens[640:642] == ("[PAD640]", "[PAD641]")
    assert set(padded.types[640:]) == {5}
    assert [(e.code, e.severity) for e in padded.events] == [("vocab-padded", "info")]
    assert {e.code for e in fit_vocab(vocab, 704, 643).events} == {"vocab-size", "vocab-padded"}
    with pytest.raises(SourceError) as caught:
        fit_vocab(vocab, 637, 650)
    assert all(n in caught.value.cause for n in ("640", "637", "650"))
    assert fit_vocab(padded, 640, 640).tokens == vocab.tokens
    for rows in (0, -1, 10**12):
        with pytest.raises(SourceError):
            fit_vocab(vocab, rows, None)


# Files not to be trusted.


def _spoil(data: dict[str, Any], what: str) -> Any:
    model, vocab = data["model"], data["model"]["vocab"]
    last = max(vocab, key=lambda t: vocab[t])
    added = data["added_tokens"][0]
    changes: dict[str, Any] = {
        "huge id": lambda: vocab.update({last: 10**9}),
        "id beyond 64 bits": lambda: vocab.update({last: 10**40}),
        "negative id": lambda: vocab.update({last: -1}),
        "two tokens of one id": lambda: vocab.update({last: 5}),
        "id is a text": lambda: vocab.update({last: "7"}),
        "id is true": lambda: vocab.update({last: True}),
        "vocab is a list": lambda: model.update(vocab=list(vocab)),
        "no vocab": lambda: model.pop("vocab"),
        "empty vocab": lambda: model.update(vocab={}),
        "no model": lambda: data.pop("model"),
        "model is a text": lambda: data.update(model="BPE"),
        "merges is a number": lambda: model.update(merges=5),
        "a merge of three": lambda: model.update(merges=["a b c"]),
        "a merge of numbers": lambda: model.update(merges=[[1, 2]]),
        "a merge of no tokens": lambda: model.update(merges=["qqqq zzzz"]),
        "added tokens are an object": lambda: data.update(added_tokens={"a": 1}),
        "an added token is a number": lambda: data.update(added_tokens=[3]),
        "an added token without content": lambda: added.pop("content"),
        "an added token far away": lambda: data.update(added_tokens=[{**added, "content": "far", "id": 10**12}]),
        "an added token at -1": lambda: data.update(added_tokens=[{**added, "content": "far", "id": -1}]),
        "half a surrogate pair": lambda: vocab.update({"\ud800": len(vocab)}),
        "pre-tokenizer is a list": lambda: data.update(pre_tokenizer=[1]),
        "endless nesting": lambda: data.update(pre_tokenizer=_nested(60)),
        "a Split without pattern": lambda: data.update(
            pre_tokenizer={"type": "Sequence", "pretokenizers": [{"type": "Split"}, {"type": "ByteLevel"}]}
        ),
        "a subword prefix": lambda: model.update(continuing_subword_prefix="##"),
        "WordPiece": lambda: model.update(type="WordPiece"),
    }
    changes[what]()
    return data


def _nested(depth: int) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": [_nested(depth - 1)] if depth else [{"type": "ByteLevel"}]}


@pytest.mark.parametrize(
    "what",
    [
        "huge id", "id beyond 64 bits", "negative id", "two tokens of one id", "id is a text", "id is true", "vocab is a list", "no vocab",
        "empty vocab", "no model", "model is a text", "merges is a number", "a merge of three", "a merge of numbers",
        "a merge of no tokens", "added tokens are an object", "an added token is a number", "an added token without content",
        "an added token far away", "an added token at -1", "half a surrogate pair", "pre-tokenizer is a list", "endless nesting",
        "a Split without pattern", "a subword prefix", "WordPiece",
    ],
)  # fmt: skip
def test_spoiled_tokenizer_json(what: str, gpt2: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(_spoil(gpt2, what)), encoding="utf-8")
    start = time.perf_counter()
    with pytest.raises(LlmfitError) as caught:
        read_vocab(side(tmp_path), {})
    assert time.perf_counter() - start < 1
    assert isinstance(caught.value, SourceError | UnsupportedError)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"[]", b"null", b"\xff\xfe{}", b"[" * 100_000, b"<!DOCTYPE html>", b'{"model": ' + b"1" * 10_000 + b"}",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer.model", "vocab.json"])
def test_files_that_are_something_else(name: str, data: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    (tmp_path / "merges.txt").write_text("", encoding="utf-8")
    with pytest.raises(SourceError):
        read_vocab(side(tmp_path), {})


@pytest.mark.parametrize("name", ["tokenizer_config", "special_tokens_map", "generation_config", "added_tokens"])
def test_spoiled_side_files(name: str, gpt2: dict[str, Any], tmp_path: Path) -> None:
    files = folder(tmp_path, gpt2, **{name: [1, 2]})
    with pytest.raises(SourceError, match=name):
        read_vocab(files, {})


@pytest.mark.parametrize("cut", [1, 10, 100, 5000, -1, -7])
def test_truncated_sentencepiece(cut: int, tmp_path: Path) -> None:
    data = (TOK / "spm" / "tokenizer.model").read_bytes()
    (tmp_path / "tokenizer.model").write_bytes(data[:cut])
    with pytest.raises(SourceError, match=r"tokenizer\.model"):
        read_vocab(side(tmp_path), {})


def test_tiktoken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_text("IQ== 0\nIg== 1\n", encoding="utf-8")
    with pytest.raises(UnsupportedError, match="tiktoken"):
        read_vocab(side(tmp_path), {})


def test_no_tokenizer_at_all() -> None:
    with pytest.raises(SourceError, match="no-tokenizer"):
        read_vocab({}, {})


def test_strict_fails_on_an_unproven_override(gpt2: dict[str, Any], tmp_path: Path) -> None:
    vocab = read_vocab(folder(tmp_path, gpt2, tokenizer_config={"eos_token": "<|endoftext|>"}), {}, pre="qwen2")
    with pytest.raises(StrictError):
        require_none_strict(vocab.events)
