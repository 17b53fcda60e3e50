"""Blocks of a source that go into the file as they are, bit for bit, and what becomes of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmfit_core.blocks import block_types, blocks_of
from llmfit_core.events import Event
from llmfit_core.readers.ggml_types import PLAIN

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from llmfit_core.tensors import Tensor
    from llmfit_gguf.ftypes import Scheme


def stored_blocks(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """By name, the tensors that can be taken over as blocks."""
    found = {name: blocks_of(tensor) for name, tensor in tensors.items()}
    return {name: blocks for name, blocks in found.items() if blocks is not None}


def told(
    tensors: Mapping[str, Tensor],
    types: Mapping[str, str],
    kept: Collection[str],
    scheme: Scheme,
    quantized: Collection[str],
) -> list[Event]:
    """What is lost by quantizing a second time, and what grows by unpacking.

    Args:
        tensors: Every one of the file, as values.
        types: What each becomes.
        kept: Those that are taken over as blocks.
        scheme: What was asked for.
        quantized: `Checkpoint.quantized`.
    """
    if not quantized:
        return []
    was = {name: block_types(tensor) for name, tensor in tensors.items() if name not in kept}
    known = any(was.values()) or bool(kept)  # else its decoder gives values alone, and any tensor may come from blocks
    again = [n for n, blocks in was.items() if types[n] not in PLAIN and (blocks or not known)]
    unpacked = [n for n, blocks in was.items() if types[n] in PLAIN and blocks]
    events = []
    if again and scheme.rule == "mix":
        names = ", ".join(sorted({b for n in again for b in was[n]}) or quantized)
        keep = f"; {_keeping(names)} keeps them as they are" if known else ""
        message = f"{scheme.name} is made from weights that were quantized before ({names}); each time loses more{keep}"
        events.append(Event(code="requantized", message=message))
    if unpacked:
        names = ", ".join(sorted({b for n in unpacked for b in was[n]}))
        target = ", ".join(sorted({types[n] for n in unpacked}))
        message = f"{len(unpacked)} tensors stored as {names} are written as {target}, which takes more room"
        events.append(Event(code="unpacked", message=f"{message}; gguf:source keeps them as they are", severity="info"))
    return events


def _keeping(types: str) -> str:
    return "gguf:source or gguf:mxfp4_moe" if types == "mxfp4" else "gguf:source"
