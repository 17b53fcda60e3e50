"""Running a command so that no traceback reaches a user, unless `--debug` asks for it."""

from __future__ import annotations

import json
import os
import signal
import sys
from types import FrameType

from llmfit_core.errors import LlmfitError

INTERRUPTED = 130
INTERNAL = 70


def run(arguments: list[str]) -> int:
    """Run the command line, and return its exit code.

    0 success; 1 other errors; 2 wrong usage; 3 bad input; 4 refused because it could not be right; 5 plugins; 6 output;
    7 runtime; 8 `--strict`; 9 verification; 70 a fault of llmfit itself; 130 interrupted.
    """
    debug = "--debug" in arguments or os.environ.get("LLMFIT_DEBUG", "") not in ("", "0")
    arguments = [a for a in arguments if a != "--debug"]
    as_json = "--json" in arguments
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        from llmfit_core.cli.app import build

        return _invoke(build(arguments), arguments, as_json)
    except LlmfitError as error:
        if debug:
            raise
        _tell(error, as_json)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted; what was finished is kept, run the same command again to go on", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if debug:
            raise
        cause = f"{type(error).__name__}: {error}"
        _tell(LlmfitError("internal", cause, "This is a fault of llmfit: report it, with the output of --debug."), as_json)
        return INTERNAL


def _invoke(app: object, arguments: list[str], as_json: bool) -> int:
    """typer's app in a mode that raises instead of printing.

    Recent typer brings a click of its own, so its exceptions are known by what they offer and not by class.
    """
    import typer

    command = typer.main.get_command(app)  # type: ignore[arg-type]
    try:
        result = command.main(args=arguments, prog_name="llmfit", standalone_mode=False)
    except typer.Exit as stop:
        return stop.exit_code
    except typer.Abort:
        raise KeyboardInterrupt from None
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        if hasattr(error, "show"):
            error.show()
        if as_json:
            _print_json("usage", error.format_message(), "See `llmfit --help`.")
        return int(getattr(error, "exit_code", 2))
    return result if isinstance(result, int) else 0


def _tell(error: LlmfitError, as_json: bool) -> None:
    if as_json:
        _print_json(error.code, error.cause, error.remedy)
    print(f"error: {error.cause} [{error.code}]", file=sys.stderr)
    print(f"  fix: {error.remedy}", file=sys.stderr)


def _print_json(code: str, cause: str, remedy: str) -> None:
    error = {"code": code, "cause": cause, "remedy": remedy}
    print(json.dumps({"schema": 1, "error": error}, ensure_ascii=False))


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
