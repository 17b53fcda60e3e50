"""Weight files that are missing, partial, or something else; pickles (cases 8, 9, 10, 17)."""

from __future__ import annotations

import io
import json
import os
import pickle
import pickletools
import subprocess
import sys
import time
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.cases.source import codes, command, converted, planned, refused
from tests.tiny import tiny, weights, write_json

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SECOND = "model-00002-of-00003.safetensors"
INDEX = "model.safetensors.index.json"


def test_a_header_of_absurd_length_is_damage_and_no_wrong_name(tmp_path: Path) -> None:
    """Once: 'is a safetensors file; give it a name that ends in .safetensors', said of model.safetensors."""
    folder = tiny("llama", tmp_path / "m")
    for length in (1 << 40, 101 << 20):
        (folder / "model.safetensors").write_bytes(length.to_bytes(8, "little") + b"{}" + bytes(100))
        said = refused(folder, "bad-header", "model.safetensors", "header")
        assert "name that ends" not in said


def test_no_weight_file(tmp_path: Path) -> None:
    folder = tiny("llama", tmp_path / "m")
    (folder / "model.safetensors").unlink()
    refused(folder, "no-weights", "m")
    for name in ("model.h5", "tf_model.h5", "flax_model.msgpack", "model.onnx", "consolidated.00.pth"):
        (folder / name).write_bytes(b"x" * 100)
        assert command("plan", folder).code == 3
        (folder / name).unlink()
    (folder / "model.gguf").write_bytes(b"GGUF" + b"\0" * 60)
    refused(folder, "no-weights", "model.gguf")


def test_a_weight_file_without_tensors(tmp_path: Path) -> None:
    folder = tiny("llama", tmp_path / "m")
    save_file({}, folder / "model.safetensors")
    refused(folder, "no-weights", "model.safetensors")


def test_weights_of_nothing_but_strangers(tmp_path: Path) -> None:
    folder = tiny("llama", tmp_path / "m")
    save_file({"a": np.zeros(4, np.float32)}, folder / "model.safetensors")
    refused(folder, "stray-tensor", "a")
    save_file({"model.rotary_emb.inv_freq": np.zeros(8, np.float32)}, folder / "model.safetensors")
    refused(folder, "no-weights", "m")


@pytest.mark.parametrize("index", [True, False])
def test_a_missing_shard_is_named_with_its_tensors(tmp_path: Path, index: bool) -> None:
    folder = tiny("llama", tmp_path / "m", layers=4, shards=3, index=index)
    lost = next(n for n in load_file(folder / SECOND) if "layers" in n and "norm" not in n)
    (folder / SECOND).unlink()
    cause = refused(folder, "missing-shard", SECOND, "model.layers.")
    if index:
        assert "more" in cause or lost in cause


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("index", [True, False])
def test_the_first_or_last_shard_is_missing(tmp_path: Path, number: int, index: bool) -> None:
    folder = tiny("llama", tmp_path / "m", layers=4, shards=3, index=index)
    name = f"model-{number:05d}-of-00003.safetensors"
    (folder / name).unlink()
    refused(folder, "missing-shard", name)


def test_all_shards_missing_but_their_index(tmp_path: Path) -> None:
    folder = tiny("llama", tmp_path / "m", shards=3)
    for file in folder.glob("model-*.safetensors"):
        file.unlink()
    refused(folder, "missing-shard", SECOND)


def test_shards_without_an_index_are_whole(tmp_path: Path) -> None:
    plain = converted(tiny("llama", tmp_path / "a"))
    other = converted(tiny("llama", tmp_path / "b", shards=3, index=False), "--strict")
    assert other.path.read_bytes() == plain.path.read_bytes()
    assert "no-index" in other.codes("info")


