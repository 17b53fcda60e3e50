"""Headers judged by gguf's reader, and files by llama.cpp itself."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from typing import TYPE_CHECKING

import gguf
import numpy as np
import pytest

from llmfit_core.errors import UnsupportedError
from llmfit_core.readers.gguf_values import KV
from llmfit_core.tensors import Given
from llmfit_gguf.container import ALIGNMENT, header_bytes, layout
from llmfit_gguf.splitting import parse_size, part_kv, part_name, plan_split
from llmfit_gguf.stream import Job, fill

if TYPE_CHECKING:
    from pathlib import Path

KEYS = {
    "general.architecture": KV("string", "llama"),
    "a.u8": KV("uint8", 255),
    "a.i8": KV("int8", -128),
    "a.u16": KV("uint16", 65535),
    "a.i16": KV("int16", -32768),
    "a.u32": KV("uint32", 2**32 - 1),
    "a.i32": KV("int32", -(2**31)),
    "a.u64": KV("uint64", 2**64 - 1),
    "a.i64": KV("int64", -(2**63)),
    "a.f32": KV("float32", 0.1),
    "a.f64": KV("float64", 0.1),
    "a.yes": KV("bool", True),
    "a.text": KV("string", "grüße 世界\n"),
    "a.strings": KV("array[string]", ["", "a", "世界"]),
    "a.ints": KV("array[int32]", np.array([1, -2, 3])),
    "a.floats": KV("array[float32]", [0.5, -1e30]),
    "a.flags": KV("array[bool]", [True, False]),
}


def test_gguf_reads_every_kind_of_value(tmp_path: Path) -> None:
    infos, size = layout([("x.weight", (3, 32), "f32"), ("v", (5,), "f16"), ("y.weight", (2, 4, 64), "q8_0")])
    head = header_bytes(KEYS, infos)
    assert len(head) % ALIGNMENT == 0
    assert size % ALIGNMENT == 0
    path = tmp_path / "x.gguf"
    path.write_bytes(head + bytes(size))
    reader = gguf.GGUFReader(path)
    for key, kv in KEYS.items():
        got = reader.fields[key].contents()
        want = kv.value.tolist() if isinstance(kv.value, np.ndarray) else kv.value
        if kv.type in ("float32", "array[float32]"):
            want = np.float32(want).tolist()
        assert got == want, key
    assert list(reader.fields)[3:] == list(KEYS)
    assert [(t.name, [int(n) for n in t.shape], t.tensor_type.name) for t in reader.tensors] == [
        ("x.weight", [32, 3], "F32"),
        ("v", [5], "F16"),
        ("y.weight", [64, 4, 2], "Q8_0"),
    ]
    assert [t.data_offset for t in reader.tensors] == [len(head) + i.offset for i in infos]


def test_bytes_equal_gguf_pys(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("a.n", 7)
    writer.add_array("a.strings", ["x", "yz"])
    writer.add_tensor("t", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    kv = {
        "general.architecture": KV("string", "llama"),
        "a.n": KV("uint32", 7),
        "a.strings": KV("array[string]", ("x", "yz")),
    }
    infos, size = layout([("t", (2, 3), "f32")])
    ours = header_bytes(kv, infos) + np.arange(6, dtype=np.float32).tobytes()
    assert ours + bytes(size - 24) == path.read_bytes()


@pytest.mark.parametrize(
    "kv",
    [
        KV("uint32", -1),
        KV("uint8", 256),
        KV("int64", 2**63),
        KV("uint32", 1.5),
        KV("uint32", "7"),
        KV("bool", 1),
        KV("string", 7),
        KV("array[int32]", [1, 2**31]),
        KV("array[string]", ["a", 1]),
        KV("float32", "x"),
        KV("complex", 1),
    ],
)
def test_values_that_do_not_fit_are_errors_that_name_the_key(kv: KV) -> None:
    with pytest.raises(UnsupportedError, match=r"some\.key"):
        header_bytes({"some.key": kv}, [])


@pytest.mark.parametrize(
    "tensors", [[("x" * 64, (4,), "f32")], [("x", (1, 1, 1, 1, 4), "f32")], [("x", (4,), "f32")] * 2]
)
def test_tensors_that_ggml_cannot_hold_are_errors(tensors: list[tuple[str, tuple[int, ...], str]]) -> None:
    with pytest.raises(UnsupportedError, match="gguf-name"):
        header_bytes({}, layout(tensors)[0])


def test_sizes() -> None:
    assert parse_size("2G") == 2_000_000_000
    assert parse_size("500m") == 500_000_000
    assert parse_size("64K") == 64_000
    assert parse_size("123") == 123
    for bad in ("", "G", "-1G", "0", "1.5G", "2T", "2 GB ?", "9" * 40):
        with pytest.raises(UnsupportedError, match="split-size"):
            parse_size(bad)


def test_split_plan() -> None:
    split = plan_split([100, 100, 300, 50, 60, 1], 256, list("abcdef"))
    assert split.parts == (range(0, 2), range(2, 3), range(3, 6))
    assert [e.subject for e in split.events] == ["c"]
    assert plan_split([320, 10], 256).parts == (range(0, 1), range(1, 2))
    assert plan_split([10, 20], 10**9).parts == (range(0, 2),)
    with pytest.raises(UnsupportedError, match="split-count"):
        plan_split([64] * 5000, 64)
    assert part_name("a.b.gguf", 0, 3) == "a.b-00001-of-00003.gguf"
    assert part_name("a.gguf", 0, 1) == "a.gguf"


LOAD = """
import sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.n_gpu_layers = 0
params.n_ctx = 64
params.warmup = False
params.verbosity = -1
server = xllamacpp.Server(params)
reply = server.handle_completions({"prompt": [1, 5, 9], "n_predict": 2, "temperature": 0, "n_probs": 3})
print("RESULT", reply["choices"][0]["logprobs"]["content"])
"""


def _tiny() -> tuple[dict[str, KV], list[tuple[str, Given]]]:
    """A llama of one layer with a vocabulary of 64 plain tokens."""
    hidden, ffn, vocab = 64, 96, 64
    rng = np.random.default_rng(3)
    shapes = {
        "token_embd.weight": (vocab, hidden),
        "output_norm.weight": (hidden,),
        "output.weight": (vocab, hidden),
        "blk.0.attn_norm.weight": (hidden,),
        "blk.0.attn_q.weight": (hidden, hidden),
        "blk.0.attn_k.weight": (hidden, hidden),
        "blk.0.attn_v.weight": (hidden, hidden),
        "blk.0.attn_output.weight": (hidden, hidden),
        "blk.0.ffn_norm.weight": (hidden,),
        "blk.0.ffn_gate.weight": (ffn, hidden),
        "blk.0.ffn_up.weight": (ffn, hidden),
        "blk.0.ffn_down.weight": (hidden, ffn),
    }
    tensors = [
        (name, Given(rng.standard_normal(shape).astype("<f4").tobytes(), shape, "f32"))
        for name, shape in shapes.items()
    ]
    pieces = ["<unk>", "<s>", "</s>", *(f"▁{i}" for i in range(vocab - 3))]
    kv = {
        "general.architecture": KV("string", "llama"),
        "llama.block_count": KV("uint32", 1),
        "llama.context_length": KV("uint32", 128),
        "llama.embedding_length": KV("uint32", hidden),
        "llama.feed_forward_length": KV("uint32", ffn),
        "llama.attention.head_count": KV("uint32", 2),
        "llama.attention.layer_norm_rms_epsilon": KV("float32", 1e-5),
        "tokenizer.ggml.model": KV("string", "llama"),
        "tokenizer.ggml.tokens": KV("array[string]", pieces),
        "tokenizer.ggml.scores": KV("array[float32]", [0.0] * vocab),
        "tokenizer.ggml.token_type": KV("array[int32]", [2, 3, 3] + [1] * (vocab - 3)),
    }
    return kv, tensors


def _write(folder: Path, limit: int) -> list[Path]:
    kv, tensors = _tiny()
    sizes = [len(t.data) for _, t in tensors]
    parts = plan_split(sizes, limit).parts
    paths = []
    for i, part in enumerate(parts):
        infos, size = layout([(tensors[j][0], tensors[j][1].shape, "f32") for j in part])
        head = header_bytes(part_kv(kv, i, len(parts), len(tensors)), infos)
        jobs = [
            Job(name=n, tensor=t, type="f32", offset=len(head) + info.offset, nbytes=len(t.data))
            for (n, t), info in zip([tensors[j] for j in part], infos, strict=True)
        ]
        paths.append(folder / part_name("tiny.gguf", i, len(parts)))
        fill(paths[-1], head, jobs, len(head) + size, workers=2)
    return paths


def _first_token(path: Path) -> str:
    run = subprocess.run(
        [sys.executable, "-c", LOAD, str(path)], capture_output=True, text=True, timeout=50, check=False
    )
    lines = [line for line in run.stdout.splitlines() if line.startswith("RESULT")]
    assert lines, run.stderr[-2000:]
    return lines[0]


def test_llama_cpp_loads_one_file_and_the_same_in_parts(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    (tmp_path / "one").mkdir()
    (tmp_path / "many").mkdir()
    one = _write(tmp_path / "one", 10**9)
    many = _write(tmp_path / "many", 40_000)
    assert [p.name for p in one] == ["tiny.gguf"]
    assert next(p.name for p in many) == f"tiny-00001-of-{len(many):05d}.gguf"
    assert len(many) > 2
    assert _first_token(one[0]) == _first_token(many[0])
    count = struct.unpack("<Q", many[1].read_bytes()[16:24])[0]
    assert count == 3
    reader = gguf.GGUFReader(many[1])
    assert [(k, f.types[0].name, f.contents()) for k, f in reader.fields.items()][3:] == [
        ("split.no", "UINT16", 1),
        ("split.count", "UINT16", len(many)),
        ("split.tensors.count", "INT32", 12),
    ]
    assert json.dumps(sorted(gguf.GGUFReader(many[0]).fields)).count("split.") == 3
