"""Models for the benchmarks, made from nothing but a seed: real shapes, random or absent weights, whole tokenizers.

A folder made here opens like a published one. `weights="random"` writes bf16 weights like a trained model's in size and
spread; `weights="sparse"` writes headers alone and leaves the rest of each file a hole, which reads as zeros and takes
no room.

    python benchmarks/synthetic.py half FOLDER      # see SHAPES for the names
"""

from __future__ import annotations

import argparse
import json
import math
import struct
import sys
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

LETTERS = "etaoinshrdlcumwfgypbvkjxqz"
LLAMA3_REGEX = (
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
    "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A model to make.

    Attributes:
        hidden: Width of the residual stream.
        ffn: Width of an MLP, or of one expert.
        layers: Decoder layers.
        heads: Query heads.
        kv_heads: Key and value heads.
        head_dim: Width of a head.
        vocab: Rows of the embedding, and tokens.
        experts: 0 for a dense model, else of a Qwen3-MoE.
        tied: No head of its own.
        shards: How many files.
        tokenizer: `spm` (a `tokenizer.model`) or `bpe` (a `tokenizer.json` of Llama 3's structure).
        weights: `random` or `sparse`.
    """

    hidden: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    experts: int = 0
    tied: bool = False
    shards: int = 1
    tokenizer: str = "spm"
    weights: str = "random"


SHAPES = {
    # 0.55 B weights; every row is a multiple of 256, so that K-quants are used throughout.
    "half": Shape(hidden=1536, ffn=4096, layers=18, heads=24, kv_heads=8, head_dim=64, vocab=32000),
    # Its headers alone.
    "half-headers": Shape(
        hidden=1536, ffn=4096, layers=18, heads=24, kv_heads=8, head_dim=64, vocab=32000, shards=8, weights="sparse"
    ),
    # Four times the layers, four times the vocabulary.
    "half-x4": Shape(hidden=1536, ffn=4096, layers=72, heads=24, kv_heads=8, head_dim=64, vocab=128000),
    # One tensor of 8.6 GB: the embedding.
    "one-tensor": Shape(
        hidden=32768, ffn=256, layers=1, heads=1, kv_heads=1, head_dim=128, vocab=131072, tied=True, weights="sparse",
        tokenizer="bpe",
    ),
    "70b": Shape(
        hidden=8192, ffn=28672, layers=80, heads=64, kv_heads=8, head_dim=128, vocab=128256, shards=8,
        tokenizer="bpe", weights="sparse",
    ),
    "moe": Shape(
        hidden=2048, ffn=768, layers=48, heads=32, kv_heads=4, head_dim=128, vocab=151936, experts=128, shards=16,
        tokenizer="bpe", weights="sparse",
    ),
}  # fmt: skip


def tensors(shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes as Hugging Face writes them."""
    h, d = shape.hidden, shape.head_dim
    yield "model.embed_tokens.weight", (shape.vocab, h)
    for i in range(shape.layers):
        layer = f"model.layers.{i}."
        yield layer + "input_layernorm.weight", (h,)
        yield layer + "post_attention_layernorm.weight", (h,)
        yield layer + "self_attn.q_proj.weight", (shape.heads * d, h)
        yield layer + "self_attn.k_proj.weight", (shape.kv_heads * d, h)
        yield layer + "self_attn.v_proj.weight", (shape.kv_heads * d, h)
        yield layer + "self_attn.o_proj.weight", (h, shape.heads * d)
        if shape.experts:
            yield layer + "self_attn.q_norm.weight", (d,)
            yield layer + "self_attn.k_norm.weight", (d,)
            yield layer + "mlp.gate.weight", (shape.experts, h)
        blocks = [f"mlp.experts.{e}." for e in range(shape.experts)] or ["mlp."]
        for block in blocks:
            yield layer + block + "gate_proj.weight", (shape.ffn, h)
            yield layer + block + "up_proj.weight", (shape.ffn, h)
            yield layer + block + "down_proj.weight", (h, shape.ffn)
    yield "model.norm.weight", (h,)
    if not shape.tied:
        yield "lm_head.weight", (shape.vocab, h)


def config(shape: Shape) -> dict[str, object]:
    """The `config.json`."""
    common = {
        "bos_token_id": 1,
        "dtype": "bfloat16",
        "eos_token_id": 2,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.ffn,
        "max_position_embeddings": 8192,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "tie_word_embeddings": shape.tied,
        "vocab_size": shape.vocab,
        "attention_bias": False,
    }
    if not shape.experts:
        return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "mlp_bias": False} | common
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "moe_intermediate_size": shape.ffn,
        "norm_topk_prob": True,
        "num_experts": shape.experts,
        "num_experts_per_tok": 8,
        "sliding_window": None,
        "use_sliding_window": False,
    } | common


