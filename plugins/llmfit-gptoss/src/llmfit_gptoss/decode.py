"""Checkpoints whose experts are stored as MXFP4 blocks, as if they were plain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from llmfit_core.errors import SourceError
from llmfit_core.events import Event
from llmfit_core.tensors import TensorRef
from llmfit_core.transform import Transpose
from llmfit_gptoss.mxfp4 import BLOCK, Blocks, Values

if TYPE_CHECKING:
    from llmfit_core.checkpoint import Checkpoint

METHOD = "mxfp4"
CODES, EXPONENTS = "_blocks", "_scales"
_KEYS = ("quantization_config", "compression_config")
_AGAIN = "The checkpoint is damaged or incomplete; fetch it again."


def is_mxfp4(checkpoint: Checkpoint) -> bool:
    """Whether the config says so, or pairs of block and scale tensors do."""
    if checkpoint.gguf is not None:
        return False
    section = checkpoint.config.values.get("quantization_config")
    if isinstance(section, Mapping) and section.get("quant_method") is not None:
        return str(section["quant_method"]).lower() == METHOD
    names = checkpoint.tensors
    return any(n.endswith(CODES) and n.removesuffix(CODES) + EXPONENTS in names and r.dtype == "u8" for n, r in names.items())


def decode(checkpoint: Checkpoint) -> Checkpoint:
    """Each pair of `NAME_blocks` and `NAME_scales` as the plain `NAME`, `[.., in, out]` as transformers unpacks it.

    Raises:
        SourceError: `missing-tensor`, `duplicate-tensor`, `tensor-dtype`, `shape-mismatch`.
    """
    tensors: dict[str, TensorRef] = {}
    found = 0
    for name, ref in checkpoint.tensors.items():
        if name.endswith(EXPONENTS):
            _partner(checkpoint, name, EXPONENTS, CODES)
        elif name.endswith(CODES):
            base = name.removesuffix(CODES)
            exponents = _partner(checkpoint, name, CODES, EXPONENTS)
            if base in checkpoint.tensors:
                raise SourceError(
                    "duplicate-tensor",
                    f"{base} is stored plain and as {name}",
                    "Remove the copy that does not belong to the model.",
                )
            tensors[base] = TensorRef(name=base, tensor=Transpose(Values(_blocks(base, ref, exponents))))
            found += 1
        else:
            tensors[name] = ref
    raw, values = ({k: v for k, v in part.items() if k not in _KEYS} for part in (checkpoint.config.raw, checkpoint.config.values))
    config = replace(checkpoint.config, raw=raw, values=values)
    if not found:
        return replace(checkpoint, config=config)
    message = f"{found} tensors are stored as {METHOD}, as their authors published them; gguf:source keeps them bit for bit"
    told = Event(code="source-quantized", message=message, severity="info", subject=METHOD)
    return replace(
        checkpoint,
        config=config,
        tensors=tensors,
        quantized=(*checkpoint.quantized, METHOD),
        events=(*checkpoint.events, told),
    )


def _partner(checkpoint: Checkpoint, name: str, end: str, other: str) -> TensorRef:
    wanted = name.removesuffix(end) + other
    ref = checkpoint.tensors.get(wanted)
    if ref is None:
        raise SourceError("missing-tensor", f"{name} is there and {wanted} is not", _AGAIN)
    return ref


def _blocks(name: str, codes: TensorRef, exponents: TensorRef) -> Blocks:
    for ref, known in ((codes, ("u8",)), (exponents, ("u8", "f8_e8m0"))):
        if ref.dtype not in known:
            raise SourceError("tensor-dtype", f"{ref.name} holds {ref.dtype} where {' or '.join(known)} belongs", _AGAIN)
    *outer, count = exponents.shape or (0,)
    if len(outer) < 1 or codes.shape not in ((*outer, count, BLOCK // 2), (*outer, count * BLOCK // 2)):
        raise SourceError(
            "shape-mismatch",
            f"{codes.name} {list(codes.shape)} does not go with {exponents.name} {list(exponents.shape)}: "
            f"{BLOCK // 2} bytes belong to each scale",
            _AGAIN,
        )
    return Blocks(name, codes.tensor, exponents.tensor)
