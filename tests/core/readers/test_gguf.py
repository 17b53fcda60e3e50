"""GGUF files, judged by gguf's writer, reader and size table."""

from __future__ import annotations

import pickle
import time
from typing import TYPE_CHECKING

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf.quants import quantize

from llmfit_core.errors import SourceError
from llmfit_core.readers.ggml_types import GGML_TYPES, PLAIN, Blocked
from llmfit_core.readers.gguf import GgufFile, read_gguf, tensor_of
from llmfit_core.tensors import Stored, read

if TYPE_CHECKING:
    from pathlib import Path

TOKENS = ["<s>", "a", "", "ü", "\u2581the", "💧"]


def write(path: Path, *, split: int = 0) -> Path:
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama", split_max_tensors=split)
    writer.add_name("Org/Name 1B")
    writer.add_uint8("t.u8", 200)
    writer.add_int8("t.i8", -5)
    writer.add_uint16("t.u16", 60000)
    writer.add_int16("t.i16", -300)
    writer.add_uint32("t.u32", 4_000_000_000)
    writer.add_int32("t.i32", -70000)
    writer.add_float32("t.f32", 0.1)
    writer.add_uint64("t.u64", 2**63)
    writer.add_int64("t.i64", -(2**62))
    writer.add_float64("t.f64", 0.1)
    writer.add_bool("t.bool", True)
    writer.add_string("t.string", "ä\nb")
    writer.add_array("tokenizer.ggml.tokens", TOKENS)
    writer.add_array("tokenizer.ggml.scores", [0.5, -1.0, 2.0])
    writer.add_array("tokenizer.ggml.token_type", [1, 3, 2])
    writer.add_array("t.flags", [True, False, True])
    writer.add_tensor("token_embd.weight", rng.standard_normal((6, 64)).astype(np.float32))
    writer.add_tensor("norm", rng.standard_normal(5).astype(np.float16))
    q4 = quantize(rng.standard_normal((4, 64)).astype(np.float32), Type.Q4_0)
    writer.add_tensor("blk.0.attn_q.weight", q4, raw_dtype=Type.Q4_0)
    experts = quantize(rng.standard_normal((2, 3, 256)).astype(np.float32), Type.TQ2_0)
    writer.add_tensor("blk.0.ffn_up_exps.weight", experts, raw_dtype=Type.TQ2_0)
    half = rng.standard_normal((3, 8)).astype(np.float32).view(np.uint16)[:, ::2].copy().view(np.uint8)
    writer.add_tensor("bf", half, raw_dtype=Type.BF16)
    writer.add_tensor("ids", np.arange(4, dtype=np.int32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def check(file: GgufFile, paths: list[Path]) -> None:
    """Hold every tensor and key against gguf's reader."""
    seen = {}
    for path in paths:
        theirs = gguf.GGUFReader(path)
        for tensor in theirs.tensors:
            ours = file.tensors[tensor.name]
            assert ours.shape == tuple(int(n) for n in tensor.shape[::-1])
            assert ours.ggml_type == tensor.tensor_type.name.lower()
            assert (ours.offset, ours.nbytes) == (tensor.data_offset, tensor.n_bytes)
            lazy = tensor_of(ours)
            assert lazy.shape == ours.shape
            assert isinstance(lazy, Stored if ours.ggml_type in PLAIN else Blocked)
            count = int(np.prod(ours.shape[:-1]))
            assert lazy.rows(0, count).tobytes() == tensor.data.tobytes()
            assert lazy.rows(1, count).tobytes() == tensor.data.tobytes()[tensor.n_bytes // count :]
            seen[tensor.name] = ours
        if path == paths[0]:
            fields = {n: f for n, f in theirs.fields.items() if not n.startswith("GGUF.")}
            assert list(file.kv) == list(fields)
            for name, field in fields.items():
                kv = file.kv[name]
                want = field.contents()
                got = kv.value if not kv.type.startswith("array") else list(kv.value)
                assert got == want, name
                words = [t.name.lower() for t in field.types]
                assert kv.type == (words[0] if len(words) == 1 else f"array[{words[1]}]")
    assert list(seen) == list(file.tensors)


def test_everything_the_writer_writes(tmp_path):
    path = write(tmp_path / "m.gguf")
    file = read_gguf(path)
    assert (file.version, file.alignment, file.files) == (3, 32, (path,))
    assert file.kv["t.u64"].type == "uint64"
    assert file.kv["tokenizer.ggml.tokens"].value == TOKENS
    assert file.kv["tokenizer.ggml.tokens"].value[3:] == tuple(TOKENS[3:])
    assert file.kv["tokenizer.ggml.scores"].value.dtype == np.float32
    assert file.kv["t.flags"].value.dtype == np.bool_
    check(file, [path])


def test_other_alignment(tmp_path):
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(128)
    writer.add_tensor("a", np.ones(3, np.float32))
    writer.add_tensor("b", np.ones(3, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = read_gguf(path)
    assert file.alignment == 128
    check(file, [path])


def test_split_model_from_any_part(tmp_path):
    write(tmp_path / "m.gguf", split=2)
    paths = sorted(tmp_path.glob("*.gguf"))
    assert [p.name for p in paths] == [f"m-{n:05d}-of-00003.gguf" for n in (1, 2, 3)]
    for path in paths:
        file = read_gguf(path)
        assert file.files == tuple(paths)
        check(file, paths)


def test_missing_part_is_named(tmp_path):
    write(tmp_path / "m.gguf", split=2)
    (tmp_path / "m-00002-of-00003.gguf").unlink()
    with pytest.raises(SourceError, match="m-00002-of-00003") as caught:
        read_gguf(tmp_path / "m-00001-of-00003.gguf")
    assert caught.value.code == "missing-shard"


def test_renamed_and_mixed_parts(tmp_path):
    write(tmp_path / "m.gguf", split=2)
    first = tmp_path / "m-00001-of-00003.gguf"
    (tmp_path / "model.gguf").write_bytes(first.read_bytes())
    with pytest.raises(SourceError) as caught:
        read_gguf(tmp_path / "model.gguf")
    assert caught.value.code == "bad-split"
    (tmp_path / "m-00002-of-00003.gguf").write_bytes((tmp_path / "m-00003-of-00003.gguf").read_bytes())
    with pytest.raises(SourceError) as caught:
        read_gguf(first)
    assert caught.value.code == "bad-split"


def test_values_can_be_pickled_and_compared(tmp_path):
    file = read_gguf(write(tmp_path / "m.gguf"))
    tokens = file.kv["tokenizer.ggml.tokens"].value
    again = pickle.loads(pickle.dumps(tokens))
    assert again == tokens == tuple(TOKENS)
    assert hash(again) == hash(tokens)
    assert tokens != TOKENS[1:]
    lazy = tensor_of(file.tensors["blk.0.attn_q.weight"])
    assert pickle.loads(pickle.dumps(lazy)) == lazy
    assert lazy.files() == (str(tmp_path / "m.gguf"),)
    assert np.array_equal(read(tensor_of(file.tensors["ids"])), np.arange(4))


def test_the_type_table_is_ggufs():
    ours = {t.id: (t.name, t.block, t.size) for t in GGML_TYPES.values()}
    theirs = {t.value: (t.name.lower(), *gguf.GGML_QUANT_SIZES[t]) for t in Type}
    assert {i: ours[i] for i in theirs} == theirs
    assert set(ours) - set(theirs) <= {42}, "q2_0, which llama.cpp has and gguf 0.19 not yet"


def test_a_large_vocabulary_is_quick(tmp_path):
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_array("tokenizer.ggml.tokens", [f"token{i}" for i in range(150_000)])
    writer.add_array("tokenizer.ggml.merges", [f"a{i} b{i}" for i in range(150_000)])
    writer.add_array("tokenizer.ggml.token_type", [1] * 150_000)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    start = time.process_time()
    tokens = read_gguf(path).kv["tokenizer.ggml.tokens"].value
    assert len(tokens) == 150_000
    assert tokens[-1] == "token149999"
    assert time.process_time() - start < 0.5


def test_old_vocabularies_keep_their_bytes(tmp_path):
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_array("tokenizer.ggml.tokens", [b"\xe2\x96", b"ok"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tokens = read_gguf(path).kv["tokenizer.ggml.tokens"].value
    assert [t.encode("utf-8", "surrogateescape") for t in tokens] == [b"\xe2\x96", b"ok"]
