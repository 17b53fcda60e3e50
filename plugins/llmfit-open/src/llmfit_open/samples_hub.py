"""Tiny models of families that transformers lacks, by formulas of their own. llmfit never loads this by itself."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Array = NDArray[Any]

SMALL: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 512, "tie_word_embeddings": False,
}  # fmt: skip
LLAMA_NAMES = {
    "embed": "model.embed_tokens", "norm_1": "model.layers.{}.input_layernorm", "norm_2": "model.layers.{}.post_attention_layernorm",
    "q": "model.layers.{}.self_attn.q_proj", "k": "model.layers.{}.self_attn.k_proj", "v": "model.layers.{}.self_attn.v_proj",
    "o": "model.layers.{}.self_attn.o_proj", "gate": "model.layers.{}.mlp.gate_proj", "up": "model.layers.{}.mlp.up_proj",
    "down": "model.layers.{}.mlp.down_proj", "last": "model.norm", "head": "lm_head",
}  # fmt: skip
EXAONE_NAMES = {
    "embed": "transformer.wte", "norm_1": "transformer.h.{}.ln_1", "norm_2": "transformer.h.{}.ln_2",
    "q": "transformer.h.{}.attn.attention.q_proj", "k": "transformer.h.{}.attn.attention.k_proj",
    "v": "transformer.h.{}.attn.attention.v_proj", "o": "transformer.h.{}.attn.attention.out_proj",
    "gate": "transformer.h.{}.mlp.c_fc_0", "up": "transformer.h.{}.mlp.c_fc_1", "down": "transformer.h.{}.mlp.c_proj",
    "last": "transformer.ln_f", "head": "lm_head",
}  # fmt: skip
ONCE = ("embed", "last", "head")


def sizes(config: Mapping[str, Any]) -> tuple[int, int, int, int]:
    """Layers, heads, key-value heads, size of a head."""
    heads = config["num_attention_heads"]
    shared = config.get("num_key_value_heads") or heads
    layers = config.get("num_layers") or config["num_hidden_layers"]
    return layers, heads, shared, config.get("head_dim") or config["hidden_size"] // heads


def shapes(config: Mapping[str, Any], names: Mapping[str, str], biases: Sequence[str] = ()) -> dict[str, tuple[int, ...]]:
    """What is saved of a decoder whose tensors have these names."""
    layers, heads, shared, size = sizes(config)
    width, inner = config["hidden_size"], config["intermediate_size"]
    each = {
        "embed": (config["vocab_size"], width), "norm_1": (width,), "q": (heads * size, width), "k": (shared * size, width),
        "v": (shared * size, width), "o": (width, heads * size), "norm_2": (width,), "gate": (inner, width),
        "up": (inner, width), "down": (width, inner), "last": (width,), "head": (config["vocab_size"], width),
    }  # fmt: skip
    out: dict[str, tuple[int, ...]] = {}
    for what, shape in each.items():
        if what == "head" and config.get("tie_word_embeddings"):
            continue
        for layer in range(1 if what in ONCE else layers):
            name = names[what].format(layer)
            out[f"{name}.weight"] = shape
            if what in biases:
                out[f"{name}.bias"] = shape[:1]
    return out


def turned(x: Array, base: float, factors: Array | float = 1.0) -> Array:
    """Rope on `[tokens, heads, size]`: the first half of a head against the second."""
    import numpy as np

    half = x.shape[-1] // 2
    angles = np.arange(len(x))[:, None] * (base ** (-np.arange(half) / half) / factors)
    cosine, sine = np.cos(angles)[:, None], np.sin(angles)[:, None]
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cosine - b * sine, b * cosine + a * sine], -1)


def formulas(
    folder: Path, ids: Sequence[int], names: Mapping[str, str] = LLAMA_NAMES, *, layer_norm: bool = False,
    epsilon: str = "rms_norm_eps", factors: Any = 1.0, tensors: Mapping[str, Array] | None = None,
) -> Array:  # fmt: skip
    """A decoder with norms before attention and before a gated feed-forward, in float64: log-probabilities, `[len(ids), vocabulary]`."""
    import numpy as np

    from llmfit_core.testing import read_folder

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    stored = {n: t.astype(np.float64) for n, t in (tensors or read_folder(folder)).items()}
    layers, heads, shared, size = sizes(config)
    scaled = config["model_type"] == "minicpm"
    depth = config.get("scale_depth", 1.0) / layers**0.5 if scaled else 1.0
    eps = config.get(epsilon, 1e-5 if layer_norm or epsilon != "rms_norm_eps" else 1e-6)

    def linear(what: str, x: Array, layer: int = 0) -> Array:
        name = names[what].format(layer)
        return x @ stored[f"{name}.weight"].T + stored.get(f"{name}.bias", 0.0)

    def norm(what: str, x: Array, layer: int = 0) -> Array:
        name = names[what].format(layer)
        if layer_norm:
            x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
        return x * stored[f"{name}.weight"] + stored.get(f"{name}.bias", 0.0)

    base = float(config.get("rope_theta", 10000.0))
    x = stored[f"{names['embed']}.weight"][list(ids)] * config.get("scale_emb", 1.0)
    past = np.tril(np.ones((len(ids), len(ids)), bool))
    for layer in range(layers):
        h = norm("norm_1", x, layer)
        q = turned(linear("q", h, layer).reshape(len(ids), heads, size), base, factors)
        k = turned(linear("k", h, layer).reshape(len(ids), shared, size), base, factors)
        v = linear("v", h, layer).reshape(len(ids), shared, size)
        k, v = (np.repeat(t, heads // shared, 1) for t in (k, v))
        scores = np.where(past, np.einsum("qhd,khd->hqk", q, k) / size**0.5, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        seen = np.einsum("hqk,khd->qhd", weights, v).reshape(len(ids), -1)
        x = x + linear("o", seen, layer) * depth
        h = norm("norm_2", x, layer)
        gate = linear("gate", h, layer)
        x = x + linear("down", gate / (1 + np.exp(-gate)) * linear("up", h, layer), layer) * depth
    x = norm("last", x)
    if scaled:
        x = x / (config["hidden_size"] / config.get("dim_model_base", 1))
    tied = f"{names['head']}.weight" not in stored
    logits = x @ stored[f"{names['embed' if tied else 'head']}.weight"].T
    logits = logits - logits.max(-1, keepdims=True)
    return np.asarray(logits - np.log(np.exp(logits).sum(-1, keepdims=True)))


def llama3(config: Mapping[str, Any]) -> Array | float:
    """Llama 3's factors, by its published rule: long waves slower, short ones as they are, between them in between."""
    import numpy as np

    said = config.get("rope_scaling")
    if not said:
        return 1.0
    half = sizes(config)[3] // 2
    turns = said["original_max_position_embeddings"] * config["rope_theta"] ** (-np.arange(half) / half) / (2 * np.pi)
    smooth = np.clip((turns - said["low_freq_factor"]) / (said["high_freq_factor"] - said["low_freq_factor"]), 0, 1)
    return np.asarray(1 / ((1 - smooth) / said["factor"] + smooth))


