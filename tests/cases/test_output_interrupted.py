"""Case 34: disk full, killed or interrupted half-way: nothing at the final name; a rerun resumes or restarts cleanly."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from llmfit_core.errors import OutputError, SourceError, VerificationError
from llmfit_core.pipeline import convert
from llmfit_core.plan import Recipe
from tests.tiny import tiny

if TYPE_CHECKING:
    from collections.abc import Callable

    from llmfit_core.export import Filled, FillOptions
    from llmfit_core.plan import OutputFile
    from llmfit_core.plugins import PluginRegistry

Q8 = Recipe(exporter="gguf", scheme="q8_0")
# A conversion whose reads are slow and noted down, and whose journal is written at once.
SLOW = """
import sys, time
import llmfit_core.journal, llmfit_core.tensors as tensors
llmfit_core.journal.SYNC_SECONDS = 0
read = tensors.Stored.rows
def rows(self, start, stop):
    with open(sys.argv[1], "a") as log:
        log.write(f"{self.path} {self.offset} {start}\\n")
    time.sleep(float(sys.argv[2]))
    return read(self, start, stop)
tensors.Stored.rows = rows
from llmfit_core.cli.guarded import run
sys.exit(run(sys.argv[3:]))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny("llama", tmp_path_factory.mktemp("model"), layers=8)


def command(model: Path, out: Path, log: Path, *options: str, to: str = "gguf:q8_0", delay: float = 0.02) -> list[str]:
    return [
        sys.executable, "-c", SLOW, str(log), str(delay), "convert", str(model), "--to", to, "-o", str(out),
        "--no-verify", "--workers", "2", *options,
    ]  # fmt: skip


def sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def reads(log: Path) -> set[str]:
    return set(log.read_text().splitlines()) if log.exists() else set()


def whole(model: Path, registry: PluginRegistry, folder: Path, recipe: Recipe = Q8) -> Path:
    artifact, _ = convert(model, recipe, folder / "whole.gguf", registry, verify=False)
    return artifact.paths[0]


def stop_at(process: subprocess.Popen[bytes], journal: Path, lines: int, number: int) -> int:
    """Send a signal once the journal has so many lines; the exit code."""
    until = time.monotonic() + 30
    while time.monotonic() < until and process.poll() is None:
        if journal.exists() and len(journal.read_text().splitlines()) >= lines:
            process.send_signal(number)
            break
        time.sleep(0.002)
    return process.wait(30)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("lines", [1, 9, 40])
