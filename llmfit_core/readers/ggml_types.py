"""ggml's tensor types: ids, block sizes, and tensors that lie in a file as blocks.

The table restates `ggml_type_name`, `ggml_blck_size` and `ggml_type_size` of ggml; a test holds it
against gguf's `GGML_QUANT_SIZES`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmfit_core.dtypes import DTYPES
from llmfit_core.tensors import read_bytes

if TYPE_CHECKING:
    from llmfit_core.tensors import Array


@dataclass(frozen=True)
class GgmlType:
    """One element type of GGUF.

    Attributes:
        id: The number in the file.
        name: Lower case: `q4_k`.
        block: Elements per block; 1 for plain types.
        size: Bytes per block.
    """

    id: int
    name: str
    block: int
    size: int

    def bytes_for(self, shape: tuple[int, ...]) -> int:
        """How many bytes a tensor of `shape` (outermost first) takes; its rows are whole blocks."""
        return math.prod(shape) // self.block * self.size


GGML_TYPES: dict[int, GgmlType] = {
    t.id: t
    for t in (
        GgmlType(0, "f32", 1, 4),
        GgmlType(1, "f16", 1, 2),
        GgmlType(2, "q4_0", 32, 18),
        GgmlType(3, "q4_1", 32, 20),
        GgmlType(6, "q5_0", 32, 22),
        GgmlType(7, "q5_1", 32, 24),
        GgmlType(8, "q8_0", 32, 34),
        GgmlType(9, "q8_1", 32, 40),
        GgmlType(10, "q2_k", 256, 84),
        GgmlType(11, "q3_k", 256, 110),
        GgmlType(12, "q4_k", 256, 144),
        GgmlType(13, "q5_k", 256, 176),
        GgmlType(14, "q6_k", 256, 210),
        GgmlType(15, "q8_k", 256, 292),
        GgmlType(16, "iq2_xxs", 256, 66),
        GgmlType(17, "iq2_xs", 256, 74),
        GgmlType(18, "iq3_xxs", 256, 98),
        GgmlType(19, "iq1_s", 256, 50),
        GgmlType(20, "iq4_nl", 32, 18),
        GgmlType(21, "iq3_s", 256, 110),
        GgmlType(22, "iq2_s", 256, 82),
        GgmlType(23, "iq4_xs", 256, 136),
        GgmlType(24, "i8", 1, 1),
        GgmlType(25, "i16", 1, 2),
        GgmlType(26, "i32", 1, 4),
        GgmlType(27, "i64", 1, 8),
        GgmlType(28, "f64", 1, 8),
        GgmlType(29, "iq1_m", 256, 56),
        GgmlType(30, "bf16", 1, 2),
        GgmlType(34, "tq1_0", 256, 54),
        GgmlType(35, "tq2_0", 256, 66),
        GgmlType(39, "mxfp4", 32, 17),
        GgmlType(40, "nvfp4", 64, 36),
        GgmlType(41, "q1_0", 128, 18),
        GgmlType(42, "q2_0", 64, 18),
    )
}
BY_NAME: dict[str, GgmlType] = {t.name: t for t in GGML_TYPES.values()}
PLAIN = frozenset(t.name for t in GGML_TYPES.values() if t.name in DTYPES)
"""Types that are plain element types too; the others come in blocks."""


@dataclass(frozen=True)
class Blocked:
    """Quantized blocks in a file, row after row.

    Attributes:
        path: The file.
        offset: Byte offset of the first block.
        shape: Logical shape, outermost axis first; the last axis is a multiple of the type's block.
        dtype: A name of `BY_NAME` such as `q4_k`.
    """

    path: str
    offset: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def row_bytes(self) -> int:
        """Bytes of one row's blocks."""
        return BY_NAME[self.dtype].bytes_for(self.shape[-1:])

    def rows(self, start: int, stop: int) -> Array:
        """The blocks of rows `start` to `stop` as bytes: uint8 `[stop - start, row_bytes]`."""
        import numpy as np

        width = self.row_bytes
        view = read_bytes(self.path, self.offset + start * width, (stop - start) * width)
        return np.frombuffer(view, dtype=np.uint8).reshape(stop - start, width)

    def files(self) -> tuple[str, ...]:
        """The one file."""
        return (self.path,)
