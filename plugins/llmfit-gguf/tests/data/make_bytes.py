"""Record what llama.cpp's own libggml-base makes of rows that are easy to get wrong.

    python make_bytes.py path/to/libggml-base.so bytes.json

The rows are made of integers, so that they are the same under every numpy.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

TYPES = {
    "q4_0": (2, 32, 18), "q4_1": (3, 32, 20), "q5_0": (6, 32, 22), "q5_1": (7, 32, 24), "q8_0": (8, 32, 34),
    "q2_k": (10, 256, 84), "q3_k": (11, 256, 110), "q4_k": (12, 256, 144), "q5_k": (13, 256, 176),
    "q6_k": (14, 256, 210), "iq4_nl": (20, 32, 18), "iq4_xs": (23, 256, 136), "tq1_0": (34, 256, 54),
    "tq2_0": (35, 256, 66), "mxfp4": (39, 32, 17),
}  # fmt: skip
WIDTH = 768


def noise(count: int, seed: int) -> Any:
    """Bell-shaped values of standard deviation near one: eight hashed 16-bit integers added up."""
    with np.errstate(over="ignore"):
        x = np.arange(count * 8, dtype=np.uint64) + np.uint64(seed * 1_000_003 + 1)
        for _ in range(3):
            x ^= x >> np.uint64(31)
            x *= np.uint64(0x9E3779B97F4A7C15)
        x ^= x >> np.uint64(29)
    parts = (x >> np.uint64(48)).astype(np.int64).reshape(count, 8).sum(axis=1) - 4 * 65535
    return (parts / 53500).astype(np.float32)


def hard_rows() -> Any:
    """float32 `[R, 768]`: ordinary rows, and rows of zeros, steps, spikes, denormals and numbers at float16's ends."""
    at = np.arange(WIDTH)
    spike = np.zeros(WIDTH, np.float32)
    spike[::97] = 3.5
    rows = [noise(WIDTH, seed) * np.float32(scale) for seed, scale in enumerate([0.02] * 16 + [1, 100, 1e-3, 1e-6])]
    rows += [
        np.zeros(WIDTH, np.float32),
        -np.zeros(WIDTH, np.float32),
        np.full(WIDTH, 0.7, np.float32),
        np.full(WIDTH, -0.7, np.float32),
        spike,
        -spike,
        np.where(at % 2, 1, -1).astype(np.float32),
        ((at % 16) - 8).astype(np.float32) / 8,
        np.abs(noise(WIDTH, 40)),
        -np.abs(noise(WIDTH, 41)),
        noise(WIDTH, 42) * np.float32(1e-40),
        noise(WIDTH, 43) * np.float32(1e-30),
        noise(WIDTH, 44) * np.float32(1e-8),
        noise(WIDTH, 45) * np.float32(2e4),
        np.where(at == 300, 6e4, noise(WIDTH, 46)).astype(np.float32),
        np.where(at // 32 % 2, 0, noise(WIDTH, 47)).astype(np.float32),
        noise(WIDTH, 48) * (at % 32 == 5),
        np.float32(1.5) + noise(WIDTH, 49) * np.float32(1e-4),
    ]
    return np.ascontiguousarray(np.stack(rows).astype(np.float32))


def weights() -> Any:
    """Importance of each column."""
    return np.abs(noise(WIDTH, 99)) + np.float32(0.01)


def main(library: str, out: str) -> None:
    """Record all types, without and with weights."""
    function = ctypes.CDLL(library).ggml_quantize_chunk
    function.restype = ctypes.c_size_t
    pointer, long = ctypes.c_void_p, ctypes.c_int64
    function.argtypes = (ctypes.c_int, pointer, pointer, long, long, long, pointer)
    rows, importance = hard_rows(), weights()
    record = {}
    for name, (number, block, size) in TYPES.items():
        for label, w in ((name, None), (f"{name} weighted", importance)):
            encoded = np.zeros((len(rows), WIDTH // block * size), np.uint8)
            function(
                number, rows.ctypes.data, encoded.ctypes.data, 0, *rows.shape, None if w is None else w.ctypes.data
            )
            record[label] = hashlib.sha256(encoded.tobytes()).hexdigest()
    Path(out).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
