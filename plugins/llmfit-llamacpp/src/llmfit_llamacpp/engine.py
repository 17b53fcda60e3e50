"""Which llama.cpp is used: the embedded one (`xllamacpp`), or a `llama-server` program."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata, util
from pathlib import Path
from typing import Literal

from llmfit_core.errors import LaunchError

VARIABLE = "LLMFIT_LLAMACPP"
"""`embedded`, or the path of a `llama-server`; unset: embedded where xllamacpp is installed, else PATH."""

_SECONDS = 60


@dataclass(frozen=True, kw_only=True)
class Engine:
    """A llama.cpp on this machine.

    Attributes:
        kind: `embedded` or `server`.
        path: The extension module, or the program.
        version: Its own version; of a program empty until `server_version` is asked.
    """

    kind: Literal["embedded", "server"]
    path: Path
    version: str

    @property
    def stamp(self) -> tuple[str, int, int]:
        """Path, size and time of change: another stamp is another build."""
        stat = self.path.stat()
        return (str(self.path), stat.st_size, stat.st_mtime_ns)


def find_engine() -> Engine:
    """The llama.cpp to use.

    Raises:
        LaunchError: `runtime-missing`: there is none, or the chosen one is not there.
    """
    chosen = os.environ.get(VARIABLE, "").strip()
    if chosen and chosen != "embedded":
        found = shutil.which(chosen)
        if found is None:
            raise LaunchError(
                "runtime-missing",
                f"{VARIABLE} names {chosen}, which is no program",
                f"Set {VARIABLE} to the path of llama-server, or to embedded.",
            )
        return _program(found)
    embedded = _embedded()
    if embedded is not None:
        return embedded
    found = None if chosen else shutil.which("llama-server")
    if found is None:
        raise LaunchError(
            "runtime-missing",
            "no llama.cpp here: neither the package xllamacpp nor a llama-server on PATH",
            "pip install xllamacpp, or install llama.cpp.",
        )
    return _program(found)


def server_version(engine: Engine) -> str:
    """What `llama-server --version` says, as `build (commit)`.

    Raises:
        LaunchError: `runtime-broken`: it does not start.
    """
    said = _ask(engine.stamp, "--version")
    match = re.search(r"version:\s*(.+)", said)
    return match.group(1).strip() if match else said.strip().splitlines()[0][:80] if said.strip() else "unknown"


def server_flags(engine: Engine) -> frozenset[str]:
    """The command line flags that this `llama-server` knows, from its help."""
    return frozenset(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", _ask(engine.stamp, "--help")))


def server_says(engine: Engine, flag: str) -> str:
    """What the program prints for a flag that makes it print and end."""
    return _ask(engine.stamp, flag)


@lru_cache(maxsize=16)
def _ask(stamp: tuple[str, int, int], flag: str) -> str:
    try:
        done = subprocess.run(
            [stamp[0], flag], stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, env=clean_environment()
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError("runtime-broken", f"{stamp[0]} {flag}: {error}", "Install llama.cpp again.") from None
    said = (done.stdout + b"\n" + done.stderr).decode("utf-8", "replace")
    if done.returncode:
        last = said.strip().splitlines()[-1:] or ["nothing said"]
        raise LaunchError(
            "runtime-broken",
            f"{stamp[0]} {flag} ended with code {done.returncode}: {last[0]}",
            "Install llama.cpp again.",
        )
    return said


def memory_limit(need: int) -> int:
    """Bytes of data an engine may have that is expected to need `need`.

    A chat template can build strings without end; llama.cpp runs it when it loads a model. The slack is for the
    states of earlier prompts that a server keeps, for threads' stacks, and for what an estimate misses.
    """
    return 2 * need + (4 << 30) + (os.cpu_count() or 1) * (16 << 20)


def clean_environment() -> dict[str, str]:
    """This environment without what would steer an engine behind our back.

    `LLAMA_ARG_*` are options of llama-server; the hub's variables would lend it a token and a cache. ggml's crash
    handler would start a debugger.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("LLAMA_", "HF_", "HUGGING_FACE_", "HUGGINGFACE_"))}
    kept.pop("MODEL_ENDPOINT", None)
    return {**kept, "GGML_NO_BACKTRACE": "1"}


def _embedded() -> Engine | None:
    # Finding is not importing: the extension is 100 MB.
    spec = util.find_spec("xllamacpp")
    if spec is None or not spec.submodule_search_locations:
        return None
    for folder in spec.submodule_search_locations:
        for path in sorted(Path(folder).iterdir()):
            if path.suffix in (".so", ".pyd") and path.name.startswith("xllamacpp"):
                try:
                    version = metadata.version("xllamacpp")
                except metadata.PackageNotFoundError:
                    version = "unknown"
                return Engine(kind="embedded", path=path, version=version)
    return None


def _program(found: str) -> Engine:
    return Engine(kind="server", path=Path(found).resolve(), version="")
