"""torch.save files, judged by torch.load."""

from __future__ import annotations

import collections
import io
import os
import pickle
import struct
import subprocess
import time
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmfit_core.errors import LlmfitError, SourceError, UnsupportedError
from llmfit_core.readers.torch_bin import read_torch_bin
from llmfit_core.tensors import read

if TYPE_CHECKING:
    from pathlib import Path


def save(folder: Path, value: Any, **options: Any) -> Path:
    path = folder / "pytorch_model.bin"
    torch.save(value, path, **options)
    return path


def same(ours: np.ndarray[Any, Any], theirs: torch.Tensor) -> bool:
    return ours.tobytes() == theirs.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def refusal(path: Path, kind: type[LlmfitError] = SourceError) -> LlmfitError:
    with pytest.raises(kind) as caught:
        read_torch_bin(path)
    assert "\n" not in caught.value.cause
    assert "pytorch_model.bin" in caught.value.cause
    return caught.value


def check(path: Path) -> None:
    theirs = torch.load(path, weights_only=False)
    ours = read_torch_bin(path)
    assert set(ours) == set(theirs)
    for name, ref in ours.items():
        assert ref.shape == tuple(theirs[name].shape)
        assert same(read(ref.tensor), theirs[name]), name
        rows = read(ref.tensor).reshape(-1, ref.shape[-1] if ref.shape else 1)
        half = len(rows) // 2
        assert np.array_equal(ref.tensor.rows(half, len(rows)).view(np.uint8), rows[half:].copy().view(np.uint8)), name


DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.bool,
]


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_dtype(tmp_path, protocol):
    values = {str(d): torch.randint(0, 2, (3, 5)).to(d) for d in DTYPES}
    values |= {"scalar": torch.tensor(3.5), "empty": torch.empty(0, 4), "parameter": torch.nn.Parameter(torch.randn(4))}
    check(save(tmp_path, values, pickle_protocol=protocol))


def test_module_state_dict_with_metadata(tmp_path):
    check(save(tmp_path, torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.LayerNorm(3)).state_dict()))


def test_views(tmp_path):
    base = torch.randn(6, 8)
    cube = torch.randn(3, 4, 5)
    check(
        save(
            tmp_path,
            {
                "base": base,
                "transposed": base.t(),
                "cube_transposed": cube.transpose(1, 2),
                "one_expert": cube[1],
                "one_expert_transposed": cube[2].t(),
                "rows": base[2:4],
                "row": base[3],
                "columns": base[:, 2:5],
                "last_columns": base[1:, 5:],
                "tied": base,
                "one_column": base[:, :1].reshape(6, 1),
                "unit_axes": base[:1][None],
            },
        )
    )


@pytest.mark.parametrize(
    "view",
    [
        torch.randn(6)[::2],
        torch.randn(1).expand(4),
        torch.randn(4, 4).diagonal(),
        torch.randn(3, 4, 5).permute(2, 0, 1),
    ],
)
def test_other_views_are_refused_by_name(tmp_path, view):
    error = refusal(save(tmp_path, {"w": torch.ones(2), "odd.weight": view}), UnsupportedError)
    assert error.code == "strided-tensor"
    assert "odd.weight" in error.cause


def test_tied_tensors_share_their_place(tmp_path):
    x = torch.randn(3, 3)
    ours = read_torch_bin(save(tmp_path, {"a": x, "b": x}))
    assert ours["a"].tensor == ours["b"].tensor


