"""Whole numbers of a few bits in 32-bit words: the layouts of AWQ, GPTQ and compressed-tensors, both ways.

All of them are one thing, a stream of bits: value `i` of a run takes bits `i * bits` to `(i + 1) * bits` of the words of
that run read one after the other, lowest bit first. For 2, 4 and 8 bits a word holds whole values; for 3 (5, 6, 7)
values cross words, and 32 of them take exactly `bits` words, which is what GPTQ calls "three words". What differs is the
axis that runs, and with AWQ the order of eight values within a word (`AWQ_ORDER`).

Everything works on 8-bit values and makes no buffer larger than what it returns, but for 3, 5, 6 and 7 bits.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llmfit_core.tensors import Array

BITS = (1, 2, 3, 4, 5, 6, 7, 8)
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Nibble `i` of a word, lowest first, holds value `AWQ_ORDER[i]` of the word's eight."""


def word_count(values: int, bits: int) -> int:
    """How many 32-bit words a run of `values` numbers takes; the last may be filled in part."""
    return -(-values * bits // 32)


def period(bits: int) -> int:
    """The fewest values that fill whole words: 8 for 4 bits, 32 for 3."""
    return 32 // bits if 32 % bits == 0 else 32


def unpack(words: Array, bits: int, *, axis: int = -1, count: int | None = None, order: tuple[int, ...] = ()) -> Array:
    """The numbers in `words`.

    Args:
        words: 32-bit integers of one or more axes; their sign means nothing.
        bits: 1 to 8 per number.
        axis: The axis that runs: the first or the last.
        count: Numbers per run, where the last word is filled in part; all that fit by default.
        order: Where the numbers of one word belong, as `AWQ_ORDER`; in sequence by default.

    Returns:
        `uint8`, as `words` but longer along `axis`.

    Raises:
        ValueError: An axis between, a count that the words do not hold, an order that is none for these bits.
    """
    import numpy as np

    first = _is_first(words.ndim, axis)
    _check_order(bits, order)
    length = words.shape[0 if first else -1]
    full = length * 32 // bits
    if count is None:
        count = full
    if count > full:
        raise ValueError(f"{length} words hold {full} numbers of {bits} bits, not {count}")
    unsigned = words.view(np.uint32) if words.dtype.itemsize == 4 else words.astype(np.uint32)
    if 32 % bits:
        if first and words.ndim > 1:
            return np.ascontiguousarray(np.moveaxis(_unpack_stream(np.moveaxis(unsigned, 0, -1), bits, count), -1, 0))
        return _unpack_stream(unsigned, bits, count)
    if not first and not order and bits == 4 and sys.byteorder == "little":
        octets = np.ascontiguousarray(unsigned).view(np.uint8)
        out = np.empty((*octets.shape, 2), np.uint8)
        np.bitwise_and(octets, 15, out=out[..., 0])
        np.right_shift(octets, 4, out=out[..., 1])
        return out.reshape(*octets.shape[:-1], full)[..., :count]
    if not first and not order and bits == 8 and sys.byteorder == "little":
        return np.ascontiguousarray(unsigned).view(np.uint8)[..., :count]
    per = 32 // bits
    mask = np.uint32((1 << bits) - 1)
    if first:
        out = np.empty((length, per, *unsigned.shape[1:]), np.uint8)
        for i, place in enumerate(order or range(per)):
            out[:, place] = (unsigned >> np.uint32(i * bits)) & mask
        return out.reshape(full, *unsigned.shape[1:])[:count]
    out = np.empty((*unsigned.shape, per), np.uint8)
    for i, place in enumerate(order or range(per)):
        out[..., place] = (unsigned >> np.uint32(i * bits)) & mask
    return out.reshape(*unsigned.shape[:-1], full)[..., :count]


def pack(values: Array, bits: int, *, axis: int = -1, order: tuple[int, ...] = ()) -> Array:
    """The words that hold `values`: the inverse of `unpack`.

    Args:
        values: Integers from 0 to `2 ** bits - 1`.
        bits: 1 to 8 per number.
        axis: The axis that runs: the first or the last. Its last word is filled up with zeros.
        order: As of `unpack`.

    Returns:
        `int32`, as `values` but shorter along `axis`.

    Raises:
        ValueError: A value that does not fit into `bits`; an axis between; an order that is none for these bits.
    """
    import numpy as np

    first = _is_first(values.ndim, axis)
    _check_order(bits, order)
    if values.size and (int(values.min()) < 0 or int(values.max()) >> bits):
        raise ValueError(f"values from {values.min()} to {values.max()} do not fit into {bits} bits")
    small = values.astype(np.uint8, copy=False)
    per = period(bits)
    length = small.shape[0 if first else -1]
    if length % per:
        pad = [(0, 0)] * small.ndim
        pad[0 if first else -1] = (0, -length % per)
        small = np.pad(small, pad)
    words = word_count(length, bits)
    if 32 % bits:
        if first and small.ndim > 1:
            packed = np.moveaxis(_pack_stream(np.moveaxis(small, 0, -1), bits), -1, 0)
            return np.ascontiguousarray(packed[:words])
        return np.ascontiguousarray(_pack_stream(small, bits)[..., :words])
    apart = small.reshape(small.shape[0] // per, per, *small.shape[1:]) if first else small.reshape(*small.shape[:-1], small.shape[-1] // per, per)
    out = np.zeros(apart.shape[:1] + apart.shape[2:] if first else apart.shape[:-1], np.uint32)
    for i, place in enumerate(order or range(per)):
        out |= (apart[:, place] if first else apart[..., place]).astype(np.uint32) << np.uint32(i * bits)
    return out.view(np.int32)


def _unpack_stream(words: Array, bits: int, count: int) -> Array:
    """Numbers that cross words, along the last axis: eight of them are `bits` bytes."""
    import numpy as np

    octets: Array = np.ascontiguousarray(words).astype("<u4", copy=False).view(np.uint8)
    groups = -(-octets.shape[-1] // bits)
    if octets.shape[-1] % bits:
        octets = np.concatenate([octets, np.zeros((*octets.shape[:-1], -octets.shape[-1] % bits), np.uint8)], axis=-1)
    apart: Array = octets.reshape(*octets.shape[:-1], groups, bits)
    whole = np.zeros(apart.shape[:-1], np.uint64)
    for i in range(bits):
        whole |= apart[..., i].astype(np.uint64) << np.uint64(8 * i)
    out: Array = np.empty((*whole.shape, 8), np.uint8)
    mask = np.uint64((1 << bits) - 1)
    for i in range(8):
        out[..., i] = (whole >> np.uint64(i * bits)) & mask
    return np.ascontiguousarray(out.reshape(*whole.shape[:-1], whole.shape[-1] * 8)[..., :count])


def _pack_stream(values: Array, bits: int) -> Array:
    import numpy as np

    apart: Array = np.ascontiguousarray(values).reshape(*values.shape[:-1], values.shape[-1] // 8, 8)
    whole = np.zeros(apart.shape[:-1], np.uint64)
    for i in range(8):
        whole |= apart[..., i].astype(np.uint64) << np.uint64(i * bits)
    octets = np.empty((*whole.shape, bits), np.uint8)
    for i in range(bits):
        octets[..., i] = (whole >> np.uint64(8 * i)) & np.uint64(255)
    return octets.reshape(*whole.shape[:-1], whole.shape[-1] * bits).view("<u4").astype(np.uint32, copy=False).view(np.int32)


def _is_first(axes: int, axis: int) -> bool:
    if axis in (-1, axes - 1):
        return False
    if axis in (0, -axes):
        return True
    raise ValueError(f"axis {axis} of {axes} is neither the first nor the last")


def _check_order(bits: int, order: tuple[int, ...]) -> None:
    if bits not in BITS:
        raise ValueError(f"{bits} bits are not 1 to 8")
    if order and (32 % bits or sorted(order) != list(range(32 // bits))):
        raise ValueError(f"{order} is no order of the numbers in a word of {bits} bits")
