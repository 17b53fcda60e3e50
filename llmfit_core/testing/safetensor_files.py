"""safetensors files, read and written by a few lines of their own: the judge of what the core's reader claims."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    Tensors = Mapping[str, NDArray[Any]]

_NAMES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
}  # fmt: skip


def numpy_type(name: str) -> np.dtype[Any]:
    """A numpy dtype by its name there or in ml_dtypes."""
    import ml_dtypes
    import numpy as np

    return np.dtype(getattr(ml_dtypes, name, name))


def read_folder(folder: Path) -> dict[str, NDArray[Any]]:
    """Every tensor of a folder's safetensors files, by name."""
    out: dict[str, NDArray[Any]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        out.update(read_file(path))
    return out


def read_file(path: Path) -> dict[str, NDArray[Any]]:
    """Every tensor of one file."""
    import numpy as np

    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    out = {}
    for name, entry in header.items():
        if name != "__metadata__":
            start, stop = (8 + length + at for at in entry["data_offsets"])
            array = np.frombuffer(data[start:stop], dtype=numpy_type(_NAMES[entry["dtype"]]))
            out[name] = array.reshape(entry["shape"])
    return out


def write_file(path: Path, tensors: Tensors) -> None:
    """One file with these tensors, in the order of their names."""
    names = {numpy_type(known): name for name, known in _NAMES.items()}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, array in sorted(tensors.items()):
        header[name] = {"dtype": names[array.dtype], "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, array in sorted(tensors.items()):
            file.write(array.tobytes())
