"""Tiny Acme models, for the tests and for `llmfit plugins check acme`. Data and late imports: llmfit never loads this by itself.

Where transformers has your model's class, `config`, `variations` and `refused` are all you need: delete `saved_tensors` and
`reference`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

CONFIG = {
    "architectures": ["AcmeForCausalLM"],
    "model_type": "acme",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "acme_mlp_size": 96,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}


def saved_tensors(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a checkpoint's tensors, as Acme's own code saves them."""
    width, mlp, rows = config["hidden_size"], config["acme_mlp_size"], config["vocab_size"]
    kv = width // config["num_attention_heads"] * config["num_key_value_heads"]
    shapes: dict[str, tuple[int, ...]] = {"decoder.embed": (rows, width), "decoder.norm": (width,)}
    if not config["tie_word_embeddings"]:
        shapes["head"] = (rows, width)
    for i in range(config["num_hidden_layers"]):
        block = f"decoder.blocks.{i}"
        shapes |= {
            f"{block}.norm_1": (width,),
            f"{block}.attention.query": (width, width),
            f"{block}.attention.key": (kv, width),
            f"{block}.attention.value": (kv, width),
            f"{block}.attention.out": (width, width),
            f"{block}.norm_2": (width,),
            f"{block}.mlp.gate": (mlp, width),
            f"{block}.mlp.up": (mlp, width),
            f"{block}.mlp.down": (width, mlp),
        }
    return {f"{name}.weight": shape for name, shape in shapes.items()}


def reference(folder: Path, ids: Sequence[int]) -> Any:
    """Log-probabilities of the next token after each of `ids`, `[len(ids), vocabulary]`, by Acme's own formulas."""
    import json

    import numpy as np

    from llmfit_core.testing import read_folder

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    heads, groups, base = config["num_attention_heads"], config["num_key_value_heads"], config.get("rope_theta", 10000.0)
    size = config["hidden_size"] // heads
    t = {name.removesuffix(".weight"): values.astype(np.float64) for name, values in read_folder(folder).items()}

    def norm(x: Any, weight: Any) -> Any:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + config.get("rms_norm_eps", 1e-6)) * weight

    def rope(x: Any) -> Any:  # [tokens, heads, size]: the first half of a head against the second
        angle = np.arange(len(x))[:, None] * base ** (-np.arange(size // 2) * 2 / size)
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        first, second = x[..., : size // 2], x[..., size // 2 :]
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)

    def log_softmax(x: Any) -> Any:
        x = x - x.max(-1, keepdims=True)
        return x - np.log(np.exp(x).sum(-1, keepdims=True))

    x = t["decoder.embed"][list(ids)]
    for i in range(config["num_hidden_layers"]):
        block = f"decoder.blocks.{i}"
        normed = norm(x, t[f"{block}.norm_1"])
        query = rope((normed @ t[f"{block}.attention.query"].T).reshape(len(ids), heads, size))
        key = rope((normed @ t[f"{block}.attention.key"].T).reshape(len(ids), groups, size))
        value = (normed @ t[f"{block}.attention.value"].T).reshape(len(ids), groups, size)
        key, value = (np.repeat(v, heads // groups, axis=1) for v in (key, value))
        scores = np.einsum("ihd,jhd->hij", query, key) / np.sqrt(size)
        scores = np.where(np.tri(len(ids), dtype=bool), scores, -np.inf)
        mixed = np.einsum("hij,jhd->ihd", np.exp(log_softmax(scores)), value).reshape(len(ids), -1)
        x = x + mixed @ t[f"{block}.attention.out"].T
        normed = norm(x, t[f"{block}.norm_2"])
        gate = normed @ t[f"{block}.mlp.gate"].T
        x = x + (gate / (1 + np.exp(-gate)) * (normed @ t[f"{block}.mlp.up"].T)) @ t[f"{block}.mlp.down"].T
    return log_softmax(norm(x, t["decoder.norm"]) @ t.get("head", t["decoder.embed"]).T)


SAMPLES = {
    "architectures": {
        "acme": {
            "config": CONFIG,
            # Other configs of the family: each goes through every test.
            "variations": {
                "tied": {"tie_word_embeddings": True},
                "one-kv-head": {"num_key_value_heads": 1, "rope_theta": 500000.0},
            },
            # What has to be refused, with the error's code.
            "refused": {
                "clipped": ({"acme_clip_qkv": 8.0}, "config-value"),
                "gelu": ({"hidden_act": "gelu"}, "graph-cannot"),
            },
            "saved_tensors": saved_tensors,
            "reference": reference,
        }
    }
}
