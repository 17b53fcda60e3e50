"""Is llama.cpp here, and what can it compute on?"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import lru_cache
from typing import Any

from llmfit_core.errors import LaunchError
from llmfit_core.runtime import Device, Probe
from llmfit_llamacpp.engine import Engine, clean_environment, find_engine, server_says, server_version
from llmfit_llamacpp.memory import main_memory, total_memory

_KINDS = (
    ("cuda", "cuda"),
    ("rocm", "rocm"),
    ("hip", "rocm"),
    ("vulkan", "vulkan"),
    ("metal", "metal"),
    ("mtl", "metal"),
    ("cpu", "cpu"),
)
_LISTED = re.compile(r"^\s+(\w+): (.*) \((\d+) MiB, (\d+) MiB free\)\s*$", re.M)


def probe() -> Probe:
    """Version, back-ends and devices; never raises: what is wrong is the `reason`."""
    try:
        engine = find_engine()
        found = devices(engine)
        version = engine.version or server_version(engine)
    except LaunchError as error:
        return Probe(available=False, reason=f"{error.cause}. {error.remedy}")
    kinds = tuple(dict.fromkeys(["cpu", *(d.kind for d in found)]))
    return Probe(available=True, version=version, backends=kinds, devices=found)


def devices(engine: Engine) -> tuple[Device, ...]:
    """What `engine` can compute on.

    Raises:
        LaunchError: `runtime-broken`: it does not start.
    """
    return _devices(engine.stamp, engine.kind)


@lru_cache(maxsize=4)
def _devices(stamp: tuple[str, int, int], kind: str) -> tuple[Device, ...]:
    if kind == "embedded":
        return tuple(_embedded(d) for d in run_worker("devices")["devices"])
    engine = find_engine()
    listed = _LISTED.findall(server_says(engine, "--list-devices"))
    others = tuple(
        Device(name=n, kind=kind_of(n), memory_bytes=int(total) << 20, free_bytes=int(free) << 20)
        for n, _, total, free in listed  # in MiB
    )
    return (Device(name="CPU", kind="cpu", memory_bytes=total_memory(), free_bytes=main_memory()), *others)


def _embedded(device: dict[str, Any]) -> Device:
    kind = kind_of(device["name"])
    # Accelerators that share the main memory would be counted twice.
    shared = not device["type"].endswith("_GPU") and kind != "cpu"
    return Device(
        name=device["name"],
        kind=kind,
        memory_bytes=0 if shared else device["total"],
        free_bytes=0 if shared else device["free"],
    )


def kind_of(name: str) -> str:
    """The kind of a device by llama.cpp's name for it (`CUDA0`, `Vulkan1`, `MTL0`)."""
    return next((kind for start, kind in _KINDS if name.lower().startswith(start)), "other")


def run_worker(command: str, payload: str = "", timeout: float = 120.0) -> Any:
    """What a worker that ends by itself prints as JSON.

    Raises:
        LaunchError: `runtime-broken`, with its last line.
    """
    done = _run(command, payload, timeout)
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise LaunchError("runtime-broken", f"xllamacpp does not work here: {said[0]}", "Install xllamacpp again.")
    return json.loads(done.stdout)


def _run(command: str, payload: str, timeout: float) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            [sys.executable, "-P", "-m", "llmfit_llamacpp.worker", command],
            input=payload.encode(),
            capture_output=True,
            timeout=timeout,
            env=clean_environment(),
        )
    except subprocess.TimeoutExpired:
        raise LaunchError(
            "runtime-broken", f"xllamacpp gave no answer to {command!r} in {timeout:.0f} s", "Install xllamacpp again."
        ) from None


def try_files(paths: list[str], timeout: float = 120.0) -> tuple[int, str]:
    """Have a worker load `paths` one after the other; its exit code and all that llama.cpp said."""
    done = _run("try", json.dumps(paths), timeout)
    return done.returncode, done.stderr.decode("utf-8", "replace")
