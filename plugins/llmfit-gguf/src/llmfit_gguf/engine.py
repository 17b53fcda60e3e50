"""Rows of float32 to ggml's block types, bit for bit, by a native library.

Three libraries hold the same algorithms and gave the same bytes on every row tried; none is ours. Which is asked
first was measured (million weights a second on two cores of an EPYC 9004, one thread and two):

| type          | xllamacpp   | libgguf | llama.cpp built by gcc |
|---------------|-------------|---------|------------------------|
| q4_k          | 15 / 29     | 18      | 15 / 29                |
| q5_k          | 19 / 35     | 21      | 19 / 35                |
| q6_k          | 36 / 70     | 32      | 36 / 70                |
| q2_k, q3_k    | 17, 83 (x2) | 21, 139 | 18, 85 (x2)            |
| iq4_nl, iq4_xs| 3.2 / 6.2   | 8       | 5.6 / 10.6             |

- xllamacpp and llama-cpp-python export `ggml_quantize_chunk`; called through ctypes it runs without the interpreter
  lock, so our workers scale.
- libgguf (a small wheel with a documented API, none for Linux on aarch64) holds the lock and starts threads of its
  own over all cores: as a whole slower, except for iq4.

Each library is loaded on first use. A build for another instruction set may contract multiplications and additions
and so round a few scales otherwise; the bytes are then that build's, as they would be with llama-quantize.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np  # noqa: TID253 - no entry module imports this one

from llmfit_core.errors import PluginError, UnsupportedError
from llmfit_core.readers.ggml_types import BY_NAME as TYPES
from llmfit_core.transform import cast

if TYPE_CHECKING:
    from collections.abc import Callable

    Array = np.ndarray[Any, np.dtype[Any]]
    Kernel = Callable[[int, Array, Array, Array | None], None]
    """(ggml type number, source [R, K], destination [R, bytes], weights [K] or None)."""

ENGINES = ("xllamacpp", "llama-cpp-python", "libgguf")
"""The order for most types."""
ENGINES_FOR: dict[str, tuple[str, ...]] = {
    "iq4_nl": ("libgguf", "llama-cpp-python", "xllamacpp"),
    "iq4_xs": ("libgguf", "llama-cpp-python", "xllamacpp"),
}
"""The order where it differs."""
BLOCK_TYPES = "q8_0 q4_0 q4_1 q5_0 q5_1 q2_k q3_k q4_k q5_k q6_k iq4_nl iq4_xs tq1_0 tq2_0 mxfp4".split()
"""What the engines are asked for."""
_PLAIN = ("f32", "f16", "bf16")

_SQUARES_OVERFLOW = 1e18  # 256 squares of it add up to what float32 just holds

_LEAST_MXFP4 = np.float32(2.0**-125)
"""Of a block's largest value: below, its exponent would be negative."""

# Where a block keeps its float16 scales: byte offset of the first, how many, one after another.
_SCALES: dict[str, tuple[int, int]] = {
    "q8_0": (0, 1),
    "q4_0": (0, 1),
    "q4_1": (0, 2),
    "q5_0": (0, 1),
    "q5_1": (0, 2),
    "q2_k": (80, 2),
    "q3_k": (108, 1),
    "q4_k": (0, 2),
    "q5_k": (0, 2),
    "q6_k": (208, 1),
    "iq4_nl": (0, 1),
    "iq4_xs": (0, 1),
    "tq1_0": (52, 1),
    "tq2_0": (64, 1),
}


def row_bytes(ggml_type: str, width: int) -> int:
    """Bytes of one row of `width` values.

    Raises:
        UnsupportedError: `row-length`: the type's block does not divide the row.
    """
    type_ = TYPES[ggml_type]
    if width % type_.block:
        raise UnsupportedError(
            "row-length",
            f"rows of {width} values cannot hold {ggml_type}, whose blocks are {type_.block} long",
            "Choose a type with smaller blocks (q8_0, q5_0, q4_0: 32; f16: 1).",
        )
    return width // type_.block * type_.size


def quantize_rows(x: Array, ggml_type: str, weights: Array | None = None, *, engine: str | None = None) -> Array:
    """Encode rows as ggml does.

    Args:
        x: float32 `[R, K]`, C-contiguous, finite (see `all_finite`).
        ggml_type: One of `BLOCK_TYPES`, or `f32`, `f16`, `bf16`, which round to nearest even.
        weights: Importance of each column, float32 `[K]`, or `None`; ignored by plain types.
        engine: Insist on one of `ENGINES`.

    Returns:
        uint8 `[R, row_bytes(ggml_type, K)]`.

    Raises:
        UnsupportedError: The type is unknown or its blocks do not divide K.
        PluginError: `no-quantizer`: no engine is installed.
    """
    rows, width = x.shape
    if ggml_type in _PLAIN:
        return np.ascontiguousarray(cast(x, ggml_type)).view(np.uint8).reshape(rows, -1)
    if ggml_type not in BLOCK_TYPES:
        raise UnsupportedError(
            "unknown-type", f"no engine writes {ggml_type}", f"Choose one of: {', '.join((*_PLAIN, *BLOCK_TYPES))}."
        )
    source = np.ascontiguousarray(x, dtype=np.float32)
    if weights is not None:
        weights = np.ascontiguousarray(weights, dtype=np.float32)
        if weights.shape != (width,):
            raise UnsupportedError(
                "weights-shape",
                f"{weights.shape} importance weights for rows of {width}",
                "Make the importance matrix from this model.",
            )
    out = np.empty((rows, row_bytes(ggml_type, width)), np.uint8)
    if out.size:
        engine_for(ggml_type, engine)[1](TYPES[ggml_type].id, source, out, weights)
    return out


