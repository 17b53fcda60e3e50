"""Data checks: what only the tensors' values can decide."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmfit_core.plan import DataCheck
from llmfit_core.roles import Role
from llmfit_core.tensors import CHUNK_BYTES, row_count
from llmfit_core.transform import to_float32

if TYPE_CHECKING:
    from llmfit_core.model import Model
    from llmfit_core.plan import Plan
    from llmfit_core.tensors import Tensor

TERNARY_BLOCK = 256
"""Values that share a scale in ggml's ternary types."""


def head_check(model: Model) -> tuple[DataCheck, ...]:
    """The question whether a stored head is the embedding that it is declared tied to, while that is open."""
    has_head = any(r.role == Role.HEAD for r in model.refs)
    if model.same_head is None and has_head and model.hparams.get("tie_word_embeddings"):
        names = tuple(r.name for r in model.refs if r.role in (Role.HEAD, Role.EMBED))
        return (DataCheck(name="head-equals-embedding", question="is the stored head the tied embedding?", tensors=names),)
    return ()


def run_check(check: DataCheck, plan: Plan) -> str:
    """Ask the data: the name of the first tensor for which the answer is no, empty where it is yes.

    Raises:
        KeyError: The check is not one of the core's.
    """
    return {"head-equals-embedding": _first_unequal, "ternary": _first_not_ternary}[check.name](check, plan)


def _first_unequal(check: DataCheck, plan: Plan) -> str:
    refs = [r for r in plan.model.refs if r.name in check.tensors]
    return next((r.name for r in refs if not equal(refs[0].tensor, r.tensor)), "")


def _first_not_ternary(check: DataCheck, plan: Plan) -> str:
    return next((t.name for t in plan.tensors if t.name in check.tensors and not is_ternary(t.tensor)), "")


def is_ternary(tensor: Tensor) -> bool:
    """Whether each block of 256 values of a row holds but -s, 0 and s, up to the rounding of bfloat16."""
    import numpy as np

    width = tensor.shape[-1] if tensor.shape else 1
    rows = row_count(tensor.shape)
    step = max(1, CHUNK_BYTES // (4 * max(1, width)))
    for start in range(0, rows, step):
        x = np.abs(to_float32(tensor.rows(start, min(rows, start + step))))
        blocks = x.reshape(-1, TERNARY_BLOCK if width % TERNARY_BLOCK == 0 else width)
        largest = blocks.max(axis=1, keepdims=True)
        if not ((blocks == 0) | (blocks >= largest * (1 - 2**-7))).all():
            return False
    return True


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
