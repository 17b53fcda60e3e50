"""Checkpoints in MLX's affine quantization as plain ones: `code * scale + bias`, group by group, in float32.

For a weight `[.., N, K]` with B bits and groups of G columns (MLX's `mlx.core.quantize`, mlx-lm's `quantization` in
config.json): `weight` u32 `[.., N, K * B / 32]`, codes as one stream of bits along K, lowest first; `scales` and `biases`
`[.., N, K / G]`. Names are Hugging Face's, but for experts, which mlx-lm stacks under `switch_mlp`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np  # noqa: TID253 - no entry module imports this one

from llmfit_core.dequantized import Packed
from llmfit_core.errors import SourceError, UnsupportedError
from llmfit_core.events import Event
from llmfit_core.foreign import stated, unquantized
from llmfit_core.packing import word_count
from llmfit_core.transform import Slice, to_float32

if TYPE_CHECKING:
    from llmfit_core.architecture import Architecture
    from llmfit_core.checkpoint import Checkpoint
    from llmfit_core.foreign import Stated
    from llmfit_core.tensors import Array, Tensor, TensorRef

BITS = (2, 3, 4, 5, 6, 8)
_FLOATS = ("f16", "bf16", "f32")
_MIXTRAL = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
_AGAIN = "Fetch the checkpoint again, or correct config.json as its authors published it."


@dataclass(frozen=True)
class Lines:
    """Codes on a line of their own for each group: `code * scale + bias`, one rounding in float32.

    The product is exact: eight bits times eleven. So this is what MLX computes from scales and biases in float32.

    Attributes:
        codes: u8 `[.., N, K]`.
        scales: `[.., N, K / G]`.
        biases: As the scales.
    """

    codes: Tensor
    scales: Tensor
    biases: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """The codes'."""
        return self.codes.shape

    @property
    def dtype(self) -> str:
        """Always float32."""
        return "f32"

    def rows(self, start: int, stop: int) -> Array:
        """Row-local."""
        out = self.codes.rows(start, stop).astype(np.float32)
        groups = out.reshape(stop - start, self.scales.shape[-1], -1) if stop > start else out
        if stop > start:
            groups *= to_float32(self.scales.rows(start, stop))[:, :, None]
            groups += to_float32(self.biases.rows(start, stop))[:, :, None]
        return out

    def files(self) -> tuple[str, ...]:
        """All three tensors'."""
        return tuple(dict.fromkeys((*self.codes.files(), *self.scales.files(), *self.biases.files())))


@dataclass(frozen=True, kw_only=True)
class Packing:
    """How a module is packed, and where that is said."""

    bits: int
    group: int
    where: str


def detects(checkpoint: Checkpoint) -> bool:
    """`quantization` in config.json in MLX's words, or experts stacked as mlx-lm does it."""
    if checkpoint.gguf is not None:
        return False
    said = stated(checkpoint.config, checkpoint.side)
    return said.method == "mlx" if said is not None else any(".switch_mlp." in n for n in checkpoint.tensors)


def decode(checkpoint: Checkpoint, architectures: Sequence[Architecture]) -> Checkpoint:
    """The checkpoint with plain weights under Hugging Face names.

    Raises:
        SourceError: `config-key-invalid`, `missing-tensor`, `orphan-tensor`, `shape-mismatch`, `tensor-dtype`.
        UnsupportedError: `unknown-packing`.
    """
    said = stated(checkpoint.config, checkpoint.side)
    plain: dict[str, TensorRef] = {}
    taken: set[str] = set()
    kinds: dict[str, None] = {}
    for name, ref in checkpoint.tensors.items():
        stem, _, last = name.rpartition(".")
        if last != "weight" or f"{stem}.scales" not in checkpoint.tensors:
            plain[name] = ref
            continue
        packing = packing_of(stem, said)
        plain[name] = replace(ref, tensor=weight_of(checkpoint, stem, packing))
        taken |= {f"{stem}.scales", f"{stem}.biases"}
        kinds[f"mlx-w{packing.bits}g{packing.group}"] = None
    for name in [n for n in plain if n.endswith((".scales", ".biases"))]:
        if name in taken:
            del plain[name]
        else:
            raise SourceError("orphan-tensor", f"{name} belongs to a packed weight that is not there", _AGAIN)
    stray = next((n for n, r in plain.items() if r.dtype == "u32"), None)
    if stray is not None:
        raise SourceError("missing-tensor", f"{stray} is packed (u32) and has no scales beside it", _AGAIN)
    events = []
    if kinds:
        message = f"the source is already quantized ({', '.join(kinds)}): what that lost stays lost"
        events.append(Event(code="source-quantized", message=message, severity="info"))
    elif said is not None:
        message = f"{said.place} states a quantization, yet no tensor is packed; they are read as they are"
        events.append(Event(code="quantization-unused", message=message, subject=said.place.split(" ")[0]))
    apart, unstacked = _unstacked(plain)
    if unstacked:
        message = f"{unstacked} stacks of experts (switch_mlp) are taken apart under Hugging Face's names"
        events.append(Event(code="experts-unstacked", message=message, severity="info", subject="switch_mlp"))
    return replace(
        checkpoint,
        config=unquantized(checkpoint.config),
        tensors=apart,
        quantized=tuple(dict.fromkeys((*checkpoint.quantized, *kinds))),
        events=(*checkpoint.events, *events),
    )


