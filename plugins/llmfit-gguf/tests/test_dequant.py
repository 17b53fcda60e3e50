"""Blocks to floats, judged by gguf's kernels on random bits: every scale, every code, infinities and NaNs."""

from __future__ import annotations

import ctypes
import pickle
import tracemalloc
from functools import cache

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize, quantize

from llmfit_core.errors import UnsupportedError
from llmfit_core.readers.ggml_types import BY_NAME, PLAIN, Blocked
from llmfit_core.tensors import read
from llmfit_gguf.dequant import Dequantized, can_dequantize, dequantize_rows
from llmfit_gguf.engine import _xllamacpp_files

NO_KERNEL = {"q8_1", "q8_k"}
NOT_IN_GGUF = {"q1_0", "q2_0"}
"""What ggml alone reads."""


class Traits(ctypes.Structure):
    """ggml's `struct ggml_type_traits`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("block", ctypes.c_int64),
        ("interleave", ctypes.c_int64),
        ("size", ctypes.c_size_t),
        ("quantized", ctypes.c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
    )


@cache
def ggml() -> ctypes.CDLL:
    """ggml itself, out of xllamacpp."""
    files = _xllamacpp_files()
    if not files:
        pytest.skip("xllamacpp is the judge of this test")
    library = ctypes.CDLL(str(files[0]))
    library.ggml_get_type_traits.restype = ctypes.POINTER(Traits)
    return library


def by_ggml(rows, name):
    """Rows of blocks as ggml makes them floats."""
    traits = ggml().ggml_get_type_traits(BY_NAME[name].id).contents
    rows = np.ascontiguousarray(rows)
    out = np.empty((len(rows), rows.shape[1] // traits.size * traits.block), np.float32)
    traits.to_float(rows.ctypes.data, out.ctypes.data, out.size)
    return out


@pytest.mark.parametrize("name", sorted(set(BY_NAME) - PLAIN - NO_KERNEL - NOT_IN_GGUF))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_bit_equal_to_gguf(name):
    kind = BY_NAME[name]
    # More blocks than are worked on at a time.
    rows = np.random.default_rng(1).integers(0, 256, (5, 500 * kind.size), dtype=np.uint8)
    theirs = dequantize(rows, Type[name.upper()])
    ours = dequantize_rows(rows, name)
    assert ours.dtype == np.float32
    assert ours.shape == theirs.shape
    assert np.array_equal(ours.view(np.uint32), theirs.view(np.uint32))


@pytest.mark.parametrize("name", sorted(set(BY_NAME) - PLAIN - NO_KERNEL))
def test_equal_to_ggml(name):
    """Up to the order of ggml's own products, which its compiler may contract: one unit in the last place."""
    kind = BY_NAME[name]
    rows = np.random.default_rng(1).integers(0, 256, (3, 40 * kind.size), dtype=np.uint8)
    ours, theirs = dequantize_rows(rows, name), by_ggml(rows, name)
    finite = np.isfinite(theirs)
    assert finite.mean() > 0.5
    assert np.array_equal(finite, np.isfinite(ours))
    if name in NOT_IN_GGUF:
        assert np.array_equal(ours[finite], theirs[finite])
    tolerance = {"rtol": 3e-6, "atol": float(np.abs(theirs[finite]).max()) * 1e-6}
    np.testing.assert_allclose(ours[finite], theirs[finite], **tolerance)


def test_memory_stays_with_the_rows():
    """gguf's kernels make many times what they return: they are given a few blocks at a time."""
    for name in ("iq1_m", "iq2_xxs", "q3_k", "nvfp4"):
        rows = np.zeros((8, 512 * BY_NAME[name].size), np.uint8)
        dequantize_rows(rows[:1], name)
        tracemalloc.start()
        made = dequantize_rows(rows, name).nbytes
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < made + (40 << 20), name


@pytest.mark.parametrize("name", sorted(NO_KERNEL))
def test_types_without_a_kernel_are_refused_by_name(name):
    assert not can_dequantize(name)
    with pytest.raises(UnsupportedError, match=name):
        dequantize_rows(np.zeros((1, BY_NAME[name].size), np.uint8), name)


@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "tq2_0"])
def test_node_reads_rows(tmp_path, name):
    path = tmp_path / "blocks"
    values = np.random.default_rng(2).standard_normal((2, 3, 256)).astype(np.float32)
    packed = quantize(values, Type[name.upper()])
    path.write_bytes(b"head" * 8 + packed.tobytes())
    node = Dequantized(Blocked(str(path), 32, values.shape, name))
    want = dequantize(packed, Type[name.upper()])
    assert (node.shape, node.dtype, node.files()) == (values.shape, "f32", (str(path),))
    assert np.array_equal(read(node), want)
    assert np.array_equal(node.rows(2, 5), want.reshape(6, 256)[2:5])
    assert node.rows(3, 3).shape == (0, 256)
    assert pickle.loads(pickle.dumps(node)) == node


def test_the_table_knows_every_type():
    assert {t.name.lower() for t in gguf.GGMLQuantizationType} | NOT_IN_GGUF == set(BY_NAME)
    assert all(can_dequantize(n) for n in set(BY_NAME) - PLAIN - NO_KERNEL)
    for kind in BY_NAME.values():
        traits = ggml().ggml_get_type_traits(kind.id).contents
        assert traits.name.decode().lower() == kind.name
        if kind.name not in NO_KERNEL:  # these never lie in a file
            assert (traits.block, traits.size) == (kind.block, kind.size), kind.name
