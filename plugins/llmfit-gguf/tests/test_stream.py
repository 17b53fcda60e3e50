"""Files filled by several workers, judged by numpy, ml_dtypes, gguf's reader and golden checksums."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gguf
import ml_dtypes
import numpy as np
import pytest

from llmfit_core.errors import LlmfitError, OutputError, PluginError, SourceError, UnsupportedError
from llmfit_core.readers.ggml_types import BY_NAME, Blocked
from llmfit_core.tensors import Given, Stored, Tensor
from llmfit_core.transform import PermuteRope, Stack, Transpose
from llmfit_gguf import stream
from llmfit_gguf.container import header_bytes, layout
from llmfit_gguf.rows import Losses
from llmfit_gguf.stream import FillReport, Job, JobResult, fill

if TYPE_CHECKING:
    from pathlib import Path

RNG = np.random.default_rng(5)
X = (RNG.standard_normal((300, 512)) * 0.02).astype(np.float32)


def _stored(folder: Path, array: Any, dtype: str, name: str = "source.bin") -> Stored:
    path = folder / name
    path.write_bytes(b"head...." + array.tobytes())
    return Stored(str(path), 8, array.shape, dtype)


def _plan(tensors: list[tuple[str, Tensor, str]]) -> tuple[bytes, list[Job], int]:
    infos, size = layout([(name, tensor.shape, kind) for name, tensor, kind in tensors])
    head = header_bytes({}, infos)
    jobs = [
        Job(
            name=name,
            tensor=tensor,
            type=kind,
            offset=len(head) + info.offset,
            nbytes=BY_NAME[kind].bytes_for(tensor.shape),
        )
        for (name, tensor, kind), info in zip(tensors, infos, strict=True)
    ]
    return head, jobs, len(head) + size


def _fill(folder: Path, tensors: list[tuple[str, Tensor, str]], **options: Any) -> tuple[FillReport, dict[str, Any]]:
    head, jobs, size = _plan(tensors)
    path = folder / "out.gguf"
    report = fill(path, head, jobs, size, **options)
    assert path.stat().st_size == size
    return report, {t.name: t.data for t in gguf.GGUFReader(path).tensors}


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "PER_WORKER", 60_000)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("workers", [1, 3])
def test_every_kind_of_source_and_target(tmp_path: Path, workers: int) -> None:
    half, brain = X.astype(np.float16), X.astype(ml_dtypes.bfloat16)
    sources: dict[str, tuple[Tensor, Any]] = {
        "f32": (_stored(tmp_path, X, "f32", "a"), X),
        "f16": (_stored(tmp_path, half, "f16", "b"), half.astype(np.float32)),
        "bf16": (_stored(tmp_path, brain, "bf16", "c"), brain.astype(np.float32)),
        "f64": (_stored(tmp_path, X.astype(np.float64), "f64", "d"), X),
    }
    tensors = [
        (f"{source}.{kind}", tensor, kind)
        for source, (tensor, _) in sources.items()
        for kind in ("f32", "f16", "bf16", "q8_0", "q4_k", "q6_k")
    ]
    tensors.append(("ids", Given(np.arange(7, dtype="<i4").tobytes(), (7,), "i32"), "i32"))
    report, got = _fill(tmp_path, tensors, workers=workers, digest=True)
    for source, (_, values) in sources.items():
        assert (got[f"{source}.f32"] == values).all()
        assert (got[f"{source}.f16"] == values.astype(np.float16)).all()
        assert (got[f"{source}.bf16"].reshape(300, -1) == values.astype(ml_dtypes.bfloat16).view(np.uint8)).all()
        want = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
        assert (got[f"{source}.q8_0"] == want).all()
        for kind, bound in (("Q4_K", 0.08), ("Q6_K", 0.03)):
            back = gguf.quants.dequantize(got[f"{source}.{kind.lower()}"], gguf.GGMLQuantizationType[kind])
            assert np.sqrt(((back - values) ** 2).mean() / (values**2).mean()) < bound
    assert got["ids"].tolist() == list(range(7))
    assert report.sha256 == hashlib.sha256((tmp_path / "out.gguf").read_bytes()).hexdigest()
    assert {r.losses for i, r in report.results.items() if tensors[i][2] != "f16"} == {Losses()}


@pytest.mark.usefixtures("small_chunks")
def test_operations_and_blocks_pass_through(tmp_path: Path) -> None:
    brain = X.astype(ml_dtypes.bfloat16)
    plain = _stored(tmp_path, brain, "bf16")
    blocks = gguf.quants.quantize(X, gguf.GGMLQuantizationType.Q4_1)
    (tmp_path / "blocks").write_bytes(blocks.tobytes())
    _, got = _fill(
        tmp_path,
        [
            ("permuted", PermuteRope(plain, 3), "bf16"),
            ("stacked", Stack((plain, plain)), "f32"),
            ("turned", Transpose(plain), "f32"),
            ("blocks", Blocked(str(tmp_path / "blocks"), 0, X.shape, "q4_1"), "q4_1"),
            ("vector", Given(X[0].tobytes(), (512,), "f32"), "f32"),
        ],
    )
    want = brain.reshape(3, 2, 50, 512).swapaxes(1, 2).reshape(300, 512)
    assert (got["permuted"].reshape(300, -1) == np.ascontiguousarray(want).view(np.uint8)).all()
    assert (got["stacked"] == brain.astype(np.float32)[None]).all()
    assert (got["turned"] == brain.astype(np.float32).T).all()
    assert (got["blocks"] == blocks).all()
    assert (got["vector"] == X[0]).all()


def test_losses_are_counted(tmp_path: Path) -> None:
    x = np.zeros((4, 256), np.float32)
    x[0, :3] = [1e6, -7e4, 65504]
    x[1, :2] = [1e-9, -1e-8]
    bad = x.copy()
    bad[3, :3] = [np.nan, np.inf, -np.inf]
    report, _ = _fill(
        tmp_path,
        [
            ("a", _stored(tmp_path, x, "f32", "a"), "f16"),
            ("b", _stored(tmp_path, bad, "f32", "b"), "f16"),
            ("c", _stored(tmp_path, bad, "f32", "c"), "f32"),
            ("d", _stored(tmp_path, bad.astype(ml_dtypes.bfloat16), "bf16", "d"), "bf16"),
            ("e", _stored(tmp_path, x.astype(ml_dtypes.bfloat16), "bf16", "e"), "f16"),
            ("f", _stored(tmp_path, (x * np.float32(1e30)), "f32", "f"), "q8_0"),
            ("g", _stored(tmp_path, x.astype(ml_dtypes.bfloat16), "bf16", "g"), "f32"),
        ],
    )
    losses = [report.results[i].losses for i in range(7)]
    assert losses[0] == Losses(overflow=2, underflow=2)
    assert losses[1] == Losses(overflow=2, underflow=2, nonfinite=3)
    assert losses[2] == losses[3] == Losses(nonfinite=3)
    assert losses[4] == Losses(overflow=3, underflow=2)  # 65504 rounds up in bfloat16
    assert losses[5].overflow == 2
    assert losses[6] == Losses()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nothing_infinite_becomes_a_block(tmp_path: Path, value: float) -> None:
    bad = X.copy()
    bad[123, 45] = value
    with pytest.raises(SourceError, match=r"blk\.7\.ffn_up.*row 123") as caught:
        _fill(tmp_path, [("blk.7.ffn_up.weight", _stored(tmp_path, bad, "f32"), "q4_k")])
    assert caught.value.code == "not-finite"


@dataclass(frozen=True)
class _Broken:
    """A tensor whose reading fails, and that counts how often it was tried."""

    shape: tuple[int, ...] = (1000, 64)
    dtype: str = "f32"
    fails: Any = ValueError

    def rows(self, start: int, stop: int) -> Any:
        raise self.fails("no such luck")

    def files(self) -> tuple[str, ...]:
        return ()


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("fails", [ValueError, MemoryError])
def test_a_failing_tensor_stops_the_rest_and_is_named(tmp_path: Path, fails: type[Exception]) -> None:
    before = threading.active_count()
    done: list[int] = []
    with pytest.raises(LlmfitError, match="the_bad_one"):
        _fill(
            tmp_path,
            [
                ("good", _stored(tmp_path, X, "f32"), "f32"),
                ("the_bad_one", _Broken(fails=fails), "f32"),
                *((f"late{i}", _stored(tmp_path, X, "f32"), "q4_k") for i in range(20)),
            ],
            workers=2,
            on_done=lambda i, _: done.append(i),
        )
    assert threading.active_count() == before
    assert 21 not in done


def test_a_failing_callback_stops_the_workers(tmp_path: Path) -> None:
    def fail(_: int, __: JobResult) -> None:
        raise KeyboardInterrupt

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        _fill(tmp_path, [(f"t{i}", _stored(tmp_path, X, "f32"), "q4_k") for i in range(9)], on_done=fail)
    assert threading.active_count() == before


def test_a_run_resumes_from_finished_jobs(tmp_path: Path) -> None:
    tensors: list[tuple[str, Tensor, str]] = [
        (f"t{i}", _stored(tmp_path, X * np.float32(i + 1), "f32", f"s{i}"), "q6_k") for i in range(5)
    ]
    whole, _ = _fill(tmp_path, tensors, digest=True)
    want = (tmp_path / "out.gguf").read_bytes()
    (tmp_path / "out.gguf").unlink()
    head, jobs, size = _plan(tensors)

    class Stop(Exception):
        pass

    seen: list[int] = []

    def interrupt(index: int, result: JobResult) -> None:
        seen.append(index)
        assert result.type == "q6_k"
        if len(seen) == 2:
            raise Stop

    with pytest.raises(Stop):
        fill(tmp_path / "out.gguf", head, jobs, size, workers=1, on_done=interrupt)
    for index in seen:  # a finished source is not read again
        jobs[index] = Job(
            name="x", tensor=_Broken(shape=X.shape), type="q6_k", offset=jobs[index].offset, nbytes=jobs[index].nbytes
        )
    steps: list[tuple[int, int]] = []
    report = fill(
        tmp_path / "out.gguf",
        head,
        jobs,
        size,
        done=seen,
        digest=True,
        on_progress=lambda n, total: steps.append((n, total)),
    )
    assert (tmp_path / "out.gguf").read_bytes() == want
    assert report.sha256 == whole.sha256
    assert sorted(report.results) == [i for i in range(5) if i not in seen]
    assert steps[-1][0] == steps[-1][1] == 3 * jobs[0].nbytes
    assert fill(tmp_path / "out.gguf", head, jobs, size, done=range(5), digest=True).sha256 == whole.sha256


def test_nothing_of_an_older_file_shines_through(tmp_path: Path) -> None:
    tensors: list[tuple[str, Tensor, str]] = [
        (f"t{i}", Given(X[0, :5].tobytes(), (5,), "f32"), "f32") for i in range(3)
    ]
    head, jobs, size = _plan(tensors)
    fresh, stale = tmp_path / "fresh", tmp_path / "stale"
    fill(fresh, head, jobs, size)
    for done in ((), (1,)):
        stale.write_bytes(b"\xff" * (size + 100))
        with stale.open("r+b") as file:
            file.seek(jobs[1].offset)
            file.write(X[0, :5].tobytes())
        fill(stale, head, jobs, size, done=done)
        assert stale.read_bytes() == fresh.read_bytes()


@pytest.mark.parametrize("here", [True, False])
def test_early_writeback_changes_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: bool) -> None:
    told: list[tuple[int, int]] = []
    real = stream.start_writeback

    def note(fd: int, offset: int, length: int) -> None:
        told.append((offset, length))
        real(fd, offset, length)

    monkeypatch.setattr(stream, "start_writeback", note)
    monkeypatch.setattr(stream, "_FLUSH_STEP", 20_000)
    monkeypatch.setattr(stream, "_HASH_STEP", 7_000)
    monkeypatch.setattr(stream, "_WRITE_STEP", 5_000)
    if not here:
        monkeypatch.setattr(stream, "_sync_file_range", lambda: None)
    report, found = _fill(tmp_path, [("a", _stored(tmp_path, X, "f32"), "f32")], digest=True, workers=2)
    assert report.sha256 == hashlib.sha256((tmp_path / "out.gguf").read_bytes()).hexdigest()
    assert np.array_equal(found["a"].reshape(X.shape), X)
    assert len(told) > 20
    ends = np.cumsum([length for _, length in told])
    assert [offset for offset, _ in told] == [0, *ends[:-1]]  # no gap, no overlap


@pytest.mark.parametrize("call", ["posix_fallocate", "pwrite"])
def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, full)
    with pytest.raises(OutputError) as caught:
        _fill(tmp_path, [("t", _stored(tmp_path, X, "f32"), "f32")])
    assert caught.value.code == "disk-full"
    assert "out.gguf" in caught.value.cause
    assert "614496 bytes" in caught.value.cause


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"t: .*needs-decoding"):
        _fill(tmp_path, [("t", Given(bytes(64), (16,), "i32"), "f32")])
    head, jobs, size = _plan([("t", _stored(tmp_path, X, "f32"), "f32")])
    wrong = Job(name="t", tensor=jobs[0].tensor, type="f32", offset=jobs[0].offset, nbytes=5)
    with pytest.raises(PluginError, match="layout"):
        fill(tmp_path / "x", head, [wrong], size)
    with pytest.raises(OutputError, match="write-failed"):
        fill(tmp_path / "no" / "x", head, jobs, size)


MEMORY = """
import sys
from pathlib import Path
from llmfit_core.tensors import Stored
from llmfit_gguf.stream import Job, fill
source, rows, width = Path(sys.argv[1]), 1 << 17, 1024
with source.open("wb") as file:
    file.truncate(rows * width * 4)
tensor = Stored(str(source), 0, (rows, width), "f32")
fill(Path(sys.argv[2]), b"", [Job(name="t", tensor=tensor, type=t, offset=o, nbytes=n) for t, o, n in (
    ("q8_0", 0, rows * width // 32 * 34), ("bf16", 1 << 28, rows * width * 2))], 3 << 28, workers=4)
print([line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")][0])
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_half_gigabyte_tensor_takes_little_memory(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path / "s"), str(tmp_path / "o")],
        capture_output=True,
        text=True,
        check=True,
        timeout=50,
    )
    assert int(run.stdout) < 250_000  # KiB
