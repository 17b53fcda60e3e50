"""Tensors that are still on a hub: known by their headers, not downloaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmfit_core.errors import SourceError

if TYPE_CHECKING:
    from llmfit_core.tensors import Array


@dataclass(frozen=True)
class Remote:
    """A tensor in a file of a hub repository.

    Attributes:
        repo: `org/name`.
        revision: Commit hash.
        filename: The weight file in the repository.
        offset: Byte offset of the first element in that file.
        shape: Outermost axis first.
        dtype: A plain dtype name.
    """

    repo: str
    revision: str
    filename: str
    offset: int
    shape: tuple[int, ...]
    dtype: str

    def rows(self, start: int, stop: int) -> Array:
        """Raise `SourceError` (`not-downloaded`): planning reads no weights."""
        raise SourceError(
            "not-downloaded",
            f"the weights of {self.repo} are not on this machine ({self.filename} was read by its header only)",
            f"Convert, which downloads them, or run `hf download {self.repo}` first.",
        )

    def files(self) -> tuple[str, ...]:
        """None on this machine."""
        return ()