@pytest.mark.parametrize("wrapper", ["state_dict", "model", "module", "model_state_dict"])
def test_training_checkpoints(tmp_path, wrapper):
    inner = collections.OrderedDict(a=torch.ones(2))
    ours = read_torch_bin(save(tmp_path, {wrapper: inner, "epoch": 3, "optimizer": {"state": {}, "lr": 0.1}}))
    assert set(ours) == {"a"}


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"model": {"a": torch.ones(1)}, "module": {"a": torch.ones(1)}}, "several"),
        ({"ema": {"a": torch.ones(1)}}, "ema"),
        ({"a": torch.ones(1), "epoch": 3}, "epoch"),
        ({"a": torch.ones(1), 5: torch.ones(1)}, "5"),
        ([torch.ones(1)], "mapping"),
        (torch.ones(1), "mapping"),
        ({}, "nothing"),
    ],
)
def test_what_is_no_state_dict_is_refused_by_name(tmp_path, value, says):
    error = refusal(save(tmp_path, value))
    assert error.code == "not-a-state-dict"
    assert says in error.cause


class _Runs:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.parts = (function, arguments)

    def __reduce__(self) -> tuple[Any, Any]:
        return self.parts


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize(
    ("function", "argument"),
    [
        (os.system, "touch {}"),
        (subprocess.Popen, ["touch", "{}"]),
        (eval, "open('{}', 'w')"),
        (exec, "open('{}', 'w')"),
    ],
)
def test_code_is_never_run(tmp_path, protocol, function, argument):
    target = tmp_path / "ran"
    filled = [a.format(target) for a in argument] if isinstance(argument, list) else argument.format(target)
    path = save(tmp_path, {"a": torch.ones(1), "b": _Runs(function, filled)}, pickle_protocol=protocol)
    error = refusal(path)
    assert error.code == "unsafe-pickle"
    assert function.__name__ in error.cause
    assert not target.exists()


@pytest.mark.parametrize(
    "function", [getattr, __import__, torch.load, torch.hub.load, collections.Counter, pickle.loads, io.open]
)
def test_other_imports_are_refused_by_name(tmp_path, function):
    error = refusal(save(tmp_path, {"b": _Runs(function, "x", "y")}))
    assert error.code == "unsafe-pickle"


def archive(folder: Path, data: bytes, **entries: bytes) -> Path:
    path = folder / "pytorch_model.bin"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("m/data.pkl", data)
        for name, content in entries.items():
            file.writestr(f"m/{name}", content)
    return path


def counted(byte: int, length: int) -> bytes:
    return bytes([byte]) + struct.pack("<I", length)


PICKLES = {
    "nothing": b"",
    "no-protocol": b"N.",
    "stop-only": b"\x80\x02.",
    "old-protocol": b"\x80\x00N.",
    "ends-early": b"\x80\x02}",
    "memo-bomb": b"\x80\x02}" + counted(ord("r"), 0xFFFFFFFF) + b".",
    "memo-unknown": b"\x80\x02" + counted(ord("j"), 0xFFFFFFFF) + b".",
    "long-text": b"\x80\x02" + counted(ord("X"), 0xFFFFFFFF) + b".",
    "long-text-8": b"\x80\x04\x8d" + b"\xff" * 8 + b".",
    "long-frame": b"\x80\x04\x95" + b"\xff" * 8 + b".",
    "deep-lists": b"\x80\x02" + b"]" * 500_000 + b"a" * 499_999 + b".",
    "deep-tuples": b"\x80\x02" + b")" + b"\x85" * 1_000_000 + b".",
    "deep-tuple-as-key": b"\x80\x02})" + b"\x85" * 1_000_000 + b"Ns.",
    "endless-stack": b"\x80\x02" + b"}" * 6_000_000,
    "inst": b"\x80\x02(ios\nsystem\n.",
    "obj": b"\x80\x02(cos\nsystem\nX\x01\0\0\0xo.",
    "extension": b"\x80\x02\x82\x01.",
    "persid-text": b"\x80\x02Pabc\n.",
    "stack-global": b"\x80\x04\x8c\x05posix\x8c\x06system\x93.",
    "stack-global-numbers": b"\x80\x04K\x01K\x02\x93.",
    "reduce-a-number": b"\x80\x02K\x01)R.",
    "build-a-dict": b"\x80\x02}}b.",
    "append-to-a-dict": b"\x80\x02}Na.",
    "odd-setitems": b"\x80\x02}(Nu.",
    "no-mark": b"\x80\x02Nt.",
    "pop-empty": b"\x80\x020000.",
    "global-endless-line": b"\x80\x02c" + b"a" * 100_000,
    "billion-laughs": b"\x80\x02)"
    + b"".join(b"q" + bytes([i]) + b"h" + bytes([i]) + b"\x86" for i in range(200))
    + b".",
}


