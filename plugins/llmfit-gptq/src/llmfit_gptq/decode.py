"""A GPTQ checkpoint as a plain one.

For a Linear `[N, K]` in groups of G columns (auto-gptq's and gptqmodel's `nn_modules/qlinear`):

- qweight i32 `[K * bits / 32, N]`, packed along K; qzeros i32 `[ceil(K / G), N * bits / 32]`, packed along N; scales
  `[ceil(K / G), N]`; g_idx i32 `[K]`, the group of each column. All packing is in sequence; 3 bits put 32 numbers into
  three words.
- The weight is `(q - z) * s`, the product rounded to the scales' type. A file of the first format (`gptq`, and every file
  that does not say) stores `z - 1` modulo `2 ** bits`; one of the second (`gptq_v2`) stores `z`.
- g_idx may be absent, all zero or `k // G`: groups then follow each other. Else columns were quantized in the order of
  their activations (`desc_act`), and each has its own group.
- GPT-2's Conv1D is quantized as the Linear that it is; its plain weight lies transposed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmfit_core.dequantized import Dequantized, Packed, Turned
from llmfit_core.errors import SourceError
from llmfit_core.events import Event
from llmfit_core.packing import word_count
from llmfit_core.quantized_config import implied_method, method_of, packing_of_auto_round, section_of, side_section
from llmfit_core.quantized_source import (
    SCALE_DTYPES,
    Parts,
    Places,
    as_stored,
    places_of,
    plain,
    require_dtype,
    require_shape,
)
from llmfit_gptq.settings import SIDE_FILES, Said, Settings, read_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llmfit_core.architecture import Architecture
    from llmfit_core.checkpoint import Checkpoint
    from llmfit_core.tensors import Tensor

_PARTS = ("qzeros", "scales", "g_idx")


def detects(checkpoint: Checkpoint) -> bool:
    """Whether config.json, a file beside it, or where both are silent the tensors' shapes say GPTQ."""
    method = method_of(checkpoint)
    if method or checkpoint.gguf is not None:
        return method == "gptq" or packing_of_auto_round(checkpoint).startswith("gptq")
    modules = Parts(checkpoint.tensors).modules("qweight")
    if not modules or section_of(checkpoint).values:
        return False
    for name in SIDE_FILES:
        said = side_section(checkpoint, name).values
        method = str(said.get("quant_method") or said.get("method") or implied_method(said)).lower()
        if method:
            return method == "gptq"
    return "quantize_config.json" in checkpoint.side or _looks(checkpoint, modules[0])


def decode(checkpoint: Checkpoint, architectures: Sequence[Architecture]) -> Checkpoint:
    """The weights as floats, lazily.

    Raises:
        SourceError: `no-quantization-config`, `config-key-invalid`, `contradicting-config`, `missing-tensor`,
            `orphan-tensor`, `shape-mismatch`, `tensor-dtype`, `duplicate-tensor`, `no-quantized-tensors`.
        UnsupportedError: `unknown-packing`, `unknown-bits`, `online-rotation`.
    """
    settings = read_settings(checkpoint)
    parts = Parts(checkpoint.tensors)
    modules = parts.modules("qweight")
    if not modules:
        raise SourceError(
            "no-quantized-tensors",
            f"{settings.where} says gptq, and {checkpoint.label} holds no qweight",
            "Remove quantization_config if the weights are plain again; else fetch the checkpoint again.",
        )
    places = places_of(checkpoint, modules, architectures)
    said = {m: settings.of(m) for m in modules}
    weights = {f"{m}.weight": as_stored(_weight(parts, m, s, settings, places), m, places) for m, s in said.items()}
    parts.refuse_orphans(_PARTS)
    biases = dict.fromkeys((n for n in parts.taken if n.endswith(".bias")), "a bias that the model does not have: all zero")
    events = []
    if biases:
        message = f"{len(biases)} stored biases are left out, which the model does not have: all zero, as is proven in the work"
        events.append(Event(code="zero-biases", message=message, severity="info", subject=next(iter(biases))))
    kinds = sorted({f"gptq-w{s.bits}g{s.group}" for s in said.values()})
    formats = "zero points as they are" if settings.second else "zero points less one"
    return plain(
        checkpoint,
        weights,
        parts,
        kinds=kinds,
        how=f"{' and '.join(sorted({str(s.bits) for s in said.values()}))}-bit GPTQ (stored {formats}, "
        f"group: {' and '.join(sorted({_said(s.group) for s in said.values()}))})",
        events=events,
        waived=biases,
    )


