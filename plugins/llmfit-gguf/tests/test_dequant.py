"""Blocks to floats, judged by gguf's kernels on random bits: every scale, every code, infinities and NaNs."""

from __future__ import annotations

import pickle

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize, quantize

from llmfit_core.errors import UnsupportedError
from llmfit_core.readers.ggml_types import BY_NAME, PLAIN, Blocked
from llmfit_core.tensors import read
from llmfit_gguf.dequant import Dequantized, dequantize_rows

NO_KERNEL = {"q8_1", "q8_k"}


@pytest.mark.parametrize("name", sorted(set(BY_NAME) - PLAIN - NO_KERNEL))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_bit_equal_to_gguf(name):
    kind = BY_NAME[name]
    rng = np.random.default_rng(1)
    if name.startswith("iq") or name in ("mxfp4", "nvfp4", "q1_0"):
        rows = rng.integers(0, 256, (3, 4 * kind.size), dtype=np.uint8)
    else:
        # More blocks than are worked on at a time.
        rows = rng.integers(0, 256, (5, 500 * kind.size), dtype=np.uint8)
    try:
        theirs = dequantize(rows, Type[name.upper()])
    except NotImplementedError:
        with pytest.raises(UnsupportedError):
            dequantize_rows(rows, name)
        return
    ours = dequantize_rows(rows, name)
    assert ours.dtype == np.float32
    assert ours.shape == theirs.shape
    assert np.array_equal(ours.view(np.uint32), theirs.view(np.uint32))


@pytest.mark.parametrize("name", sorted(NO_KERNEL))
def test_types_without_a_kernel_are_refused_by_name(name):
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
    assert {t.name.lower() for t in gguf.GGMLQuantizationType} == set(BY_NAME)