@pytest.mark.parametrize("name", PICKLES)
def test_hostile_pickles(tmp_path, name):
    start = time.process_time()
    error = refusal(archive(tmp_path, PICKLES[name]))
    assert error.code in ("bad-pickle", "unsafe-pickle", "not-a-state-dict")
    assert time.process_time() - start < 5


def test_legacy_format(tmp_path):
    error = refusal(save(tmp_path, {"a": torch.ones(1)}, _use_new_zipfile_serialization=False))
    assert error.code == "legacy-torch"


def test_torchscript(tmp_path):
    path = tmp_path / "pytorch_model.bin"
    with zipfile.ZipFile(path, "w") as file:
        for name in ("m/data.pkl", "m/constants.pkl", "m/code/__torch__.py"):
            file.writestr(name, b"\x80\x02}.")
    assert refusal(path, UnsupportedError).code == "torchscript"


def test_big_endian(tmp_path):
    assert refusal(archive(tmp_path, b"\x80\x02}.", byteorder=b"big"), UnsupportedError).code == "big-endian"


def test_compressed(tmp_path):
    path = save(tmp_path, {"a": torch.ones(100)})
    packed = io.BytesIO()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        for item in old.namelist():
            new.writestr(item, old.read(item))
    path.write_bytes(packed.getvalue())
    assert refusal(path).code == "compressed-entry"


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "empty-file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "git-lfs-pointer"),
        (b"<html>", "html-page"),
        (b"\x80\x02}.", "pickle-file"),
        (struct.pack("<Q", 16) + b'{"a": 1}        ', "safetensors-file"),
        (b"GGUF" + bytes(40), "gguf-file"),
        (b"\x93\x12\x11" * 30, "not-torch"),
    ],
)
def test_strangers_are_named(tmp_path, content, code):
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(content)
    assert refusal(path).code == code


def test_other_zip(tmp_path):
    path = tmp_path / "pytorch_model.bin"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("holiday.jpg", b"x")
    assert refusal(path).code == "not-torch"


def test_truncated_anywhere(tmp_path):
    path = save(tmp_path, {"a": torch.ones(4, 4), "b": torch.ones(3)})
    whole = path.read_bytes()
    for length in range(0, len(whole), 3):
        path.write_bytes(whole[:length])
        refusal(path)


def test_zip64(tmp_path, monkeypatch):
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 50)
    path = save(tmp_path, {"a": torch.arange(100.0)})
    big = io.BytesIO()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(big, "w") as new:
        for item in old.namelist():
            new.writestr(item, old.read(item))
    path.write_bytes(big.getvalue())
    assert b"PK\x06\x06" in big.getvalue()
    check(path)


@settings(max_examples=300, deadline=10_000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_mutations_end_in_tensors_or_a_named_error(tmp_path, data):
    path = save(tmp_path, {"a": torch.ones(2, 3), "b": torch.ones(4, dtype=torch.float16).t()})
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(raw)
    try:
        for ref in read_torch_bin(path).values():
            read(ref.tensor)
    except LlmfitError:
        pass


def test_thousands_of_tensors_are_quick(tmp_path):
    path = save(tmp_path, {f"layers.{i}.weight": torch.ones(1) for i in range(3000)})
    start = time.process_time()
    assert len(read_torch_bin(path)) == 3000
    assert time.process_time() - start < 1
