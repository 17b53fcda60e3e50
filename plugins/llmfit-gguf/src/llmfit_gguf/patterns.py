"""Regular expressions from users: bounded in time, since some never end on the shortest of names."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence

from llmfit_core.errors import UnsupportedError

SECONDS = 5.0
_SCRIPT = """
import json, re, sys
patterns, names = json.load(sys.stdin)
for pattern in map(re.compile, patterns):
    for name in names:
        pattern.search(name)
"""


def require_quick(patterns: Sequence[str], names: Sequence[str]) -> None:
    """Raise for a pattern that is none, or that takes too long to search `names`.

    Patterns that can backtrack at all are tried in a child process, for Python's engine cannot be interrupted
    everywhere.

    Raises:
        UnsupportedError: `override-regex`.
    """
    doubtful = []
    for text in patterns:
        try:
            re.compile(text)
        except (re.error, RecursionError, OverflowError) as error:
            raise UnsupportedError(
                "override-regex", f"override {text[:80]!r} is not a regular expression: {error}", "Mend the pattern."
            ) from None
        if len(re.findall(r"[*+{]", text)) > 1 or ("(" in text and re.search(r"[*+{]", text)):
            doubtful.append(text)
    if not doubtful:
        return
    try:
        subprocess.run(
            [sys.executable, "-I", "-S", "-c", _SCRIPT],
            input=json.dumps([doubtful, list(names)]).encode(),
            timeout=SECONDS,
            check=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise UnsupportedError(
            "override-regex",
            f"override {' or '.join(t[:80] for t in doubtful)} takes more than {SECONDS:g} s to search the tensors' names",
            "Write it without repeats inside repeats.",
        ) from None
