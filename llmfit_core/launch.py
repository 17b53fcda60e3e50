"""Start what a `LaunchPlan` says, wait until it answers, and leave nothing behind.

The engine runs under `guard.py`: it ends when we end, however we end. What it prints is kept, the last few
hundred lines of it, so that an engine that dies is reported with its last words.
"""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from llmfit_core import guard
from llmfit_core.errors import LaunchError, LlmfitError

if TYPE_CHECKING:
    from llmfit_core.runtime import LaunchPlan

_LINES, _LINE_BYTES = 400, 2000
_TELLING = re.compile(
    r"error|fail|assert|exception|fatal|panic|terminate called|cannot|could ?n.t|unable|no such|denied|not found", re.I
)
_STAMP = re.compile(r"^[\d.]+ [DIWE] ")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")

Explain = Callable[[tuple[str, ...]], LlmfitError | None]
"""From the last lines an engine printed to the error they mean, or `None` where they say nothing known."""


class Server:
    """An engine that answers. Ends with the `with` block, with `stop()`, or with this process.

    Attributes:
        plan: What was started.
    """

    def __init__(self, plan: LaunchPlan, process: subprocess.Popen[bytes]) -> None:
        """Take over a started guard; `launch` is the way to make one."""
        self.plan = plan
        self._process = process
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def url(self) -> str:
        """Base URL of the API."""
        return self.plan.url

    @property
    def pid(self) -> int:
        """Process id of the guard."""
        return self._process.pid

    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def wait(self) -> int:
        """Block until it ends and return its exit code; on an interrupt, stop it and pass the interrupt on."""
        try:
            while True:
                try:
                    # With a limit, so that Windows too lets an interrupt through.
                    return self._process.wait(timeout=1)
                except subprocess.TimeoutExpired:
                    continue
        except BaseException:
            self.stop()
            raise

    def stop(self, grace: float = guard.GRACE + 2) -> None:
        """End it: ask, and after `grace` seconds kill. Doing it twice is harmless."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except OSError:
            pass
        try:
            self._process.wait(timeout=grace)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(timeout=1)
        if not self._reader.is_alive() and self._process.stdout is not None:
            self._process.stdout.close()

    def tail(self, lines: int = 20) -> tuple[str, ...]:
        """The last lines it printed, oldest first."""
        return tuple(self._lines)[-lines:]

    def died(self, doing: str, explain: Explain | None = None) -> LlmfitError:
        """The error for an engine that ended when it should not have.

        Args:
            doing: What it was at (`loading the model`).
            explain: Asked first.
        """
        code = self._process.wait()
        self._reader.join(timeout=2)
        words = self.tail(_LINES)
        return (explain(words) if explain else None) or _died(self.plan, doing, code, words)

    def __enter__(self) -> Server:
        """Itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop it."""
        self.stop()

    def _read(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        try:
            while line := stream.readline(_LINE_BYTES):
                self._lines.append(_ANSI.sub("", line.decode("utf-8", "replace")).rstrip())
        except ValueError:
            return  # closed by stop() while a stray child held the other end
        finally:
            stream.close()  # here too: stop() does not wait long for the last of its lines


def launch(
    plan: LaunchPlan,
    *,
    timeout: float = 600.0,
    on_progress: Callable[[float, str], None] | None = None,
    explain: Explain | None = None,
) -> Server:
    """Start the plan's command and return once `plan.url + plan.ready` answers 200.

    Args:
        plan: From a runtime's `plan`.
        timeout: Seconds until the engine has to be ready.
        on_progress: Called a few times a second with the seconds passed and the engine's last line.
        explain: Turns the last lines of an engine that died into a better error.

    Returns:
        The running server; close it with `stop()` or a `with` block.

    Raises:
        LaunchError: `port-taken`, `runtime-missing` (no such command), `runtime-died` with its last words,
            `runtime-slow` (not ready in time). Or what `explain` returned.
    """
    parts = urlsplit(plan.url)
    host, port = parts.hostname or "127.0.0.1", parts.port or 80
    require_free_port(host, port)
    server = Server(plan, _start(plan))
    started = time.monotonic()
    try:
        while not _answers(host, port, parts.path + plan.ready):
            passed = time.monotonic() - started
            if not server.alive():
                raise server.died("starting", explain)
            if passed > timeout:
                last = next(iter(server.tail(1)), "nothing said")
                raise LaunchError(
                    "runtime-slow",
                    f"{plan.runtime} is not ready after {timeout:.0f} s; its last line: {last[:200]}",
                    "Try again, or start a smaller model; a slow disk takes long the first time.",
                )
            if on_progress:
                on_progress(passed, next(iter(server.tail(1)), ""))
            time.sleep(0.02 if passed < 2 else 0.2)
        # Another program may answer at our port: ours must be alive, having bound it.
        if not server.alive():
            raise server.died("starting", explain)
    except BaseException:
        server.stop()
        raise
    return server


def require_free_port(host: str, port: int) -> None:
    """Raise `LaunchError("port-taken")` where `port` of `host` cannot be listened on."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise LaunchError(
            "bad-host", f"{host!r} is no address of this machine: {error.strerror}", "Use 127.0.0.1 or 0.0.0.0."
        ) from None
    with socket.socket(family, kind, proto) as probe:
        if os.name == "posix":
            # Else a connection that has just ended would keep the port for a minute.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
            probe.listen(1)
        except PermissionError:
            raise LaunchError(
                "port-denied", f"port {port} on {host} needs more rights", "Choose a port above 1024."
            ) from None
        except OSError as error:
            if error.errno == 99 or "assign" in str(error):
                raise LaunchError(
                    "bad-host", f"{host} is no address of this machine", "Use 127.0.0.1 or 0.0.0.0."
                ) from None
            raise LaunchError(
                "port-taken",
                f"port {port} on {host} is in use by another program",
                "Choose another with --port, or --port 0 for a free one.",
            ) from None