def make(shape: Shape, folder: Path) -> None:
    """Write the model into `folder`; the same bytes each time."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config(shape), indent=1), encoding="utf-8")
    special = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True, "add_eos_token": False}
    if shape.tokenizer == "spm":
        (folder / "tokenizer.model").write_bytes(sentencepiece_model(shape.vocab))
        settings = special | {"tokenizer_class": "LlamaTokenizer", "unk_token": "<unk>", "legacy": False}
    else:
        text = json.dumps(byte_level_tokenizer(shape.vocab), ensure_ascii=False)
        (folder / "tokenizer.json").write_text(text, encoding="utf-8")
        settings = special | {"tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1), encoding="utf-8")
    _write_weights(shape, folder)


def _write_weights(shape: Shape, folder: Path) -> None:
    listed = list(tensors(shape))
    total = sum(math.prod(s) * 2 for _, s in listed)
    parts: list[list[tuple[str, tuple[int, ...]]]] = [[]]
    filled = 0
    for name, dims in listed:
        if filled >= total / shape.shards * len(parts) and len(parts) < shape.shards:
            parts.append([])
        parts[-1].append((name, dims))
        filled += math.prod(dims) * 2
    names = ["model.safetensors"]
    if len(parts) > 1:
        names = [f"model-{i + 1:05}-of-{len(parts):05}.safetensors" for i in range(len(parts))]
        places = {t: n for n, part in zip(names, parts, strict=True) for t, _ in part}
        index = {"metadata": {"total_size": total}, "weight_map": places}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    for number, (name, part) in enumerate(zip(names, parts, strict=True)):
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        at = 0
        for tensor, dims in part:
            end = at + math.prod(dims) * 2
            header[tensor] = {"dtype": "BF16", "shape": dims, "data_offsets": [at, end]}
            at = end
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(folder / name, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            if shape.weights == "random":
                _write_random(file, part, number)
            file.truncate(8 + len(text) + at)


def _write_random(file: object, part: list[tuple[str, tuple[int, ...]]], seed: int) -> None:
    import numpy as np

    rng = np.random.default_rng(seed)
    for _, dims in part:
        left = math.prod(dims)
        while left:
            count = min(left, 8 << 20)
            x = rng.standard_normal(count, dtype=np.float32)
            x *= np.float32(0.02)
            if len(dims) == 1:
                x += np.float32(1)
            file.write((x.view(np.uint32) >> np.uint32(16)).astype("<u2").tobytes())  # type: ignore[attr-defined]
            left -= count


def words(count: int, first: str) -> list[str]:
    """`count` different words, with and without a leading `first`; a word's prefixes come before it."""
    out: list[str] = []
    for length in range(1, 8):
        for letters in product(LETTERS, repeat=length):
            word = "".join(letters)
            out += [first + word] if length == 1 else [word, first + word]
            if len(out) >= count:
                return out[:count]
    return out


def sentencepiece_model(vocab: int) -> bytes:
    """A `tokenizer.model` like Llama 2's: BPE, byte fallback, a dummy prefix, no normalisation.

    The bytes follow sentencepiece_model.proto: pieces are field 1 (piece, score, type), the trainer's settings
    field 2, the normaliser's field 3.
    """
    pieces = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
    pieces += [(f"<0x{b:02X}>", 0.0, 6) for b in range(256)]
    plain = ["\u2581", *LETTERS]
    plain += words(vocab - len(pieces) - len(plain), "\u2581")
    pieces += [(word, -float(rank), 1) for rank, word in enumerate(plain)]
    out = bytearray()
    for word, score, kind in pieces:
        body = _field(1, word.encode()) + b"\x15" + struct.pack("<f", score) + b"\x18" + _varint(kind)
        out += _field(1, body)
    trainer = b"\x18\x02" + b"\x20" + _varint(vocab) + _varint(35 << 3) + b"\x01"  # BPE; vocab size; byte fallback
    out += _field(2, trainer)
    out += _field(3, _field(1, b"identity") + b"\x18\x01" + b"\x20\x00" + b"\x28\x01")
    return bytes(out)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, body: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(body)) + body


def byte_level_tokenizer(vocab: int) -> dict[str, object]:
    """A `tokenizer.json` of Llama 3's structure, with as many merges a token as its vocabulary has."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(b) for b in visible] + [chr(256 + i) for i in range(256 - len(visible))]
    space = "\u0120"
    tokens = ["<unk>", "<s>", "</s>", *letters]
    tokens += words(vocab - len(tokens), space)
    known = {t: i for i, t in enumerate(tokens)}
    merges = []
    for token in tokens[259:]:
        merges += [
            [token[:at], token[at:]]
            for at in range(len(token) - 1, 0, -1)
            if token[:at] in known and token[at:] in known
        ][:2]
    added = [
        {
            "id": i,
            "content": t,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for i, t in enumerate(tokens[:3])
    ]
    split = {"type": "Split", "pattern": {"Regex": LLAMA3_REGEX}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": True,
            "vocab": known, "merges": merges,
        },
    }  # fmt: skip


def main() -> None:
    """Make one of `SHAPES`."""
    parser = argparse.ArgumentParser(description="Make a synthetic model.")
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    make(SHAPES[given.shape], given.folder)
    print(
        f"{given.folder}: {sum(math.prod(s) for _, s in tensors(SHAPES[given.shape])) / 1e9:.3f} B weights",
        file=sys.stderr,
    )


if __name__ == "__main__":
    main()