def changed_index(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    said = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    change(said)
    write_json(folder / INDEX, said)
    return folder


@pytest.mark.parametrize(
    ("change", "error", "word"),
    [
        (lambda s: s["weight_map"].update({"model.extra.weight": SECOND}), "index-mismatch", "model.extra.weight"),
        (lambda s: s["weight_map"].pop("model.norm.weight"), "index-mismatch", "model.norm.weight"),
        (lambda s: s["weight_map"].update({"model.norm.weight": "model-00001-of-00003.safetensors"}), "index-mismatch", "model.norm.weight"),
        (lambda s: s["weight_map"].update({"model.norm.weight": "model-00009-of-00003.safetensors"}), "missing-shard", "00009"),
        (lambda s: s["weight_map"].update({"model.norm.weight": "../../etc/passwd"}), "unsafe-path", "passwd"),
        (lambda s: s["weight_map"].update({"model.norm.weight": "/etc/passwd"}), "unsafe-path", "passwd"),
        (lambda s: s["weight_map"].update({"model.norm.weight": 5}), "bad-index", "model.norm.weight"),
        (lambda s: s.pop("weight_map"), "bad-index", "weight_map"),
        (lambda s: s.update(weight_map=[]), "bad-index", "weight_map"),
        (lambda s: s.update(weight_map={}), "bad-index", "weight_map"),
    ],
)  # fmt: skip
def test_an_index_that_is_wrong(tmp_path: Path, change: Callable[[dict[str, Any]], object], error: str, word: str) -> None:
    refused(changed_index(tiny("llama", tmp_path / "m", shards=3), change), error, word)


def test_a_shard_more_than_the_index_knows_is_a_warning(tmp_path: Path) -> None:
    folder = tiny("llama", tmp_path / "m", shards=3)
    save_file({"x": np.zeros(4, np.float32)}, folder / "model-00004-of-00004.safetensors")
    assert codes(planned(folder)) == ["stray-shards"]


def test_two_sets_of_shards(tmp_path: Path) -> None:
    folder = tiny("llama", tmp_path / "m", shards=3, index=False)
    save_file({"x": np.zeros(4, np.float32)}, folder / "model-00001-of-00002.safetensors")
    refused(folder, "ambiguous-weights", "-of-3", "-of-2")


def test_a_tensor_in_two_shards(tmp_path: Path) -> None:
    folder = tiny("llama", tmp_path / "m", shards=3, index=False)
    held = load_file(folder / SECOND) | {"model.norm.weight": weights("model.norm.weight", (64,))}
    save_file(held, folder / SECOND)
    refused(folder, "duplicate-tensor", "model.norm.weight", SECOND)


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 4976698672\n"


@pytest.mark.parametrize(
    ("data", "error", "word"),
    [
        (LFS, "git-lfs-pointer", "git-lfs"),
        (b"<!DOCTYPE html>\n<html><body>Sign in</body></html>", "html-page", "HTML"),
        (b"\n <html>", "html-page", "HTML"),
        (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "xml-page", "AccessDenied"),
        (b'{"error": "Repository not found"}', "json-page", "Repository not found"),
        (b"Access to model is restricted.", "text-page", "restricted"),
        (b"", "empty-file", "empty"),
        (b"\0" * 4096, "zero-filled", "zeros"),
        (b"\0" * 7, "", ""),
        (b"PK\x03\x04" + b"\0" * 60, "zip-file", "zip"),
        (b"GGUF" + b"\3\0\0\0" + b"\0" * 60, "gguf-file", "GGUF"),
        (b"\x1f\x8b" + b"\0" * 60, "archive-file", "gzip"),
        (os.urandom(4096), "", ""),
    ],
    ids=range(13),
)  # fmt: skip
@pytest.mark.parametrize("where", ["alone", "shard"])
def test_a_file_that_is_something_else_is_named_before_anything_is_written(
    tmp_path: Path, data: bytes, error: str, word: str, where: str
) -> None:
    folder = tiny("llama", tmp_path / "m", shards=1 if where == "alone" else 3)
    name = "model.safetensors" if where == "alone" else SECOND
    (folder / name).write_bytes(data)
    if error:
        refused(folder, error, name, word)
    else:
        said = command("convert", folder, "-o", tmp_path / "out.gguf", "--to", "gguf:f32")
        assert said.code == 3
        assert name in said.err
        assert not (tmp_path / "out.gguf").exists()


@pytest.mark.parametrize("kept", [1, 7, 8, 9, 100, 0.3, 0.5, 0.999])
@pytest.mark.parametrize("where", ["alone", "shard"])
def test_a_truncated_file_is_named(tmp_path: Path, kept: float, where: str) -> None:
    folder = tiny("llama", tmp_path / "m", shards=1 if where == "alone" else 3)
    path = folder / ("model.safetensors" if where == "alone" else SECOND)
    size = path.stat().st_size
    os.truncate(path, int(kept if kept >= 1 else size * kept))
    said = command("convert", folder, "-o", tmp_path / "out.gguf", "--to", "gguf:f32")
    assert said.code == 3
    assert path.name in said.err
    assert "Traceback" not in said.err
    if kept < 1 or kept == 100:
        assert "[truncated-file]" in said.err
    assert not (tmp_path / "out.gguf").exists()


@pytest.mark.parametrize("length", [1 << 62, 100_000_001, 99_999_999])
def test_a_header_that_promises_too_much(tmp_path: Path, length: int) -> None:
    folder = tiny("llama", tmp_path / "m")
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(length.to_bytes(8, "little") + data[8:])
    began = time.monotonic()
    said = command("plan", folder)
    assert said.code == 3
    assert "model.safetensors" in said.err
    assert time.monotonic() - began < 2


def test_a_folder_a_pipe_or_no_rights_in_place_of_the_weights(tmp_path: Path) -> None:
    folder = tiny("llama", tmp_path / "m")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()
    refused(folder, "no-weights", "m")
    (folder / "model.safetensors").rmdir()
    os.mkfifo(folder / "model.safetensors")
    refused(folder, "no-weights", "m")


# Case 17: pickles, written here without torch


def torch_file(path: Path, tensors: dict[str, np.ndarray], *, extra: bytes | None = None) -> None:
    """A `torch.save` archive of a flat state dict (bfloat16 or float32)."""
    kinds = {"bfloat16": "BFloat16Storage", "float32": "FloatStorage"}
    out = io.BytesIO()
    out.write(b"\x80\x02}(")
    for i, (name, array) in enumerate(tensors.items()):
        out.write(_text(name))
        out.write(b"ctorch._utils\n_rebuild_tensor_v2\n((")
        out.write(_text("storage") + f"ctorch\n{kinds[array.dtype.name]}\n".encode() + _text(str(i)) + _text("cpu") + _int(array.size))
        out.write(b"tQ" + _int(0))
        out.write(b"(" + b"".join(_int(n) for n in array.shape) + b"t")
        strides = [s // array.itemsize for s in array.strides]
        out.write(b"(" + b"".join(_int(n) for n in strides) + b"t")
        out.write(b"\x89ccollections\nOrderedDict\n)RtR")
    out.write(b"u.")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("m/data.pkl", extra if extra is not None else out.getvalue())
        for i, array in enumerate(tensors.values()):
            archive.writestr(f"m/data/{i}", array.tobytes())
        archive.writestr("m/version", "3\n")


def _text(value: str) -> bytes:
    data = value.encode()
    return b"X" + len(data).to_bytes(4, "little") + data


def _int(value: int) -> bytes:
    return b"J" + value.to_bytes(4, "little", signed=True)


def pickled(path: Path, extra: bytes | None = None) -> Path:
    folder = tiny("llama", path)
    torch_file(folder / "pytorch_model.bin", load_file(folder / "model.safetensors"), extra=extra)
    (folder / "model.safetensors").unlink()
    return folder


def test_a_pickled_model_is_read_without_torch(tmp_path: Path) -> None:
    plain = converted(tiny("llama", tmp_path / "a"))
    other = converted(pickled(tmp_path / "b"), "--strict")
    assert other.path.read_bytes() == plain.path.read_bytes()


class Evil:
    """Runs a command when it is unpickled."""

    def __init__(self, call: Callable[..., object], *arguments: object) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call, self.arguments


def evils(proof: Path) -> dict[str, bytes]:
    """Pickles that would make `proof`, by how."""
    code = f"open({str(proof)!r}, 'w').close()"
    calls: dict[str, tuple[Callable[..., object], Any]] = {
        "os.system": (os.system, f"touch {proof}"),
        "eval": (eval, code),
        "exec": (exec, code),
        "subprocess": (subprocess.check_call, ["touch", str(proof)]),
        "getattr": (getattr, os),
        "import": (__import__, "os"),
        "open": (open, str(proof)),
    }
    made = {}
    for name, (call, argument) in calls.items():
        arguments = ("os", "system") if name == "getattr" else (argument, "w") if name == "open" else (argument,)
        made[name] = pickle.dumps({"model.norm.weight": Evil(call, *arguments)}, 2)
    made["global-only"] = b"\x80\x02cos\nsystem\n."
    made["build"] = b"\x80\x02ccollections\nOrderedDict\n)R}X\x05\0\0\0__foocos\nsystem\nsb."
    made["inst"] = f"(S'touch {proof}'\nios\nsystem\n.".encode()
    made["obj"] = f"(cos\nsystem\nS'touch {proof}'\no.".encode()
    made["newobj"] = f"\x80\x02cos\nsystem\n(S'touch {proof}'\nt\x81.".encode("latin-1")
    made["torch-hub"] = b"\x80\x02ctorch.hub\nload\n(X\x01\0\0\0xtR."
    made["dotted"] = b"\x80\x04\x8c\x05torch\x8c\x0b_utils.os.x\x93."
    made["extension"] = b"\x80\x02\x82\x01."
    made["bomb"] = b"\x80\x02" + b"(" * 100_000 + b"t" * 99_999 + b"."
    made["memo"] = b"\x80\x02]q\0" + b"h\0a" * 10 + b"."
    made["endless"] = b"\x80\x02X\xff\xff\xff\x7fabc"
    made["nothing"] = b""
    made["no stop"] = b"\x80\x02}"
    return made


KINDS = [
    "os.system", "eval", "exec", "subprocess", "getattr", "import", "open", "global-only", "build", "inst", "obj", "newobj",
    "torch-hub", "dotted", "extension", "bomb", "memo", "endless", "nothing", "no stop",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_pickle_that_runs_code_is_refused_in_one_line(tmp_path: Path, kind: str) -> None:
    proof = tmp_path / "proof"
    folder = pickled(tmp_path / "m", evils(proof)[kind])
    began = time.monotonic()
    said = command("convert", folder, "-o", tmp_path / "out.gguf", "--to", "gguf:f32")
    assert said.code in (3, 4), said.err
    assert "pytorch_model.bin" in said.err
    assert said.err.count("error:") == 1
    assert "internal" not in said.err
    assert "Traceback" not in said.err
    assert not proof.exists()
    assert not (tmp_path / "out.gguf").exists()
    assert time.monotonic() - began < 5


def test_the_evil_ones_are_evil(tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    pickle.loads(evils(proof)["os.system"])
    assert proof.exists()
    assert set(KINDS) == set(evils(proof))
    assert pickletools.dis(evils(proof)["eval"], out=io.StringIO()) is None


def test_the_whole_in_a_process_of_its_own(tmp_path: Path) -> None:
    """What a user sees: exit code, two lines, nothing run."""
    proof = tmp_path / "proof"
    folder = pickled(tmp_path / "m", evils(proof)["os.system"])
    script = "import sys; from llmfit_core.cli.guarded import run; sys.exit(run(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", script, "convert", str(folder), "-o", str(tmp_path / "o.gguf")],
        capture_output=True, text=True, encoding="utf-8", check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode in (3, 4)
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 2
    assert not proof.exists()
