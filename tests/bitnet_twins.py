"""Tiny twins of published BitNet checkpoints, made with numpy and safetensors alone: no torch, no transformers."""

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
    from collections.abc import Mapping

TOKENIZERS = Path(__file__).parent / "golden" / "tok"
HIDDEN, FFN, HEADS, KV, ROWS, LAYERS = 256, 512, 4, 2, 640, 2
BF16 = ml_dtypes.bfloat16
OLD = {"attn_sub_norm": "inner_attn_ln", "ffn_sub_norm": "ffn_layernorm"}
PACKED = {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline"}
"""As microsoft/bitnet-b1.58-2B-4T has it."""
ONLINE = PACKED | {"quantization_mode": "online"}
"""As its bf16 sibling has it."""
BITLINEAR = {"quant_method": "bitnet", "modules_to_not_convert": None}
"""As Llama3-8B-1.58 and its like have it."""

Arrays = dict[str, np.ndarray[Any, Any]]


def twin(
    path: Path,
    stored: str = "packed",
    section: Mapping[str, Any] | None = PACKED,
    *,
    family: str = "bitnet",
    old_names: bool = False,
    tok: str = "bpe-llama-bpe",
    head: bool = False,
    tensors: Mapping[str, Any] | None = None,
    **config: Any,
) -> Path:
    """A folder like that of the 2B-4T model, or of another make.

    Args:
        path: The folder.
        stored: `packed`, `unpacked` (-1, 0 and 1 with a scale), `ternary` (-s, 0 and s) or `full`.
        section: `quantization_config`; `None` for none.
        family: `bitnet`, `llama`, `qwen2` (with biases) or `qwen3` (with norms of q and k).
        old_names: The sub-norms under the older class's names.
        tok: A folder of the golden tokenizers.
        head: With a head of its own.
        tensors: Changes, by name; `...` removes one.
        **config: Changes of config.json; `...` removes a key.
    """
    path.mkdir(parents=True)
    for file in (TOKENIZERS / tok).iterdir():
        shutil.copyfile(file, path / file.name)
    held = plain(family, head=head)
    divides = (section or {}).get("linear_class", "bitlinear") == "bitlinear"
    out: Arrays = {}
    for name, array in held.items():
        new = name
        for word, old in OLD.items() if old_names else ():
            new = new.replace(word, old)
        if array.ndim == 2 and "_proj" in name and stored != "full":
            out |= _stored(new, array, stored, divides)
        else:
            out[new] = array.astype(BF16)
    for name, change in (tensors or {}).items():
        if change is ...:
            del out[name]
        else:
            out[name] = change
    save_file({n: np.ascontiguousarray(a) for n, a in out.items()}, path / "model.safetensors", metadata={"format": "pt"})
    said = {**config_of(family, tied=not head), **({"quantization_config": dict(section)} if section is not None else {}), **config}
    (path / "config.json").write_text(json.dumps({k: v for k, v in said.items() if v is not ...}), encoding="utf-8")
    return path


def config_of(family: str, *, tied: bool) -> dict[str, Any]:
    """config.json without `quantization_config`."""
    classes = {"bitnet": "BitNetForCausalLM", "llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
    return {
        "architectures": [classes[family]],
        "model_type": family,
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV,
        "hidden_act": "relu2" if family == "bitnet" else "silu",
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "tie_word_embeddings": tied,
        "vocab_size": ROWS,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "torch_dtype": "bfloat16",
        **({"head_dim": HIDDEN // HEADS} if family == "qwen3" else {}),
    }


def plain(family: str = "bitnet", *, head: bool = False) -> Arrays:
    """Full float32 weights, the same for the same names."""
    d, kv = HIDDEN, HIDDEN // HEADS * KV
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (ROWS, d), "model.norm.weight": (d,)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        attention = {"q": (d, d), "k": (kv, d), "v": (kv, d), "o": (d, d)}
        shapes |= {f"{at}self_attn.{n}_proj.weight": shape for n, shape in attention.items()}
        shapes |= {f"{at}mlp.{n}_proj.weight": (FFN, d) for n in ("gate", "up")} | {f"{at}mlp.down_proj.weight": (d, FFN)}
        shapes |= {f"{at}input_layernorm.weight": (d,), f"{at}post_attention_layernorm.weight": (d,)}
        if family == "bitnet":
            shapes |= {f"{at}self_attn.attn_sub_norm.weight": (d,), f"{at}mlp.ffn_sub_norm.weight": (FFN,)}
        if family == "qwen2":
            shapes |= {f"{at}self_attn.{n}_proj.bias": attention[n][:1] for n in "qkv"}
        if family == "qwen3":
            shapes |= {f"{at}self_attn.{n}_norm.weight": (d // HEADS,) for n in "qk"}
    if head:
        shapes["lm_head.weight"] = (ROWS, d)
    out = {}
    for name, shape in shapes.items():
        random = np.random.default_rng(zlib.crc32(name.encode()))
        values = random.standard_normal(shape)
        if len(shape) == 1:
            values = 1 + 0.15 * values if "norm" in name else 0.1 * values
        else:
            values *= {True: 0.1, False: 0.06}["embed" in name or "lm_head" in name]
        out[name] = values.astype(BF16).astype(np.float32)
    return out


def ternary(array: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.float32]:
    """-1, 0 and 1, and the mean of the absolute values, as bfloat16 holds it."""
    scale = np.float32(np.abs(array).mean(dtype=np.float64))
    return np.clip(np.rint(array / scale), -1, 1), np.float32(BF16(scale))


def pack(codes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Four rows to a byte: of the N rows, quarter i lies in bits 2i and 2i + 1."""
    quarters = (codes + 1).astype(np.uint8).reshape(4, -1, codes.shape[1])
    return np.asarray(quarters[0] | quarters[1] << 2 | quarters[2] << 4 | quarters[3] << 6, dtype=np.uint8)


def _stored(name: str, array: np.ndarray[Any, Any], stored: str, divides: bool) -> Arrays:
    codes, scale = ternary(array)
    if stored == "ternary":
        return {name: (codes * scale).astype(BF16)}
    number = np.array([1 / scale if divides else scale], dtype=BF16)
    return {name: pack(codes) if stored == "packed" else codes.astype(BF16), f"{name}_scale": number}
