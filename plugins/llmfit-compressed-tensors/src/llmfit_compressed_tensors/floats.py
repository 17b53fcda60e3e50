"""8-bit floats with scales: `float-quantized`, and `naive-quantized` of type float.

weight f8_e4m3 `[.., N, K]`; weight_scale one number, `[N, 1]` or `[N]` for rows, `[N, K / G]` for groups of columns,
`[ceil(N / a), ceil(K / b)]` for blocks (compressed-tensors' `compressors/naive_quantized`). The weight is `q * s` in float32,
as vLLM's kernels have it; rounded to bfloat16, that is what compressed-tensors itself gives for scales in bfloat16.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from llmfit_core.errors import SourceError, UnsupportedError
from llmfit_core.quantized_source import SCALE_DTYPES, Parts, require_dtype
from llmfit_core.scaled import Scaled, fit_scale
from llmfit_core.tensors import read
from llmfit_core.transform import Reshape

if TYPE_CHECKING:
    from llmfit_compressed_tensors.schemes import Scheme
    from llmfit_core.tensors import Tensor

_DAMAGED = "The checkpoint is damaged, or its quantization config is another model's: fetch both again."
_ORIGINAL = "Convert the model's 16-bit original."


def float_weight(parts: Parts, module: str, scheme: Scheme) -> Tensor:
    """The weight of a module of a `float-quantized` group.

    Raises:
        SourceError: `missing-tensor`, `shape-mismatch`, `tensor-dtype`, `config-key-invalid`.
        UnsupportedError: `unknown-bits`, `unknown-packing`.
    """
    if scheme.type != "float" or scheme.bits != 8:
        raise UnsupportedError(
            "unknown-bits",
            f"{scheme.where} has weights of type {scheme.type} with {scheme.bits} bits in the format {scheme.format}; "
            "read are floats of 8 bits",
            _ORIGINAL,
        )
    weight = parts.need(module, "weight", "weight_scale")
    require_dtype(f"{module}.weight", weight, ("f8_e4m3",))
    scale = parts.need(module, "weight_scale", "weight")
    require_dtype(f"{module}.weight_scale", scale, SCALE_DTYPES)
    _refuse_more(parts, module, scheme)
    fit = fit_scale(weight.shape, scale.shape, _block(scheme))
    if fit is None or (scheme.strategy == "tensor") != (math.prod(scale.shape) == 1 < math.prod(weight.shape[:-1])):
        raise SourceError(
            "shape-mismatch",
            f"{module}.weight_scale has the shape {list(scale.shape)}, which fits no weight {list(weight.shape)} with "
            f"{scheme.label}{f', blocks of {list(scheme.block)}' if scheme.block else ''}",
            _DAMAGED,
        )
    return Scaled(weight, scale if scale.shape == fit.view else Reshape(scale, fit.view), fit.block)


def _block(scheme: Scheme) -> tuple[int, int] | None:
    """Rows and columns of a block; `None` where whole rows or the whole tensor share a scale."""
    if scheme.strategy == "group":
        return (1, scheme.group)
    if scheme.strategy != "block":
        return None
    if len(scheme.block) != 2:
        raise SourceError(
            "config-key-invalid", f"{scheme.where} has the strategy block and no block_structure", "Add block_structure, as [128, 128]."
        )
    return scheme.block[0], scheme.block[1]


def _refuse_more(parts: Parts, module: str, scheme: Scheme) -> None:
    """Zero points other than none, and an order of columns: no writer of 8-bit floats makes them."""
    zeros = parts.find(module, "weight_zero_point")
    if zeros is not None or not scheme.symmetric:
        try:
            odd = zeros is None or bool(read(zeros).any())
        except SourceError as error:
            if error.code != "not-downloaded":
                raise
            odd = False
        if odd:
            raise UnsupportedError(
                "unknown-packing", f"{module} is made of 8-bit floats with zero points ({scheme.where}), which are not read", _ORIGINAL
            )
    if parts.find(module, "weight_g_idx") is not None:
        raise UnsupportedError(
            "unknown-packing", f"{module} is made of 8-bit floats with weight_g_idx ({scheme.where}), which is not read", _ORIGINAL
        )
