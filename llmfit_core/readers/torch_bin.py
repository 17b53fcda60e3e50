"""`pytorch_model.bin`: what `torch.save` writes since torch 1.6, read without torch and without running it.

The file is a zip archive whose entries are not compressed: `NAME/data.pkl` describes the tensors,
`NAME/data/KEY` holds each storage's bytes. So a tensor is a place in the file, as in safetensors.
The layout is that of torch's `torch/serialization.py` and `torch/_utils.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llmfit_core.dtypes import DTYPES
from llmfit_core.errors import SourceError, UnsupportedError
from llmfit_core.readers.folder import read_head, require_file
from llmfit_core.readers.pickle_values import PICKLE_BYTES, Call, Global, Persistent, read_pickle
from llmfit_core.readers.sniff import HEAD_BYTES, refuse
from llmfit_core.readers.zip_entries import ZipEntry, data_offset, read_zip_entries
from llmfit_core.tensors import Stored, Tensor, TensorRef
from llmfit_core.transform import Slice, Transpose

if TYPE_CHECKING:
    from pathlib import Path

_STORAGES = {
    "DoubleStorage": "f64",
    "FloatStorage": "f32",
    "HalfStorage": "f16",
    "BFloat16Storage": "bf16",
    "LongStorage": "i64",
    "IntStorage": "i32",
    "ShortStorage": "i16",
    "CharStorage": "i8",
    "ByteStorage": "u8",
    "BoolStorage": "bool",
    "UntypedStorage": "u8",
}
_DTYPES = {
    "float64": "f64",
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "int64": "i64",
    "int32": "i32",
    "int16": "i16",
    "int8": "i8",
    "uint64": "u64",
    "uint32": "u32",
    "uint16": "u16",
    "uint8": "u8",
    "bool": "bool",
    "float8_e4m3fn": "f8_e4m3",
    "float8_e5m2": "f8_e5m2",
    "float8_e8m0fnu": "f8_e8m0",
}
_TENSOR_CALLS = ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3")
_PARAMETER_CALLS = ("torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state")
_MAPPING = "collections.OrderedDict"
_STORAGE_NAMES = {f"torch.{n}": d for n, d in _STORAGES.items()} | {
    "torch.storage.UntypedStorage": "u8",
    "torch.storage._UntypedStorage": "u8",
}
_ALLOWED = frozenset(
    {*_TENSOR_CALLS, *_PARAMETER_CALLS, _MAPPING, "torch.Size", "torch.device", *_STORAGE_NAMES}
    | {f"torch.{name}" for name in _DTYPES}
)
_WRAPPERS = ("state_dict", "model_state_dict", "model", "module", "weights")
_LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_RESAVE = (
    "In torch: `sd = torch.load(FILE, weights_only=True)`, then "
    "`safetensors.torch.save_file({k: v.contiguous().clone() for k, v in sd.items()}, 'model.safetensors')`."
)


@dataclass(frozen=True)
class _Archive:
    path: Path
    root: str
    entries: dict[str, ZipEntry]
    offsets: dict[str, int]


def read_torch_bin(path: Path) -> dict[str, TensorRef]:
    """The tensors of a file that `torch.save` wrote, by name; no weight is read and nothing is run.

    A state dict may stand under one of the usual keys (`state_dict`, `model`, ...) of a training checkpoint.
    Views are followed: transposed matrices and column slices become operations.

    Raises:
        SourceError: `unsafe-pickle`, `truncated-file`, `legacy-torch`, `compressed-entry`, `not-torch`,
            `not-a-state-dict`, `bad-tensor`, `bad-pickle`, `bad-zip` ...
        UnsupportedError: `torchscript`, `big-endian`, `strided-tensor`, `unknown-dtype`, naming the tensor.
    """
    size = require_file(path)
    head = read_head(path, HEAD_BYTES)
    if head.startswith(_LEGACY):
        raise SourceError("legacy-torch", f"{path} is in torch's format of before 1.6 (2020)", _RESAVE)
    if not head.startswith(b"PK\x03\x04"):
        raise refuse(str(path), head, size, "torch")
    entries = read_zip_entries(path)
    pickles = [name for name in entries if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(pickles) != 1:
        raise SourceError("not-torch", f"{path} is a zip archive, but not one of torch.save", _RESAVE)
    root = pickles[0].removesuffix("data.pkl")
    if f"{root}constants.pkl" in entries or any(n.startswith(f"{root}code/") for n in entries):
        raise UnsupportedError(
            "torchscript", f"{path} is a TorchScript program, not a state dict", "Save `model.state_dict()` instead."
        )
    order = _small(path, entries[f"{root}byteorder"], 64) if f"{root}byteorder" in entries else b"little"
    if order != b"little":
        raise UnsupportedError("big-endian", f"{path} was written on a big-endian machine", _RESAVE)
    data = _small(path, entries[pickles[0]], PICKLE_BYTES)
    value = read_pickle(data, str(path), _ALLOWED.__contains__)
    archive = _Archive(path, root, entries, {})
    return {name: TensorRef(name=name, tensor=_tensor(archive, name, call)) for name, call in _state_dict(path, value)}


def _small(path: Path, entry: ZipEntry, limit: int) -> bytes:
    if entry.size > limit:
        raise SourceError(
            "bad-pickle", f"the entry {entry.name!r} of {path} has {entry.size} bytes, more than is sensible", _RESAVE
        )
    offset = data_offset(path, entry)
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(entry.size)


def _items(value: Any) -> dict[Any, Any] | None:
    """The entries of a mapping, or `None`."""
    if isinstance(value, Call) and value.function.name == _MAPPING and not value.arguments:
        return value.items
    return value if isinstance(value, dict) else None


def _as_tensor(value: Any) -> Call | None:
    """The call that makes a tensor, parameters unwrapped, or `None`."""
    if isinstance(value, Call) and value.function.name in _PARAMETER_CALLS and value.arguments:
        value = value.arguments[0]
    return value if isinstance(value, Call) and value.function.name in _TENSOR_CALLS else None


def _state_dict(path: Path, value: Any) -> list[tuple[str, Call]]:
    top = _items(value)
    if top is None:
        raise SourceError("not-a-state-dict", f"{path} does not hold a mapping of names to tensors", _RESAVE)
    held = top
    if not any(_as_tensor(v) for v in top.values()):
        inner = [
            (key, items)
            for key in _WRAPPERS
            if (items := _items(top.get(key))) is not None and any(_as_tensor(v) for v in items.values())
        ]
        if len(inner) != 1:
            keys = ", ".join(str(k)[:40] for k in list(top)[:8]) or "nothing"
            which = f"several state dicts ({', '.join(k for k, _ in inner)})" if inner else f"no tensors, but {keys}"
            raise SourceError("not-a-state-dict", f"{path} holds {which}", _RESAVE)
        held = inner[0][1]
    found = []
    for name, item in held.items():
        call = _as_tensor(item)
        if call is None or not isinstance(name, str) or not name or len(name) > 1024 or not name.isprintable():
            raise SourceError(
                "not-a-state-dict",
                f"{path}: the entry {str(name)[:80]!r} beside the tensors is not a tensor with a proper name",
                _RESAVE,
            )
        found.append((name, call))
    return found


def _tensor(archive: _Archive, name: str, call: Call) -> Tensor:
    arguments = call.arguments
    try:
        storage, first, shape, strides = arguments[:4]
        (tag, kind, key, _, count), wanted = storage.key, arguments[6:7]
        dtype = _STORAGE_NAMES[kind.name]
        if call.function.name.endswith("_v3"):
            dtype = _dtype(archive, name, wanted[0])
            count //= DTYPES[dtype].size
        sound = (
            isinstance(storage, Persistent)
            and tag == "storage"
            and isinstance(key, str)
            and _counts(shape)
            and _counts(strides)
            and _counts((first, count))
            and len(shape) == len(strides) <= 64
        )
    except (ValueError, TypeError, AttributeError, KeyError, IndexError):
        sound = False
    if not sound:
        raise _bad_tensor(archive, name, "its description makes no sense")
    offset = _storage(archive, name, key, count * DTYPES[dtype].size)
    reach = first + 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if 0 not in shape else first
    if reach > count:
        raise _bad_tensor(archive, name, f"it reaches element {reach} of a storage of {count}")
    return _view(archive, name, offset, dtype, first, shape, strides, count)


def _view(
    archive: _Archive,
    name: str,
    offset: int,
    dtype: str,
    first: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    count: int,
) -> Tensor:
    """A tensor of `shape` and `strides` (in elements) from element `first` of a storage of `count`."""
    file, size = str(archive.path), DTYPES[dtype].size
    # Where an axis has one index its stride says nothing.
    real = [(n, s) for n, s in zip(shape, strides, strict=True) if n != 1]
    if 0 in shape or [s for _, s in real] == _contiguous([n for n, _ in real]):
        return Stored(file, offset + first * size, shape, dtype)
    if len(shape) >= 2:
        swapped = (*shape[:-2], shape[-1], shape[-2])
        if (*strides[:-2], strides[-1], strides[-2]) == tuple(_contiguous(list(swapped))):
            return Transpose(Stored(file, offset + first * size, swapped, dtype))
    if len(shape) == 2 and strides[1] == 1 and strides[0] > shape[1]:
        # Columns of a wider matrix.
        column = first % strides[0]
        start = first - column
        if column + shape[1] <= strides[0] and start + shape[0] * strides[0] <= count:
            wide = Stored(file, offset + start * size, (shape[0], strides[0]), dtype)
            return Slice(wide, column, column + shape[1], axis=1)
    raise UnsupportedError(
        "strided-tensor",
        f"tensor {name!r} of {archive.path} is a view of shape {list(shape)} and strides {list(strides)}",
        _RESAVE,
    )


def _contiguous(shape: list[int]) -> list[int]:
    return [math.prod(shape[i + 1 :]) for i in range(len(shape))]


def _storage(archive: _Archive, name: str, key: str, need: int) -> int:
    entry = archive.entries.get(f"{archive.root}data/{key}")
    if entry is None:
        raise _bad_tensor(archive, name, f"its storage {key[:40]!r} is not in the archive")
    if entry.size < need:
        raise _bad_tensor(archive, name, f"its storage has {entry.size} bytes and should have {need}")
    if key not in archive.offsets:
        archive.offsets[key] = data_offset(archive.path, entry)
    return archive.offsets[key]


def _dtype(archive: _Archive, name: str, value: Any) -> str:
    torch_name = value.name.removeprefix("torch.") if isinstance(value, Global) else str(value)
    if torch_name not in _DTYPES:
        raise UnsupportedError(
            "unknown-dtype", f"tensor {name!r} of {archive.path} has the element type {torch_name[:40]!r}", _RESAVE
        )
    return _DTYPES[torch_name]


def _counts(values: Any) -> bool:
    return isinstance(values, tuple) and all(type(n) is int and 0 <= n < 1 << 63 for n in values)


def _bad_tensor(archive: _Archive, name: str, what: str) -> SourceError:
    return SourceError(
        "bad-tensor", f"tensor {name!r} of {archive.path}: {what}", "Fetch the file again; it is damaged or hostile."
    )
