"""Keys of a GGUF file that cannot be true are refused by file and key, never in a config.json's words."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from tests.cases.source import command
from tests.tiny import tiny

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("keys")
    said = command("convert", tiny("llama", folder / "m"), "--to", "gguf:f16", "-o", folder / "m.gguf", "--no-verify")
    assert said.code == 0, said.err
    return (folder / "m.gguf").read_bytes()


def changed(data: bytes, key: str, value: float) -> bytes:
    at = data.index(struct.pack("<Q", len(key)) + key.encode()) + 8 + len(key)
    kind = struct.unpack_from("<I", data, at)[0]
    return data[: at + 4] + struct.pack("<I" if kind == 4 else "<f", value) + data[at + 8 :]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.context_length", 0),
        ("llama.block_count", 1_000_000),
        ("llama.block_count", 0),
        ("llama.block_count", 1),
        ("llama.block_count", 3),
        ("llama.attention.head_count", 0),
        ("llama.attention.head_count", 3),
        ("llama.attention.head_count_kv", 0),
        ("llama.embedding_length", 128),
        ("llama.embedding_length", 0),
        ("llama.feed_forward_length", 0),
        ("llama.rope.dimension_count", 7),
        ("llama.rope.dimension_count", 4_000_000_000),
        ("llama.rope.freq_base", 0.0),
        ("llama.rope.freq_base", float("inf")),
        ("llama.attention.layer_norm_rms_epsilon", float("nan")),
        ("llama.attention.layer_norm_rms_epsilon", -1.0),
    ],
)
def test_a_key_that_cannot_be_true_is_named(good: bytes, tmp_path: Path, key: str, value: float) -> None:
    path = tmp_path / "odd.gguf"
    path.write_bytes(changed(good, key, value))
    said = command("inspect", path)
    assert said.code == 3, said.err
    assert str(path) in said.err
    assert key in said.err
    assert "config.json" not in said.err


def test_the_unchanged_file_is_read(good: bytes, tmp_path: Path) -> None:
    path = tmp_path / "good.gguf"
    path.write_bytes(changed(good, "llama.context_length", 77))
    assert command("inspect", path).code == 0
