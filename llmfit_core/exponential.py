"""A decay as it is stored and as it is applied: `-exp(x)`, and the way back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmfit_core.transform import to_float32

if TYPE_CHECKING:
    from llmfit_core.tensors import Array, Tensor


@dataclass(frozen=True)
class NegativeExp:
    """`-exp(source)`, computed in float64 and rounded to float32.

    Attributes:
        source: Of any shape.
        inverse: `log(-source)` instead, which is the way back but for the last places of float32.
    """

    source: Tensor
    inverse: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Unchanged."""
        return self.source.shape

    @property
    def dtype(self) -> str:
        """Always float32."""
        return "f32"

    def rows(self, start: int, stop: int) -> Array:
        """Row-local."""
        import numpy as np

        x = to_float32(self.source.rows(start, stop)).astype(np.float64)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            return (np.log(-x) if self.inverse else -np.exp(x)).astype(np.float32)

    def files(self) -> tuple[str, ...]:
        """The source's."""
        return self.source.files()