def free_port(host: str = "127.0.0.1") -> int:
    """A port of `host` that nobody listens on now."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, proto) as probe:
            probe.bind(address)
            return int(probe.getsockname()[1])
    except OSError as error:
        raise LaunchError(
            "bad-host", f"{host!r} is no address of this machine: {error.strerror}", "Use 127.0.0.1 or 0.0.0.0."
        ) from None


def _start(plan: LaunchPlan) -> subprocess.Popen[bytes]:
    kwargs: dict[str, Any] = {}
    if os.name == "posix":
        # Ctrl-C reaches us alone: we end the engine, in order.
        kwargs["start_new_session"] = True
    else:
        kwargs["creationflags"] = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
    if plan.cwd is not None and not plan.cwd.is_dir():
        raise LaunchError("bad-folder", f"{plan.cwd} is no folder to start in", "Name a folder that exists.")
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(Path(guard.__file__)), *plan.argv],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **plan.env},
        cwd=plan.cwd,
        **kwargs,
    )


def _answers(host: str, port: int, path: str) -> bool:
    """Whether a GET of `path` gives 200 now; no proxy is asked, whatever the environment says."""
    connection = http.client.HTTPConnection(_reachable(host), port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _reachable(host: str) -> str:
    """Where to reach what listens on `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def _died(plan: LaunchPlan, doing: str, code: int, lines: tuple[str, ...]) -> LlmfitError:
    name = plan.runtime
    if code == 127 and lines and lines[-1].startswith(f"{plan.argv[0]}:"):
        return LaunchError("runtime-missing", f"cannot start {lines[-1]}", f"Install {name} again or mend its path.")
    if code < 0:
        code = 128 - code  # the guard itself was killed
    how = f"exit code {code}"
    if code > 128:
        try:
            how = signal.Signals(code - 128).name
        except ValueError:
            pass
    words = last_words(lines) or "it said nothing"
    remedy = "If the file is whole, report this with the model's name; a newer version may load it."
    if how == "SIGKILL":
        remedy = "Often the system ends what takes too much memory: choose a smaller scheme or context."
    return LaunchError("runtime-died", f"{name} ended ({how}) while {doing}: {words}", remedy)


def last_words(lines: tuple[str, ...], limit: int = 400) -> str:
    """The telling line among the last ones an engine printed: the first complaint of the last burst of them."""
    recent = [_STAMP.sub("", line).strip() for line in lines[-40:]]
    recent = [line for line in recent if line]
    telling = [line for line in recent if _TELLING.search(line) and not line.startswith(("Traceback", "File "))]
    # Engines tell the cause first and then, level by level, that they failed; a traceback tells it last.
    if any(line.startswith("Traceback") for line in recent):
        telling = recent[-1:]
    return next(iter(telling or recent[-1:]), "")[:limit]
