"""The named operations against numpy on whole arrays, for every range of rows."""

from __future__ import annotations

import pickle

import ml_dtypes
import numpy as np
import pytest

from llmfit_core.grouping import regroup, ungroup
from llmfit_core.tensors import Given, Stored, element_count, read, row_count
from llmfit_core.transform import (
    Affine,
    Cast,
    Concat,
    PermuteRope,
    Reshape,
    Slice,
    Stack,
    Transpose,
    cast,
    to_float32,
    transpose,
)

RNG = np.random.default_rng(7)


def given(array: np.ndarray, dtype: str = "f32") -> Given:
    return Given(np.ascontiguousarray(array).tobytes(), array.shape, dtype)


def values(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, dtype=np.float32)


def hf_permute(w: np.ndarray, heads: int) -> np.ndarray:
    """The permutation as the Llama conversion script of Hugging Face inverts it: [heads, 2, D/2] to [heads, D/2, 2]."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


A, B, C = values(6, 5), values(4, 5), values(3, 8, 6)
CASES = {
    "permute": (PermuteRope(given(values(24, 5)), 3), None),
    "stack": (Stack((given(A), given(A + 1), given(A + 2))), np.stack([A, A + 1, A + 2])),
    "concat": (Concat((given(A), given(B))), np.concatenate([A, B])),
    "concat vectors": (Concat((given(A[0]), given(B[0]))), np.concatenate([A[0], B[0]])),
    "concat columns": (Concat((given(A), given(A[:, :2])), axis=1), np.concatenate([A, A[:, :2]], axis=1)),
    "concat groups": (Concat((given(C), given(C[:, :3])), axis=1), np.concatenate([C, C[:, :3]], axis=1)),
    "slice rows": (Slice(given(A), 2, 5), A[2:5]),
    "slice columns": (Slice(given(A), 1, 4, axis=1), A[:, 1:4]),
    "slice middle": (Slice(given(C), 2, 7, axis=1), C[:, 2:7]),
    "slice experts": (Slice(given(C), 1, 3), C[1:3]),
    "one expert": (Slice(given(C), 1, 2, squeeze=True), C[1]),
    "slice a vector": (Slice(given(A[0]), 1, 3), A[0][1:3]),
    "transpose": (Transpose(given(A)), A.T),
    "transpose experts": (Transpose(given(C)), C.transpose(0, 2, 1)),
    "reshape": (Reshape(given(C), (24, 6)), C.reshape(24, 6)),
    "affine": (Affine(given(A), scale=2.0, shift=1.0), A * np.float32(2) + np.float32(1)),
    "half of a stack": (Slice(Stack((given(A), given(A * 3))), 3, 6, axis=1), np.stack([A, A * 3])[:, 3:6]),
}
CASES["permute"] = (PermuteRope(given(w := values(24, 5)), 3), hf_permute(w, 3))
CASES["permute a bias"] = (PermuteRope(given(b := values(24)), 3), hf_permute(b, 3))
CASES["permute half of each head"] = (
    PermuteRope(given(w), 3, turned=4),
    np.concatenate([part for head in w.reshape(3, 8, 5) for part in (hf_permute(head[:4], 1), head[4:])]),
)

T = values(2, 40, 3)
CASES["every other row of experts"] = (ungroup(given(T), [1, 1], 1, 20), T[:, 1::2])
CASES["a third of each group"] = (ungroup(given(T), [2, 3], 0, 8), T.reshape(2, 8, 5, 3)[:, :, :2].reshape(2, 16, 3))
CASES["every other row, turned"] = (ungroup(Transpose(given(T.swapaxes(1, 2))), [1, 1], 0, 20), T[:, ::2])
CASES["every other bias"] = (ungroup(given(T[..., 0]), [1, 1], 1, 20, bias=True), T[:, 1::2, 0])
CASES["a vector's groups"] = (ungroup(given(T[0, :, 0]), [1, 4], 1, 8), T[0, :, 0].reshape(8, 5)[:, 1:].reshape(-1))
CASES["one in forty"] = (Slice(Reshape(given(T), (2, 40, 3)), 7, 8, 1), T[:, 7:8])


@pytest.mark.parametrize("name", CASES)
def test_any_range_of_rows_is_that_of_the_whole(name: str) -> None:
    node, expected = CASES[name]
    assert node.shape == expected.shape
    rows = row_count(node.shape)
    flat = expected.reshape(rows, -1)
    for start in range(rows + 1):
        for stop in range(start, rows + 1):
            np.testing.assert_array_equal(np.asarray(node.rows(start, stop)).reshape(stop - start, flat.shape[1]), flat[start:stop])
    np.testing.assert_array_equal(read(node), expected)


@pytest.mark.parametrize("name", CASES)
def test_nodes_can_be_pickled_and_compared(name: str) -> None:
    node, _ = CASES[name]
    assert pickle.loads(pickle.dumps(node)) == node


def test_permutation_undoes_itself() -> None:
    w = values(32, 3)
    there = PermuteRope(given(w), 4)
    np.testing.assert_array_equal(read(PermuteRope(there, 4, inverse=True)), w)
    part = PermuteRope(given(w), 4, turned=2)
    np.testing.assert_array_equal(read(PermuteRope(part, 4, inverse=True, turned=2)), w)


def test_bfloat16_rounds_as_ml_dtypes_does() -> None:
    bits = RNG.integers(0, 1 << 32, 200_000, dtype=np.uint32)
    special = np.array([0, 1, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0x7F7FFFFF, 0x00008000, 0x00018000], np.uint32)
    x = np.concatenate([bits, special]).view(np.float32)
    with np.errstate(invalid="ignore"):
        expected = x.astype(ml_dtypes.bfloat16)
    found = cast(x, "bf16")
    nan = np.isnan(x)
    assert np.isnan(found[nan].astype(np.float32)).all()
    np.testing.assert_array_equal(found[~nan].view(np.uint16), expected[~nan].view(np.uint16))


def test_bfloat16_widens_as_ml_dtypes_does() -> None:
    x = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16).view(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(to_float32(x).view(np.uint32), x.astype(np.float32).view(np.uint32))


def test_cast_node(tmp_path) -> None:
    path = tmp_path / "x"
    x = values(7, 3)
    path.write_bytes(b"pad" + x.tobytes())
    node = Cast(Stored(str(path), 3, (7, 3), "f32"), "f16")
    np.testing.assert_array_equal(node.rows(2, 5), x[2:5].astype(np.float16))
    assert node.files() == (str(path),)


def test_a_scalar_is_one_row_of_one() -> None:
    node = given(np.float32(3).reshape(()))
    assert (row_count(node.shape), element_count(node.shape)) == (1, 1)
    assert node.rows(0, 1).tolist() == [[3.0]]


@pytest.mark.parametrize("bias", [False, True])
def test_groups_come_together_again(bias: bool) -> None:
    whole = T[..., 0] if bias else T
    parts = [ungroup(given(whole), [2, 3], i, 8, bias=bias) for i in range(2)]
    np.testing.assert_array_equal(read(regroup(parts, 8, bias=bias)), whole)


def test_turning_twice_is_nothing() -> None:
    node = given(C)
    assert transpose(transpose(node)) is node
