"""Running a command so that no traceback reaches a user, unless `--debug` asks for it."""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

from llmfit_core.cli.results import abandon_stdout, only_json, prepare_streams, print_json
from llmfit_core.errors import LlmfitError, OutputError, PluginError

if TYPE_CHECKING:
    import typer

USAGE = 2
INTERNAL = 70
INTERRUPTED = 130
BROKEN_PIPE = 141
_STDOUT = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})


def run(arguments: list[str]) -> int:
    """Run the command line, and return its exit code.

    0 success; 1 other errors; 2 wrong usage; 3 bad input; 4 refused because it could not be right; 5 plugins; 6 output;
    7 runtime; 8 `--strict`; 9 verification; 70 a fault of llmfit itself; 130 interrupted; 141 nobody reads the output.
    """
    debug = "--debug" in arguments or os.environ.get("LLMFIT_DEBUG", "") not in ("", "0")
    arguments = [a for a in arguments if a != "--debug"]
    prepare_streams()
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with only_json("--json" in arguments):
            code = _guarded(arguments, debug)
        return _flushed(code)
    except BrokenPipeError:  # nobody reads the errors either
        return _flushed(BROKEN_PIPE)
    except OutputError as error:  # of the result itself
        _tell(error, False)
        return error.exit_code


def _guarded(arguments: list[str], debug: bool) -> int:
    as_json = "--json" in arguments
    try:
        from llmfit_core.cli.app import build

        return _invoke(build(arguments), arguments, as_json)
    except LlmfitError as error:
        if debug:
            raise
        _tell(error, as_json)
        return error.exit_code
    except KeyboardInterrupt:
        _tell(LlmfitError("interrupted", "interrupted", _again(arguments)), as_json)
        return INTERRUPTED
    except BrokenPipeError:
        return BROKEN_PIPE
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _STDOUT and error.filename is None:
            return _unprinted(error)
        if debug:
            raise
        fault = _of_a_plugin(error) or LlmfitError(
            "internal", _said(error), "This is a fault of llmfit: report it, with the output of --debug."
        )
        _tell(fault, as_json)
        return fault.exit_code if isinstance(fault, PluginError) else INTERNAL


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _of_a_plugin(error: Exception) -> PluginError | None:
    """The same as an error of the plugin whose own code raised it, where one did."""
    from importlib.metadata import entry_points

    owners = {e.module.partition(".")[0]: e for e in entry_points(group="llmfit") if not e.module.startswith("llmfit_core")}
    frames = traceback.extract_tb(error.__traceback__)
    modules = [f.tb_frame.f_globals.get("__name__", "") for f in _frames(error.__traceback__)]
    for frame, module in zip(reversed(frames), reversed(modules), strict=True):
        owner = owners.get(module.partition(".")[0])
        if owner is not None:
            name = owner.dist.name if owner.dist is not None else owner.name
            place = f"{os.path.basename(frame.filename)}, line {frame.lineno}"
            return PluginError(
                "plugin-fault", f"{name}: {_said(error)} ({place})", f"Mend {name} or report it there, with the output of --debug."
            )
    return None


def _frames(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _again(arguments: list[str]) -> str:
    """What to do after an interruption: only a conversion leaves something to go on from."""
    if next((a for a in arguments if not a.startswith("-")), "") == "convert":
        return "What was finished is kept: run the same command again to go on."
    return "Run the same command again."


def _invoke(app: typer.Typer, arguments: list[str], as_json: bool) -> int:
    """Run typer's app without its own handling of errors.

    Recent typer brings a click of its own, so click's exceptions are known by what they offer and not by class.
    """
    import typer

    command = typer.main.get_command(app)
    try:
        with command.make_context("llmfit", list(arguments)) as context:
            command.invoke(context)
    except typer.Exit as stop:
        return stop.exit_code
    except typer.Abort:
        raise KeyboardInterrupt from None
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message(), file=sys.stderr)
            return USAGE
        path = getattr(getattr(error, "ctx", None), "command_path", "llmfit")
        _tell(LlmfitError("usage", error.format_message().rstrip("."), f"See `{path} --help`."), as_json)
        return USAGE
    return 0


def _tell(error: LlmfitError, as_json: bool) -> None:
    if as_json:
        print_json({"error": {"code": error.code, "cause": error.cause, "remedy": error.remedy}})
    print(f"error: {error.cause} [{error.code}]", file=sys.stderr)
    print(f"  fix: {error.remedy}", file=sys.stderr)


def _flushed(code: int) -> int:
    """The exit code, once all that was printed has arrived."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        abandon_stdout()
        return BROKEN_PIPE
    except OSError as error:
        return _unprinted(error)
    return code


def _unprinted(error: OSError) -> int:
    """An error that no file has is one of printing."""
    abandon_stdout()
    _tell(OutputError("write-failed", f"standard output: {error.strerror}", "Send it elsewhere."), False)
    return OutputError.exit_code


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
