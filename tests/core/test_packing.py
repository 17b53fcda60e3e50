"""Packing, against the formats' descriptions in plain loops, and against itself backwards."""

from __future__ import annotations

import numpy as np
import pytest

from llmfit_core.packing import AWQ_ORDER, BITS, pack, period, unpack, word_count
from tests.quantized import in_awq_order, in_words

DRAW = np.random.default_rng(3)


def numbers(bits: int, *shape: int) -> np.ndarray:
    return DRAW.integers(0, 2**bits, shape).astype(np.uint8)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("count", [1, 7, 32, 40, 96, 100])
def test_rows_are_one_long_integer(bits: int, count: int) -> None:
    values = numbers(bits, 3, count)
    words = in_words(values, bits)
    assert words.shape == (3, word_count(count, bits))
    assert np.array_equal(unpack(words, bits, count=count), values)
    packed = pack(values, bits)
    assert packed.dtype == np.int32
    assert np.array_equal(packed, words)


@pytest.mark.parametrize("bits", BITS)
def test_along_the_first_axis_the_same_lies_turned(bits: int) -> None:
    values = numbers(bits, 64, 5)
    words = in_words(values.T, bits).T
    assert np.array_equal(unpack(np.ascontiguousarray(words), bits, axis=0), values)
    assert np.array_equal(pack(values, bits, axis=0), words)
    assert np.array_equal(unpack(pack(values[:50], bits, axis=0), bits, axis=0, count=50), values[:50])


def test_three_bits_take_three_words_as_gptq_writes_them() -> None:
    """auto-gptq's own words: ten numbers, two bits of the next; its last bit, ten more, one bit; two bits, ten more."""
    values = [int(v) for v in numbers(3, 32)]
    words = [0, 0, 0]
    for i in range(10):
        words[0] |= values[i] << (3 * i)
    words[0] |= (values[10] & 3) << 30
    words[1] |= values[10] >> 2
    for i in range(11, 21):
        words[1] |= values[i] << (3 * (i - 11) + 1)
    words[1] |= (values[21] & 1) << 31
    words[2] |= values[21] >> 1
    for i in range(22, 32):
        words[2] |= values[i] << (3 * (i - 22) + 2)
    assert unpack(np.array(words, np.uint32).view(np.int32), 3).tolist() == values
    assert pack(np.array(values, np.uint8), 3).view(np.uint32).tolist() == words


@pytest.mark.parametrize("axis", [0, -1])
def test_the_order_of_awq(axis: int) -> None:
    values = numbers(4, 16, 24)
    words = in_awq_order(values) if axis == -1 else in_awq_order(values.T).T
    assert np.array_equal(unpack(np.ascontiguousarray(words), 4, axis=axis, order=AWQ_ORDER), values)
    assert np.array_equal(pack(values, 4, axis=axis, order=AWQ_ORDER), words)
    word = pack(np.arange(8, dtype=np.uint8), 4, order=AWQ_ORDER).view(np.uint32)[0]
    assert [word >> 4 * i & 15 for i in range(8)] == [0, 2, 4, 6, 1, 3, 5, 7]


@pytest.mark.parametrize("shape", [(2, 3, 64), (64,), (0, 32)])
def test_any_number_of_axes(shape: tuple[int, ...]) -> None:
    for bits in (3, 4, 8):
        values = numbers(bits, *shape)
        assert np.array_equal(unpack(pack(values, bits), bits), values)
        if shape[0]:
            first = numbers(bits, 32, *shape)
            assert np.array_equal(unpack(pack(first, bits, axis=0), bits, axis=0), first)


def test_what_does_not_fit_is_an_error() -> None:
    with pytest.raises(ValueError, match="do not fit into 3 bits"):
        pack(np.array([8]), 3)
    with pytest.raises(ValueError, match="do not fit"):
        pack(np.array([-1]), 4)
    with pytest.raises(ValueError, match="not 17"):
        unpack(np.zeros(2, np.int32), 4, count=17)
    with pytest.raises(ValueError, match="neither the first nor the last"):
        unpack(np.zeros((2, 2, 2), np.int32), 4, axis=1)
    with pytest.raises(ValueError, match="no order"):
        unpack(np.zeros(2, np.int32), 8, order=AWQ_ORDER)
    with pytest.raises(ValueError, match="9 bits"):
        unpack(np.zeros(2, np.int32), 9)


def test_periods() -> None:
    assert [period(b) for b in BITS] == [32, 16, 32, 8, 32, 32, 32, 4]
