"""Quantized folders for tests: rounded and packed by plain loops from the formats' descriptions, and their plain twins.

A twin holds what the quantized weights stand for, `(q - z) * s` with the product in the scales' type, as plain tensors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from tests.tiny import tiny, write_json

Arrays = dict[str, np.ndarray]
LINEARS = r".*_proj\.weight$"


@dataclass(frozen=True)
class Rounded:
    """A weight as whole numbers: codes `[N, K]`, zeros and scales `[N, G]`, the group of each column `[K]`."""

    codes: np.ndarray
    zeros: np.ndarray
    scales: np.ndarray
    index: np.ndarray

    @property
    def weight(self) -> np.ndarray:
        """What it stands for."""
        difference = (self.codes.astype(np.int32) - self.zeros.astype(np.int32)[:, self.index]).astype(np.float32)
        exact = difference * self.scales[:, self.index].astype(np.float32)  # 19 bits at most: exact
        return exact.astype(self.scales.dtype)


def rounded(
    weight: np.ndarray,
    bits: int = 4,
    group: int = 32,
    *,
    symmetric: bool = False,
    order: bool = False,
    dtype: Any = np.float16,
    seed: int = 0,
) -> Rounded:
    """Round to nearest. `order` spreads the columns of a group over the row, as activation order does."""
    values = weight.astype(np.float64)
    rows, width = values.shape
    size = width if group == -1 else group
    index = np.arange(width) // size
    if order:
        index = index[np.random.default_rng(seed).permutation(width)]
    top, groups = 2**bits - 1, int(index.max()) + 1
    zeros = np.zeros((rows, groups), np.int64)
    scales = np.zeros((rows, groups), dtype)
    codes = np.zeros(values.shape, np.int64)
    for g in range(groups):
        part = values[:, index == g]
        low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 1e-8)
        if symmetric:
            high = np.maximum(-low, high)
            low = -high
        scales[:, g] = ((high - low) / top).astype(dtype)
        scale = scales[:, g].astype(np.float64)
        zeros[:, g] = (top + 1) // 2 if symmetric else np.clip(np.round(-low / scale), 0, top)
        codes[:, index == g] = np.clip(np.round(part / scale[:, None]) + zeros[:, g, None], 0, top)
    return Rounded(codes, zeros, scales, index)


def in_words(values: np.ndarray, bits: int) -> np.ndarray:
    """Each row of whole numbers as one long integer, lowest first, cut into 32-bit words."""
    count = -(-values.shape[1] * bits // 32)
    out = np.zeros((values.shape[0], count), np.uint32)
    for r, row in enumerate(values):
        long = 0
        for i, value in enumerate(row):
            long |= int(value) << (i * bits)
        for w in range(count):
            out[r, w] = (long >> (32 * w)) & 0xFFFFFFFF
    return out.view(np.int32)


def in_awq_order(values: np.ndarray) -> np.ndarray:
    """Rows of 4-bit numbers, eight a word: nibble i is column `[0, 2, 4, 6, 1, 3, 5, 7][i]` of the eight."""
    out = np.zeros((values.shape[0], values.shape[1] // 8), np.uint32)
    for r in range(values.shape[0]):
        for w in range(out.shape[1]):
            word = 0
            for i, column in enumerate([0, 2, 4, 6, 1, 3, 5, 7]):
                word |= int(values[r, 8 * w + column]) << (4 * i)
            out[r, w] = word
    return out.view(np.int32)


def awq(x: Rounded, version: str = "gemm") -> Arrays:
    """The tensors of a module in an AWQ file."""
    if version == "gemm":
        return {
            "qweight": in_awq_order(x.codes.T), "qzeros": in_awq_order(x.zeros.T), "scales": np.ascontiguousarray(x.scales.T)
        }  # fmt: skip
    rows, groups = x.zeros.shape
    size = x.codes.shape[1] // groups
    multiple = {32: 4, 64: 2}.get(size, 1)
    words = (groups + 7) // 8
    words = (words + multiple - 1) // multiple * multiple
    zeros, scales = np.zeros((rows, words * 8), np.int64), np.zeros((rows, words * 8), x.scales.dtype)
    zeros[:, :groups], scales[:, :groups] = x.zeros, x.scales
    return {"qweight": in_words(x.codes, 4), "qzeros": in_words(zeros, 4), "scales": scales}


def gptq(x: Rounded, bits: int = 4, *, second: bool = False, index: str = "stored") -> Arrays:
    """The tensors of a module in a GPTQ file; `index` is `stored`, `zero` or `absent`."""
    zeros = x.zeros if second else (x.zeros - 1) % 2**bits
    out = {
        "qweight": np.ascontiguousarray(in_words(x.codes, bits).T),
        "qzeros": in_words(zeros.T, bits),
        "scales": np.ascontiguousarray(x.scales.T),
    }
    if index != "absent":
        out["g_idx"] = (x.index if index == "stored" else np.zeros_like(x.index)).astype(np.int32)
    return out


def packed(x: Rounded, bits: int = 4, *, symmetric: bool = True, index: bool = False) -> Arrays:
    """The tensors of a module in a pack-quantized compressed-tensors file."""
    out = {
        "weight_packed": in_words(x.codes, bits), "weight_scale": x.scales, "weight_shape": np.array(x.codes.shape, np.int64)
    }  # fmt: skip
    if not symmetric:
        out["weight_zero_point"] = np.ascontiguousarray(in_words(x.zeros.T, bits).T)
    if index:
        out["weight_g_idx"] = x.index.astype(np.int32)
    return out


@dataclass(frozen=True)
class Pair:
    """A quantized folder and its plain twin."""

    folder: Path
    twin: Path


def pair(
    path: Path,
    round_off: Callable[[str, np.ndarray], Rounded],
    store: Callable[[str, Rounded], Arrays],
    section: Mapping[str, Any] | None,
    *,
    family: str = "llama",
    which: str = LINEARS,
    files: Mapping[str, Any] | None = None,
    turned: bool = False,
    source: Path | None = None,
    **sizes: Any,
) -> Pair:
    """Write both.

    Args:
        path: Where; `path/quantized` and `path/plain`.
        round_off: `(name of the weight, weight) -> rounded`.
        store: `(module, rounded) -> its tensors`.
        section: `quantization_config` of config.json; `None` for none.
        family: As of `tests.tiny`.
        which: A pattern of the weights' names.
        files: Side files, by name.
        turned: Whether plain weights lie `[in, out]`.
        source: A plain folder instead of a tiny one.
        sizes: As of `tests.tiny`.
    """
    plain = path / "plain"
    if source is None:
        tiny(family, plain, **{"dtype": "float16", **sizes})
    else:
        plain.mkdir(parents=True)
        for file in source.iterdir():
            if file.suffix in (".json", ".safetensors", ".model", ".txt", ".jinja"):
                (plain / file.name).write_bytes(file.read_bytes())
    held = load_file(plain / "model.safetensors")
    quantized: Arrays = {}
    for name, weight in list(held.items()):
        if not re.fullmatch(which, name) or weight.ndim != 2:
            quantized[name] = weight
            continue
        module = name.removesuffix(".weight")
        x = round_off(name, weight.T if turned else weight)
        held[name] = np.ascontiguousarray(x.weight.T if turned else x.weight)
        quantized |= {f"{module}.{part}": np.ascontiguousarray(value) for part, value in store(module, x).items()}
    folder = path / "quantized"
    folder.mkdir(parents=True)
    for file in plain.iterdir():
        if file.suffix != ".safetensors":
            (folder / file.name).write_bytes(file.read_bytes())
    save_file(held, plain / "model.safetensors", metadata={"format": "pt"})
    save_file(quantized, folder / "model.safetensors", metadata={"format": "pt"})
    if section is not None:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        write_json(folder / "config.json", {**config, "quantization_config": dict(section)})
    for name, value in (files or {}).items():
        write_json(folder / name, value)
    return Pair(folder, plain)


def changed(folder: Path, tensors: Mapping[str, Any] | None = None, section: Mapping[str, Any] | None = None) -> Path:
    """Change the folder in place: tensors by name (a function of the old one, an array, or `None` to remove), config keys."""
    held = load_file(folder / "model.safetensors")
    for name, value in (tensors or {}).items():
        if value is None:
            del held[name]
        else:
            held[name] = np.ascontiguousarray(value(held[name]) if callable(value) else value)
    save_file(held, folder / "model.safetensors", metadata={"format": "pt"})
    if section is not None:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        config["quantization_config"] = {k: v for k, v in {**config["quantization_config"], **section}.items() if v is not ...}
        write_json(folder / "config.json", config)
    return folder


def same_tensors(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> None:
    """Every tensor of two files bit for bit."""
    assert set(one) == set(other)
    for name, array in one.items():
        assert array.dtype == other[name].dtype, name
        assert array.shape == other[name].shape, name
        assert array.tobytes() == other[name].tobytes(), name
