"""A small process that stands between us and an engine, so that no engine is ever left behind.

Run as a script: `guard.py COMMAND ...` starts the command and ends it when told to (SIGTERM, SIGINT) or
when its own standard input closes, which happens however the process that holds the other end dies,
SIGKILL included. An engine cannot watch for that itself: it holds the interpreter lock while it loads a model.

Imports nothing of ours and nothing slow: it runs under `python -I -S`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import Any

GRACE = 4.0
"""Seconds between asking and killing."""


def _die_with_parent() -> None:
    """On Linux, have the kernel end the command should this guard be killed itself."""
    import ctypes

    # PR_SET_PDEATHSIG = 1, in linux/prctl.h. It follows the thread that forked: here the main one, which lasts.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def main(argv: list[str]) -> int:
    """Run `argv` until it ends or has to; its exit code, or 128 plus the number of the signal that ended it."""
    kwargs: dict[str, Any] = {"stdin": subprocess.DEVNULL}
    if os.name == "posix":
        kwargs["start_new_session"] = True
    if sys.platform == "linux":
        kwargs["preexec_fn"] = _die_with_parent
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    try:
        process = subprocess.Popen(argv, **kwargs)
    except OSError as error:
        print(f"{argv[0]}: {error.strerror}", file=sys.stderr, flush=True)
        return 127

    def watch() -> None:
        # os.read and not sys.stdin: a daemon thread inside a buffered reader aborts the interpreter's exit.
        while os.read(0, 4096):
            pass
        stopping.set()

    def wait() -> None:
        process.wait()
        ended.set()
        stopping.set()

    ended = threading.Event()
    threading.Thread(target=watch, daemon=True).start()
    threading.Thread(target=wait, daemon=True).start()
    while not stopping.wait(3600):
        pass
    if not ended.is_set():
        process.terminate()
        ended.wait(GRACE)
    if os.name == "posix":
        # The command's own children share its session: none of them stays either.
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
    elif not ended.is_set():
        process.kill()
    ended.wait(GRACE)
    code = process.returncode
    if code is None:
        return 1
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