def packing_of(module: str, said: Stated | None) -> Packing:
    """Bits and group of a module: its own, where the config has them, else those of all."""
    section: Mapping[str, object] = said.section if said is not None else {}
    place = said.place if said is not None else "config.json"
    own = section.get(module)
    if isinstance(own, Mapping):
        section, place = {**section, **own}, f"{module} of {place}"
    mode = section.get("mode", "affine")
    if mode != "affine":
        raise UnsupportedError(
            "unknown-packing",
            f"{place} has MLX's mode {mode!r:.40}, which is not read; read is affine",
            "Convert the model's 16-bit original instead.",
        )
    bits, group = section.get("bits"), section.get("group_size")
    if type(bits) is not int or bits not in BITS:
        raise SourceError("config-key-invalid", f"bits of {place} is {bits!r:.40}, not one of {', '.join(map(str, BITS))}", _AGAIN)
    if type(group) is not int or not 0 < group < 1 << 20:
        raise SourceError("config-key-invalid", f"group_size of {place} is {group!r:.40}, no count", _AGAIN)
    return Packing(bits=bits, group=group, where=place)


def weight_of(checkpoint: Checkpoint, module: str, packing: Packing) -> Tensor:
    """A module's weight, its parts agreeing with the packing.

    Raises:
        SourceError: `missing-tensor`, `shape-mismatch`, `tensor-dtype`.
    """
    words, scales = checkpoint.tensors[f"{module}.weight"], checkpoint.tensors[f"{module}.scales"]
    biases = checkpoint.tensors.get(f"{module}.biases")
    if biases is None:
        raise SourceError("missing-tensor", f"{module}.scales is there and {module}.biases is not", _AGAIN)
    for ref, dtypes in ((words, ("u32",)), (scales, _FLOATS), (biases, _FLOATS)):
        if ref.dtype not in dtypes:
            raise SourceError("tensor-dtype", f"{ref.name} holds {ref.dtype} where {' or '.join(dtypes)} belongs", _AGAIN)
    shape = (*words.shape[:-1], scales.shape[-1] * packing.group) if scales.shape else ()
    sound = len(shape) in (2, 3) and scales.shape == biases.shape and scales.shape[:-1] == words.shape[:-1]
    if not sound or words.shape[-1] != word_count(shape[-1], packing.bits):
        raise SourceError(
            "shape-mismatch",
            f"{module} has weight {list(words.shape)}, scales {list(scales.shape)} and biases {list(biases.shape)}, which do not go "
            f"together with {packing.bits} bits and groups of {packing.group} ({packing.where})",
            _AGAIN,
        )
    return Lines(Packed(source=words.tensor, bits=packing.bits, shape=shape), scales.tensor, biases.tensor)


def _unstacked(tensors: Mapping[str, TensorRef]) -> tuple[dict[str, TensorRef], int]:
    """Experts one by one, as Hugging Face names them, out of `[E, N, K]`; and how many stacks there were."""
    out: dict[str, TensorRef] = {}
    count = 0
    for name, ref in tensors.items():
        block, found, rest = name.partition(".switch_mlp.")
        part, _, last = rest.partition(".")
        if not found or last not in ("weight", "bias") or len(ref.shape) < 2:
            out[name] = ref
            continue
        count += 1
        word = _MIXTRAL.get(part, part) if block.endswith("block_sparse_moe") else part
        for expert in range(ref.shape[0]):
            single = f"{block}.experts.{expert}.{word}.{last}"
            out[single] = replace(ref, name=single, tensor=Slice(ref.tensor, expert, expert + 1, 0, squeeze=True))
    return out, count
