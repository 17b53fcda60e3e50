"""Ids: what we write, loaded by llama.cpp, against `tokenizers` and `sentencepiece`."""

from __future__ import annotations

import copy
import json
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmfit_core.errors import UnsupportedError
from llmfit_core.tokenizer import known
from llmfit_core.tokenizer.from_gguf import vocab_from_gguf
from llmfit_core.tokenizer.proof import explained_difference, proof_texts, reference_ids
from llmfit_core.tokenizer.read import read_vocab
from llmfit_core.tokenizer.to_gguf import gguf_keys
from llmfit_core.tokenizer.vocab import Vocab
from llmfit_core.tokenizer.write import vocab_files
from tests.core.tokenizer.llamacpp import LlamaCpp, ids_of, write_tiny
from tests.core.tokenizer.training import byte_level, folder, sentencepiece_model, side

TOK = Path(__file__).parents[2] / "golden" / "tok"
EOS = {"eos_token": "<|endoftext|>", "tokenizer_class": "PreTrainedTokenizerFast"}


def unexplained(vocab: Vocab, files: dict[str, Path], tmp: Path) -> tuple[list[str], list[str]]:
    """Texts whose ids differ without a reason, and with one."""
    texts = proof_texts(vocab)
    theirs = reference_ids(files, texts)
    ours = ids_of(write_tiny(tmp / "tiny.gguf", gguf_keys(vocab), len(vocab.tokens)), texts)
    differ = [t for t, a, b in zip(texts, theirs, ours, strict=True) if a != b]
    return [t for t in differ if not explained_difference(vocab, t)], [
        t for t in differ if explained_difference(vocab, t)
    ]


@pytest.mark.parametrize("name", sorted(p.name for p in TOK.iterdir() if p.name != "wpm"))
def test_golden_tokenizers(name: str, tmp_path: Path) -> None:
    files = side(TOK / name)
    vocab = read_vocab(files, {})
    assert unexplained(vocab, files, tmp_path) == ([], [])


@pytest.mark.parametrize("row", known.KNOWN, ids=lambda r: r.names[0])
def test_every_known_structure(row: known.Known, tmp_path: Path) -> None:
    files = folder(tmp_path / "model", byte_level(row.steps, ignore_merges=row.ignore_merges), tokenizer_config=EOS)
    vocab = read_vocab(files, {})
    assert vocab.pre == row.names[0]
    bad, explained = unexplained(vocab, files, tmp_path)
    assert bad == []
    if not row.differs:
        assert explained == []
    texts = proof_texts(vocab)
    first = ids_of(tmp_path / "tiny.gguf", texts)
    for other in row.names[1:]:
        path = write_tiny(tmp_path / "other.gguf", gguf_keys(replace(vocab, pre=other)), len(vocab.tokens))
        assert ids_of(path, texts) == first, other


@pytest.mark.parametrize("name", known.OTHER_NAMES)
def test_overridable_names_exist(name: str, tmp_path: Path) -> None:
    vocab = replace(read_vocab(side(TOK / "bpe-gpt-2"), {}), pre=name)
    LlamaCpp(write_tiny(tmp_path / "tiny.gguf", gguf_keys(vocab), len(vocab.tokens))).close()


def test_falcons_own_order_of_steps(tmp_path: Path) -> None:
    """Falcon's file isolates runs of digits as well; alike where no token joins a digit to something else."""
    steps = [
        {"type": "Punctuation", "behavior": "Contiguous"},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        {"type": "Digits", "individual_digits": False},
        {"type": "Split", "pattern": {"Regex": "[0-9][0-9][0-9]"}, "behavior": "Isolated", "invert": False},
    ]
    data = byte_level(pre_tokenizer={"type": "Sequence", "pretokenizers": steps})
    files = folder(tmp_path / "model", data, tokenizer_config=EOS)
    vocab = read_vocab(files, {"model_type": "falcon"})
    assert vocab.pre == "falcon"
    assert unexplained(vocab, files, tmp_path) == ([], [])
    mixed = byte_level([rf"{known.PUNCTUATION}+", known.GPT2, "[0-9][0-9][0-9]"])
    mixed["pre_tokenizer"] = data["pre_tokenizer"]
    with pytest.raises(UnsupportedError, match="unknown-pretokenizer"):
        read_vocab(folder(tmp_path / "mixed", mixed, tokenizer_config=EOS), {"model_type": "falcon"})


