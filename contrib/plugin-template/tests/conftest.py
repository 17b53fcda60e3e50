"""A tiny Acme model: its files, and what it computes, in numpy. Neither is taken from llmfit."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from llmfit_core import load_plugins

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WIDTH, LAYERS, HEADS, KV_HEADS, MLP, BASE, EPSILON = 64, 2, 4, 2, 96, 10000.0, 1e-5
HEAD = WIDTH // HEADS


@pytest.fixture(scope="session")
def registry():
    """The plugins that are installed, this one among them."""
    return load_plugins()


@pytest.fixture
def model(tmp_path: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """A folder with a tiny Acme model, and its tensors."""
    return tmp_path / "model", write_model(tmp_path / "model")


@pytest.fixture
def reference() -> Callable[[dict[str, np.ndarray], list[int]], np.ndarray]:
    """What the model computes: `(tensors, ids) -> log-probabilities`."""
    return log_probabilities


def write_model(folder: Path) -> dict[str, np.ndarray]:
    """Write config.json, tokenizer.json and model.safetensors; gives the tensors."""
    folder.mkdir(parents=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*alphabet, "th", "the", "<|end|>"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[("t", "h"), ("th", "e")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    rows = len(vocab)
    config = {
        "architectures": ["AcmeForCausalLM"],
        "model_type": "acme",
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "acme_mlp_size": MLP,
        "max_position_embeddings": 128,
        "rms_norm_eps": EPSILON,
        "rope_theta": BASE,
        "vocab_size": rows,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "eos_token_id": vocab["<|end|>"],
        "bos_token_id": vocab["<|end|>"],
        "dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    shapes = {"decoder.embed.weight": (rows, WIDTH), "decoder.norm.weight": (WIDTH,), "head.weight": (rows, WIDTH)}
    for i in range(LAYERS):
        block = f"decoder.blocks.{i}"
        shapes |= {
            f"{block}.norm_1.weight": (WIDTH,),
            f"{block}.norm_2.weight": (WIDTH,),
            f"{block}.attention.query.weight": (HEADS * HEAD, WIDTH),
            f"{block}.attention.key.weight": (KV_HEADS * HEAD, WIDTH),
            f"{block}.attention.value.weight": (KV_HEADS * HEAD, WIDTH),
            f"{block}.attention.out.weight": (WIDTH, HEADS * HEAD),
            f"{block}.mlp.gate.weight": (MLP, WIDTH),
            f"{block}.mlp.up.weight": (MLP, WIDTH),
            f"{block}.mlp.down.weight": (WIDTH, MLP),
        }
    random = np.random.default_rng(7)
    tensors = {
        name: random.normal(1.0 if len(shape) == 1 else 0.0, 0.2, shape).astype(np.float32)
        for name, shape in shapes.items()
    }
    save_file(tensors, folder / "model.safetensors")
    return tensors


def log_probabilities(tensors: dict[str, np.ndarray], ids: list[int]) -> np.ndarray:
    """What the model says of the next token after each of `ids`: `[len(ids), vocabulary]`, by Acme's own formulas."""
    t = {name.removesuffix(".weight"): value.astype(np.float64) for name, value in tensors.items()}
    x = t["decoder.embed"][ids]
    for i in range(LAYERS):
        block = f"decoder.blocks.{i}"
        normed = _norm(x, t[f"{block}.norm_1"])
        query = _rope((normed @ t[f"{block}.attention.query"].T).reshape(len(ids), HEADS, HEAD))
        key = _rope((normed @ t[f"{block}.attention.key"].T).reshape(len(ids), KV_HEADS, HEAD))
        value = (normed @ t[f"{block}.attention.value"].T).reshape(len(ids), KV_HEADS, HEAD)
        key, value = (np.repeat(v, HEADS // KV_HEADS, axis=1) for v in (key, value))
        scores = np.einsum("ihd,jhd->hij", query, key) / np.sqrt(HEAD)
        scores = np.where(np.tri(len(ids), dtype=bool), scores, -np.inf)
        mixed = np.einsum("hij,jhd->ihd", np.exp(_log_softmax(scores)), value).reshape(len(ids), -1)
        x = x + mixed @ t[f"{block}.attention.out"].T
        normed = _norm(x, t[f"{block}.norm_2"])
        gate = normed @ t[f"{block}.mlp.gate"].T
        x = x + (gate / (1 + np.exp(-gate)) * (normed @ t[f"{block}.mlp.up"].T)) @ t[f"{block}.mlp.down"].T
    return _log_softmax(_norm(x, t["decoder.norm"]) @ t["head"].T)


def _norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON) * weight


def _rope(x: np.ndarray) -> np.ndarray:
    angle = np.arange(len(x))[:, None] * BASE ** (-np.arange(HEAD // 2) * 2 / HEAD)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    first, second = x[..., : HEAD // 2], x[..., HEAD // 2 :]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _log_softmax(x: np.ndarray) -> np.ndarray:
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))
