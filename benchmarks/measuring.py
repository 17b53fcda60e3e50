"""Run a command and measure it; run several in turn and compare. The benchmarks' common ground.

Imports little: Linux carries the peak memory of whoever forks over to the child, so this process has to stay small.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a process.

    Attributes:
        wall: Seconds from start to end.
        cpu: Seconds of all its threads, in user mode and in the kernel.
        peak: Bytes resident at the highest (VmHWM: mapped pages included), of it or of the largest of its children.
    """

    wall: float
    cpu: float
    peak: int


def llmfit(*arguments: str) -> list[str]:
    """The command line of the llmfit beside this Python."""
    return [str(Path(sys.executable).with_name("llmfit")), *arguments]


def measure(argv: Sequence[str], env: dict[str, str] | None = None) -> Run:
    """Run a command to its end, with its output thrown away.

    Raises:
        SystemExit: It failed; its last words are shown.
    """
    start = time.monotonic()
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, **(env or {})},
    )
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.monotonic() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.stderr.write(said.decode(errors="replace")[-2000:])
        raise SystemExit(f"{argv[0]} ended with {process.returncode}")
    unit = 1 if sys.platform == "darwin" else 1024
    return Run(wall=wall, cpu=usage.ru_utime + usage.ru_stime, peak=usage.ru_maxrss * unit)


def alternate(
    tasks: Mapping[str, Callable[[], Run]], rounds: int, say: Callable[[str], None] = lambda _: None
) -> dict[str, list[Run]]:
    """Run every task once a round, in turn, so that what else the machine does hits all alike."""
    runs: dict[str, list[Run]] = {name: [] for name in tasks}
    for number in range(rounds):
        for name, task in tasks.items():
            os.sync()  # nobody pays for another's unwritten pages
            runs[name].append(task())
            say(f"round {number + 1}: {name} {runs[name][-1].wall:.2f} s")
    return runs


def summary(runs: Sequence[Run]) -> dict[str, float]:
    """Least and median seconds, median CPU seconds, highest peak in MB."""
    return {
        "wall_min": round(min(r.wall for r in runs), 3),
        "wall_median": round(median(r.wall for r in runs), 3),
        "cpu_median": round(median(r.cpu for r in runs), 3),
        "peak_mb": round(max(r.peak for r in runs) / 1e6, 1),
        "runs": len(runs),
    }


def warm(folder: Path) -> None:
    """Read every file once, so that all runs find it in the page cache."""
    buffer = bytearray(1 << 22)
    for path in sorted(folder.iterdir()):
        if path.is_file():
            with open(path, "rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass


def machine() -> dict[str, object]:
    """What this machine is, without its name."""
    model = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    return {
        "cores": os.cpu_count(),
        "cpu": model,
        "system": platform.system(),
        "python": platform.python_version(),
        "load_average": round(os.getloadavg()[0], 2),
    }


def print_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table in Markdown."""
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(f"{c:.2f}" if isinstance(c, float) else str(c) for c in row) + " |")
