"""What can go wrong, said the same way everywhere: a code, a cause, a remedy.

Every error a user can meet is an `LlmfitError`. The command line prints its three parts on
their own lines and exits with the class's `exit_code`; nothing else ever reaches the user.
"""

from __future__ import annotations


class LlmfitError(Exception):
    """An error with a stable code, one line of cause and one line of remedy.

    Args:
        code: Kebab-case and stable: scripts match on it (``missing-shard``).
        cause: One line that names the file, tensor or key at fault.
        remedy: One line that says what to do next.
    """

    exit_code = 1

    def __init__(self, code: str, cause: str, remedy: str) -> None:
        self.code = code
        self.cause = one_line(cause)
        self.remedy = one_line(remedy)
        super().__init__(f"{self.cause} [{code}] {self.remedy}")

    def __reduce__(self) -> tuple[type[LlmfitError], tuple[str, str, str]]:
        """Pickle by parts, so that errors cross process borders whole."""
        return (type(self), (self.code, self.cause, self.remedy))


def one_line(text: str) -> str:
    """`text` on one line, and safe for a terminal: what comes from a file may hold control characters and half characters."""
    line = " ".join(text.split())
    return line if line.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)


class SourceError(LlmfitError):
    """The input is missing, damaged, incomplete or hostile."""

    exit_code = 3


class UnsupportedError(LlmfitError):
    """The input is sound, but what was asked cannot be done rightly; refused before the work."""

    exit_code = 4


class PluginError(LlmfitError):
    """A plugin that this command needs is missing, failed, or in conflict with another."""

    exit_code = 5


class OutputError(LlmfitError):
    """The result cannot be put where it was asked to go."""

    exit_code = 6


class LaunchError(LlmfitError):
    """A runtime cannot be started, or died."""

    exit_code = 7


class StrictError(LlmfitError):
    """`--strict` was given and something fell back or was warned of."""

    exit_code = 8


class VerificationError(LlmfitError):
    """What was written is not the same model."""

    exit_code = 9