def test_deepseek_llm_cuts_digits_one_by_one(tmp_path: Path) -> None:
    """The file isolates digits, llama.cpp takes runs of them: alike, as no token holds two digits."""
    steps = next(r for r in known.KNOWN if r.names[0] == "deepseek-llm").steps
    files = folder(tmp_path / "model", byte_level([*steps[:-1], r"\p{N}"]), tokenizer_config=EOS)
    vocab = read_vocab(files, {})
    assert vocab.pre == "deepseek-llm"
    assert unexplained(vocab, files, tmp_path)[0] == []


def test_added_token_inside_words(tmp_path: Path) -> None:
    data = byte_level([known.QWEN2])
    size = len(data["model"]["vocab"])
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": False}
    own = data["model"]["vocab"]["the"]
    data["added_tokens"] += [
        {"id": size, "content": "ick bro", **flags},
        {"id": size + 1, "content": "<tool_call>", **flags},
        {"id": own, "content": "the", **flags},
    ]
    files = folder(tmp_path / "model", data, tokenizer_config=EOS)
    vocab = read_vocab(files, {"model_type": "qwen2"})
    assert (vocab.pre, vocab.events) == ("qwen2", ())
    assert [(vocab.tokens[i], vocab.types[i]) for i in (own, size, size + 1)] == [
        ("the", 4),
        ("ick bro", 4),
        ("<tool_call>", 4),
    ]
    assert unexplained(vocab, files, tmp_path) == ([], [])


def test_added_tokens_whose_ids_the_file_gets_wrong(tmp_path: Path) -> None:
    """`tokenizers` numbers added tokens itself, whatever the file says."""
    data = byte_level([known.QWEN2])
    size = len(data["model"]["vocab"])
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    data["added_tokens"] += [{"id": size + 60, "content": "FOO", **flags}, {"id": size + 3, "content": "BAR", **flags}]
    files = folder(tmp_path / "model", data, tokenizer_config=EOS)
    vocab = read_vocab(files, {})
    assert vocab.tokens[size:] == ("FOO", "BAR")
    assert [e.code for e in vocab.events] == ["added-token-id", "added-token-id"]
    assert unexplained(vocab, files, tmp_path) == ([], [])


def test_space_tokens_of_gpt_neox(tmp_path: Path) -> None:
    data = byte_level([known.GPT2], normalizer="NFC")
    size = len(data["model"]["vocab"])
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": False}
    data["added_tokens"] += [{"id": size + i, "content": " " * (24 - i), **flags} for i in range(23)]
    files = folder(tmp_path / "model", data, tokenizer_config=EOS)
    vocab = read_vocab(files, {"model_type": "gpt_neox"})
    assert vocab.pre == "olmo"
    assert unexplained(vocab, files, tmp_path)[0] == []


def test_ignore_merges_matters_and_is_said(tmp_path: Path) -> None:
    data = byte_level([known.QWEN2])
    whole = "\u0120Pascal" if "\u0120Pascal" not in data["model"]["vocab"] else "\u0120PascalCas"
    data["model"]["vocab"][whole] = len(data["model"]["vocab"])
    data["model"]["ignore_merges"] = True
    vocab = read_vocab(folder(tmp_path / "a", data, tokenizer_config=EOS), {})
    assert vocab.pre == "qwen2"
    assert [e.code for e in vocab.events if e.code == "ignore-merges"] == ["ignore-merges"]
    data["model"]["ignore_merges"] = False
    assert not read_vocab(folder(tmp_path / "b", data, tokenizer_config=EOS), {}).events


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_bpe(prefix: bool, tmp_path: Path) -> None:
    sentencepiece_model(tmp_path / "model", add_dummy_prefix=prefix)
    files = side(tmp_path / "model")
    vocab = read_vocab(files, {})
    assert (vocab.model, vocab.add_space_prefix) == ("llama", prefix)
    assert unexplained(vocab, files, tmp_path) == ([], [])


