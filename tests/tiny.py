"""Tiny model folders made with numpy and safetensors alone: right ones, and ones wrong in exactly one way.

`tiny("llama", path)` writes a sound model of two layers; `config=`, `tensors=`, `shards=` and the rest change it. The
weights follow from the tensors' names, so that two folders that spell the same model differently hold the same numbers.
"""

from __future__ import annotations

import json
import shutil
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

TOKENIZERS = Path(__file__).parent / "golden" / "tok"
DROP = object()
"""As a value of `config=` or `tensors=`: the key or tensor is left out."""
LAYERS, HIDDEN, HEADS, KV, HEAD, FFN, EXPERTS, MOE, SHARED = 2, 64, 4, 2, 16, 96, 4, 48, 80

Arrays = dict[str, np.ndarray]


def tiny(
    family: str,
    path: Path,
    *,
    config: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Any] | None = None,
    rename: Callable[[str], str] | None = None,
    shards: int = 1,
    index: bool = True,
    experts: str = "each",
    dtype: str = "bfloat16",
    tok: str | None = None,
    seed: int = 0,
    **sizes: int,
) -> Path:
    """Write a model folder and return it.

    Args:
        family: llama, mistral, mixtral, qwen2, qwen2moe, qwen3, qwen3moe or phi3.
        path: The folder; made if need be.
        config: Changes of config.json; `DROP` removes a key.
        tensors: Changes of the tensors, by name, after `rename`; `DROP` removes one.
        rename: Applied to every tensor's name.
        shards: How many files.
        index: Write the index of several files.
        experts: `each`, `fused` (`[E, 2I, H]`), `turned` (`[E, H, 2I]`), or `old` (Mixtral's published names).
        dtype: numpy's or ml_dtypes' name.
        tok: A folder of `golden/tok`; the family's own by default; empty for none.
        seed: Other weights.
        sizes: `layers`, `hidden`, `heads`, `kv`, `head`, `ffn`, `experts_count`, `moe`, `shared`, `rows` of the real tensors
            and of the config alike.
    """
    path.mkdir(parents=True, exist_ok=True)
    tok = ("bpe-qwen2" if family.startswith("qwen") else "spm") if tok is None else tok
    if tok:
        for file in (TOKENIZERS / tok).iterdir():
            shutil.copyfile(file, path / file.name)
    size = {
        "layers": LAYERS, "hidden": HIDDEN, "heads": HEADS, "kv": KV, "head": HEAD, "ffn": FFN,
        "experts_count": EXPERTS, "moe": MOE, "shared": SHARED, "rows": 640 if family.startswith("qwen") else 512,
    } | sizes  # fmt: skip
    said = tiny_config(family, size, dtype)
    for key, value in (config or {}).items():
        if value is DROP:
            said.pop(key, None)
        else:
            said[key] = value
    write_json(path / "config.json", said)
    held = tiny_tensors(family, size, experts=experts, dtype=dtype, seed=seed)
    if rename is not None:
        held = {rename(name): array for name, array in held.items()}
    for name, value in (tensors or {}).items():
        if value is DROP:
            del held[name]
        else:
            held[name] = value
    save(path, held, shards=shards, index=index)
    return path


def write_json(path: Path, value: object) -> None:
    """JSON as the tools write it."""
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")


