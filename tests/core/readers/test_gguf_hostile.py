"""GGUF headers from strangers: refused by name, within a second and 100 MB."""

from __future__ import annotations

import resource
import struct
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmfit_core.errors import LlmfitError
from llmfit_core.readers.gguf import read_gguf, tensor_of

if TYPE_CHECKING:
    from pathlib import Path

U32, U64, STRING, ARRAY, BOOL, U8 = 4, 10, 8, 9, 7, 0


def s(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def kv(key: str | bytes, kind: int, value: bytes) -> bytes:
    return s(key) + struct.pack("<I", kind) + value


def array(kind: int, count: int, data: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + data


def info(name: str | bytes = "a", shape: tuple[int, ...] = (4,), kind: int = 0, offset: int = 0) -> bytes:
    return (
        s(name)
        + struct.pack("<I", len(shape))
        + struct.pack(f"<{len(shape)}Q", *shape)
        + struct.pack("<IQ", kind, offset)
    )


ARCH = kv("general.architecture", STRING, s("llama"))


def build(
    keys: list[bytes] | None = None,
    tensors: list[bytes] | None = None,
    *,
    version: int = 3,
    n_keys: int | None = None,
    n_tensors: int | None = None,
    data: int = 4096,
    magic: bytes = b"GGUF",
) -> bytes:
    keys = [ARCH] if keys is None else keys
    tensors = [] if tensors is None else tensors
    counts = (len(tensors) if n_tensors is None else n_tensors, len(keys) if n_keys is None else n_keys)
    head = magic + struct.pack("<IQQ", version, *counts)
    body = head + b"".join(keys) + b"".join(tensors)
    return body + bytes(-len(body) % 32) + bytes(data)


def strings(*extra: bytes) -> list[bytes]:
    return [ARCH, *extra]


HOSTILE: dict[str, bytes] = {
    "empty": b"",
    "three-bytes": b"GGU",
    "magic-only": b"GGUF",
    "short": build()[:20],
    "other-magic": build(magic=b"FUGG"),
    "ggml": build(magic=b"lmgg"),
    "ggjt": build(magic=b"tjgg"),
    "html": b"<!doctype html><html>",
    "git-lfs": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n",
    "version-0": build(version=0),
    "version-1": build(version=1),
    "version-4": build(version=4),
    "big-endian": build(version=0x03000000),
    "keys-2^63": build(n_keys=2**63),
    "keys-2^32": build(n_keys=2**32),
    "keys-60000-of-nothing": build(n_keys=60_000),
    "tensors-2^63": build(n_tensors=2**63),
    "tensors-2^64-1": build(n_tensors=2**64 - 1),
    "key-one-too-many": build(n_keys=2, data=0),
    "key-length-2^63": build([struct.pack("<Q", 2**63) + b"abc"]),
    "key-length-2^64-1": build([struct.pack("<Q", 2**64 - 1) + b"abc"]),
    "key-empty": build(strings(kv("", U32, bytes(4)))),
    "key-long": build(strings(kv("k" * 70_000, U32, bytes(4)))),
    "key-twice": build(strings(ARCH)),
    "key-control": build(strings(kv("a\nb", U32, bytes(4)))),
    "key-nul": build(strings(kv("a\0b", U32, bytes(4)))),
    "key-path": build(strings(kv("../../x", U32, bytes(4)))),
    "key-not-utf8": build(strings(kv(b"\xff\xfe", U32, bytes(4)))),
    "string-length-2^63": build(strings(kv("k", STRING, struct.pack("<Q", 2**63) + b"x"))),
    "string-length-file": build(strings(kv("k", STRING, struct.pack("<Q", 5000) + b"x"))),
    "string-not-utf8": build(strings(kv("k", STRING, s(b"\xff\xfe")))),
    "type-13": build(strings(kv("k", 13, bytes(8)))),
    "type-2^32-1": build(strings(kv("k", 2**32 - 1, bytes(8)))),
    "bool-2": build(strings(kv("k", BOOL, b"\2"))),
    "bool-array-7": build(strings(kv("k", ARRAY, array(BOOL, 3, b"\0\1\7")))),
    "array-2^40-strings": build(strings(kv("k", ARRAY, array(STRING, 2**40)))),
    "array-2^40-numbers": build(strings(kv("k", ARRAY, array(U32, 2**40)))),
    "array-2^64-1-numbers": build(strings(kv("k", ARRAY, array(U64, 2**64 - 1)))),
    "array-bytes-2^40": build(strings(kv("k", ARRAY, array(U8, 2**40)))),
    "array-just-too-long": build(strings(kv("k", ARRAY, array(U8, 4200)))),
    "array-of-arrays": build(strings(kv("k", ARRAY, array(ARRAY, 1, array(ARRAY, 1, array(U8, 1, b"x")))))),
    "array-of-arrays-2^40": build(strings(kv("k", ARRAY, array(ARRAY, 2**40)))),
    "array-unknown-type": build(strings(kv("k", ARRAY, array(99, 1)))),
    "array-string-length": build(strings(kv("k", ARRAY, array(STRING, 2, s("a") + struct.pack("<Q", 2**63))))),
    "array-string-length-2": build(strings(kv("k", ARRAY, array(STRING, 3, s("a") + struct.pack("<Q", 2**64 - 9))))),
    "architecture-number": build([kv("general.architecture", U32, bytes(4))]),
    "architecture-path": build([kv("general.architecture", STRING, s("../../x"))]),
    "architecture-empty": build([kv("general.architecture", STRING, s(""))]),
    "architecture-long": build([kv("general.architecture", STRING, s("x" * 1000))]),
    "name-path": build(strings(kv("general.name", STRING, s("../../x")))),
    "name-windows": build(strings(kv("general.basename", STRING, s("..\\x")))),
    "name-nul": build(strings(kv("general.name", STRING, s("a\0b")))),
    "pre-path": build(strings(kv("tokenizer.ggml.pre", STRING, s("../x")))),
    "alignment-0": build(strings(kv("general.alignment", U32, struct.pack("<I", 0)))),
    "alignment-1": build(strings(kv("general.alignment", U32, struct.pack("<I", 1)))),
    "alignment-33": build(strings(kv("general.alignment", U32, struct.pack("<I", 33)))),
    "alignment-2^31": build(strings(kv("general.alignment", U32, struct.pack("<I", 2**31)))),
    "alignment-u64": build(strings(kv("general.alignment", U64, struct.pack("<Q", 32)))),
    "alignment-string": build(strings(kv("general.alignment", STRING, s("32")))),
    "split-string": build(strings(kv("split.count", STRING, s("../x")))),
    "split-count-2^31": build(strings(kv("split.count", U32, struct.pack("<I", 2**31)))),
    "split-no-9": build(
        strings(kv("split.count", U32, struct.pack("<I", 3)), kv("split.no", U32, struct.pack("<I", 9)))
    ),
    "split-alone": build(strings(kv("split.count", U32, struct.pack("<I", 3)))),
    "tensor-axes-5": build(tensors=[info(shape=(1, 1, 1, 1, 1))]),
    "tensor-axes-2^32-1": build(tensors=[s("a") + struct.pack("<I", 2**32 - 1)]),
    "tensor-shape-0": build(tensors=[info(shape=(0, 4))]),
    "tensor-shape-2^63": build(tensors=[info(shape=(2**63,))]),
    "tensor-shape-overflow": build(tensors=[info(shape=(2**32, 2**32, 4, 4))]),
    "tensor-shape-wraps-to-small": build(tensors=[info(shape=(2**62, 4))]),
    "tensor-type-4": build(tensors=[info(kind=4)]),
    "tensor-type-31": build(tensors=[info(kind=31)]),
    "tensor-type-2^31": build(tensors=[info(kind=2**31)]),
    "tensor-block": build(tensors=[info(shape=(33,), kind=2)]),
    "tensor-block-scalar": build(tensors=[info(shape=(), kind=2)]),
    "tensor-offset-odd": build(tensors=[info(offset=7)]),
    "tensor-offset-beyond": build(tensors=[info(offset=2**40)]),
    "tensor-offset-2^64": build(tensors=[info(offset=2**64 - 32)]),
    "tensor-larger-than-file": build(tensors=[info(shape=(100_000,))]),
    "tensor-truncated": build(tensors=[info(shape=(1024,))])[:-1],
    "tensors-overlap": build(tensors=[info("a", shape=(64,)), info("b", shape=(64,), offset=32)]),
    "tensors-same-place": build(tensors=[info("a"), info("b")]),
    "tensor-twice": build(tensors=[info("a"), info("a", offset=32)]),
    "tensor-name-path": build(tensors=[info("../../x")]),
    "tensor-name-dots": build(tensors=[info("..")]),
    "tensor-name-absolute": build(tensors=[info("/etc/x")]),
    "tensor-name-backslash": build(tensors=[info("..\\x")]),
    "tensor-name-control": build(tensors=[info("a\x1b[31m")]),
    "tensor-name-nul": build(tensors=[info("a\0b")]),
    "tensor-name-64": build(tensors=[info("a" * 64)]),
    "tensor-name-empty": build(tensors=[info("")]),
    "tensor-name-length": build(tensors=[struct.pack("<Q", 2**63)]),
    "tensor-name-not-utf8": build(tensors=[info(b"\xff")]),
    "tensor-name-rtl": build(tensors=[info("a\u202eb")]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_refused_by_name(tmp_path, name):
    path = tmp_path / "m.gguf"
    path.write_bytes(HOSTILE[name])
    start = time.process_time()
    with pytest.raises(LlmfitError) as caught:
        read_gguf(path)
    assert time.process_time() - start < 1
    assert "m.gguf" in caught.value.cause
    assert len(caught.value.cause) < 500


def test_the_builder_builds_what_can_be_read(tmp_path):
    path = tmp_path / "m.gguf"
    # A drive and a folder as name, as one of llama.cpp's own vocabulary files has it.
    names = (kv("general.name", STRING, s("D:\\Diverses\\models")), kv("general.basename", STRING, s("Qwen/Qwen2 7B")))
    path.write_bytes(build(strings(*names), [info("a"), info("b", offset=32)]))
    assert [t.name for t in gguf.GGUFReader(path).tensors] == list(read_gguf(path).tensors) == ["a", "b"]


def test_codes_name_the_cause(tmp_path):
    path = tmp_path / "m.gguf"
    for name, code in {
        "html": "html-page",
        "git-lfs": "git-lfs-pointer",
        "empty": "empty-file",
        "big-endian": "big-endian",
        "version-4": "gguf-version",
        "ggjt": "gguf-version",
        "short": "truncated-file",
        "tensor-truncated": "truncated-file",
        "tensor-name-path": "unsafe-name",
        "architecture-path": "unsafe-name",
        "tensor-type-31": "unknown-ggml-type",
        "alignment-33": "bad-gguf",
    }.items():
        path.write_bytes(HOSTILE[name])
        with pytest.raises(LlmfitError) as caught:
            read_gguf(path)
        assert caught.value.code == code, name


def valid() -> bytes:
    return build(
        strings(
            kv("general.name", STRING, s("x")),
            kv("tokenizer.ggml.tokens", ARRAY, array(STRING, 3, s("a") + s("b") + s("c"))),
            kv("tokenizer.ggml.scores", ARRAY, array(6, 2, bytes(8))),
            kv("t.flag", BOOL, b"\1"),
        ),
        [info("token_embd.weight", (32, 4), 8), info("norm", (5,), 0, 160)],
        data=192,
    )


def test_truncated_anywhere(tmp_path):
    path = tmp_path / "m.gguf"
    whole = valid()
    path.write_bytes(whole)
    read_gguf(path)
    last = max(t.offset + t.nbytes for t in read_gguf(path).tensors.values())
    for length in range(last):
        path.write_bytes(whole[:length])
        with pytest.raises(LlmfitError) as caught:
            read_gguf(path)
        assert caught.value.code == "truncated-file" or length < 8


@settings(max_examples=400, deadline=10_000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_mutations_end_in_values_or_a_named_error(tmp_path, data):
    raw = bytearray(valid())
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(4, len(raw) - 1))
        if data.draw(st.booleans()):
            raw[at] = data.draw(st.integers(0, 255))
        else:
            value = data.draw(st.sampled_from([0, 1, 2**16, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1]))
            raw[at : at + 8] = struct.pack("<Q", value)
    path = tmp_path / "m.gguf"
    path.write_bytes(raw)
    try:
        file = read_gguf(path)
        for tensor in file.tensors.values():
            lazy = tensor_of(tensor)
            lazy.rows(0, int(np.prod(tensor.shape[:-1])))
        for value in file.kv.values():
            if value.type.startswith("array"):
                list(value.value)
    except LlmfitError:
        pass


@settings(max_examples=200, deadline=10_000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tail=st.binary(max_size=400))
def test_noise_after_the_magic(tmp_path, tail):
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF\x03\0\0\0" + tail)
    try:
        file = read_gguf(path)
    except LlmfitError:
        return
    # No tensors and no keys: the one way in which noise is sound.
    assert not file.tensors
    assert len(file.kv) == int.from_bytes(tail[8:16], "little")


def sparse(path: Path, head: bytes, size: int = 8 << 30) -> None:
    with path.open("wb") as file:
        file.write(head)
        file.truncate(size)


LARGE = {
    "empty strings": build(strings(kv("k", ARRAY, array(STRING, 2**29))), data=0),
    "empty strings within the limit": build(strings(kv("k", ARRAY, array(STRING, 2_900_000))), data=0, n_keys=60_000),
    "bytes": build(strings(kv("k", ARRAY, array(U8, 2**32))), data=0),
    "bytes within the limit": build(strings(kv("k", ARRAY, array(U8, 23 << 20))), data=0, n_keys=60_000),
    "one string": build(strings(kv("k", STRING, struct.pack("<Q", 2**32))), data=0),
    "keys": build(n_keys=65_000, data=0),
    "tensors": build(n_tensors=65_000, data=0),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_large_file_of_zeros_costs_no_more(tmp_path, name):
    path = tmp_path / "m.gguf"
    sparse(path, LARGE[name])
    code = (
        "import resource, sys, time, numpy\n"
        "from pathlib import Path\n"
        "from llmfit_core.errors import LlmfitError\n"
        "from llmfit_core.readers.gguf import read_gguf\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024\n"
        "before, start = peak(), time.process_time()\n"
        "try:\n    read_gguf(Path(sys.argv[1]))\n"
        "except LlmfitError as error:\n    print(error.code, peak() - before, time.process_time() - start)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True, timeout=60
    )
    error, megabytes, seconds = done.stdout.split()
    assert error == "bad-gguf"
    assert int(megabytes) < 100
    assert float(seconds) < 1


def test_address_space_is_not_needed_for_large_files(tmp_path):
    """A file far larger than the memory allowed opens, since only its header's window is mapped."""
    path = tmp_path / "m.gguf"
    sparse(path, build(tensors=[info("a", (2**30,), 0)], data=0))
    limit = 3 << 30

    def restrict() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    code = "import sys; from pathlib import Path; from llmfit_core.readers.gguf import read_gguf; " + (
        "print(read_gguf(Path(sys.argv[1])).tensors['a'].nbytes)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        preexec_fn=restrict,
    )
    assert int(done.stdout) == 4 << 30