def test_a_stopped_conversion_leaves_nothing_and_is_resumed(
    model: Path, registry: PluginRegistry, tmp_path: Path, number: int, lines: int
) -> None:
    out, log = tmp_path / "o" / "m.gguf", tmp_path / "log"
    process = subprocess.Popen(command(model, out, log), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    code = stop_at(process, tmp_path / "o" / "m.gguf.partial" / "llmfit.journal", lines, number)
    said = process.communicate()[1].decode()
    assert code == (-9 if number == signal.SIGKILL else 130), said
    assert "Traceback" not in said
    assert not out.exists()
    assert not (tmp_path / "o" / "llmfit.json").exists()
    noted = [x for x in (tmp_path / "o/m.gguf.partial/llmfit.journal").read_text().splitlines() if x.endswith(" .")]
    first = len(reads(log))
    log.unlink(missing_ok=True)
    assert subprocess.run(command(model, out, log, delay=0), check=False, capture_output=True).returncode == 0
    assert sha(out) == sha(whole(model, registry, tmp_path))
    assert len(reads(log)) == 75 - len(noted)  # 8 layers of 9 tensors, embedding, head, norm: not one is read again
    assert first >= len(noted) >= lines - 2
    assert sorted(p.name for p in out.parent.iterdir()) == ["llmfit.json", "m.gguf"]


def test_random_kills_until_it_is_done(model: Path, registry: PluginRegistry, tmp_path: Path) -> None:
    out, log = tmp_path / "m.gguf", tmp_path / "log"
    for at in (0.25, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0, 1.3):
        process = subprocess.Popen(command(model, out, log), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(at)
        process.kill()
        process.wait()
        if out.exists():
            break
    if not out.exists():
        subprocess.run(command(model, out, log, delay=0), check=True, capture_output=True)
    assert sha(out) == sha(whole(model, registry, tmp_path))


def test_a_stopped_folder_is_resumed(model: Path, registry: PluginRegistry, tmp_path: Path) -> None:
    out, log = tmp_path / "hf", tmp_path / "log"
    options = ("--split-max-size", "40K")
    process = subprocess.Popen(command(model, out, log, *options, to="hf:f32"), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    stop_at(process, tmp_path / "hf.partial" / "llmfit.journal", 60, signal.SIGKILL)
    process.communicate()
    assert not out.exists()
    assert subprocess.run(command(model, out, log, *options, to="hf:f32", delay=0), check=False).returncode == 0
    recipe = Recipe(exporter="hf", scheme="f32", split_max_bytes=40_000)
    convert(model, recipe, tmp_path / "other", registry, verify=False)
    names = sorted(p.name for p in out.iterdir())
    assert names == sorted(p.name for p in (tmp_path / "other").iterdir())
    for name in names:
        assert (out / name).read_bytes() == (tmp_path / "other" / name).read_bytes(), name
    assert not (tmp_path / "hf.partial").exists()


class Killed(BaseException):
    """As a kill would: no handler of the pipeline catches it."""


def interrupted(
    model: Path, recipe: Recipe, out: Path, registry: PluginRegistry, after: int, error: BaseException, **options: bool
) -> None:
    """A conversion that ends with `error` when so many tensors have been written."""
    import llmfit_core.journal as journals

    add = journals.Journal.add
    count = 0

    def adding(self: journals.Journal, *args: object) -> None:
        nonlocal count
        add(self, *args)  # type: ignore[arg-type]
        self.flush()
        count += 1
        if count == after:
            raise error

    journals.Journal.add = adding  # type: ignore[method-assign, assignment]
    try:
        with pytest.raises(type(error)):
            convert(model, recipe, out, registry, verify=False, **options)  # type: ignore[arg-type]
    finally:
        journals.Journal.add = add  # type: ignore[method-assign]


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(exporter="gguf", scheme="q8_0", name="Other"),
        Recipe(exporter="gguf", scheme="q4_0"),
        Recipe(exporter="gguf", scheme="bf16"),
        Recipe(exporter="gguf", scheme="q8_0", context_length=64),
    ],
)
def test_other_options_restart(model: Path, registry: PluginRegistry, tmp_path: Path, recipe: Recipe) -> None:
    out = tmp_path / "m.gguf"
    interrupted(model, Q8, out, registry, 20, Killed())
    convert(model, recipe, out, registry, verify=False)
    assert sha(out) == sha(whole(model, registry, tmp_path, recipe))


def test_another_source_restarts(model: Path, registry: PluginRegistry, tmp_path: Path) -> None:
    out = tmp_path / "m.gguf"
    interrupted(model, Q8, out, registry, 20, Killed())
    other = tiny("llama", tmp_path / "other", layers=8, seed=1)
    convert(other, Q8, out, registry, verify=False)
    assert sha(out) == sha(whole(other, registry, tmp_path))


def test_a_source_written_anew_restarts(registry: PluginRegistry, tmp_path: Path) -> None:
    source = tiny("llama", tmp_path / "model")
    out = tmp_path / "m.gguf"
    interrupted(source, Q8, out, registry, 10, Killed())
    tiny("llama", source, seed=7)
    convert(source, Q8, out, registry, verify=False)
    assert sha(out) == sha(whole(source, registry, tmp_path))


def test_from_one_file_to_parts_and_back(model: Path, registry: PluginRegistry, tmp_path: Path) -> None:
    out = tmp_path / "m.gguf"
    parts = Recipe(exporter="gguf", scheme="q8_0", split_max_bytes=100_000)
    interrupted(model, parts, out, registry, 20, Killed())
    convert(model, Q8, out, registry, verify=False)
    assert sha(out) == sha(whole(model, registry, tmp_path))
    assert [p.name for p in tmp_path.glob("m*")] == ["m.gguf"]


@pytest.mark.parametrize("cut", [0, 1, 1000])
def test_a_stage_that_lost_its_bytes_is_written_anew(
    model: Path, registry: PluginRegistry, tmp_path: Path, cut: int
) -> None:
    """As after a power cut, or after a kill between renaming the file and removing the journal."""
    out = tmp_path / "m.gguf"
    interrupted(model, Q8, out, registry, 75, Killed())
    staged = tmp_path / "m.gguf.partial" / "m.gguf"
    if cut:
        os.truncate(staged, cut)
    else:
        os.replace(staged, out)
    convert(model, Q8, out, registry, verify=False, overwrite=True)
    assert sha(out) == sha(whole(model, registry, tmp_path))


def test_a_kill_while_parts_are_published_is_mended(
    model: Path, registry: PluginRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "m.gguf"
    parts = Recipe(exporter="gguf", scheme="q8_0", split_max_bytes=100_000)
    replace = os.replace
    moved: list[Path] = []

    def replacing(source: Path, target: Path) -> None:
        if len(moved) == 2:
            raise Killed
        moved.append(target)
        replace(source, target)

    monkeypatch.setattr(os, "replace", replacing)
    with pytest.raises(Killed):
        convert(model, parts, out, registry, verify=False)
    monkeypatch.undo()
    assert not list(tmp_path.glob("m-00001-of-*.gguf"))  # the part that is opened first comes last
    with pytest.raises(OutputError, match="already there"):
        convert(model, parts, out, registry, verify=False)
    artifact, _ = convert(model, parts, out, registry, verify=False, overwrite=True)
    other, _ = convert(model, parts, tmp_path / "other" / "m.gguf", registry, verify=False)
    assert [sha(p) for p in artifact.paths] == [sha(p) for p in other.paths]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("to", ["gguf", "hf"])
def test_a_disk_that_fills_up(
    model: Path, registry: PluginRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, to: str
) -> None:
    out = tmp_path / "m.gguf" if to == "gguf" else tmp_path / "m"
    pwrite, count = os.pwrite, 0

    def writing(fd: int, data: bytes, offset: int) -> int:
        nonlocal count
        count += 1
        if count > 30:
            raise OSError(code, os.strerror(code))
        return pwrite(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", writing)
    recipe = Recipe(exporter=to, scheme="")
    with pytest.raises(OutputError) as caught:
        convert(model, recipe, out, registry, verify=False)
    assert caught.value.code == ("write-failed" if code == errno.EIO else "disk-full")
    assert not out.exists()
    monkeypatch.undo()
    convert(model, recipe, out, registry, verify=False)
    assert out.exists()


def test_a_limit_on_file_size(model: Path, tmp_path: Path) -> None:
    """As a quota does: SIGXFSZ or EFBIG."""
    out, log = tmp_path / "m.gguf", tmp_path / "log"

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

    done = subprocess.run(
        command(model, out, log, delay=0), check=False, capture_output=True, text=True, preexec_fn=limit
    )
    assert done.returncode == OutputError.exit_code, done.stderr
    assert "[disk-full]" in done.stderr
    assert "Traceback" not in done.stderr
    assert not out.exists()


def test_too_little_room_is_known_before_the_work(
    model: Path, registry: PluginRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1000))
    with pytest.raises(OutputError) as caught:
        convert(model, Q8, tmp_path / "m.gguf", registry, verify=False)
    assert caught.value.code == "disk-full"
    assert "has 1.0 kB free, the artifact needs " in caught.value.cause
    assert "0.00 GB" not in caught.value.cause
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("harm", ["vanish", "shrink", "touch"])
def test_a_source_that_changes_under_the_work(registry: PluginRegistry, tmp_path: Path, harm: str) -> None:
    source = tiny("llama", tmp_path / "model", layers=6)
    file = source / "model.safetensors"
    out = tmp_path / "m.gguf"

    def progress(done: int, _: int) -> None:
        if harm == "vanish":
            file.unlink(missing_ok=True)
        elif harm == "shrink":
            os.truncate(file, 3000)
        else:
            os.utime(file, ns=(1, 1))

    with pytest.raises(SourceError) as caught:
        convert(source, Q8, out, registry, verify=False, workers=1, progress=progress)
    assert str(file) in caught.value.cause or str(source) in caught.value.cause
    assert list(tmp_path.glob("m.gguf*")) == []


def test_two_at_once(model: Path, registry: PluginRegistry, tmp_path: Path) -> None:
    out, log = tmp_path / "m.gguf", tmp_path / "log"
    first = subprocess.Popen(command(model, out, log), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    journal = tmp_path / "m.gguf.partial" / "llmfit.journal"
    until = time.monotonic() + 20
    while not (journal.exists() and journal.stat().st_size) and time.monotonic() < until:
        time.sleep(0.005)
    with pytest.raises(OutputError) as caught:
        convert(model, Recipe(exporter="gguf", scheme="q4_0"), out, registry, verify=False)
    assert caught.value.code == "output-busy"
    assert first.wait(30) == 0, first.communicate()
    first.communicate()
    assert sha(out) == sha(whole(model, registry, tmp_path))


def test_the_stage_is_locked_until_it_is_published(
    model: Path, registry: PluginRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second process must not write into what the first one is about to rename."""
    import llmfit_core.pipeline as pipeline

    publish: Callable[..., None] = pipeline.publish  # type: ignore[attr-defined]
    codes = []

    def publishing(*args: object) -> None:
        done = subprocess.run(
            command(model, tmp_path / "m.gguf", tmp_path / "log", "--json", to="gguf:q4_0", delay=0),
            check=False, capture_output=True,
        )  # fmt: skip
        codes.append(json.loads(done.stdout)["error"]["code"])
        publish(*args)

    monkeypatch.setattr(pipeline, "publish", publishing)
    artifact, _ = convert(model, Q8, tmp_path / "m.gguf", registry, verify=False)
    assert codes == ["output-busy"]
    assert sha(artifact.paths[0]) == artifact.manifest["files"]["m.gguf"]["sha256"]  # type: ignore[index]


@pytest.mark.parametrize("at", [0, 8, 24, 100, 5000])
def test_a_failed_check_leaves_nothing(
    model: Path, registry: PluginRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """The disk gives back another header than was written."""
    import llmfit_gguf.filling as filling

    fill = filling.fill_file

    def filling_badly(file: OutputFile, path: Path, options: FillOptions) -> Filled:
        done = fill(file, path, options)
        with open(path, "r+b") as handle:
            handle.seek(at)
            handle.write(b"\xff" * 4)
        return done

    monkeypatch.setattr(filling, "fill_file", filling_badly)
    with pytest.raises(VerificationError) as caught:
        convert(model, Q8, tmp_path / "o" / "m.gguf", registry)
    assert caught.value.code == "not-as-planned"
    assert list((tmp_path / "o").iterdir()) == []
