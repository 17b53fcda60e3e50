"""Whole numbers with scales: `pack-quantized` (1 to 8 bits in 32-bit words) and `int-quantized` (bytes).

For a weight `[.., N, K]` in groups of G columns (compressed-tensors' `compressors/pack_quantized`, `naive_quantized`):

- `pack-quantized`: weight_packed i32 `[.., N, K * bits / 32]`, in sequence along K; weight_shape, the true shape;
  zero points weight_zero_point i32 `[N * bits / 32, K / G]`, packed along N. Both are stored with `2 ** (bits - 1)` added.
- `int-quantized` and `naive-quantized`: weight i8 `[.., N, K]`, weight_zero_point i8 `[N, K / G]`.
- weight_scale `[.., N, K / G]`, `[.., N, 1]` for a scale a row, one number for all; weight_g_idx i32 `[K]`, the group of each
  column, where they were sorted by their activations.

The weight is `(q - z) * s`, the product rounded to the scales' type.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from llmfit_core.dequantized import Dequantized, Packed
from llmfit_core.errors import SourceError, UnsupportedError
from llmfit_core.packing import word_count
from llmfit_core.quantized_source import SCALE_DTYPES, Parts, require_dtype, require_shape
from llmfit_core.transform import Reshape

if TYPE_CHECKING:
    from llmfit_compressed_tensors.schemes import Scheme
    from llmfit_core.tensors import Tensor

_DAMAGED = "The checkpoint is damaged, or its quantization config is another model's: fetch both again."


def packed_weight(parts: Parts, module: str, scheme: Scheme) -> Tensor:
    """The weight of a module of a `pack-quantized` group.

    Raises:
        SourceError: `missing-tensor`, `shape-mismatch`, `tensor-dtype`.
        UnsupportedError: `unknown-bits`, `unknown-packing`.
    """
    _require_integers(scheme)
    words = parts.need(module, "weight_packed", "weight_scale")
    require_dtype(f"{module}.weight_packed", words, ("i32",))
    shape = _true_shape(parts, module, words, scheme)
    *lead, height, width = shape
    wanted = (*lead, height, word_count(width, scheme.bits))
    require_shape(f"{module}.weight_packed", words, wanted, ("i32",), f"{list(shape)} of weight_shape with {scheme.label}")
    codes = Packed(source=words, bits=scheme.bits, shape=shape)
    return _dequantized(parts, module, scheme, codes, offset=1 << scheme.bits - 1)


def plain_integers(parts: Parts, module: str, scheme: Scheme) -> Tensor:
    """The weight of a module of an `int-quantized` group.

    Raises:
        SourceError: `missing-tensor`, `shape-mismatch`, `tensor-dtype`.
        UnsupportedError: `unknown-bits`, `unknown-packing`.
    """
    _require_integers(scheme)
    codes = parts.need(module, "weight", "weight_scale")
    require_dtype(f"{module}.weight", codes, ("i8",))
    if len(codes.shape) not in (2, 3) or 0 in codes.shape:
        raise SourceError("shape-mismatch", f"{module}.weight has the shape {list(codes.shape)}, no matrix", _DAMAGED)
    return _dequantized(parts, module, scheme, codes, offset=0)


def _require_integers(scheme: Scheme) -> None:
    if scheme.type != "int" or not 1 <= scheme.bits <= 8:
        raise UnsupportedError(
            "unknown-bits",
            f"{scheme.where} has weights of type {scheme.type} with {scheme.bits} bits in the format {scheme.format}; "
            "read are whole numbers of 1 to 8 bits",
            "Convert the model's 16-bit original.",
        )
    if scheme.strategy == "block":
        raise UnsupportedError(
            "unknown-packing",
            f"{scheme.where} has blocks of {list(scheme.block)} in the format {scheme.format}; read are scales of groups, rows and tensors",
            "Convert the model's 16-bit original.",
        )


def _true_shape(parts: Parts, module: str, words: Tensor, scheme: Scheme) -> tuple[int, ...]:
    """What weight_shape says, which is read: it is a part of the header in all but name.

    Where its file is not here (a model on a hub) the headers have to do: packed words tell the shape, but for what fills up
    the last one.
    """
    told = parts.need(module, "weight_shape", "weight_packed")
    require_dtype(f"{module}.weight_shape", told, ("i64", "i32"))
    if len(words.shape) not in (2, 3) or 0 in words.shape or told.shape != (len(words.shape),):
        raise SourceError(
            "shape-mismatch",
            f"{module}.weight_packed has the shape {list(words.shape)} and weight_shape {list(told.shape)}, which is no matrix's",
            _DAMAGED,
        )
    try:
        shape = tuple(int(n) for n in told.rows(0, 1)[0])
    except SourceError as error:
        if error.code not in ("not-downloaded", "unreadable-source"):
            raise
        groups = parts.tensors[f"{module}.weight_scale"].shape[-1:] if scheme.group else ()
        width = groups[0] * scheme.group if groups else words.shape[-1] * 32 // scheme.bits
        return (*words.shape[:-1], width)
    if shape[:-1] != words.shape[:-1] or shape[-1] < 1:
        raise SourceError(
            "shape-mismatch",
            f"{module}.weight_shape says {list(shape)}, and weight_packed has the shape {list(words.shape)}",
            _DAMAGED,
        )
    return shape


def _dequantized(parts: Parts, module: str, scheme: Scheme, codes: Tensor, *, offset: int) -> Tensor:
    *lead, height, width = codes.shape
    because = f"{list(codes.shape)} with {scheme.label}"
    group = scheme.group or width
    if width % group:
        raise SourceError(
            "shape-mismatch", f"{module}.weight has {width} inputs, which group_size {group} does not divide", _DAMAGED
        )
    count = width // group
    scales = parts.need(module, "weight_scale", "weight_packed" if offset else "weight")
    full = (*lead, height, count)
    scales = _as_groups(f"{module}.weight_scale", scales, scheme, full, SCALE_DTYPES, because)
    zeros: Tensor | None = None
    lift = 0
    stored = parts.find(module, "weight_zero_point")
    if stored is None and not scheme.symmetric:
        parts.need(module, "weight_zero_point", "weight_scale")
    if stored is not None and offset and stored.dtype == "i32":
        per_matrix = word_count(height, scheme.bits)
        require_shape(f"{module}.weight_zero_point", stored, (*lead, per_matrix, count), ("i32",), because)
        if lead and height * scheme.bits % 32:
            raise UnsupportedError(
                "unknown-packing",
                f"{module}.weight_zero_point packs {height} rows of several matrices, which fill no whole words",
                "Convert the model's 16-bit original.",
            )
        zeros = Packed(source=stored, bits=scheme.bits, shape=full, along_rows=True)
    elif stored is not None:
        zeros = _as_groups(f"{module}.weight_zero_point", stored, scheme, full, ("i8",), because)
        lift = offset
    index = parts.find(module, "weight_g_idx")
    if index is not None:
        require_shape(f"{module}.weight_g_idx", index, (width,), ("i32", "i64"), because)
    elif scheme.ordered and count > 1:
        raise SourceError(
            "missing-tensor",
            f"actorder of {scheme.where} says that columns were sorted, and {module}.weight_g_idx, which tells how, is not there",
            "Fetch the missing shard, or the checkpoint again.",
        )
    return Dequantized(
        name=f"{module}.weight",
        codes=codes,
        scales=scales,
        zeros=zeros,
        zero=offset,
        lift=lift,
        bits=scheme.bits,
        group=group,
        index=index if count > 1 else None,
        ordered=scheme.ordered,
        even=True,
    )


def _as_groups(
    name: str, tensor: Tensor, scheme: Scheme, full: tuple[int, ...], dtypes: frozenset[str] | tuple[str, ...], because: str
) -> Tensor:
    """Scales or zero points as `[.., N, K / G]`, or `[1, 1]` for all."""
    if scheme.strategy == "tensor":
        if math.prod(tensor.shape) != 1:
            require_shape(name, tensor, (1,), dtypes, because)
        require_dtype(name, tensor, dtypes)
        return Reshape(tensor, (1, 1))
    if scheme.strategy == "channel" and tensor.shape == full[:-1]:
        require_dtype(name, tensor, dtypes)
        return Reshape(tensor, full)
    require_shape(name, tensor, full, dtypes, because)
    return tensor
