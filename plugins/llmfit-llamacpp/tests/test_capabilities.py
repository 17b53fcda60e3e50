"""What the build says of itself is what it loads."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmfit_core.readers.gguf_values import KV
from llmfit_llamacpp import LLAMACPP, capabilities, engine, gguf_writing
from llmfit_llamacpp.names import GRAPHS, PRETOKENIZERS

Make = Callable[..., Path]


def test_the_probe_finds_the_processor() -> None:
    probe = LLAMACPP.probe()
    assert probe.available, probe.reason
    assert probe.version
    assert "cpu" in probe.backends
    (cpu,) = [d for d in probe.devices if d.kind == "cpu"]
    assert cpu.memory_bytes > 1 << 28


def test_names_known_for_long_are_there_and_others_are_not() -> None:
    found = LLAMACPP.capabilities()
    assert found.engine == "llama.cpp"
    # bert and qwen2 share their bytes with longer names in the build; a search for the name alone misses them.
    assert {"llama", "bert", "qwen2", "qwen2moe", "qwen3moe", "phi3", "gemma3", "deepseek2", "bitnet"} <= found.graphs
    assert {"default", "llama-bpe", "qwen2", "gpt-2", "tekken", "smollm", "deepseek-llm"} <= found.pretokenizers
    assert not {"bitnet-b1.58", "nonsense", "(unknown)", "general"} & found.graphs
    assert not {"nonsense", "llama"} & found.pretokenizers
    assert len(found.graphs) > 100


def test_gguf_py_names_nothing_that_is_missed() -> None:
    """gguf-py's list of architectures, of about the same time, against what the build loads."""
    gguf = pytest.importorskip("gguf")
    asked = {str(n) for n in gguf.MODEL_ARCH_NAMES.values()}
    found = LLAMACPP.capabilities().graphs
    missed = [n for n in asked - found if capabilities.has_graph(n)]
    assert missed == []


def test_a_sample_is_what_llama_cpp_itself_says(make: Make) -> None:
    """Each by loading a whole model of that name, in the order llama.cpp complains."""
    for name, known in (("qwen3", True), ("nonsense", False)):
        script = (
            "import sys, xllamacpp\np = xllamacpp.CommonParams()\np.model.path = sys.argv[1]\n"
            "p.n_ctx = 64\nxllamacpp.Server(p)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", script, str(make(architecture=name))], capture_output=True, timeout=60
        )
        assert (f"unknown model architecture: '{name}'".encode() in done.stderr) is not known
        assert capabilities.has_graph(name) is known
        assert (name in LLAMACPP.capabilities().graphs) is known


def test_kept_by_build(monkeypatch: pytest.MonkeyPatch) -> None:
    capabilities._contents.cache_clear()  # what another test found may not lie in this one's folder
    first = LLAMACPP.capabilities()
    capabilities._contents.cache_clear()
    with monkeypatch.context() as once:
        once.setattr(capabilities, "_known", None)  # nothing is asked a second time
        assert LLAMACPP.capabilities() == first
    file = capabilities._cache_file(engine.find_engine().stamp)
    for damage in ("{", "[]", '{"graphs": 5}', '{"graphs": [], "pretokenizers": []}'):
        file.write_text(damage, encoding="utf-8")
        assert capabilities._read_cache(file) is None
    capabilities._contents.cache_clear()
    assert LLAMACPP.capabilities() == first
    assert json.loads(file.read_text(encoding="utf-8"))["graphs"]


def test_a_cache_that_cannot_be_written_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    capabilities._contents.cache_clear()
    monkeypatch.setattr(capabilities, "_beside_known", lambda path: frozenset())
    monkeypatch.setattr(capabilities, "GRAPHS", frozenset({"llama", "nonsense"}))
    monkeypatch.setattr(capabilities, "PRETOKENIZERS", frozenset({"qwen2"}))
    found = LLAMACPP.capabilities()
    capabilities._contents.cache_clear()
    assert (found.graphs, found.pretokenizers) == ({"llama"}, {"qwen2"})


def test_the_lists_hold_names_of_one_kind() -> None:
    assert {"llama", "qwen2"} <= GRAPHS
    assert {"llama-bpe", "qwen2"} <= PRETOKENIZERS


def test_small_files_are_gguf(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    import numpy as np

    values: dict[str, Any] = {
        "a.text": KV("string", "naïve"),
        "a.flag": KV("bool", True),
        "a.count": KV("uint64", 1 << 40),
        "a.small": KV("int8", -3),
        "a.real": KV("float32", 0.5),
        "a.texts": KV("array[string]", ("x", "", "\udcff")),
        "a.reals": KV("array[float32]", np.array([1.5, -2], dtype=np.float32)),
        "a.flags": KV("array[bool]", np.array([True, False])),
        "a.wholes": KV("array[int32]", [1, -1]),
    }
    keys, shapes = gguf_writing.one_layer(values, 7)
    gguf_writing.write(tmp_path / "small.gguf", keys, shapes)
    reader = gguf.GGUFReader(str(tmp_path / "small.gguf"))
    assert reader.fields["a.text"].contents() == "naïve"
    assert reader.fields["a.count"].contents() == 1 << 40
    assert reader.fields["a.reals"].contents() == [1.5, -2]
    assert reader.fields["a.flags"].contents() == [True, False]
    assert reader.fields["a.wholes"].contents() == [1, -1]
    assert bytes(reader.fields["a.texts"].parts[-1]) == b"\xff"
    tensors = {t.name: t for t in reader.tensors}
    assert tuple(tensors["token_embd.weight"].shape) == (8, 7)
    assert not tensors["blk.0.ffn_up.weight"].data.any()
