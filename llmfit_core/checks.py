"""Data checks: what only the tensors' values can decide."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmfit_core.tensors import CHUNK_BYTES, row_count
from llmfit_core.transform import to_float32

if TYPE_CHECKING:
    from llmfit_core.model import Model
    from llmfit_core.plan import DataCheck
    from llmfit_core.tensors import Tensor


def run_check(check: DataCheck, model: Model) -> bool:
    """The answer to a check's question.

    Raises:
        KeyError: The check is not one of the core's.
    """
    return {"head-equals-embedding": _all_equal}[check.name](check, model)


def _all_equal(check: DataCheck, model: Model) -> bool:
    tensors = [r.tensor for r in model.refs if r.name in check.tensors]
    return all(equal(tensors[0], other) for other in tensors[1:])


def equal(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors hold the same values; compares bytes where the dtype is the same, in bounded chunks."""
    import numpy as np

    if a.shape != b.shape:
        return False
    rows = row_count(a.shape)
    step = max(1, CHUNK_BYTES // (4 * max(1, a.shape[-1] if a.shape else 1)))
    for start in range(0, rows, step):
        stop = min(rows, start + step)
        x, y = a.rows(start, stop), b.rows(start, stop)
        if a.dtype == b.dtype:
            same = np.array_equal(np.ascontiguousarray(x).view(np.uint8), np.ascontiguousarray(y).view(np.uint8))
        else:
            same = bool(np.array_equal(to_float32(x), to_float32(y)))
        if not same:
            return False
    return True
