"""Engines start, answer, die and are ended; nothing stays behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from llmfit_core.errors import LaunchError, LlmfitError, SourceError
from llmfit_core.launch import Server, launch
from llmfit_core.runtime import LaunchOptions, LaunchPlan
from llmfit_llamacpp import LLAMACPP

Make = Callable[..., Path]
OPTIONS = LaunchOptions(port=0, threads=1)
HELLO = [{"role": "user", "content": "Hello"}]
posix = pytest.mark.skipif(os.name != "posix", reason="signals")


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=60) as response:
        return dict(json.load(response))


def engines() -> list[psutil.Process]:
    """Our descendants that run an engine or its guard."""
    return [p for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE]


def gone(pids: list[int], seconds: float = 10) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not any(psutil.pid_exists(p) and psutil.Process(p).status() != psutil.STATUS_ZOMBIE for p in pids):
            return True
        time.sleep(0.05)
    return False


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    yield
    assert gone([p.pid for p in engines()])


def test_serves_the_openai_api_and_ends(tiny: Path) -> None:
    plan = LLAMACPP.plan(tiny, OPTIONS)
    seen: list[float] = []
    with launch(plan, on_progress=lambda passed, line: seen.append(passed)) as server:
        body = {"messages": HELLO, "max_tokens": 5, "temperature": 0}
        answer = post(f"{server.url}/v1/chat/completions", body)
        assert answer["usage"]["completion_tokens"] == 5
        assert answer["model"] == "Tiny and wonderful"
        assert any("listening on" in line for line in server.tail(400))
        pids = [p.pid for p in engines()]
        assert len(pids) >= 2
    assert seen
    assert gone(pids)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", int(plan.url.rsplit(":", 1)[1])))
    server.stop()


def test_generates_in_pieces_and_the_same_again(tiny: Path) -> None:
    pieces: list[str] = []
    first = LLAMACPP.generate(tiny, HELLO, OPTIONS, 12, 0.0, pieces.append)
    assert "".join(pieces) == first.text != ""
    assert len(pieces) > 3
    assert (first.tokens, first.prompt_tokens > 5) == (12, True)
    again = LLAMACPP.generate(tiny, HELLO, OPTIONS, 12, 0.0, lambda text: None)
    assert again.text == first.text


def test_a_template_is_used_and_its_absence_is_not_chatml(make: Make, tiny: Path) -> None:
    rendered = "<s>user\nHello</s>\n<s>assistant\n"
    chat = LLAMACPP.generate(tiny, HELLO, OPTIONS, 8, 0.0, lambda text: None)
    # llama.cpp adds BOS to a plain prompt; the template here does not.
    plain = LLAMACPP.generate(tiny, rendered.removeprefix("<s>"), OPTIONS, 8, 0.0, lambda text: None)
    assert (chat.text, chat.prompt_tokens) == (plain.text, plain.prompt_tokens)
    bare = make(template=None)
    as_messages = LLAMACPP.generate(bare, HELLO, OPTIONS, 8, 0.0, lambda text: None)
    as_text = LLAMACPP.generate(bare, "Hello", OPTIONS, 8, 0.0, lambda text: None)
    assert (as_messages.text, as_messages.prompt_tokens) == (as_text.text, as_text.prompt_tokens)


@pytest.mark.parametrize(
    ("prompt", "tokens", "temperature", "code"),
    [
        ("word " * 800, 4, 0.0, "prompt-too-long"),
        ("a", 0, 0.0, "bad-option"),
        ("a", 4, float("nan"), "bad-option"),
        ("a", 4, -1.0, "bad-option"),
        ([], 4, 0.0, "bad-message"),
        ([{"role": "wizard", "content": "x"}], 4, 0.0, "bad-message"),
        ([{"role": "user"}], 4, 0.0, "bad-message"),
        ("\udcff", 4, 0.0, "bad-text"),
    ],
)
def test_prompts_that_cannot_be_answered(tiny: Path, prompt: Any, tokens: int, temperature: float, code: str) -> None:
    with pytest.raises(LaunchError, match=code):
        LLAMACPP.generate(tiny, prompt, OPTIONS, tokens, temperature, lambda text: None)


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"tensors": {"output_norm.weight": None}}, SourceError, r"output_norm.weight.*missing-tensor"),
        (
            {"tensors": {"blk.1.ffn_up.weight": np.zeros((8, 64), np.float32)}},
            SourceError,
            r"blk.1.ffn_up.*tensor-shape",
        ),
        ({"tensors": {"stray.weight": np.zeros((8, 64), np.float32)}}, SourceError, "tensor-count"),
        ({"keys": {"llama.rope.dimension_count": 7}}, SourceError, "invalid n_rot: 7.*model-refused"),
        ({"template": "{% for %}"}, SourceError, "bad-template"),
        # Three that make llama.cpp abort.
        ({"keys": {"llama.expert_count": 4000}}, LaunchError, r"SIGABRT.*GGML_ASSERT.*n_expert.*runtime-died"),
        ({"keys": {"llama.attention.layer_norm_rms_epsilon": -1.0}}, LaunchError, r"SIGABRT.*eps.*runtime-died"),
        ({"keys": {"llama.rope.scaling.type": "nonsense"}}, LaunchError, r"SIGABRT.*rope_scaling.*runtime-died"),
    ],
)
def test_files_that_llama_cpp_refuses_or_aborts_on(
    make: Make, change: dict[str, Any], kind: type[LlmfitError], words: str
) -> None:
    with pytest.raises(kind, match=words) as caught:
        LLAMACPP.generate(make(**change), HELLO, OPTIONS, 4, 0.0, lambda text: None)
    assert "\n" not in str(caught.value)


def test_without_an_explanation_the_last_words_are_told(make: Make) -> None:
    plan = LLAMACPP.plan(make(tensors={"output_norm.weight": None}), OPTIONS)
    with pytest.raises(LaunchError, match=r"llamacpp ended .*'output_norm.weight' not found \[runtime-died\]"):
        launch(plan)


def kill_engine() -> None:
    """Kill what runs below the guards, not the guards."""
    for guard in psutil.Process().children():
        for engine in guard.children(recursive=True):
            engine.send_signal(signal.SIGKILL)


@posix
def test_killed_while_loading(tiny: Path) -> None:
    with pytest.raises(LaunchError, match=r"SIGKILL.*runtime-died.*memory"):
        launch(LLAMACPP.plan(tiny, OPTIONS), on_progress=lambda passed, line: kill_engine())


@posix
def test_killed_while_answering(tiny: Path) -> None:
    with pytest.raises(LaunchError, match=r"SIGKILL.*runtime-died"):
        LLAMACPP.generate(tiny, HELLO, OPTIONS, 400, 0.0, lambda text: kill_engine())


@posix
def test_killed_while_serving(tiny: Path) -> None:
    with launch(LLAMACPP.plan(tiny, OPTIONS)) as server:
        threading.Timer(0.2, kill_engine).start()
        assert server.wait() == 128 + signal.SIGKILL
        assert not server.alive()


def test_an_interrupt_while_answering_ends_the_engine(tiny: Path) -> None:
    def interrupt(text: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        LLAMACPP.generate(tiny, HELLO, OPTIONS, 400, 0.0, interrupt)
    assert gone([p.pid for p in engines()])


@posix
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_however_we_end_the_engine_ends(tiny: Path, number: signal.Signals) -> None:
    script = (
        "import sys\nfrom pathlib import Path\nfrom llmfit_core.launch import launch\n"
        "from llmfit_core.runtime import LaunchOptions\nfrom llmfit_llamacpp import LLAMACPP\n"
        "server = launch(LLAMACPP.plan(Path(sys.argv[1]), LaunchOptions(port=0)))\n"
        "print(server.url, flush=True)\nserver.wait()\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tiny)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        url = process.stdout.readline().decode().strip()
        pids = [p.pid for p in psutil.Process(process.pid).children(recursive=True)]
        assert len(pids) >= 2
        process.send_signal(number)
        process.wait(timeout=20)
    assert gone(pids)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(url.rsplit(":", 1)[1]))) != 0


@posix
def test_ended_while_the_engine_loads(tiny: Path) -> None:
    """The engine holds the interpreter lock then, and cannot watch for anything."""
    script = (
        "import sys, os, signal\nfrom pathlib import Path\nfrom llmfit_core.launch import launch\n"
        "from llmfit_core.runtime import LaunchOptions\nfrom llmfit_llamacpp import LLAMACPP\n"
        "def die(passed, line):\n    print('x', flush=True); os.kill(os.getpid(), signal.SIGKILL)\n"
        "launch(LLAMACPP.plan(Path(sys.argv[1]), LaunchOptions(port=0)), on_progress=die)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tiny)], stdout=subprocess.PIPE) as process:
        process.wait(timeout=20)
    until = time.monotonic() + 10
    while time.monotonic() < until and any(str(tiny) in " ".join(p.cmdline()) for p in readable()):
        time.sleep(0.1)
    assert not any(str(tiny) in " ".join(p.cmdline()) for p in readable())


def readable() -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            process.cmdline()
            found.append(process)
        except psutil.Error:
            continue
    return found


def test_a_command_that_is_not_there_or_never_ready(tmp_path: Path) -> None:
    def plan(*argv: str) -> LaunchPlan:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return LaunchPlan(runtime="fake", argv=argv, url=f"http://127.0.0.1:{probe.getsockname()[1]}")

    with pytest.raises(LaunchError, match="runtime-missing"):
        launch(plan("/nowhere/engine"))
    with pytest.raises(LaunchError, match=r"0 s; its last line: waiting .*runtime-slow"):
        launch(plan(sys.executable, "-c", "print('waiting', flush=True); import time; time.sleep(60)"), timeout=0.4)
    with pytest.raises(LaunchError, match=r"exit code 1.*ValueError: no luck.*runtime-died"):
        launch(plan(sys.executable, "-c", "raise ValueError('no luck')"))


def test_a_port_taken_between_plan_and_launch(tiny: Path) -> None:
    plan = LLAMACPP.plan(tiny, OPTIONS)
    with socket.socket() as other:
        other.bind(("127.0.0.1", int(plan.url.rsplit(":", 1)[1])))
        other.listen()
        with pytest.raises(LaunchError, match="port-taken"):
            launch(plan)


def test_nothing_around_steers_the_engine(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the folder we are in, nor options in the environment, nor a proxy; and the model's folder stays as it is."""
    (tmp_path / "xllamacpp.py").write_text("raise SystemExit('taken over')")
    (tmp_path / "json.py").write_text("raise SystemExit('taken over')")
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "LLAMA_ARG_CTX_SIZE": "7",
        "LLAMA_ARG_HF_REPO": "a/b",
        "LLAMA_API_KEY": "secret",
        "http_proxy": "http://127.0.0.1:1",
        "HTTP_PROXY": "http://127.0.0.1:1",
    }.items():
        monkeypatch.setenv(name, value)
    before = sorted(p.name for p in tiny.parent.iterdir())
    assert LLAMACPP.generate(tiny, HELLO, OPTIONS, 3, 0.0, lambda text: None).tokens == 3
    assert LLAMACPP.tokenize(tiny, ["Hello"], False)
    assert sorted(p.name for p in tiny.parent.iterdir()) == before
    with launch(LLAMACPP.plan(tiny, OPTIONS)) as server:
        assert isinstance(server, Server)
        assert post(f"{server.url}/tokenize", {"content": "Hello"})["tokens"]