def engine_for(ggml_type: str, only: str | None = None) -> tuple[str, Kernel]:
    """The first engine that is there for a block type, by name and kernel.

    Raises:
        PluginError: `no-quantizer`: none is installed (or not `only`).
    """
    wanted = (only,) if only else ENGINES_FOR.get(ggml_type, ENGINES)
    for name in wanted:
        kernel = _load(name)
        if kernel is not None:
            return name, kernel
    raise PluginError(
        "no-quantizer",
        f"nothing here can write {ggml_type}: {' and '.join(wanted)} not installed or not usable",
        "pip install xllamacpp, or pip install libgguf (none for Linux on aarch64).",
    )


def installed_engines() -> tuple[str, ...]:
    """The engines that load here, in order."""
    return tuple(name for name in ENGINES if _load(name) is not None)


def all_finite(x: Array) -> bool:
    """Whether no value is NaN or infinite; a tenth of a second for a billion bf16 values.

    Sixteen-bit floats are judged by their bits: with the exponent full, a positive is the largest of signed
    integers and a negative the largest of unsigned ones.
    """
    if x.size == 0 or x.dtype.kind in "iub":
        return True
    full = {"bfloat16": 0x7F80, "float16": 0x7C00}.get(x.dtype.name)
    if full is None:
        return bool(np.isfinite(x).all())
    return bool(x.view(np.int16).max() < full and x.view(np.uint16).max() < (full | 0x8000))


def scale_losses(x: Array, encoded: Array, ggml_type: str) -> tuple[int, int]:
    """How many blocks float16 scales could not follow.

    Args:
        x: The float32 rows `[R, K]`.
        encoded: What `quantize_rows` made of them.
        ggml_type: A block type.

    Returns:
        Blocks with a scale beyond float16 (or values whose squares overflow float32, where the search for a scale
        breaks down), and blocks of nonzero values whose scales all became zero.
    """
    type_ = TYPES[ggml_type]
    if ggml_type not in _SCALES:
        largest = np.abs(x.reshape(-1, type_.block)).max(axis=1, initial=0)
        return 0, int(np.count_nonzero((largest > 0) & (largest < _LEAST_MXFP4)))
    at, count = _SCALES[ggml_type]
    blocks = encoded.reshape(-1, type_.size)[:, at : at + 2 * count]
    bits = np.ascontiguousarray(blocks).view(np.uint16)
    lost = ((bits & 0x7C00) == 0x7C00).any(axis=1)
    zero = ((bits & 0x7FFF) == 0).all(axis=1)
    values = x.reshape(-1, type_.block)
    if x.size and max(x.max(), -x.min()) > _SQUARES_OVERFLOW:
        lost |= (np.abs(values) > _SQUARES_OVERFLOW).any(axis=1)
    where = np.flatnonzero(zero & ~lost)
    under = int((values[where] != 0).any(axis=1).sum()) if len(where) else 0
    return int(lost.sum()), under


@cache
def _load(name: str) -> Kernel | None:
    if name == "libgguf":
        return _libgguf()
    paths = _xllamacpp_files() if name == "xllamacpp" else _llama_cpp_python_files()
    for path in paths:
        try:
            return _ggml(ctypes.CDLL(str(path)))
        except (OSError, AttributeError):
            continue
    return None


def _package_folder(name: str) -> Path | None:
    """Where a package lies, without importing it: its own start-up is neither needed nor harmless."""
    spec = find_spec(name)
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def _xllamacpp_files() -> list[Path]:
    folder = _package_folder("xllamacpp")
    if folder is None:
        return []
    return [folder / f"xllamacpp{end}" for end in EXTENSION_SUFFIXES if (folder / f"xllamacpp{end}").exists()]


def _llama_cpp_python_files() -> list[Path]:
    folder = _package_folder("llama_cpp")
    if folder is None:
        return []
    name = {"win32": "ggml-base.dll", "darwin": "libggml-base.dylib"}.get(sys.platform, "libggml-base.so")
    return [p for p in (folder / "lib" / name, folder / "bin" / name) if p.exists()]


def _ggml(library: ctypes.CDLL) -> Kernel:
    """`size_t ggml_quantize_chunk(type, src, dst, start, nrows, n_per_row, imatrix)`; initialises its own tables."""
    function = library.ggml_quantize_chunk
    function.restype = ctypes.c_size_t
    function.argtypes = (
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.c_int64,
        ctypes.c_int64,
        ctypes.c_void_p,
    )

    def kernel(number: int, source: Array, out: Array, weights: Array | None) -> None:
        pointer = None if weights is None else weights.ctypes.data
        written = function(number, source.ctypes.data, out.ctypes.data, 0, *source.shape, pointer)
        if written != out.nbytes:
            raise PluginError(
                "quantizer-failed",
                f"ggml_quantize_chunk wrote {written} of {out.nbytes} bytes for type {number}",
                "Update xllamacpp; the two sides disagree about this type.",
            )

    return kernel


def _libgguf() -> Kernel | None:
    try:
        libgguf: Any = import_module("libgguf")
    except ImportError:
        return None

    def kernel(number: int, source: Array, out: Array, weights: Array | None) -> None:
        libgguf.quantize_rows_into_raw(number, source, out, *source.shape, weights)

    return kernel
