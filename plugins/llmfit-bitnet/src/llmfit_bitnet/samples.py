"""Tiny BitNets, for the tests and for `llmfit plugins check bitnet`. llmfit never loads this by itself."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CONFIG: Mapping[str, Any] = {
    "architectures": ["BitNetForCausalLM"],
    "model_type": "bitnet",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def _shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    width, ffn = config["hidden_size"], config["intermediate_size"]
    kv = width // config["num_attention_heads"] * config["num_key_value_heads"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens": (128, width), "model.norm": (width,)}
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}"
        shapes |= {
            f"{at}.input_layernorm": (width,),
            f"{at}.self_attn.q_proj": (width, width),
            f"{at}.self_attn.k_proj": (kv, width),
            f"{at}.self_attn.v_proj": (kv, width),
            f"{at}.self_attn.attn_sub_norm": (width,),
            f"{at}.self_attn.o_proj": (width, width),
            f"{at}.post_attention_layernorm": (width,),
            f"{at}.mlp.gate_proj": (ffn, width),
            f"{at}.mlp.up_proj": (ffn, width),
            f"{at}.mlp.ffn_sub_norm": (ffn,),
            f"{at}.mlp.down_proj": (width, ffn),
        }
    return {f"{name}.weight": shape for name, shape in shapes.items()}


def _packed(folder: Path, *, divides: bool) -> tuple[Path, dict[str, Any]]:
    """A packed checkpoint, and what it holds."""
    import numpy as np

    from llmfit_core.testing.safetensor_files import write_file

    stored: dict[str, Any] = {}
    held: dict[str, Any] = {}
    for name, shape in _shapes(CONFIG).items():
        random = np.random.default_rng(zlib.crc32(name.encode()))
        if "_proj" not in name:
            stored[name] = held[name] = random.standard_normal(shape).astype(np.float32)
            continue
        codes = random.integers(-1, 2, shape)
        scale = np.float32(2.5 if divides else 0.375)
        quarters = (codes + 1).astype(np.uint8).reshape(4, -1, shape[1])
        stored[name] = (quarters * np.array([1, 4, 16, 64], np.uint8)[:, None, None]).sum(axis=0, dtype=np.uint8)
        stored[f"{name}_scale"] = np.array([scale], np.float32)
        held[name] = (codes / scale if divides else codes * scale).astype(np.float32)
    linear = {} if divides else {"linear_class": "autobitlinear", "quantization_mode": "offline"}
    config = {**CONFIG, "vocab_size": 128, "quantization_config": {"quant_method": "bitnet", **linear}}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    write_file(folder / "model.safetensors", stored)
    return folder, held


SAMPLES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "architectures": {
        "bitnet": {
            "config": CONFIG,
            "variations": {"linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}}},
            "refused": {
                "squared-relu": ({"hidden_act": "relu2"}, "graph-cannot"),
                "llama3": ({"rope_parameters": LLAMA3}, "graph-cannot"),
            },
            "optional_keys": frozenset({"vocab_size", "rope.dimension_count"}),
        }
    },
    "decoders": {
        "bitnet": {
            "samples": {
                "multiplied": lambda folder: _packed(folder, divides=False),
                "divided": lambda folder: _packed(folder, divides=True),
            }
        }
    },
}
