"""What is decided before anything is loaded."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from llmfit_core.errors import LaunchError, LlmfitError, UnsupportedError
from llmfit_core.runtime import LaunchOptions
from llmfit_llamacpp import LLAMACPP, memory
from llmfit_llamacpp.header import buffer_bytes, cache_bytes, read_header

Make = Callable[..., Path]
OPTIONS = LaunchOptions(port=0)


def codes(path: Path, options: LaunchOptions) -> dict[str, str]:
    return {e.code: e.severity for e in LLAMACPP.plan(path, options).events}


def test_a_plan_says_what_will_happen(tiny: Path) -> None:
    plan = LLAMACPP.plan(tiny, OPTIONS)
    assert plan.context == 512
    assert plan.url.startswith("http://127.0.0.1:")
    assert plan.argv[:4][1:] == ("-P", "-m", "llmfit_llamacpp.worker")
    assert plan.memory_bytes > tiny.stat().st_size
    assert [e.code for e in plan.events] == ["context-chosen"]


def test_options_reach_the_command(tiny: Path) -> None:
    options = LaunchOptions(
        context=300, threads=1, gpu_layers=-1, mmap=False, rope_freq_base=5e5, rope_freq_scale=0.5, warmup=False, port=0
    )
    plan = LLAMACPP.plan(tiny, options)
    for flag in ("--threads=1", "--gpu-layers=-1", "--no-mmap", "--rope-freq-base=500000.0", "--rope-freq-scale=0.5"):
        assert flag in plan.argv
    assert plan.argv[plan.argv.index("--context") + 1] == "300"
    assert "--no-warmup" in plan.argv
    assert "rope-overridden" in {e.code for e in plan.events}


def test_the_exact_bound_is_the_context(make: Make) -> None:
    bound = make(keys={"llmfit.exact_context": 128})
    assert LLAMACPP.plan(bound, OPTIONS).context == 128
    assert codes(bound, OPTIONS) == {"context-chosen": "info"}
    assert codes(bound, LaunchOptions(context=128, port=0)) == {}
    assert codes(bound, LaunchOptions(context=129, port=0)) == {"beyond-exact-context": "warning"}


def test_no_more_than_the_models_own_context(tiny: Path) -> None:
    plan = LLAMACPP.plan(tiny, LaunchOptions(context=4096, port=0))
    assert plan.context == 512
    assert [(e.code, e.severity) for e in plan.events] == [("context-capped", "fallback")]


def test_a_long_model_gets_4096(make: Make) -> None:
    assert LLAMACPP.plan(make(keys={"llama.context_length": 131072}), OPTIONS).context == 4096


def test_longrope_on_its_long_side(make: Make) -> None:
    factors = {f"rope_factors_{side}.weight": np.ones(8, dtype=np.float32) for side in ("long", "short")}
    path = make(
        keys={"llama.context_length": 8192, "llama.rope.scaling.original_context_length": 4096}, tensors=dict(factors)
    )
    assert "longrope-long" not in codes(path, OPTIONS)
    assert codes(path, LaunchOptions(context=8192, port=0))["longrope-long"] == "bound"


def test_without_a_template_it_is_said(make: Make) -> None:
    assert codes(make(template=None), OPTIONS)["no-chat-template"] == "info"


def test_a_port_that_is_taken(tiny: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(LaunchError, match=rf"port {port} .*port-taken"):
            LLAMACPP.plan(tiny, LaunchOptions(port=port))


@pytest.mark.parametrize(
    "options",
    [
        LaunchOptions(context=0),
        LaunchOptions(context=-5),
        LaunchOptions(context=1 << 40),
        LaunchOptions(threads=0),
        LaunchOptions(gpu_layers=-2),
        LaunchOptions(port=70000),
        LaunchOptions(port=-1),
        LaunchOptions(rope_freq_base=float("nan")),
        LaunchOptions(rope_freq_scale=0.0),
        LaunchOptions(host=""),
        LaunchOptions(host="/tmp/x.sock"),
    ],
)
def test_options_out_of_range(tiny: Path, options: LaunchOptions) -> None:
    with pytest.raises(LaunchError, match="bad-option"):
        LLAMACPP.plan(tiny, options)


def test_an_address_of_another_machine(tiny: Path) -> None:
    with pytest.raises(LaunchError, match="bad-host"):
        LLAMACPP.plan(tiny, LaunchOptions(host="192.0.2.1", port=0))


def test_open_to_the_network_is_said(tiny: Path) -> None:
    assert codes(tiny, LaunchOptions(host="0.0.0.0", port=0))["open-to-network"] == "info"


def test_what_does_not_fit_is_refused_with_figures(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmfit_llamacpp.planning.main_memory", lambda: 50 << 20)
    with pytest.raises(LaunchError, match=r"does-not-fit") as caught:
        LLAMACPP.plan(tiny, OPTIONS)
    assert "MiB of weights" in caught.value.cause
    assert "50 MiB" in caught.value.cause


def test_a_context_that_fits_is_chosen_or_advised(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    long = make(keys={"llama.context_length": 1 << 20, "llama.attention.key_length": 4096})
    header = read_header(long)
    monkeypatch.setattr("llmfit_llamacpp.planning.main_memory", lambda: memory.need(header, 1024))
    plan = LLAMACPP.plan(long, OPTIONS)
    assert plan.context == 1024
    assert "fits" in plan.events[0].message
    with pytest.raises(LaunchError, match=r"does-not-fit.*--context 1024 fits"):
        LLAMACPP.plan(long, LaunchOptions(context=100_000, port=0))


def test_the_cache_of_a_known_model() -> None:
    """SmolLM2-135M (30 layers, 3 heads of 64): llama.cpp reports 90.00 MiB at 4096 tokens, 5.62 at 64 and at 256."""

    class Known:
        cache_values_per_token = 30 * 3 * (64 + 64)
        state_bytes = 0
        embeds = False
        widths = (576, 1536, 9)
        vocabulary = 49152

    known: object = Known()
    assert cache_bytes(known, 4096) == 90 << 20  # type: ignore[arg-type]
    assert cache_bytes(known, 64) == cache_bytes(known, 256) == 5898240  # type: ignore[arg-type]
    # 18.64 MiB of compute buffers.
    assert abs(buffer_bytes(known, 4096) - (96 << 20) - (18.64 * 2**20)) < 1 << 20  # type: ignore[arg-type]


def test_memory_within_a_control_group(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("900000\n")
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 300000\n")
    assert memory._group_room(tmp_path) == 400000
    (tmp_path / "memory.max").write_text("max\n")
    assert memory._group_room(tmp_path) == 1 << 62
    assert memory._group_room(tmp_path / "none") == 1 << 62


def test_graphs_and_pretokenizers_that_are_not_there(make: Make) -> None:
    with pytest.raises(UnsupportedError, match=r"nonsense.*graph-missing"):
        LLAMACPP.plan(make(architecture="nonsense"), OPTIONS)
    with pytest.raises(UnsupportedError, match=r"nonsense.*pretokenizer-missing"):
        LLAMACPP.plan(make(keys={"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "nonsense"}), OPTIONS)


@pytest.mark.parametrize("key", ["llama.context_length", "llama.embedding_length", "llama.block_count"])
def test_a_missing_key_is_named(make: Make, key: str) -> None:
    with pytest.raises(LlmfitError, match=rf"{key}.*missing-key"):
        LLAMACPP.plan(make(keys={key: None}), OPTIONS)
    with pytest.raises(LlmfitError, match=rf"{key}.*bad-key"):
        LLAMACPP.plan(make(keys={key: "many"}), OPTIONS)


def test_files_that_are_no_models(tmp_path: Path, tiny: Path, make: Make) -> None:
    page = tmp_path / "page.gguf"
    page.write_text("<!DOCTYPE html><html></html>")
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(tiny.read_bytes()[:-1000])
    for path in (page, cut, tmp_path / "absent.gguf", tmp_path):
        with pytest.raises(LlmfitError):
            LLAMACPP.plan(path, OPTIONS)
    with pytest.raises(UnsupportedError, match="not-a-model"):
        LLAMACPP.plan(make(keys={"general.type": "adapter"}), OPTIONS)


def test_a_folder_with_one_model(tiny: Path) -> None:
    assert str(tiny) in LLAMACPP.plan(tiny.parent, OPTIONS).argv


def test_no_llama_cpp_at_all(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmfit_llamacpp.engine._embedded", lambda: None)
    monkeypatch.setenv("PATH", "")
    assert not LLAMACPP.probe().available
    assert "pip install xllamacpp" in LLAMACPP.probe().reason
    with pytest.raises(LaunchError, match="runtime-missing"):
        LLAMACPP.plan(tiny, OPTIONS)
    monkeypatch.setenv("LLMFIT_LLAMACPP", "/nowhere/llama-server")
    assert "/nowhere/llama-server" in LLAMACPP.probe().reason


def test_a_program_that_is_no_llama_server(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "llama-server"
    fake.write_text("#!/bin/sh\necho broken >&2\nexit 3\n")
    fake.chmod(0o755)
    monkeypatch.setenv("LLMFIT_LLAMACPP", str(fake))
    assert "broken" in LLAMACPP.probe().reason
    with pytest.raises(LaunchError, match="runtime-broken"):
        LLAMACPP.plan(tiny, LaunchOptions(port=0))
