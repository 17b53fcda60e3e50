"""The tensors of a GGUF file as values: blocks as floats, and factors that lie beside a tensor multiplied in.

Beside `X.weight` a file may hold `X.scale`, one number or one for each expert, by which llama.cpp's graphs multiply that
tensor's products (`build_lora_mm`; files in NVFP4 have it), and `X.input_scale`, which only says how to round activations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmfit_core.dtypes import FLOATS
from llmfit_core.errors import SourceError
from llmfit_core.readers.ggml_types import PLAIN
from llmfit_core.readers.gguf import tensor_of
from llmfit_core.scaled import Scaled, fit_scale
from llmfit_core.transform import Reshape
from llmfit_gguf.dequant import Dequantized, can_dequantize, cannot_dequantize

if TYPE_CHECKING:
    from llmfit_core.readers.gguf import GgufFile
    from llmfit_core.tensors import Tensor

_BY_ACTIVATION = "how a runtime would round activations; without it they keep their precision"


def values_of(file: GgufFile) -> tuple[dict[str, Tensor], dict[str, str]]:
    """By name, what each tensor holds; and the tensors that are not needed, with the reason.

    Raises:
        UnsupportedError: `cannot-dequantize` naming the tensor.
        SourceError: `scale-mismatch`.
    """
    unreadable = {k for k in {t.ggml_type for t in file.tensors.values()} - PLAIN if not can_dequantize(k)}
    waived = {}
    tensors: dict[str, Tensor] = {}
    for name, tensor in file.tensors.items():
        if tensor.ggml_type in unreadable:
            raise cannot_dequantize(f"{name} in {tensor.path}", tensor.ggml_type)
        beside = f"{name.rpartition('.')[0]}.weight" in file.tensors
        if name.endswith(".input_scale") and beside:
            waived[name] = _BY_ACTIVATION
        elif not (name.endswith(".scale") and beside):
            stored = tensor_of(tensor)
            tensors[name] = stored if stored.dtype in PLAIN else Dequantized(stored)
    for name, tensor in file.tensors.items():
        weight = f"{name.removesuffix('.scale')}.weight"
        if name.endswith(".scale") and weight in tensors:
            scale = tensor_of(tensor)
            fit = fit_scale(tensors[weight].shape, scale.shape) if scale.dtype in FLOATS else None
            if fit is None or fit.block != (1, *tensors[weight].shape)[-2:]:
                raise SourceError(
                    "scale-mismatch",
                    f"{name} is {scale.dtype} {list(scale.shape)}: neither one factor for {weight} "
                    f"{list(tensors[weight].shape)} nor one for each expert",
                    "Convert the original model anew.",
                )
            tensors[weight] = Scaled(tensors[weight], Reshape(scale, fit.view), fit.block)
    return tensors, waived
