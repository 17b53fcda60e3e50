"""Rows of several roles that alternate group by group: one role's rows out of them, and all of them together again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from llmfit_core.transform import Concat, Reshape, Slice

if TYPE_CHECKING:
    from llmfit_core.tensors import Tensor


def ungroup(tensor: Tensor, heights: Sequence[int], index: int, groups: int, *, bias: bool = False) -> Tensor:
    """One role's rows out of a matrix `[.., groups * sum(heights), K]` whose groups hold every role's in turn.

    Args:
        tensor: The matrix, or with `bias` a bias `[.., groups * sum(heights)]`.
        heights: By role, its rows in each group.
        index: Which role.
        groups: How many groups.
        bias: Whether the rows lie along the last axis.
    """
    outer, rows, inner = _around_rows(tensor.shape, bias)
    at = sum(heights[:index])
    apart = Reshape(tensor, (math.prod(outer) * groups, rows // groups, *inner))
    return Reshape(Slice(apart, at, at + heights[index], 1), (*outer, groups * heights[index], *inner))


def regroup(parts: Sequence[Tensor], groups: int, *, bias: bool = False) -> Tensor:
    """The inverse of `ungroup`: each group of the result holds its share of every part in turn."""
    outer, _, inner = _around_rows(parts[0].shape, bias)
    rows = [p.shape[len(outer)] for p in parts]
    apart = [
        Reshape(p, (math.prod(outer) * groups, n // groups, *inner)) for p, n in zip(parts, rows, strict=True)
    ]
    return Reshape(Concat(tuple(apart), axis=1), (*outer, sum(rows), *inner))


def _around_rows(shape: tuple[int, ...], bias: bool) -> tuple[tuple[int, ...], int, tuple[int, ...]]:
    """A shape as what lies before the axis of rows, the rows, and what lies behind; a vector is a bias."""
    at = len(shape) - (1 if bias or len(shape) == 1 else 2)
    return shape[:at], shape[at], shape[at + 1 :]
