"""What a GGUF header tells about running it: names, limits, and what the cache costs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmfit_core.errors import SourceError, UnsupportedError
from llmfit_core.pooling import POOLINGS
from llmfit_core.readers.gguf import GgufFile, read_gguf

EXACT_KEY = "llmfit.exact_context"
"""Written by llmfit: up to this many tokens the artifact computes what its source does."""


@dataclass(frozen=True, kw_only=True)
class Header:
    """A model as far as a launch concerns it.

    Attributes:
        path: The first file.
        file: Everything in the header.
        architecture: Its graph's name.
        pretokenizer: `tokenizer.ggml.pre` where the graph of the tokenizer reads it, else empty.
        context_length: Tokens it was made for.
        exact_context: Tokens up to which it is exact; `None` where nothing is said.
        short_context: Of longrope models, the longest context that takes the short factors; else `None`.
        vocabulary: Rows of the embedding.
        has_template: It brings a chat template.
        weight_bytes: All tensors.
        cache_values_per_token: Numbers that the attention cache keeps for one token, all layers, at most: layers with
            a window may keep fewer.
        state_bytes: Of recurrent layers, for one sequence.
        widths: Embedding, feed-forward and head counts, each the largest of all layers.
        causal: Each token sees only those before it; else the model embeds and generates nothing.
        pooling: How it makes one vector of a text's (`mean`, `cls`, `last`, `rank`); empty where nothing is said.
    """

    path: Path
    file: GgufFile
    architecture: str
    pretokenizer: str
    context_length: int
    exact_context: int | None
    short_context: int | None
    vocabulary: int
    has_template: bool
    weight_bytes: int
    cache_values_per_token: int
    state_bytes: int
    widths: tuple[int, int, int]
    causal: bool = True
    pooling: str = ""

    @property
    def embeds(self) -> bool:
        """It is made for vectors."""
        return bool(self.pooling) or not self.causal


def find_model(path: Path) -> Path:
    """The GGUF file at `path`: itself, or the one model in the folder `path`.

    Raises:
        SourceError: `no-model`, `several-models`.
    """
    if not path.is_dir():
        return path
    files = sorted(p for p in path.iterdir() if p.suffix == ".gguf" and not p.name.startswith("mmproj"))
    firsts = [p for p in files if "-of-" not in p.stem or "-00001-of-" in p.stem]
    if not firsts:
        raise SourceError("no-model", f"no .gguf file in {path}", "Name a GGUF file, or convert the model first.")
    if len(firsts) > 1:
        raise SourceError(
            "several-models", f"{path} holds {len(firsts)} models, {firsts[0].name} among them", "Name one file."
        )
    return firsts[0]


def read_header(path: Path) -> Header:
    """The header of the model at `path` (a file, any part of a split model, or a folder with one model).

    Raises:
        SourceError: As `read_gguf`; `missing-key` and `bad-key` naming the key; `no-tensors`.
        UnsupportedError: As `read_gguf`; `not-a-model` for adapters, projectors and the like.
    """
    path = find_model(path)
    file = read_gguf(path)
    keys = _Keys(file, path)
    kind = keys.text("general.type", "model")
    architecture = keys.text("general.architecture")
    if kind != "model" or architecture == "clip":
        raise UnsupportedError(
            "not-a-model",
            f"{path} holds {kind if kind != 'model' else 'a projector'}, no language model",
            "Name a model.",
        )
    if not file.tensors:
        raise SourceError("no-tensors", f"{path} holds no tensors, only a vocabulary", "Name a whole model.")
    a = architecture
    embedding = keys.whole(f"{a}.embedding_length")
    layers = keys.whole(f"{a}.block_count")
    if layers > 4096:
        raise keys.bad(f"{a}.block_count", layers)
    heads = keys.each(f"{a}.attention.head_count", layers, 0)
    kv_heads = keys.each(f"{a}.attention.head_count_kv", layers, heads)
    widest = max(heads, default=0)
    by_division = embedding // widest if widest else 0
    k = keys.whole(f"{a}.attention.key_length", by_division)
    v = keys.whole(f"{a}.attention.value_length", by_division)
    longrope = "rope_factors_long.weight" in file.tensors or any(
        t.endswith("rope_factors_long.weight") for t in file.tensors
    )
    original = keys.whole(f"{a}.rope.scaling.original_context_length", 0)
    tokens = file.kv.get("tokenizer.ggml.tokens")
    token_embedding = file.tensors.get("token_embd.weight")
    causal = file.kv.get(f"{a}.attention.causal")
    pooled = keys.whole(f"{a}.pooling_type", 0)
    return Header(
        path=file.files[0],
        file=file,
        architecture=architecture,
        pretokenizer=keys.text("tokenizer.ggml.pre", "") if keys.text("tokenizer.ggml.model", "") == "gpt2" else "",
        context_length=keys.counted(f"{a}.context_length"),
        exact_context=keys.counted(EXACT_KEY) if EXACT_KEY in file.kv else None,
        short_context=original if longrope and original else None,
        vocabulary=token_embedding.shape[0] if token_embedding else len(tokens.value) if tokens else 0,
        has_template="tokenizer.chat_template" in file.kv,
        weight_bytes=sum(t.nbytes for t in file.tensors.values()),
        cache_values_per_token=sum(kv_heads) * (k + v),
        state_bytes=_state_bytes(keys, a, layers),
        causal=causal is None or bool(causal.value),
        pooling=next((n for n, number in POOLINGS.items() if number == pooled and number), ""),
        widths=(embedding, max(keys.each(f"{a}.feed_forward_length", layers, 0), default=0), widest),
    )


def _state_bytes(keys: _Keys, a: str, layers: int) -> int:
    """Of state-space layers: float32 convolution and state, as llama.cpp keeps them."""
    inner = keys.whole(f"{a}.ssm.inner_size", 0)
    state = keys.whole(f"{a}.ssm.state_size", 0)
    kernel = keys.whole(f"{a}.ssm.conv_kernel", 0)
    return 4 * layers * inner * (max(kernel - 1, 0) + state)


class _Keys:
    def __init__(self, file: GgufFile, path: Path) -> None:
        self.kv = file.kv
        self.path = path

    def text(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.bad(key, value)
        return value

    def whole(self, key: str, default: int | None = None) -> int:
        value = self._get(key, default)
        # Some keys are arrays in some models: the largest layer is what matters for a size.
        if hasattr(value, "tolist"):
            value = max(value.tolist(), default=0)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 40:
            raise self.bad(key, value)
        return value

    def counted(self, key: str) -> int:
        value = self.whole(key)
        if not value:
            raise self.bad(key, value)
        return value

    def each(self, key: str, layers: int, default: int | list[int]) -> list[int]:
        """A number per layer, however it is written."""
        value: Any = self._get(key, default)
        if hasattr(value, "tolist"):
            value = value.tolist()
        values = value if isinstance(value, list) else [value] * layers
        if any(isinstance(n, bool) or not isinstance(n, int) or not 0 <= n < 1 << 31 for n in values):
            raise self.bad(key, value)
        return values

    def _get(self, key: str, default: Any) -> Any:
        if key in self.kv:
            return self.kv[key].value
        if default is None:
            raise SourceError(
                "missing-key", f"{self.path} lacks the key {key}", "Convert the original anew; this file is incomplete."
            )
        return default

    def bad(self, key: str, value: object) -> SourceError:
        return SourceError(
            "bad-key", f"{self.path}: {key} holds {str(value)[:40]}", "Convert the original anew; this file is damaged."
        )


def cache_bytes(header: Header, context: int, bytes_per_value: int = 2) -> int:
    """Bytes of the attention cache and the recurrent state at `context` tokens, at most.

    llama.cpp rounds the context up to 256.
    """
    return math.ceil(context / 256) * 256 * header.cache_values_per_token * bytes_per_value + header.state_bytes


def buffer_bytes(header: Header, context: int, exact: bool = False) -> int:
    """Bytes of llama.cpp's compute buffers, about.

    Measured on Llama shapes: a batch of 512 holds about five vectors of the embedding's and three of the
    feed-forward's width, and a mask of 16 bits per batch row and cell; without flash attention one matrix of
    scores per head as well. The process itself takes 96 MiB.
    """
    embedding, forward, heads = header.widths
    batch = max(context, 1) if header.embeds else min(512, max(context, 1))
    scores = 4 * heads * batch * context if exact else 0
    return (96 << 20) + 4 * batch * (5 * embedding + 3 * forward) + 2 * batch * context + scores + 4 * header.vocabulary
