"""GGUF keys against those of llama.cpp's converter."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path

import pytest

from llmfit_core.tokenizer.fit import fit_vocab
from llmfit_core.tokenizer.read import read_vocab
from llmfit_core.tokenizer.to_gguf import KV, gguf_keys
from tests.core.tokenizer.training import side

TOK = Path(__file__).parents[2] / "golden" / "tok"


def sha256(kv: KV) -> str:
    digest = hashlib.sha256()
    for item in kv.value:  # type: ignore[union-attr]
        if kv.type == "array[string]":
            data = str(item).encode()
            digest.update(struct.pack("<Q", len(data)) + data)
        else:
            digest.update(struct.pack("<f" if kv.type == "array[float32]" else "<i", item))
    return digest.hexdigest()


TOKENS_BPE = "93821c2ad62e30016e5ede555bf427e6e341fce360140a538f92c3ba26bc5d8a"
TYPES_BPE = "c3b1ca38c1c0e96b6f5814dd52f7566a57fe71fb6b69c085c86a446829929c00"
MERGES_BPE = "f20752b32764f6e356c9bedd135acfb8dba364429e93de5dcb498d4491f331d4"
SPM = {
    "tokens": "baece01f8256f1b58c1b32caf5b3bf993e41f4fc1ff4dae9d5b1fec6b2db364a",
    "scores": "fc84d2b77194a6678a0e05d631140d1efc43eb021e997ab723509b5019df0517",
    "token_type": "843233220902bf22d0e8d4e193fc4683345cff31a013d911987b7f623b092399",
}
SPM_PADDED = {
    "tokens": "834b8dc84d5f538cac2b9234bf092580b6c687da5304cb5fce4936111a1b421f",
    "scores": "85f1135fd9a533fa9eb3edc8d21cb67f5146ffac69a61fdfc67d7601618966f2",
    "token_type": "e629e1d62bf203c91d511bcaa6b6e6778f0801d61970a96ad3c6d0ae06508b77",
}


@pytest.mark.parametrize(
    ("name", "model_type", "pre"),
    [
        ("llama-bpe", "llama", "llama-bpe"),
        ("qwen2", "qwen2", "qwen2"),
        ("smaug-bpe", "smollm3", "smaug-bpe"),
        ("gpt-4o", "gpt_oss", "gpt-4o"),
    ],
)
def test_byte_level_keys(name: str, model_type: str, pre: str) -> None:
    keys = gguf_keys(read_vocab(side(TOK / f"bpe-{name}"), {"model_type": model_type}))
    assert keys["tokenizer.ggml.pre"] == KV(type="string", value=pre)
    assert sha256(keys["tokenizer.ggml.tokens"]) == TOKENS_BPE
    assert sha256(keys["tokenizer.ggml.token_type"]) == TYPES_BPE
    assert sha256(keys["tokenizer.ggml.merges"]) == MERGES_BPE
    for role in ("bos", "eos", "unknown"):
        assert keys[f"tokenizer.ggml.{role}_token_id"] == KV(type="uint32", value=0)
    assert keys["tokenizer.ggml.add_bos_token"].value is False
    assert keys["tokenizer.ggml.add_space_prefix"].value is False
    assert not keys.keys() & {"tokenizer.ggml.scores", "tokenizer.chat_template"}


def test_sentencepiece_keys() -> None:
    vocab = read_vocab(side(TOK / "spm"), {})
    keys = gguf_keys(vocab)
    assert {k: sha256(keys[f"tokenizer.ggml.{k}"]) for k in SPM} == SPM
    assert keys["tokenizer.ggml.add_bos_token"].value is True
    assert keys["tokenizer.ggml.add_eos_token"].value is False
    padded = gguf_keys(fit_vocab(vocab, 544, 544))
    assert {k: sha256(padded[f"tokenizer.ggml.{k}"]) for k in SPM_PADDED} == SPM_PADDED


@pytest.mark.parametrize(
    ("model_type", "tok", "pre"),
    [
        ("cohere", "command-r", "command-r"),
        ("granite", "refact", "refact"),
        ("starcoder2", "starcoder", "starcoder"),
        ("llama", "smollm", "smollm"),
    ],
)
def test_names_that_behave_alike_follow_the_model(model_type: str, tok: str, pre: str) -> None:
    assert read_vocab(side(TOK / f"bpe-{tok}"), {"model_type": model_type}).pre == pre


def test_recorded_ids_of_the_peer() -> None:
    """llama.cpp's recorded ids for the golden SentencePiece model are those of the sentencepiece library too."""
    from llmfit_core.tokenizer.proof import reference_ids

    cases = json.loads((TOK.parent / "json" / "_tokenize.json").read_text(encoding="utf-8"))
    rows = next(c for c in cases if c["case"] == "llama")["rows"]
    assert reference_ids(side(TOK / "spm"), [r["text"] for r in rows]) == [r["peer"] for r in rows]
