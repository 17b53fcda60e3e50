"""safetensors headers, judged by the safetensors library."""

from __future__ import annotations

import json
import os
import struct
import time
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from llmfit_core.errors import LlmfitError, SourceError, UnsupportedError
from llmfit_core.readers.safetensors import read_metadata, read_safetensors, read_safetensors_header_bytes
from llmfit_core.tensors import read

if TYPE_CHECKING:
    from pathlib import Path

TORCH = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f8_e4m3": torch.float8_e4m3fn,
    "f8_e5m2": torch.float8_e5m2,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u16": torch.uint16,
    "u32": torch.uint32,
    "u64": torch.uint64,
    "u8": torch.uint8,
    "bool": torch.bool,
}


def encode(header: object, data: bytes = b"") -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + data


def entry(dtype: str = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def write(folder: Path, data: bytes) -> Path:
    path = folder / "model.safetensors"
    path.write_bytes(data)
    return path


def test_every_dtype_and_shape_reads_what_the_library_wrote(tmp_path):
    path = tmp_path / "m.safetensors"
    tensors = {}
    for name, dtype in TORCH.items():
        for shape in ((), (0,), (3,), (2, 3), (2, 1, 4)):
            values = torch.randint(0, 2, shape).to(torch.float32)
            tensors[f"{name}.{'x'.join(map(str, shape))}"] = values.to(dtype)
    save_file(tensors, str(path), {"format": "pt"})
    ours = read_safetensors(path)
    assert read_metadata(path) == {"format": "pt"}
    assert set(ours) == set(tensors)
    for name, tensor in tensors.items():
        ref = ours[name]
        assert TORCH[ref.dtype] == tensor.dtype
        assert ref.shape == tuple(tensor.shape)
        assert read(ref.tensor).tobytes() == tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
        assert ref.tensor.files() == (str(path),)
    assert float(read(ours["f32."].tensor)) == tensors["f32."].item()


def test_rows_are_rows(tmp_path):
    path = tmp_path / "m.safetensors"
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4).astype(ml_dtypes.bfloat16)
    safetensors.numpy.save_file({"x": x}, str(path))
    tensor = read_safetensors(path)["x"].tensor
    assert np.array_equal(tensor.rows(2, 5), x.reshape(6, 4)[2:5])


@pytest.mark.parametrize(
    ("content", "code", "says"),
    [
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2"
            b"ca24d17e2393\nsize 4965799096\n",
            "git-lfs-pointer",
            "4965799096",
        ),
        (b"<!DOCTYPE html>\n<html><head><title>Login</title>", "html-page", "HTML"),
        (b"\n  <html lang='en'>", "html-page", "HTML"),
        (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "xml-page", "AccessDenied"),
        (b'{"error":"Repository not found"}', "json-page", "Repository not found"),
        (b"Entry not found", "text-page", "Entry not found"),
        (b"", "empty-file", "empty"),
        (b"\0" * 4096, "zero-filled", "zeros"),
        (b"PK\x03\x04" + b"\0" * 100, "zip-file", "torch.save"),
        (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "pickle-file", "pickle"),
        (b"\x80\x04\x95" + b"\0" * 40, "pickle-file", "pickle"),
        (b"GGUF\x03\0\0\0" + b"\0" * 16, "gguf-file", "GGUF"),
        (b"\x1f\x8b\x08" + b"\0" * 20, "archive-file", "gzip"),
        (b"\x89HDF\r\n\x1a\n" + b"\0" * 20, "foreign-file", "HDF5"),
        (os.urandom(7) + b"\xff" + b"[" + os.urandom(500), "not-safetensors", "no safetensors"),
        (b"\x01\x02\x03", "not-safetensors", ""),
    ],
)
def test_strangers_are_named(tmp_path, content, code, says):
    path = write(tmp_path, content)
    with pytest.raises(SourceError) as caught:
        read_safetensors(path)
    assert caught.value.code == code
    assert "model.safetensors" in caught.value.cause
    assert says in caught.value.cause
    assert caught.value.remedy


def test_truncated_anywhere_is_never_read(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(4, 4), "b": torch.ones(3)}, str(path))
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(SourceError) as caught:
            read_safetensors(path)
        if length > 8:
            assert caught.value.code == "truncated-file"
    path.write_bytes(whole + b"x")
    with pytest.raises(SourceError, match="no tensor claims"):
        read_safetensors(path)


