"""From GGUF keys back to files that transformers and tokenizers load."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmfit_core.errors import LlmfitError, SourceError, UnsupportedError
from llmfit_core.tokenizer import known
from llmfit_core.tokenizer.from_gguf import vocab_from_gguf
from llmfit_core.tokenizer.proof import proof_texts, reference_ids
from llmfit_core.tokenizer.read import read_vocab
from llmfit_core.tokenizer.to_gguf import gguf_keys
from llmfit_core.tokenizer.vocab import Vocab
from llmfit_core.tokenizer.write import vocab_files
from tests.core.tokenizer.llamacpp import add_keys, ids_of, write_tiny
from tests.core.tokenizer.training import byte_level, folder, sentencepiece_model, side

TOK = Path(__file__).parents[2] / "golden" / "tok"
EOS = {"eos_token": "<|endoftext|>", "bos_token": "<|im_start|>", "add_bos_token": True}


def values(vocab: Vocab) -> dict[str, object]:
    return {k: kv.value for k, kv in gguf_keys(vocab).items()}


def write(files: dict[str, bytes], path: Path, model_type: str) -> dict[str, Path]:
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    (path / "config.json").write_text(json.dumps({"model_type": model_type}), encoding="utf-8")
    return side(path)


def check(vocab: Vocab, original: dict[str, Path], tmp: Path, model_type: str) -> None:
    """Ids of the original, of the written files by both libraries, and of llama.cpp."""
    from transformers import AutoTokenizer

    back = vocab_from_gguf(values(vocab))
    assert replace(back, stops=(), events=()) == replace(vocab, stops=(), events=())
    assert set(vocab.stops) <= set(back.stops)
    files = vocab_files(back)
    assert files == vocab_files(vocab_from_gguf(values(vocab)))
    written = write(files, tmp / "out", model_type)
    texts = proof_texts(vocab)
    ids = reference_ids(written, texts)
    assert ids == reference_ids(original, texts)
    auto = AutoTokenizer.from_pretrained(tmp / "out")
    assert [auto.encode(t, add_special_tokens=False) for t in texts] == ids
    path = write_tiny(tmp / "tiny.gguf", gguf_keys(vocab), len(vocab.tokens))
    assert [auto.encode(t) for t in texts] == ids_of(path, texts, add_special=True)
    assert [auto.decode(i) for i in ids[:3]] == list(texts[:3])
    again = read_vocab({k: p for k, p in written.items() if k != "config.json"}, {"model_type": model_type})
    same = {"tokens", "types", "scores", "merges", "specials", "add_bos", "add_eos", "add_space_prefix", "model", "pre"}
    assert {f: getattr(again, f) for f in same} == {f: getattr(vocab, f) for f in same}


@pytest.mark.parametrize("name", ["bpe-gpt-2", "bpe-llama-bpe", "bpe-smollm", "bpe-qwen2", "spm"])
def test_golden_tokenizers(name: str, tmp_path: Path) -> None:
    files = side(TOK / name)
    check(read_vocab(files, {"model_type": "llama"}), files, tmp_path, "llama")


@pytest.mark.parametrize("row", [r for r in known.KNOWN if not r.differs], ids=lambda r: r.names[0])
def test_every_exact_structure(row: known.Known, tmp_path: Path) -> None:
    files = folder(tmp_path / "in", byte_level(row.steps, ignore_merges=row.ignore_merges), tokenizer_config=EOS)
    check(read_vocab(files, {"model_type": "llama"}), files, tmp_path, "llama")


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece(prefix: bool, tmp_path: Path) -> None:
    sentencepiece_model(tmp_path / "in", add_dummy_prefix=prefix)
    files = side(tmp_path / "in")
    check(read_vocab(files, {}), files, tmp_path, "llama" if prefix else "gemma")


def test_normal_form_survives(tmp_path: Path) -> None:
    """Qwen2's NFC is in no key of llama.cpp's; ours carries it, and other files of that name are taken to have it."""
    composed = folder(tmp_path / "a", byte_level([known.QWEN2], normalizer="NFC"), tokenizer_config=EOS)
    plain = folder(tmp_path / "b", byte_level([known.QWEN2]), tokenizer_config=EOS)
    for files, form in ((composed, "NFC"), (plain, "")):
        vocab = read_vocab(files, {"model_type": "qwen2"})
        keys = values(vocab)
        assert vocab_from_gguf(keys).normalizer == form
        texts = proof_texts(vocab)
        out = write(vocab_files(vocab_from_gguf(keys)), tmp_path / f"out{form}", "qwen2")
        assert reference_ids(out, texts) == reference_ids(files, texts)
    del keys["tokenizer.llmfit.normalizer"]
    assert vocab_from_gguf(keys).normalizer == "NFC"


def test_keys_through_a_real_file(tmp_path: Path) -> None:
    import gguf

    vocab = replace(
        read_vocab(side(TOK / "spm"), {}),
        chat_template="{{ messages }}",
        chat_templates={"tool_use": "x", "rag-1": "y"},
    )
    writer = gguf.GGUFWriter(tmp_path / "v.gguf", "llama")
    add_keys(writer, gguf_keys(vocab))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    fields = gguf.GGUFReader(tmp_path / "v.gguf").fields
    back = vocab_from_gguf({k: f.contents() for k, f in fields.items() if k.startswith("tokenizer.")})
    assert back.chat_templates == {"rag_1": "y", "tool_use": "x"}
    assert replace(back, chat_templates={}, events=()) == replace(vocab, chat_templates={}, events=())
    files = vocab_files(back)
    assert files["chat_template.jinja"] == b"{{ messages }}"
    assert files["additional_chat_templates/tool_use.jinja"] == b"x"


def test_a_file_without_eos_gets_a_harmless_one(tmp_path: Path) -> None:
    """llama.cpp's default for a byte-level vocabulary is token 11, whatever that is."""
    vocab = read_vocab(folder(tmp_path, byte_level([known.GPT2])), {})
    assert "eos" not in vocab.specials
    token = gguf_keys(vocab)["tokenizer.ggml.eos_token_id"].value
    assert isinstance(token, int)
    assert vocab.types[token] == 3