def test_sentencepiece_with_user_defined_pieces(tmp_path: Path) -> None:
    symbols = ["<tool>", "hello", "\u2581\u2581", "\u2581\u2581\u2581"]
    sentencepiece_model(tmp_path / "model", user_defined_symbols=symbols, add_dummy_prefix=False)
    files = side(tmp_path / "model")
    assert unexplained(read_vocab(files, {}), files, tmp_path) == ([], [])


@pytest.mark.parametrize(
    "options",
    [
        {"normalization_rule_name": "nmt_nfkc", "remove_extra_whitespaces": True},
        {"add_dummy_prefix": False},
        {},
    ],
)
def test_unigram(options: dict[str, object], tmp_path: Path) -> None:
    sentencepiece_model(tmp_path / "model", kind="unigram", size=600, byte_fallback=False, **options)
    files = side(tmp_path / "model")
    vocab = read_vocab(files, {})
    assert vocab.model == "t5"
    assert unexplained(vocab, files, tmp_path)[0] == []


def test_unigram_with_bytes_is_warned_of(tmp_path: Path) -> None:
    sentencepiece_model(tmp_path / "model", kind="unigram", size=600)
    files = side(tmp_path / "model")
    vocab = read_vocab(files, {})
    assert [e.severity for e in vocab.events if e.code == "no-byte-fallback"] == ["warning"]
    assert unexplained(vocab, files, tmp_path)[0] == []


