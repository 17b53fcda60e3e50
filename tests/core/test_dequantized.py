"""Lazy weights from small numbers: any rows, bounded memory, and what an index may say."""

from __future__ import annotations

import pickle
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from llmfit_core.dequantized import Dequantized, Packed, Turned, packed_shape, read_columns
from llmfit_core.errors import SourceError
from llmfit_core.packing import AWQ_ORDER
from llmfit_core.readers.remote import Remote
from llmfit_core.readers.shards import read_weights
from llmfit_core.tensors import Given, Stored, Tensor, read
from tests.quantized import awq, gptq, packed, rounded

DRAW = np.random.default_rng(11)
WEIGHT = DRAW.standard_normal((96, 64)).astype(np.float32) * 0.05


def given(array: np.ndarray) -> Given:
    names = {"int32": "i32", "float16": "f16", "uint8": "u8", "int64": "i64"}
    return Given(np.ascontiguousarray(array).tobytes(), array.shape, names[array.dtype.name])


def stored(folder: Path, **arrays: np.ndarray) -> dict[str, Tensor]:
    path = folder / "model.safetensors"
    save_file({k: np.ascontiguousarray(v) for k, v in arrays.items()}, path)
    return {n: r.tensor for n, r in read_weights({path.name: path}, layers=None).tensors.items()}


