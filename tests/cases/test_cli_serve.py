"""`llmfit serve` as a process: it answers, ends when it is asked to, and tells when its engine dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.cases.source import command
from tests.tiny import tiny


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serve")
    path = folder / "m.gguf"
    said = command("convert", tiny("llama", folder / "m"), "--to", "gguf:f16", "-o", path, "--no-verify")
    assert said.code == 0, said.err
    return path


@contextmanager
def serving(path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command, once it serves, and where."""
    command_line = [sys.executable, "-m", "llmfit_core", "serve", str(path), "--port", "0", "--json"]
    with subprocess.Popen(command_line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, process.communicate()[1]
            yield process, json.loads(line)["launch"]["url"]
        finally:
            process.kill()


@pytest.mark.skipif(os.name == "nt", reason="Windows sends no SIGINT to one process")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_answers_and_an_interrupt_is_the_way_it_ends(artifact: Path, number: int) -> None:
    with serving(artifact) as (process, url):
        with urllib.request.urlopen(f"{url}/v1/models", timeout=20) as answer:
            assert json.load(answer)["data"]
        engines = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert (out, "Traceback" in err) == ("", False)
    assert psutil.wait_procs(engines, timeout=10)[1] == []


def test_an_engine_that_dies_is_an_error(artifact: Path) -> None:
    with serving(artifact) as (process, _):
        for engine in psutil.Process(process.pid).children(recursive=True)[1:]:
            engine.kill()
        _, err = process.communicate(timeout=30)
    assert process.returncode == 7, err
    assert "[runtime-died]" in err
    assert "Traceback" not in err