def test_a_page_of_another_site_may_not_read(tiny: Path) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with launch(LLAMACPP.plan(tiny, OPTIONS)) as server:
        request = urllib.request.Request(f"{server.url}/v1/models", headers={"Origin": "http://example.org"})
        with opener.open(request, timeout=30) as response:
            allowed = response.headers.get("Access-Control-Allow-Origin")
    assert allowed in (None, "http://localhost")


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's help")
def test_a_killed_guard_takes_the_engine_with_it(tiny: Path) -> None:
    server = launch(LLAMACPP.plan(tiny, OPTIONS))
    pids = [p.pid for p in psutil.Process(server.pid).children(recursive=True)]
    assert pids
    psutil.Process(server.pid).kill()
    assert server.wait() == -signal.SIGKILL
    assert gone(pids)
    server.stop()


def test_a_model_in_parts_with_an_odd_name(make: Make, tiny: Path) -> None:
    first = make(name="zwei drittel é.gguf", tensors_per_file=8)
    parts = sorted(first.parent.iterdir())
    assert len(parts) == 3
    whole = LLAMACPP.generate(tiny, HELLO, OPTIONS, 6, 0.0, lambda text: None).text
    for path in (parts[0], parts[1], first.parent):
        assert LLAMACPP.generate(path, HELLO, OPTIONS, 6, 0.0, lambda text: None).text == whole
    assert LLAMACPP.tokenize(parts[2], ["Hello"], True) == LLAMACPP.tokenize(tiny, ["Hello"], True)
    parts[2].unlink()
    with pytest.raises(SourceError, match="missing-shard"):
        LLAMACPP.plan(parts[0], OPTIONS)


@pytest.mark.parametrize("host", ["localhost", "0.0.0.0", "::1"])
def test_other_addresses_of_this_machine(tiny: Path, host: str) -> None:
    if host == "::1" and not Path("/proc/net/if_inet6").exists():
        pytest.skip("no IPv6 here")
    with launch(LLAMACPP.plan(tiny, LaunchOptions(host=host, port=0, threads=1))) as server:
        assert post(f"{server.url}/tokenize", {"content": "Hello"})["tokens"]