HOSTILE = {
    "gap": encode({"a": entry(offsets=(0, 8)), "b": entry(offsets=(12, 20))}, bytes(20)),
    "late-start": encode({"a": entry(offsets=(4, 12))}, bytes(12)),
    "overlap": encode({"a": entry(offsets=(0, 8)), "b": entry(offsets=(4, 12))}, bytes(12)),
    "same-bytes": encode({"a": entry(), "b": entry()}, bytes(8)),
    "size": encode({"a": entry(shape=(3,))}, bytes(8)),
    "negative-shape": encode({"a": entry(shape=(-2, -1))}, bytes(8)),
    "float-shape": encode({"a": entry(shape=(2.0,))}, bytes(8)),
    "bool-shape": encode({"a": entry(shape=(True, 2))}, bytes(8)),
    "string-shape": encode({"a": entry(shape=["2"])}, bytes(8)),
    "shape-no-list": encode({"a": entry(shape={"0": 2})}, bytes(8)),
    "huge-shape": encode({"a": entry(shape=(2**62, 2**62))}, bytes(8)),
    "long-shape": encode({"a": entry(shape=[1] * 500_000)}, bytes(8)),
    "huge-number": encode(b'{"a":{"dtype":"F32","shape":[' + b"9" * 4000 + b'],"data_offsets":[0,8]}}', bytes(8)),
    "too-many-digits": encode(b'{"a":{"dtype":"F32","shape":[' + b"9" * 9000 + b'],"data_offsets":[0,8]}}', bytes(8)),
    "offsets-reversed": encode({"a": entry(offsets=(8, 0))}, bytes(8)),
    "offsets-three": encode({"a": entry(offsets=(0, 4, 8))}, bytes(8)),
    "offsets-negative": encode({"a": entry(offsets=(-8, 0))}, bytes(8)),
    "offsets-float": encode({"a": entry(offsets=(0.0, 8.0))}, bytes(8)),
    "no-dtype": encode({"a": {"shape": [2], "data_offsets": [0, 8]}}, bytes(8)),
    "extra-key": encode({"a": {**entry(), "more": 1}}, bytes(8)),
    "entry-no-object": encode({"a": 7}),
    "entry-null": encode({"a": None}),
    "dtype-list": encode({"a": entry(dtype=[])}, bytes(8)),
    "duplicate-name": encode(
        b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
        bytes(8),
    ),
    "duplicate-key": encode(b'{"a":{"dtype":"F32","dtype":"I32","shape":[2],"data_offsets":[0,8]}}', bytes(8)),
    "control-name": encode({"a\nb": entry()}, bytes(8)),
    "surrogate-name": encode(b'{"\\ud800":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', bytes(8)),
    "long-name": encode({"a" * 5000: entry()}, bytes(8)),
    "empty-name": encode({"": entry()}, bytes(8)),
    "deep": encode(b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}"),
    "not-json": encode(b"{nonsense}"),
    "not-utf8": encode(b'{"\xff\xfe": 1}'),
    "metadata-numbers": encode({"__metadata__": {"a": 1}, "a": entry()}, bytes(8)),
    "metadata-list": encode({"__metadata__": [], "a": entry()}, bytes(8)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_headers_are_refused_at_once(tmp_path, name):
    path = write(tmp_path, HOSTILE[name])
    start = time.process_time()
    with pytest.raises(LlmfitError) as caught:
        read_safetensors(path)
    assert time.process_time() - start < 1
    assert caught.value.code in ("bad-header", "unknown-dtype")
    assert len(caught.value.cause) < 600


def test_header_length_beyond_any_file(tmp_path):
    path = write(tmp_path, struct.pack("<Q", 2**63) + b'{"a":1}')
    with pytest.raises(SourceError):
        read_safetensors(path)
    path = write(tmp_path, struct.pack("<Q", 99_000_000) + b'{"a":1}')
    with pytest.raises(SourceError) as caught:
        read_safetensors(path)
    assert caught.value.code == "truncated-file"


@pytest.mark.parametrize("dtype", ["F4", "F6_E2M3", "F6_E3M2", "C64", "Q9", "f32"])
def test_unknown_dtype_names_the_tensor(tmp_path, dtype):
    path = write(tmp_path, encode({"layers.0.w": entry(dtype=dtype)}, bytes(8)))
    with pytest.raises(UnsupportedError) as caught:
        read_safetensors(path)
    assert caught.value.code == "unknown-dtype"
    assert "layers.0.w" in caught.value.cause
    assert dtype in caught.value.cause


def test_header_alone_serves_for_a_file_elsewhere(tmp_path):
    path = tmp_path / "m.safetensors"
    save_file({"a": torch.ones(4, 4)}, str(path))
    data = path.read_bytes()
    length = 8 + int.from_bytes(data[:8], "little")
    header = read_safetensors_header_bytes(data[:length], len(data), "org/name/m.safetensors")
    assert header.entries["a"].shape == (4, 4)
    assert header.data_start == length
    with pytest.raises(SourceError, match="org/name"):
        read_safetensors_header_bytes(data[:length], len(data) - 1, "org/name/m.safetensors")


@settings(max_examples=300, deadline=10_000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_mutations_are_read_only_where_the_library_reads_the_same(tmp_path, data):
    path = tmp_path / "m.safetensors"
    save_file({"a": torch.ones(2, 2), "b": torch.ones(3, dtype=torch.float16)}, str(path), {"format": "pt"})
    raw = bytearray(path.read_bytes())
    header_end = 8 + int.from_bytes(raw[:8], "little")
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, header_end - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(raw)
    try:
        ours = {name: (ref.shape, read(ref.tensor).tobytes()) for name, ref in read_safetensors(path).items()}
    except LlmfitError:
        return
    try:
        with safe_open(str(path), "np") as file:
            theirs = {name: (file.get_tensor(name).shape, file.get_tensor(name).tobytes()) for name in file.keys()}
    except SafetensorError as error:
        pytest.fail(f"we read what the library refuses: {error}")
    assert ours == theirs


def test_eight_shards_of_thousands_of_tensors_are_quick(tmp_path):
    for shard in range(8):
        header, at = {}, 0
        for index in range(1500):
            header[f"model.layers.{shard}.mlp.experts.{index}.down_proj.weight"] = entry(
                shape=(4,), offsets=(at, at + 16)
            )
            at += 16
        (tmp_path / f"{shard}.safetensors").write_bytes(encode(header, bytes(at)))
    start = time.process_time()
    count = sum(len(read_safetensors(tmp_path / f"{shard}.safetensors")) for shard in range(8))
    assert count == 12_000
    assert time.process_time() - start < 0.6
