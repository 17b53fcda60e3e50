"""The native engines against llama.cpp's own library, and gguf-py's dequantizer."""

from __future__ import annotations

import hashlib
import json
import platform
import runpy
import threading
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from llmfit_core.errors import PluginError, UnsupportedError
from llmfit_gguf import engine
from llmfit_gguf.engine import (
    BLOCK_TYPES,
    ENGINES,
    all_finite,
    installed_engines,
    quantize_rows,
    row_bytes,
    scale_losses,
)

DATA = Path(__file__).parent / "data"
WANT: dict[str, str] = json.loads((DATA / "bytes.json").read_text(encoding="utf-8"))
MADE = runpy.run_path(str(DATA / "make_bytes.py"))
ROWS = MADE["hard_rows"]()


def test_some_engine_is_installed() -> None:
    assert installed_engines()
    assert set(BLOCK_TYPES) == set(MADE["TYPES"])


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="other machines round some scales otherwise")
@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("kind", BLOCK_TYPES)
def test_bytes_are_llama_cpps(name: str, kind: str) -> None:
    if name not in installed_engines():
        pytest.skip(f"{name} is not installed")
    for label, weights in ((kind, None), (f"{kind} weighted", MADE["weights"]())):
        got = quantize_rows(ROWS, kind, weights, engine=name)
        assert got.shape == (len(ROWS), row_bytes(kind, ROWS.shape[1]))
        assert hashlib.sha256(got.tobytes()).hexdigest() == WANT[label], label


@pytest.mark.parametrize("kind", BLOCK_TYPES)
def test_the_default_engine_gives_back_the_rows(kind: str) -> None:
    rows = ROWS[:16]
    back = gguf.quants.dequantize(quantize_rows(rows, kind), gguf.GGMLQuantizationType[kind.upper()])
    error = np.sqrt(((back - rows) ** 2).mean() / (rows**2).mean())
    assert error < {"q2_k": 0.35, "tq1_0": 1.0, "tq2_0": 1.0, "q3_k": 0.2}.get(kind, 0.12)


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
def test_plain_types_round_as_the_converter_does(kind: str) -> None:
    want = gguf.quants.quantize(ROWS, gguf.GGMLQuantizationType[kind.upper()])
    assert quantize_rows(ROWS, kind).tobytes() == want.tobytes()


def test_rows_may_be_encoded_in_any_chunks_by_any_thread() -> None:
    whole = quantize_rows(ROWS, "q4_k")
    out = np.empty_like(whole)

    def work(start: int) -> None:
        for i in range(start, len(ROWS), 3):
            out[i] = quantize_rows(ROWS[i : i + 1], "q4_k")[0]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert (out == whole).all()
    assert quantize_rows(ROWS[:0], "q4_k").shape == (0, whole.shape[1])


def test_what_does_not_fit_is_refused_and_never_reaches_the_library() -> None:
    with pytest.raises(UnsupportedError, match="row-length"):
        quantize_rows(ROWS[:, :320], "q4_k")
    with pytest.raises(UnsupportedError, match="row-length"):
        quantize_rows(ROWS[:, :40], "q8_0")
    with pytest.raises(UnsupportedError, match="unknown-type"):
        quantize_rows(ROWS, "iq2_xs")
    with pytest.raises(UnsupportedError, match="weights-shape"):
        quantize_rows(ROWS, "q4_k", np.ones(3, np.float32))
    cut = ROWS[:, 64:320]  # not contiguous
    assert (quantize_rows(cut, "q4_k") == quantize_rows(cut.copy(), "q4_k")).all()


def test_a_missing_engine_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_load", lambda _: None)
    with pytest.raises(PluginError) as caught:
        quantize_rows(ROWS, "q4_k")
    assert caught.value.code == "no-quantizer"
    assert "pip install" in caught.value.remedy


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
def test_not_finite_is_seen(kind: str, bad: float) -> None:
    import ml_dtypes

    dtype: Any = ml_dtypes.bfloat16 if kind == "bfloat16" else np.dtype(kind)
    x = np.array([[1, -2, 0, -0.0, 6e4, -6e4, 1e-7]], np.float32).astype(dtype)
    assert all_finite(x)
    for i in range(x.shape[1]):
        y = x.copy()
        y[0, i] = bad
        assert not all_finite(y)
    assert all_finite(x[:0])


def test_scales_beyond_float16_are_counted() -> None:
    x = np.zeros((2, 512), np.float32)
    x[0] = MADE["noise"](512, 1)
    for kind in BLOCK_TYPES:
        assert scale_losses(x, quantize_rows(x, kind), kind) == (0, 0), kind
    x[0, 3] = 1e30
    x[1, 300] = 1e-20
    for kind in BLOCK_TYPES:
        over, under = scale_losses(x, quantize_rows(x, kind), kind)
        assert (over, under) == ((0, 0) if kind == "mxfp4" else (1, 1)), kind


def test_blocks_below_mxfp4s_least_scale_are_counted() -> None:
    """Its exponents reach as far up as float32, and not quite as far down: ggml's then wrap round, and nothing is left."""
    x = np.zeros((3, 64), np.float32)
    x[0, 3], x[1, 40], x[2, 0], x[2, 32] = 3e38, -1e-37, 1e-39, -1e-45
    encoded = quantize_rows(x, "mxfp4")
    assert scale_losses(x, encoded, "mxfp4") == (0, 2)
    back = gguf.quants.dequantize(encoded, gguf.GGMLQuantizationType.MXFP4)
    assert np.count_nonzero(back, axis=1).tolist() == [1, 1, 0]
