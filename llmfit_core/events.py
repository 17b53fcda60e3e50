"""Events: what a user should know that is not an error.

Whatever falls back, is bounded or is worth a warning is an `Event` with a code. Events are
values: functions return them, plans and manifests carry them, nothing logs them on the side.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal

from llmfit_core.errors import StrictError, one_line

Severity = Literal["info", "bound", "warning", "fallback"]
"""`info`: said once, harmless. `bound`: exact up to a stated limit. `warning`: may be wrong
for the user's purpose. `fallback`: something else was done than was asked or expected.
`--strict` fails on the last two and lets the first two pass."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """One thing that happened, under a stable code.

    Attributes:
        code: Kebab-case and stable.
        message: One line for people.
        severity: See `Severity`.
        subject: The tensor, key or file it is about; empty for the whole model.
    """

    code: str
    message: str
    severity: Severity = "warning"
    subject: str = ""

    def __post_init__(self) -> None:
        """Texts of a file may hold control characters; see `one_line`."""
        object.__setattr__(self, "message", one_line(self.message))
        object.__setattr__(self, "subject", one_line(self.subject))

    def as_json(self) -> dict[str, str]:
        """The event as the documented JSON object."""
        return dict(asdict(self))


def require_none_strict(events: Iterable[Event]) -> None:
    """Raise `StrictError` naming the first warning or fallback among `events`, and how many there are."""
    bad = [e for e in events if e.severity in ("warning", "fallback")]
    if bad:
        more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
        raise StrictError(
            "strict", f"{bad[0].message} [{bad[0].code}]{more}", "Mend the input, choose otherwise, or leave out --strict."
        )
