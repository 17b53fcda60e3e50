"""One table of element types: how safetensors, numpy and ggml call them, and their sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class DType:
    """A plain (unblocked) element type.

    Attributes:
        name: Our name, lower case (`bf16`).
        size: Bytes per element.
        safetensors: The name in a safetensors header.
        numpy: The numpy or ml_dtypes name.
        ggml: The name in gguf's `GGMLQuantizationType`, or `None` where GGUF cannot hold it.
    """

    name: str
    size: int
    safetensors: str
    numpy: str
    ggml: str | None


DTYPES: dict[str, DType] = {
    d.name: d
    for d in (
        DType("f64", 8, "F64", "float64", "F64"),
        DType("f32", 4, "F32", "float32", "F32"),
        DType("f16", 2, "F16", "float16", "F16"),
        DType("bf16", 2, "BF16", "bfloat16", "BF16"),
        DType("f8_e4m3", 1, "F8_E4M3", "float8_e4m3fn", None),
        DType("f8_e5m2", 1, "F8_E5M2", "float8_e5m2", None),
        DType("f8_e8m0", 1, "F8_E8M0", "float8_e8m0fnu", None),
        DType("i64", 8, "I64", "int64", "I64"),
        DType("i32", 4, "I32", "int32", "I32"),
        DType("i16", 2, "I16", "int16", "I16"),
        DType("i8", 1, "I8", "int8", "I8"),
        DType("u64", 8, "U64", "uint64", None),
        DType("u32", 4, "U32", "uint32", None),
        DType("u16", 2, "U16", "uint16", None),
        DType("u8", 1, "U8", "uint8", None),
        DType("bool", 1, "BOOL", "bool", None),
    )
}
BY_SAFETENSORS: dict[str, DType] = {d.safetensors: d for d in DTYPES.values()}
FLOATS = frozenset({"f64", "f32", "f16", "bf16"})


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The numpy dtype of our `name`; bfloat16 and float8 come from ml_dtypes."""
    import numpy

    wanted = DTYPES[name].numpy
    if name in ("bf16", "f8_e4m3", "f8_e5m2", "f8_e8m0"):
        import ml_dtypes

        found: np.dtype[Any] = numpy.dtype(getattr(ml_dtypes, wanted))
        return found
    return numpy.dtype(wanted)
