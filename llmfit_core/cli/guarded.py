"""Running a command so that no traceback reaches a user, unless `--debug` asks for it."""

from __future__ import annotations

import errno
import os
import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING

from llmfit_core.cli.results import abandon_stdout, only_json, prepare_streams, print_json
from llmfit_core.errors import LlmfitError, OutputError

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
        cause = f"{type(error).__name__}: {error}"
        _tell(LlmfitError("internal", cause, "This is a fault of llmfit: report it, with the output of --debug."), as_json)
        return INTERNAL


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
