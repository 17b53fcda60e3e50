"""Small GGUF files for asking llama.cpp questions: a header, and tensors of nothing but noughts."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llmfit_core.readers.gguf_values import KV

_FORMS = {
    "uint8": (0, "<B"),
    "int8": (1, "<b"),
    "uint16": (2, "<H"),
    "int16": (3, "<h"),
    "uint32": (4, "<I"),
    "int32": (5, "<i"),
    "float32": (6, "<f"),
    "bool": (7, "<?"),
    "uint64": (10, "<Q"),
    "int64": (11, "<q"),
    "float64": (12, "<d"),
}
_STRING, _ARRAY, _F32, _ALIGNMENT = 8, 9, 0, 32


def write(path: Path, kv: Mapping[str, KV], shapes: Mapping[str, Sequence[int]] | None = None) -> None:
    """Write a GGUF file (layout: ggml's `docs/gguf.md`).

    Args:
        path: Where.
        kv: Its keys.
        shapes: Its tensors, outermost axis first, all float32 and nought. They take no room on disk.
    """
    shapes = shapes or {}
    infos, offset = [], 0
    for name, shape in shapes.items():
        sizes = b"".join(struct.pack("<Q", n) for n in reversed(shape))
        infos.append(_text(name) + struct.pack("<I", len(shape)) + sizes + struct.pack("<IQ", _F32, offset))
        count = 1
        for n in shape:
            count *= n
        offset += -(-4 * count // _ALIGNMENT) * _ALIGNMENT
    head = [b"GGUF", struct.pack("<IQQ", 3, len(shapes), len(kv))]
    head += [_text(key) + _value(value) for key, value in kv.items()]
    header = b"".join(head + infos)
    header += bytes(-len(header) % _ALIGNMENT)
    with path.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + offset)


def _text(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(raw)) + raw


def _value(kv: KV) -> bytes:
    if kv.type == "string":
        return struct.pack("<I", _STRING) + _text(kv.value)
    if not kv.type.startswith("array["):
        number, form = _FORMS[kv.type]
        return struct.pack("<I", number) + struct.pack(form, kv.value)
    inner = kv.type[6:-1]
    count = struct.pack("<Q", len(kv.value))
    if inner == "string":
        return struct.pack("<II", _ARRAY, _STRING) + count + b"".join(_text(t) for t in kv.value)
    number, form = _FORMS[inner]
    raw = kv.value.tobytes() if hasattr(kv.value, "tobytes") else b"".join(struct.pack(form, n) for n in kv.value)
    return struct.pack("<II", _ARRAY, number) + count + raw


def one_layer(kv: dict[str, KV], vocabulary: int) -> tuple[dict[str, KV], dict[str, Sequence[int]]]:
    """The keys and tensors of the smallest Llama that has a vocabulary of `vocabulary` tokens, `kv` added."""
    width = 8
    whole = {"context_length": 64, "embedding_length": width, "block_count": 1, "feed_forward_length": width}
    whole |= {"attention.head_count": 1, "attention.head_count_kv": 1, "rope.dimension_count": width}
    keys = {"general.architecture": KV("string", "llama")}
    keys |= {f"llama.{key}": KV("uint32", n) for key, n in whole.items()}
    keys |= {"llama.attention.layer_norm_rms_epsilon": KV("float32", 1e-5)}
    shapes: dict[str, Sequence[int]] = {"token_embd.weight": (vocabulary, width), "output_norm.weight": (width,)}
    for name in ("attn_norm", "ffn_norm"):
        shapes[f"blk.0.{name}.weight"] = (width,)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        shapes[f"blk.0.{name}.weight"] = (width, width)
    return {**keys, **kv}, shapes


def vocabulary_file(path: Path, kv: Mapping[str, KV]) -> None:
    """Write a model at `path` that has the tokenizer of the GGUF keys `kv` and next to nothing else.

    llama.cpp reads a vocabulary from `tokenizer.*` and `general.name` alone (two BERT-like architectures apart);
    a chat template has no part in it and may not compile.
    """
    kept: dict[str, Any] = {
        key: value
        for key, value in kv.items()
        if key == "general.name" or (key.startswith("tokenizer.") and not key.startswith("tokenizer.chat_template"))
    }
    write(path, *one_layer(kept, len(kv["tokenizer.ggml.tokens"].value)))
