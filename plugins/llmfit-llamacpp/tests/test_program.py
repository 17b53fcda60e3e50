"""The way through a `llama-server` program: a stand-in with its command line, and the real one where there is one."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

from llmfit_core.errors import LlmfitError
from llmfit_core.launch import launch
from llmfit_core.runtime import LaunchOptions
from llmfit_llamacpp import LLAMACPP, capabilities

Make = Callable[..., Path]
OPTIONS = LaunchOptions(port=0, threads=1)
REAL = os.environ.get("LLMFIT_TEST_LLAMA_SERVER") or shutil.which("llama-server")

# It takes only flags that its help names, as llama-server does, and refuses options in the environment.
STAND_IN = """#!{python}
import argparse, os, sys
if "--version" in sys.argv:
    sys.exit(print("version: 4242 (abcdef0)", file=sys.stderr))
if "--list-devices" in sys.argv:
    sys.exit(print("Available devices:\\n  CUDA0: A Card (24000 MiB, 20000 MiB free)"))
p = argparse.ArgumentParser(allow_abbrev=False)
p.add_argument("-m", "--model")
for flag, kind in (("ctx-size", int), ("port", int), ("parallel", int), ("threads", int), ("n-gpu-layers", int)):
    p.add_argument("--" + flag, type=kind)
for flag in ("host", "load-mode", "cache-type-k", "cache-type-v", "flash-attn", "chat-template", "alias", "fit"):
    p.add_argument("--" + flag)
for flag in ("no-warmup", "no-ui", "jinja"):
    p.add_argument("--" + flag, action="store_true")
given = p.parse_args()
if any(name.startswith("LLAMA_ARG_") for name in os.environ):
    sys.exit("error: options in the environment")
import signal, time, xllamacpp
c = xllamacpp.CommonParams()
c.model.path, c.n_ctx, c.port, c.n_parallel = given.model, given.ctx_size or 0, given.port, given.parallel or 1
c.warmup, c.fit_params = False, False
if given.chat_template:
    c.chat_template = given.chat_template
if given.cache_type_k == "f32":
    c.cache_type_k = c.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    c.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
if os.environ.get("LLAMA_API_KEY"):
    c.api_keys = [os.environ["LLAMA_API_KEY"]]
s = xllamacpp.Server(c)
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
time.sleep(3600)
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stand-in, chosen."""
    path = tmp_path / "llama-server"
    path.write_text(STAND_IN.format(python=sys.executable), encoding="utf-8")
    path.chmod(0o755)
    monkeypatch.setenv("LLMFIT_LLAMACPP", str(path))
    return path


def check(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything through the chosen program gives what the embedded engine gives."""
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "7")
    texts = ["Hello world", "a</s>b"]
    hello = [{"role": "user", "content": "Hello"}]
    ids = list(range(20, 32))
    plan = LLAMACPP.plan(tiny, OPTIONS)
    with launch(plan):
        assert len(psutil.Process().children(recursive=True)) >= 2
    results = []
    for choice in (os.environ["LLMFIT_LLAMACPP"], "embedded"):
        monkeypatch.setenv("LLMFIT_LLAMACPP", choice)
        results.append(
            (
                LLAMACPP.tokenize(tiny, texts, True),
                LLAMACPP.generate(tiny, hello, OPTIONS, 6, 0.0, lambda text: None).text,
                np.array(LLAMACPP.score(tiny, ids, OPTIONS)),
            )
        )
    assert results[0][:2] == results[1][:2]
    assert abs(results[0][2] - results[1][2]).max() < 1e-4


def test_a_stand_in_serves_all(program: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(tiny, monkeypatch)


def test_what_it_says_of_itself(program: Path, tiny: Path) -> None:
    probe = LLAMACPP.probe()
    assert (probe.available, probe.version) == (True, "4242 (abcdef0)")
    assert probe.backends == ("cpu", "cuda")
    assert [(d.name, d.free_bytes) for d in probe.devices[1:]] == [("CUDA0", 20000 << 20)]
    assert LLAMACPP.capabilities().graphs == frozenset()
    assert capabilities.has_graph("llama")
    assert not capabilities.has_graph("nonsense")
    assert capabilities.has_pretokenizer("qwen2")
    assert not capabilities.has_pretokenizer("nonsense")


def test_only_flags_it_knows(program: Path, tiny: Path) -> None:
    argv = LLAMACPP.plan(tiny, LaunchOptions(port=0, gpu_layers=-1, mmap=False, warmup=False)).argv
    assert argv[argv.index("exec") + 1] == str(program)
    assert argv[argv.index("--load-mode") + 1] == "none"
    assert argv[argv.index("--n-gpu-layers") + 1] == "9999"
    assert "--offline" not in argv
    assert "--cors-origins" not in argv


def test_a_file_it_refuses(program: Path, make: Make) -> None:
    with pytest.raises(LlmfitError, match=r"output_norm.weight.*missing-tensor"):
        LLAMACPP.generate(make(tensors={"output_norm.weight": None}), "a", OPTIONS, 4, 0.0, lambda text: None)


@pytest.mark.skipif(not REAL, reason="no llama-server here")
def test_the_real_program(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMFIT_LLAMACPP", str(REAL))
    check(tiny, monkeypatch)