def by_gptq(parts: dict[str, Tensor], height: int, width: int, bits: int, group: int) -> Dequantized:
    return Dequantized(
        name="m.weight",
        codes=Packed(source=parts["qweight"], bits=bits, shape=(height, width), turned=True),
        scales=Turned(parts["scales"]),
        zeros=Packed(source=parts["qzeros"], bits=bits, shape=(height, width // group), along_rows=True, turned=True),
        lift=1,
        bits=bits,
        group=group,
        index=parts.get("g_idx"),
    )


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("order", [False, True])
def test_any_rows(bits: int, order: bool) -> None:
    x = rounded(WEIGHT, bits, 32, order=order)
    node = by_gptq({k: given(v) for k, v in gptq(x, bits).items()}, 96, 64, bits, 32)
    assert node.shape == (96, 64)
    assert node.dtype == "f16"
    for start, stop in ((0, 96), (0, 1), (95, 96), (13, 14), (7, 41), (32, 64), (5, 5)):
        assert node.rows(start, stop).tobytes() == x.weight[start:stop].tobytes(), (start, stop)
    again = pickle.loads(pickle.dumps(node))
    assert read(again).tobytes() == x.weight.tobytes()


def test_any_rows_of_the_order_of_awq() -> None:
    x = rounded(WEIGHT, 4, 16)
    parts = {k: given(v) for k, v in awq(x).items()}
    how = {"bits": 4, "along_rows": True, "turned": True, "order": AWQ_ORDER}
    node = Dequantized(
        name="m.weight",
        codes=Packed(source=parts["qweight"], shape=(96, 64), **how),
        scales=Turned(parts["scales"]),
        zeros=Packed(source=parts["qzeros"], shape=(96, 4), **how),
        group=16,
    )
    for start, stop in ((0, 96), (3, 4), (9, 70), (88, 96)):
        assert node.rows(start, stop).tobytes() == x.weight[start:stop].tobytes()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_the_product_is_rounded_once_to_the_scales_type(dtype: str) -> None:
    """As torch multiplies in that type, subnormal and infinite products included."""
    torch = pytest.importorskip("torch")
    codes = np.arange(256, dtype=np.uint8).reshape(1, -1).repeat(5, axis=0)
    scales = torch.tensor([3e-8, 1e-7, 0.0123, 700.0, 300.0]).to(getattr(torch, dtype)).reshape(-1, 1)
    raw = scales.view(torch.int32 if dtype == "float32" else torch.int16).numpy()
    kind = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}[dtype]
    node = Dequantized(
        name="m", codes=given(codes), scales=Given(raw.tobytes(), (5, 1), kind), zero=128, group=256
    )
    want = (torch.from_numpy(codes.astype(np.int32)) - 128).to(scales.dtype) * scales
    bits = torch.int32 if dtype == "float32" else torch.int16
    assert read(node).tobytes() == want.view(bits).numpy().tobytes()


def test_columns_of_a_stored_matrix_are_read_alone(tmp_path: Path) -> None:
    whole = DRAW.integers(-(2**31), 2**31 - 1, (40, 3000), dtype=np.int32)
    tensor = stored(tmp_path, a=whole)["a"]
    assert isinstance(tensor, Stored)
    for start, stop in ((0, 3000), (0, 1), (2999, 3000), (1000, 1400), (7, 7)):
        assert np.array_equal(read_columns(tensor, start, stop), whole[:, start:stop])
    with open(tensor.path, "r+b") as file:
        file.truncate(tensor.offset + 39 * 12000 + 16)
    assert np.array_equal(read_columns(tensor, 0, 4)[:39], whole[:39, :4])
    with pytest.raises(SourceError, match="truncated-file"):
        read_columns(tensor, 100, 200)


@pytest.mark.parametrize("layout", ["gptq", "order", "awq", "packed"])
def test_memory_does_not_grow_with_the_matrix(layout: str, tmp_path: Path) -> None:
    """4096 rows of 8192: 32 Mi weights, in blocks of at most 64 MiB beside the result of 64 MiB."""
    height, width = 4096, 8192
    words = DRAW.integers(-(2**31), 2**31 - 1, (width // 8, height), dtype=np.int32)
    zeros = DRAW.integers(-(2**31), 2**31 - 1, (width // 64, height // 8), dtype=np.int32)
    scales = np.full((width // 64, height), 0.01, np.float16)
    if layout in ("gptq", "order"):
        more = {"g_idx": DRAW.permutation(np.arange(width, dtype=np.int32) // 64)} if layout == "order" else {}
        node = by_gptq(stored(tmp_path, qweight=words, qzeros=zeros, scales=scales, **more), height, width, 4, 64)
    else:
        parts = stored(tmp_path, w=words.reshape((width, height // 8) if layout == "awq" else (height, width // 8)), s=scales)
        how = {"along_rows": True, "turned": True, "order": AWQ_ORDER} if layout == "awq" else {}
        codes = Packed(source=parts["w"], bits=4, shape=(height, width), **how)
        node = Dequantized(name="m", codes=codes, scales=Turned(parts["s"]), zero=8, group=64)
    del words
    tracemalloc.start()
    got = node.rows(0, height)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak - got.nbytes < 64 << 20
    for start in (0, 1111, height - 3):
        assert np.array_equal(node.rows(start, start + 3), got[start : start + 3])


class TestAnIndex:
    X = rounded(WEIGHT, 4, 16)

    def node(self, index: object, **more: object) -> Dequantized:
        made = by_gptq({k: given(v) for k, v in gptq(self.X, 4).items()}, 96, 64, 4, 16)
        return replace(made, index=given(np.array(index, np.int32)), **more)

    @pytest.mark.parametrize("index", [[0] * 64, [-1] * 64, list(np.arange(64) // 16)])
    def test_that_says_nothing_leaves_groups_in_sequence(self, index: list[int]) -> None:
        assert read(self.node(index)).tobytes() == self.X.weight.tobytes()

    def test_of_one_group_may_be_zero(self) -> None:
        x = rounded(WEIGHT, 4, -1)
        node = by_gptq({k: given(v) for k, v in gptq(x, 4).items()}, 96, 64, 4, 64)
        assert read(replace(node, ordered=True)).tobytes() == x.weight.tobytes()

    @pytest.mark.parametrize(("index", "word"), [([4] * 64, "group 4"), ([*range(-1, 3)] * 16, "group -1"), ([2**31 - 1] * 64, "2147483647")])
    def test_beyond_the_groups_is_an_error(self, index: list[int], word: str) -> None:
        with pytest.raises(SourceError, match=word):
            self.node(index).rows(0, 1)

    def test_that_has_to_say_something(self) -> None:
        with pytest.raises(SourceError, match="desc_act"):
            self.node([0] * 64, ordered=True).rows(0, 1)

    def test_may_be_uneven_where_readers_agree(self) -> None:
        index = np.minimum(np.arange(64) // 10, 3)
        want = replace(self.X, index=index).weight
        assert read(self.node(index)).tobytes() == want.tobytes()
        with pytest.raises(SourceError, match="gives group 0 10 columns"):
            self.node(index, even=True).rows(0, 1)


def test_a_remote_weight_says_that_it_is_not_here() -> None:
    far = Remote(repo="a/b", revision="c", filename="m", offset=0, shape=(8, 96), dtype="i32")
    node = Packed(source=far, bits=4, shape=(96, 64), turned=True)
    with pytest.raises(SourceError, match="not on this machine"):
        node.rows(0, 1)


def test_shapes_of_words() -> None:
    x = rounded(WEIGHT, 3, 32)
    parts = gptq(x, 3)
    assert parts["qweight"].shape == packed_shape((96, 64), 3, turned=True)
    assert parts["qzeros"].shape == packed_shape((96, 2), 3, along_rows=True, turned=True)
    assert packed(x, 3)["weight_packed"].shape == packed_shape((96, 64), 3)
