"""The command line: thin prints of values that exist anyway."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the command `llmfit`: runs a command and turns every error into a code, a cause and a remedy."""
    from llmfit_core.cli.guarded import run

    sys.exit(run(sys.argv[1:]))