def plain_tensors(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """A Llama's."""
    return shapes(config, LLAMA_NAMES)


def plain_reference(folder: Path, ids: Sequence[int]) -> Array:
    """A Llama's."""
    return formulas(folder, ids)


def internlm3_tensors(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """A Llama's, with biases where the config says so."""
    biases = ("q", "k", "v") if config.get("qkv_bias") else ()
    return shapes(config, LLAMA_NAMES, biases + (("o", "gate", "up", "down") if config.get("bias") else ()))


def orion_tensors(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """A Llama's, whose norms have biases."""
    return shapes(config, LLAMA_NAMES, ("norm_1", "norm_2", "last"))


def orion_reference(folder: Path, ids: Sequence[int]) -> Array:
    """Layer norms in place of root mean squares."""
    return formulas(folder, ids, layer_norm=True)


def exaone_tensors(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """A Llama's, by names of its own."""
    return shapes(config, EXAONE_NAMES)


def exaone_reference(folder: Path, ids: Sequence[int]) -> Array:
    """A Llama's, by names of its own."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return formulas(folder, ids, EXAONE_NAMES, epsilon="layer_norm_epsilon", factors=llama3(config))


def baichuan_tensors(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """A Llama's, with queries, keys and values in one."""
    apart = shapes(config, LLAMA_NAMES)
    out: dict[str, tuple[int, ...]] = {}
    for name, shape in apart.items():
        if "q_proj" in name:
            out[name.replace("q_proj", "W_pack")] = (3 * shape[0], shape[1])
        elif "k_proj" not in name and "v_proj" not in name:
            out[name] = shape
    return out


def baichuan_reference(folder: Path, ids: Sequence[int]) -> Array:
    """A Llama's, once queries, keys and values are taken apart."""
    import numpy as np

    from llmfit_core.testing import read_folder

    apart: dict[str, Array] = {}
    for name, tensor in read_folder(folder).items():
        if "W_pack" in name:
            for what, part in zip("qkv", np.split(tensor, 3), strict=True):
                apart[name.replace("W_pack", f"{what}_proj")] = part
        else:
            apart[name] = tensor
    return formulas(folder, ids, tensors=apart)


def _of(config: Mapping[str, Any], variations: Mapping[str, Any], refused: Mapping[str, Any], tensors: Any, reference: Any) -> dict[str, Any]:
    """A sample. The quick run has its base alone."""
    return {
        "config": dict(config), "variations": variations, "refused": refused, "slow": frozenset(variations),
        "saved_tensors": tensors, "reference": reference,
    }  # fmt: skip


HUB: dict[str, dict[str, Any]] = {
    "internlm3": _of(
        {"architectures": ["InternLM3ForCausalLM"], "model_type": "internlm3", "head_dim": 32, **SMALL},
        {"biases": {"qkv_bias": True, "bias": True, "num_key_value_heads": 4, "tie_word_embeddings": True}},
        {"gelu": ({"hidden_act": "gelu"}, "graph-cannot")},
        internlm3_tensors, plain_reference,
    ),
    "xverse": _of(
        {"architectures": ["XverseForCausalLM"], "model_type": "xverse", **SMALL},
        {"no-groups-tied": {"num_key_value_heads": ..., "tie_word_embeddings": True, "rms_norm_eps": 1e-3}},
        {"gelu": ({"hidden_act": "gelu"}, "graph-cannot"), "wide": ({"head_dim": 32}, "graph-cannot")},
        plain_tensors, plain_reference,
    ),
    "orion": _of(
        {"architectures": ["OrionForCausalLM"], "model_type": "orion", "rms_norm_eps": 1e-5, **SMALL},
        {"no-groups-tied": {"num_key_value_heads": 4, "tie_word_embeddings": True, "rms_norm_eps": 1e-3}},
        {"gelu": ({"hidden_act": "gelu"}, "graph-cannot"), "biases": ({"attention_bias": True}, "config-value")},
        orion_tensors, orion_reference,
    ),
    "exaone": _of(
        {
            "architectures": ["ExaoneForCausalLM"], "model_type": "exaone", "num_layers": 2, "activation_function": "silu",
            "rope_theta": 1e6, **{k: v for k, v in SMALL.items() if k != "num_hidden_layers"},
        },
        {
            "llama3-tied": {
                "tie_word_embeddings": True,
                "rope_scaling": {
                    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 64,
                },
            },
        },
        {"gelu": ({"activation_function": "gelu"}, "graph-cannot")},
        exaone_tensors, exaone_reference,
    ),
    "minicpm": _of(
        {
            "architectures": ["MiniCPMForCausalLM"], "model_type": "minicpm", "scale_emb": 12, "scale_depth": 1.4,
            "dim_model_base": 16, **SMALL, "tie_word_embeddings": True,
        },
        {"a-head": {"tie_word_embeddings": False, "scale_emb": 3, "dim_model_base": 32, "num_key_value_heads": 4}},
        {
            "gelu": ({"hidden_act": "gelu"}, "graph-cannot"), "experts": ({"num_experts": 8}, "config-value"),
            "sparse": ({"sparse_config": {"kernel_size": 32}}, "config-value"),
        },
        plain_tensors, plain_reference,
    ),
    "baichuan": _of(
        {
            "architectures": ["BaiChuanForCausalLM"], "model_type": "baichuan",
            **{k: v for k, v in SMALL.items() if k != "num_key_value_heads"},
        },
        {"as-deep-as-7b": {"num_hidden_layers": 32, "hidden_size": 32, "intermediate_size": 32}},
        {"gelu": ({"hidden_act": "gelu"}, "graph-cannot")},
        baichuan_tensors, baichuan_reference,
    ),
}  # fmt: skip
"""By name of the architecture."""