def test_files_of_transformers_llama(tmp_path: Path) -> None:
    """The three forms of one vocabulary: tokenizer.model, transformers' Metaspace form, the older Prepend form."""
    from transformers import LlamaTokenizer

    config = {
        "tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "legacy": False,
        "add_bos_token": True,
    }  # fmt: skip
    sentencepiece_model(tmp_path / "spm")
    model = folder(tmp_path / "spm", tokenizer_config=config)
    LlamaTokenizer.from_pretrained(tmp_path / "spm").save_pretrained(tmp_path / "saved")
    data = json.loads((tmp_path / "saved" / "tokenizer.json").read_text(encoding="utf-8"))
    older = copy.deepcopy(data)
    older["normalizer"] = {
        "type": "Sequence",
        "normalizers": [
            {"type": "Prepend", "prepend": "\u2581"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        ],
    }
    older["pre_tokenizer"] = None
    older["model"]["merges"] = [" ".join(m) for m in data["model"]["merges"]]
    saved = side(tmp_path / "saved")
    legacy = folder(tmp_path / "legacy", older, tokenizer_config=config)
    both = {**legacy, "tokenizer.model": model["tokenizer.model"]}
    vocabs = [read_vocab(f, {}) for f in (model, {"tokenizer.model": model["tokenizer.model"]}, legacy, both, saved)]
    plain = [replace(v, events=()) for v in vocabs]
    assert all(v == plain[0] for v in plain)
    assert [v.events for v in vocabs[1:4]] == [(), (), ()]
    # `legacy` false: transformers makes of the first what the last says, whose own library it is then.
    for vocab, severity in ((vocabs[0], "info"), (vocabs[4], "bound")):
        assert {(e.code, e.severity) for e in vocab.events} == {("space-after-special", severity), ("leading-space", severity)}
    assert unexplained(vocabs[0], model, tmp_path) == ([], [])
    assert unexplained(vocabs[2], legacy, tmp_path) == ([], [])
    assert unexplained(vocabs[4], saved, tmp_path)[0] == []


@pytest.mark.parametrize("legacy", [True, None])
def test_sentencepiece_as_it_always_was_needs_no_event(legacy: bool | None, tmp_path: Path) -> None:
    sentencepiece_model(tmp_path / "model")
    files = folder(tmp_path / "model", tokenizer_config={"bos_token": "<s>", "eos_token": "</s>", "legacy": legacy})
    assert read_vocab(files, {}).events == ()


def test_without_a_prefix_there_is_none_to_place(tmp_path: Path) -> None:
    sentencepiece_model(tmp_path / "model", add_dummy_prefix=False)
    files = folder(tmp_path / "model", tokenizer_config={"bos_token": "<s>", "eos_token": "</s>", "legacy": False})
    vocab = read_vocab(files, {})
    assert vocab.events == ()
    assert vocab_from_gguf({k: kv.value for k, kv in gguf_keys(vocab).items()}).events == ()


def test_the_way_back_tells_what_the_keys_cannot(tmp_path: Path) -> None:
    """transformers' ids by `legacy: false` and by the folder written back differ only where the events say."""
    from transformers import AutoTokenizer

    shutil.copytree(TOK / "spm", tmp_path / "in")
    (tmp_path / "in" / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    vocab = read_vocab(side(TOK / "spm"), {})
    back = vocab_from_gguf({k: kv.value for k, kv in gguf_keys(vocab).items()})
    assert [(e.code, e.severity) for e in back.events] == [("space-scheme-unknown", "info")]
    (tmp_path / "out").mkdir()
    for name, data in vocab_files(back).items():
        (tmp_path / "out" / name).write_bytes(data)
    ours, theirs = (AutoTokenizer.from_pretrained(tmp_path / n) for n in ("out", "in"))
    differ = {t for t in proof_texts(vocab) if ours(t).input_ids != theirs(t).input_ids}
    assert differ  # or nothing were to be told
    assert all(t.startswith(" ") or any(s in t for s in ("<s>", "</s>", "<unk>")) for t in differ)


def test_stops_end_a_generation_in_llamacpp(tmp_path: Path) -> None:
    files = {**side(TOK / "spm"), **folder(tmp_path / "g", generation_config={"eos_token_id": [2, 5, 7]})}
    vocab = read_vocab(files, {"eos_token_id": 2})
    assert vocab.specials["eos"] == 2
    assert vocab.specials["eot"] == 5
    assert vocab.stops == (2, 5, 7)
    judge = LlamaCpp(write_tiny(tmp_path / "tiny.gguf", gguf_keys(vocab), len(vocab.tokens)))
    assert [t for t in range(512) if judge.is_eog(t)] == [2, 5, 7]
    assert (judge.special("bos"), judge.special("eos"), judge.special("eot")) == (1, 2, 5)
    judge.close()


FRAGMENTS = (
    "a", "B", "\u00e9", "\u00c9", "\u00df", " ", "  ", "\n", "\r\n", "\t", "'", "'s", "'LL", "\u2019", "1", "22", "0123", "\u00bd", "\u00b2", "\u0663",
    "\u4e00", "\u6f22", "\u304b", "\uac00", "\ud55c", "\u093e", "\u0301", "\u200d", "\U0001f680", "!", "...", "-", "_", "(", "[", "$", "<", "`",
    "\u00a0", "\u3000", "\u2028", "\x85", "\u01c5", "\u00aa", "\u2167", "\u00ad", "\ufeff", "\u060c", "the ", "def", "/", "\\", "hello", "</s>",
)  # fmt: skip


def scrambled(count: int) -> list[str]:
    rng = random.Random(7)
    return ["".join(rng.choices(FRAGMENTS, k=rng.randint(1, 14))) for _ in range(count)]


@pytest.mark.parametrize("row", known.KNOWN, ids=lambda r: r.names[0])
def test_scrambled_text_under_every_structure(row: known.Known, tmp_path: Path) -> None:
    files = folder(tmp_path / "model", byte_level(row.steps, ignore_merges=row.ignore_merges), tokenizer_config=EOS)
    vocab = read_vocab(files, {})
    texts = scrambled(400)
    ours = ids_of(write_tiny(tmp_path / "tiny.gguf", gguf_keys(vocab), len(vocab.tokens)), texts)
    theirs = reference_ids(files, texts)
    assert [
        t for t, a, b in zip(texts, ours, theirs, strict=True) if a != b and not explained_difference(vocab, t)
    ] == []


@pytest.mark.parametrize(("kind", "bytes_too"), [("bpe", True), ("unigram", False)])
@pytest.mark.parametrize("prefix", [True, False])
def test_scrambled_text_under_sentencepiece(kind: str, bytes_too: bool, prefix: bool, tmp_path: Path) -> None:
    sentencepiece_model(tmp_path / "model", kind=kind, size=600, byte_fallback=bytes_too, add_dummy_prefix=prefix)
    files = side(tmp_path / "model")
    vocab = read_vocab(files, {})
    texts = scrambled(400)
    ours = ids_of(write_tiny(tmp_path / "tiny.gguf", gguf_keys(vocab), len(vocab.tokens)), texts)
    theirs = reference_ids(files, texts)
    assert [
        t for t, a, b in zip(texts, ours, theirs, strict=True) if a != b and not explained_difference(vocab, t)
    ] == []


def test_dropout_of_training_is_left_out_of_the_reference(tmp_path: Path) -> None:
    """A library that cuts at random is no judge."""
    files = folder(tmp_path / "model", byte_level(known.KNOWN[0].steps), tokenizer_config=EOS)
    still = reference_ids(files, scrambled(50))
    said = json.loads(files["tokenizer.json"].read_text(encoding="utf-8"))
    said["model"]["dropout"] = 0.5
    files["tokenizer.json"].write_text(json.dumps(said), encoding="utf-8")
    assert reference_ids(files, scrambled(50)) == still


def _spm_json(tmp_path: Path) -> dict[str, Any]:
    sentencepiece_model(tmp_path / "spm", size=600)
    return dict(json.loads(vocab_files(read_vocab(side(tmp_path / "spm"), {}))["tokenizer.json"]))


def test_sentencepiece_like_without_bytes_is_refused(tmp_path: Path) -> None:
    data = _spm_json(tmp_path)
    data["model"]["byte_fallback"] = False
    with pytest.raises(UnsupportedError, match="no-byte-fallback"):
        read_vocab(folder(tmp_path / "a", data), {})


def test_sentencepiece_like_that_also_cuts_digits(tmp_path: Path) -> None:
    data = _spm_json(tmp_path)
    data["pre_tokenizer"] = {"type": "Digits", "individual_digits": True}
    with pytest.raises(UnsupportedError, match="Digits"):
        read_vocab(folder(tmp_path / "a", data), {})
    model = data["model"]
    single = [t for t in model["vocab"] if len(t) == 1 or t.startswith("<0x") or not any(c.isnumeric() for c in t)]
    model["vocab"] = {t: i for i, t in enumerate(single)}
    model["merges"] = [m for m in model["merges"] if {*m, m[0] + m[1]} <= set(single)]
    files = folder(tmp_path / "b", data, tokenizer_config={"eos_token": "</s>"})
    assert unexplained(read_vocab(files, {}), files, tmp_path) == ([], [])


def test_sentencepiece_like_with_missing_merges_is_warned_of(tmp_path: Path) -> None:
    data = _spm_json(tmp_path)
    ends: dict[str, int] = {}
    for left, right in data["model"]["merges"]:
        ends[left + right] = ends.get(left + right, 0) + 1
    twice = next(t for t, n in ends.items() if n > 1)
    data["model"]["merges"] = [m for m in data["model"]["merges"] if m[0] + m[1] != twice][:]
    vocab = read_vocab(folder(tmp_path / "a", data), {})
    assert "merges-incomplete" in {e.code for e in vocab.events}


def test_added_tokens_found_only_behind_a_space(tmp_path: Path) -> None:
    data = _spm_json(tmp_path)
    size = len(data["model"]["vocab"])
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": False}
    data["added_tokens"].append({"id": size, "content": "[tool]", **flags})
    files = folder(tmp_path / "a", data, tokenizer_config={"eos_token": "</s>"})
    vocab = read_vocab(files, {})
    assert "added-token-normalized" in {e.code for e in vocab.events}
    assert unexplained(vocab, files, tmp_path)[0] == []


def test_phi3s_tokens_that_swallow_white_space(tmp_path: Path) -> None:
    data = _spm_json(tmp_path)
    size = len(data["model"]["vocab"])
    flags = {"single_word": False, "lstrip": False, "rstrip": True, "normalized": False, "special": True}
    data["added_tokens"].append({"id": size, "content": "<|user|>", **flags})
    files = folder(tmp_path / "a", data, tokenizer_config={"eos_token": "</s>"})
    vocab = read_vocab(files, {})
    assert [e.severity for e in vocab.events if e.code == "added-token-rstrip"] == ["bound"]
    assert unexplained(vocab, files, tmp_path)[0] == []