def test_unknown_pretokenizer_cannot_be_written() -> None:
    vocab = replace(read_vocab(side(TOK / "bpe-gpt-2"), {}), pre="youtu")
    with pytest.raises(UnsupportedError, match="youtu"):
        vocab_files(vocab)


@pytest.mark.parametrize(
    "change",
    [
        {"tokenizer.ggml.model": None},
        {"tokenizer.ggml.model": "rwkv"},
        {"tokenizer.ggml.model": 7},
        {"tokenizer.ggml.tokens": []},
        {"tokenizer.ggml.tokens": [1, 2]},
        {"tokenizer.ggml.tokens": "abc"},
        {"tokenizer.ggml.token_type": [1]},
        {"tokenizer.ggml.token_type": ["a"] * 640},
        {"tokenizer.ggml.merges": None},
        {"tokenizer.ggml.merges": [3]},
    ],
)
def test_damaged_keys(change: dict[str, Any]) -> None:
    keys = {**values(read_vocab(side(TOK / "bpe-gpt-2"), {})), **change}
    with pytest.raises(LlmfitError) as caught:
        vocab_from_gguf({k: v for k, v in keys.items() if v is not None})
    assert isinstance(caught.value, SourceError | UnsupportedError)


def test_impossible_special_ids_are_dropped() -> None:
    keys = values(read_vocab(side(TOK / "bpe-gpt-2"), {}))
    keys["tokenizer.ggml.bos_token_id"] = 10**6
    keys["tokenizer.ggml.add_bos_token"] = True
    vocab = vocab_from_gguf(keys)
    assert "bos" not in vocab.specials
    assert not vocab.add_bos


@pytest.mark.parametrize("options", [{"normalization_rule_name": "nmt_nfkc", "remove_extra_whitespaces": True}, {}])
def test_unigram(options: dict[str, Any], tmp_path: Path) -> None:
    sentencepiece_model(tmp_path / "in", kind="unigram", size=600, byte_fallback=False, **options)
    vocab = read_vocab(side(tmp_path / "in"), {})
    back = vocab_from_gguf(values(vocab))
    assert replace(back, events=()) == replace(vocab, events=())
    texts = [t for t in proof_texts(vocab) if t.strip(" ")]
    ids = reference_ids(write(vocab_files(back), tmp_path / "out", "llama"), texts)
    assert ids == ids_of(write_tiny(tmp_path / "tiny.gguf", gguf_keys(vocab), len(vocab.tokens)), texts)


@pytest.mark.real
def test_smollm2(tmp_path: Path) -> None:
    """The real tokenizer of SmolLM2, from the GGUF file that `LLMFIT_SMOLLM2` names."""
    import os

    import gguf

    path = os.environ.get("LLMFIT_SMOLLM2")
    if not path:
        pytest.skip("LLMFIT_SMOLLM2 names no GGUF file")
    fields = gguf.GGUFReader(path).fields
    vocab = vocab_from_gguf({k: f.contents() for k, f in fields.items() if k.startswith("tokenizer.")})
    assert (vocab.pre, len(vocab.tokens), vocab.specials["eos"], vocab.add_bos) == ("smollm", 49152, 2, False)
    written = write(vocab_files(vocab), tmp_path / "out", "llama")
    check(vocab, written, tmp_path / "again", "llama")
