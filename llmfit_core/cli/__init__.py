"""The command line: thin prints of values that exist anyway."""

from __future__ import annotations

import gc
import sys


def main() -> None:
    """Entry point of the command `llmfit`: runs a command and turns every error into a code, a cause and a remedy."""
    from llmfit_core.cli.guarded import run

    gc.set_threshold(100_000)  # a vocabulary is half a million objects and no cycle: looking for some took a fifth of a plan
    sys.exit(run(sys.argv[1:]))
