"""Open what was written and hold it against the plan."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from llmfit_core.errors import LlmfitError, VerificationError
from llmfit_core.readers.gguf import read_gguf
from llmfit_core.readers.safetensors import read_safetensors

if TYPE_CHECKING:
    from pathlib import Path

    from llmfit_core.plan import Plan

_REMEDY = "The disk or another program changed the file; convert again."


def reopen_gguf(path: Path, plan: Plan) -> None:
    """Read a GGUF model's headers back: every planned tensor is there, every key of the first file too.

    Raises:
        VerificationError: `not-as-planned`.
    """
    try:
        found = read_gguf(path).tensors
    except LlmfitError as error:
        raise VerificationError("not-as-planned", f"{path} does not open: {error.cause}", _REMEDY) from error
    for tensor in plan.tensors:
        have = found.get(tensor.name)
        if have is None or (have.ggml_type, have.shape) != (tensor.type, tensor.shape or (1,)):
            raise VerificationError("not-as-planned", f"{path}: {tensor.name} is not as planned", _REMEDY)
    if len(found) != len(plan.tensors):
        raise VerificationError("not-as-planned", f"{path} holds {len(found)} tensors", _REMEDY)
    head = plan.files[0].head
    with open(path, "rb") as file:
        if file.read(len(head)) != head:
            raise VerificationError("not-as-planned", f"{path} has another header than was planned", _REMEDY)


def reopen_hf(path: Path, plan: Plan) -> None:
    """Read a folder's headers and config back.

    Raises:
        VerificationError: `not-as-planned`.
    """
    for file in plan.files:
        written = path / file.name
        try:
            if file.name.endswith(".safetensors"):
                found = read_safetensors(written)
                for tensor, _ in file.tensors:
                    have = found.get(tensor.name)
                    if have is None or (have.dtype, have.shape) != (tensor.type, tensor.shape):
                        raise VerificationError("not-as-planned", f"{written}: {tensor.name} is not as planned", _REMEDY)
            elif file.name.endswith(".json"):
                json.loads(written.read_text(encoding="utf-8"))
        except (LlmfitError, ValueError, OSError) as error:
            raise VerificationError("not-as-planned", f"{written} does not open: {error}", _REMEDY) from error