def save(path: Path, tensors: Arrays, *, shards: int = 1, index: bool = True) -> None:
    """Tensors as one or several safetensors files."""
    if shards == 1:
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
        return
    names = list(tensors)
    weight_map = {}
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = {n: tensors[n] for n in names[i * len(names) // shards : (i + 1) * len(names) // shards]}
        save_file(part, path / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    if index:
        write_json(path / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})


def weights(name: str, shape: Iterable[int], dtype: str = "bfloat16", seed: int = 0) -> np.ndarray:
    """The numbers that belong to a name."""
    draw = np.random.default_rng(zlib.crc32(f"{seed} {name}".encode()))
    values = np.asarray(draw.standard_normal(tuple(shape), dtype=np.float32) * np.float32(0.05))
    if name.endswith(("norm.weight", "layernorm.weight")):
        values = np.asarray(values + np.float32(1))
    return np.asarray(values).astype(getattr(ml_dtypes, dtype, dtype))


def tiny_config(family: str, size: Mapping[str, int], dtype: str = "bfloat16") -> dict[str, Any]:
    """A config.json in transformers 4's spelling."""
    cls = {
        "llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "mixtral": "MixtralForCausalLM",
        "qwen2": "Qwen2ForCausalLM", "qwen2moe": "Qwen2MoeForCausalLM", "qwen3": "Qwen3ForCausalLM",
        "qwen3moe": "Qwen3MoeForCausalLM", "phi3": "Phi3ForCausalLM",
    }[family]  # fmt: skip
    said: dict[str, Any] = {
        "architectures": [cls],
        "model_type": family.replace("moe", "_moe"),
        "vocab_size": size["rows"],
        "hidden_size": size["hidden"],
        "intermediate_size": size["ffn"],
        "num_hidden_layers": size["layers"],
        "num_attention_heads": size["heads"],
        "num_key_value_heads": size["kv"],
        "hidden_act": "silu",
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": dtype,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if size["head"] * size["heads"] != size["hidden"]:
        said["head_dim"] = size["head"]
    if family == "mistral":
        said["sliding_window"] = None
    if family == "mixtral":
        said |= {"num_local_experts": size["experts_count"], "num_experts_per_tok": 2}
    if family in ("qwen2moe", "qwen3moe"):
        said |= {"num_experts": size["experts_count"], "num_experts_per_tok": 2, "moe_intermediate_size": size["moe"]}
        said |= {"norm_topk_prob": family == "qwen3moe", "decoder_sparse_step": 1, "mlp_only_layers": []}
    if family == "qwen2moe":
        said |= {"shared_expert_intermediate_size": size["shared"]}
    if family.startswith("qwen"):
        said |= {"use_sliding_window": False, "eos_token_id": 2}
    if family.startswith("qwen3"):
        said |= {"head_dim": size["head"], "attention_bias": False}
    if family == "phi3":
        said |= {"original_max_position_embeddings": 128, "sliding_window": None}
    return said


def tiny_tensors(
    family: str, size: Mapping[str, int], *, experts: str = "each", dtype: str = "bfloat16", seed: int = 0
) -> Arrays:
    """The tensors, under the names of saved files."""
    out: Arrays = {}

    def make(name: str, *shape: int) -> np.ndarray:
        out[name] = weights(name, shape, dtype, seed)
        return out[name]

    hidden, q, kv = size["hidden"], size["heads"] * size["head"], size["kv"] * size["head"]
    make("model.embed_tokens.weight", size["rows"], hidden)
    for i in range(size["layers"]):
        at = f"model.layers.{i}."
        make(f"{at}input_layernorm.weight", hidden)
        if family == "phi3":
            make(f"{at}self_attn.qkv_proj.weight", q + 2 * kv, hidden)
        else:
            for x, rows in (("q", q), ("k", kv), ("v", kv)):
                make(f"{at}self_attn.{x}_proj.weight", rows, hidden)
                if family.startswith("qwen2"):
                    make(f"{at}self_attn.{x}_proj.bias", rows)
        make(f"{at}self_attn.o_proj.weight", hidden, q)
        if family.startswith("qwen3"):
            make(f"{at}self_attn.q_norm.weight", size["head"])
            make(f"{at}self_attn.k_norm.weight", size["head"])
        make(f"{at}post_attention_layernorm.weight", hidden)
        if family in ("mixtral", "qwen2moe", "qwen3moe"):
            _experts(out, family, at, size, experts, dtype, seed)
        elif family == "phi3":
            make(f"{at}mlp.gate_up_proj.weight", 2 * size["ffn"], hidden)
            make(f"{at}mlp.down_proj.weight", hidden, size["ffn"])
        else:
            make(f"{at}mlp.gate_proj.weight", size["ffn"], hidden)
            make(f"{at}mlp.up_proj.weight", size["ffn"], hidden)
            make(f"{at}mlp.down_proj.weight", hidden, size["ffn"])
    make("model.norm.weight", hidden)
    make("lm_head.weight", size["rows"], hidden)
    return out


def _experts(
    out: Arrays, family: str, at: str, size: Mapping[str, int], kind: str, dtype: str, seed: int
) -> None:
    hidden, width, count = size["hidden"], size["ffn" if family == "mixtral" else "moe"], size["experts_count"]
    block = f"{at}block_sparse_moe" if kind == "old" else f"{at}mlp"
    out[f"{block}.gate.weight"] = weights(f"{at}router", (count, hidden), dtype, seed)
    parts: dict[str, list[np.ndarray]] = {}
    for part, shape in (("gate", (width, hidden)), ("up", (width, hidden)), ("down", (hidden, width))):
        parts[part] = [weights(f"{at}{part}.{e}", shape, dtype, seed) for e in range(count)]
    if kind in ("each", "old"):
        for e in range(count):
            for part, old in (("gate", "w1"), ("up", "w3"), ("down", "w2")):
                name = f"{block}.experts.{e}." + (old if kind == "old" else f"{part}_proj")
                out[f"{name}.weight"] = parts[part][e]
    else:
        both = np.stack([np.concatenate([g, u]) for g, u in zip(parts["gate"], parts["up"], strict=True)])
        down = np.stack(parts["down"])
        if kind == "turned":
            both, down = both.swapaxes(1, 2).copy(), down.swapaxes(1, 2).copy()
        out[f"{block}.experts.gate_up_proj"] = both
        out[f"{block}.experts.down_proj"] = down
    if family == "qwen2moe":
        for part, shape in (
            ("gate_proj", (size["shared"], hidden)),
            ("up_proj", (size["shared"], hidden)),
            ("down_proj", (hidden, size["shared"])),
        ):
            name = f"{at}mlp.shared_expert.{part}.weight"
            out[name] = weights(name, shape, dtype, seed)
        name = f"{at}mlp.shared_expert_gate.weight"
        out[name] = weights(name, (1, hidden), dtype, seed)


FAMILIES = ("llama", "mistral", "mixtral", "qwen2", "qwen2moe", "qwen3", "qwen3moe", "phi3")
