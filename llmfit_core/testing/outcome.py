"""How a check ends besides well: it failed, or it could not be run here."""

from __future__ import annotations

import unittest


class CheckFailed(AssertionError):
    """What was promised does not hold; the message says what, where and what to do."""


class NotRun(unittest.SkipTest):
    """A check that could not be run here, with what is missing and how to get it. Never a pass.

    pytest reports a `unittest.SkipTest` as skipped, so that no check has to import pytest.
    """


def require(holds: object, message: str) -> None:
    """Raise `CheckFailed` unless `holds`. In place of `assert`, which `python -O` takes out."""
    if not holds:
        raise CheckFailed(message)


def few(names: object, limit: int = 4) -> str:
    """The first names of a collection and how many more there are, for messages."""
    listed = [str(n) for n in names]  # type: ignore[attr-defined]
    more = f" and {len(listed) - limit} more" if len(listed) > limit else ""
    return ", ".join(listed[:limit]) + more