def _said(group: int) -> str:
    return "the whole row" if group == -1 else str(group)


def _weight(parts: Parts, module: str, said: Said, settings: Settings, places: Places) -> Tensor:
    bits = said.bits
    words = parts.need(module, "qweight", "qweight")
    zeros = parts.need(module, "qzeros", "qweight")
    scales = parts.need(module, "scales", "qweight")
    require_dtype(f"{module}.qweight", words, ("i32",))
    if len(words.shape) != 2 or 0 in words.shape or len(scales.shape) != 2 or len(zeros.shape) != 2:
        raise SourceError(
            "shape-mismatch",
            f"{module} has qweight {list(words.shape)}, qzeros {list(zeros.shape)} and scales {list(scales.shape)}, not all matrices",
            "The checkpoint is damaged; fetch it again.",
        )
    _require_bits(module, words, zeros, said.bits, settings.where)
    height, width = words.shape[1], words.shape[0] * 32 // bits
    group = width if said.group == -1 else said.group
    count = -(-width // group)
    because = f"{list(words.shape)} of qweight with {bits} bits and group_size {said.group}"
    require_shape(f"{module}.scales", scales, (count, height), SCALE_DTYPES, because)
    require_shape(f"{module}.qzeros", zeros, (count, word_count(height, bits)), ("i32",), because)
    index = parts.find(module, "g_idx")
    if index is not None:
        require_shape(f"{module}.g_idx", index, (width,), ("i32", "i64"), because)
    elif said.desc_act and count > 1 and not settings.static_groups:
        raise SourceError(
            "missing-tensor",
            f"desc_act of {settings.where} is true, and {module}.g_idx, which tells the order, is not there",
            "Fetch the missing shard, or the checkpoint again.",
        )
    return Dequantized(
        name=f"{module}.weight",
        codes=Packed(source=words, bits=bits, shape=(height, width), turned=True),
        scales=Turned(scales),
        zeros=Packed(source=zeros, bits=bits, shape=(height, count), along_rows=True, turned=True),
        lift=0 if settings.second else 1,
        bits=bits,
        group=group,
        index=index,
        ordered=said.desc_act and count > 1 and not settings.static_groups,
        bias=None if places.has_bias(module) else parts.find(module, "bias"),
    )


def _require_bits(module: str, words: Tensor, zeros: Tensor, bits: int, where: str) -> None:
    """The config's bits against those that qzeros tell; whole words of K."""
    height = words.shape[1]
    told, rest = divmod(zeros.shape[1] * 32, height)
    if height % 32 == 0 and (told != bits or rest):
        raise SourceError(
            "shape-mismatch",
            f"{module}.qzeros has {zeros.shape[1]} words for {height} outputs, {told} bits each, where {where} says {bits}",
            "Correct bits (and a dynamic rule that names this module), or fetch the checkpoint again.",
        )
    if words.shape[0] * 32 % bits:
        raise SourceError(
            "shape-mismatch",
            f"{module}.qweight has {words.shape[0]} words along its inputs, which hold no whole number of {bits} bits",
            "The checkpoint is damaged, or bits in its config is wrong: fetch both again.",
        )


def _looks(checkpoint: Checkpoint, module: str) -> bool:
    """Whether a module's shapes are GPTQ's: qweight as wide as the scales."""
    found = [checkpoint.tensors.get(f"{module}.{p}") for p in ("qweight", "scales")]
    shapes = [ref.shape if ref is not None else () for ref in found]
    return all(len(s) == 2 for s in shapes) and shapes[0][1] == shapes[1][1]


