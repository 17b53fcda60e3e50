"""An AWQ checkpoint as a plain one.

For a Linear `[N, K]` in groups of G columns, 4 bits (AutoAWQ's `awq/modules/linear`, `awq/utils/packing_utils.py`):

| version | qweight | qzeros | scales |
|---|---|---|---|
| gemm | i32 `[K, N / 8]`, order 0 2 4 6 1 3 5 7 | i32 `[K / G, N / 8]`, the same order | `[K / G, N]` |
| gemv | i32 `[N, K / 8]`, in sequence | i32 `[N, W]`, in sequence | `[N, 8 W]` |

W is `K / G / 8`, rounded up to a multiple that depends on G; what lies behind the first `K / G` zeros and scales fills up.
The weight is `(q - z) * s`, the product rounded to the scales' type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from llmfit_core.dequantized import Dequantized, Packed, Turned
from llmfit_core.errors import SourceError, UnsupportedError
from llmfit_core.events import Event
from llmfit_core.packing import AWQ_ORDER
from llmfit_core.quantized_config import (
    Section,
    implied_method,
    merged,
    method_of,
    packing_of_auto_round,
    refuse_layout,
    section_of,
    side_section,
)
from llmfit_core.quantized_source import SCALE_DTYPES, Parts, as_stored, places_of, plain, require_dtype, require_shape
from llmfit_core.transform import Slice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llmfit_core.architecture import Architecture
    from llmfit_core.checkpoint import Checkpoint
    from llmfit_core.tensors import Tensor

BITS = 4
PER_WORD = 32 // BITS
SIDE_FILES = ("quant_config.json", "quantize_config.json")
_SPELLINGS = {"bits": ("w_bit", "wbits"), "group_size": ("q_group_size",), "version": ("checkpoint_format", "format")}
_READ = ("gemm", "gemv")


def detects(checkpoint: Checkpoint) -> bool:
    """Whether config.json, a file beside it, or where both are silent the tensors' shapes say AWQ."""
    if packing_of_auto_round(checkpoint) == "awq":
        return True
    if not any(n.endswith(".qweight") for n in checkpoint.tensors):
        return method_of(checkpoint) == "awq"
    method = method_of(checkpoint)
    if method or checkpoint.gguf is not None:
        return method == "awq"
    if section_of(checkpoint).values:
        return False
    for name in SIDE_FILES:
        said = side_section(checkpoint, name).values
        method = str(said.get("quant_method") or said.get("method") or implied_method(said)).lower()
        if method:
            return method == "awq"
    return "quantize_config.json" not in checkpoint.side and _looks(checkpoint)


def decode(checkpoint: Checkpoint, architectures: Sequence[Architecture]) -> Checkpoint:
    """The weights as floats, lazily.

    Raises:
        SourceError: `config-key-invalid`, `contradicting-config`, `missing-tensor`, `orphan-tensor`, `shape-mismatch`,
            `tensor-dtype`, `duplicate-tensor`, `no-quantized-tensors`.
        UnsupportedError: `unknown-packing`, `unknown-bits`, `activation-scales`.
    """
    section = section_of(checkpoint)
    for name in SIDE_FILES:
        section = merged(section, side_section(checkpoint, name), _SPELLINGS)
    parts = Parts(checkpoint.tensors)
    modules = parts.modules("qweight")
    if not modules:
        raise SourceError(
            "no-quantized-tensors",
            f"{section.where} says awq, and {checkpoint.label} holds no qweight",
            "Remove quantization_config if the weights are plain again; else fetch the checkpoint again.",
        )
    events: list[Event] = []
    if section.values:
        version, group = _settings(section)
    else:
        version, group = "gemm", _derived_group(parts, modules)
        message = (
            "nothing says how the AWQ weights are packed (no quantization_config in config.json, no quant_config.json); "
            f"their shapes fit 4 bits, gemm, group {group}"
        )
        events.append(Event(code="quantization-inferred", message=message, subject="quantization_config"))
    _refuse_activation_scales(checkpoint, modules)
    places = places_of(checkpoint, modules, architectures)
    read = _gemm if version == "gemm" else _gemv
    symmetric = not section.flag("zero_point", not section.flag("sym", False))
    weights = {f"{m}.weight": as_stored(read(parts, m, group, symmetric), m, places) for m in modules}
    parts.refuse_orphans(("qzeros", "scales", "g_idx"))
    said = "the whole row" if group == -1 else str(group)
    return plain(
        checkpoint,
        weights,
        parts,
        kinds=(f"awq-w4g{group}",),
        how=f"4-bit AWQ ({version}, group: {said})",
        events=events,
    )


def _settings(section: Section) -> tuple[str, int]:
    """The version and the group size, -1 for whole rows."""
    for name, said in section.mapping("extra_config").items():  # auto-round's word on single modules
        if not isinstance(said, Mapping) or (said and said.get("bits") not in (16, 32)):
            raise section.invalid("extra_config", f"has {said!r:.60} for {name!r:.60}; of AWQ all modules are alike or plain")
    bits = section.whole("bits", BITS)
    if bits != BITS:
        raise UnsupportedError(
            "unknown-bits",
            f"bits of {section.where} is {bits}; AWQ is defined for 4 bits",
            "Convert the model's 16-bit original, or correct the key.",
        )
    version = section.text("version", "gemm")
    backend = section.text("backend", "autoawq")
    if version not in _READ:
        raise refuse_layout(version, " and ".join(_READ), f"version of {section.where}")
    if backend == "llm-awq":  # the others name kernels, which read the same files
        raise refuse_layout(backend, "those of autoawq", f"backend of {section.where}")
    group = section.whole("group_size", 128)
    if group < 1 and group != -1:
        raise section.invalid("group_size", f"is {group}; it is -1 or at least 1")
    return version, group


def _words(parts: Parts, module: str, layout: str) -> tuple[Tensor, Tensor]:
    words, scales = parts.need(module, "qweight", "qweight"), parts.need(module, "scales", "qweight")
    require_dtype(f"{module}.qweight", words, ("i32",))
    if len(words.shape) != 2 or 0 in words.shape:
        raise SourceError(
            "shape-mismatch",
            f"{module}.qweight has the shape {list(words.shape)} where {layout} belongs",
            "The checkpoint is damaged; fetch it again.",
        )
    return words, scales


def _gemm(parts: Parts, module: str, group: int, symmetric: bool) -> Tensor:
    words, scales = _words(parts, module, "[in, out / 8]")
    width, height = words.shape[0], words.shape[1] * PER_WORD
    group = _group(module, width, group)
    count = width // group
    because = f"[{width}, {words.shape[1]}] of qweight with 4 bits and group_size {group}"
    require_shape(f"{module}.scales", scales, (count, height), SCALE_DTYPES, because)
    zeros = _zeros(parts, module, symmetric)
    if zeros is not None:
        require_shape(f"{module}.qzeros", zeros, (count, height // PER_WORD), ("i32",), because)
        zeros = Packed(source=zeros, bits=BITS, shape=(height, count), along_rows=True, turned=True, order=AWQ_ORDER)
    return Dequantized(
        name=f"{module}.weight",
        codes=Packed(source=words, bits=BITS, shape=(height, width), along_rows=True, turned=True, order=AWQ_ORDER),
        scales=Turned(scales),
        zeros=zeros,
        zero=1 << BITS - 1,
        group=group,
    )


def _gemv(parts: Parts, module: str, group: int, symmetric: bool) -> Tensor:
    words, scales = _words(parts, module, "[out, in / 8]")
    height, width = words.shape[0], words.shape[1] * PER_WORD
    group = _group(module, width, group)
    count = width // group
    padded = padded_words(width, group)
    because = f"[{height}, {words.shape[1]}] of qweight with 4 bits and group_size {group}"
    require_shape(f"{module}.scales", scales, (height, padded * PER_WORD), SCALE_DTYPES, because)
    zeros = _zeros(parts, module, symmetric)
    if zeros is not None:
        require_shape(f"{module}.qzeros", zeros, (height, padded), ("i32",), because)
        zeros = Packed(source=zeros, bits=BITS, shape=(height, count))
    return Dequantized(
        name=f"{module}.weight",
        codes=Packed(source=words, bits=BITS, shape=(height, width)),
        scales=Slice(scales, 0, count, 1),
        zeros=zeros,
        zero=1 << BITS - 1,
        group=group,
    )


def padded_words(width: int, group: int) -> int:
    """Words of zeros a row of a gemv file: for whole 32-bit loads of the kernel, by AutoAWQ's `calculate_zeros_width`."""
    multiple = 1 if group >= 128 else 2 if group == 64 else 4
    words = -(-(width // group) // PER_WORD)
    return -(-words // multiple) * multiple


def _zeros(parts: Parts, module: str, symmetric: bool) -> Tensor | None:
    """Stored zero points, which count whatever the config says; a symmetric file may do without."""
    return parts.find(module, "qzeros") if symmetric else parts.need(module, "qzeros", "qweight")


def _group(module: str, width: int, group: int) -> int:
    if group == -1:
        return width
    if width % group:
        raise SourceError(
            "shape-mismatch",
            f"{module}.qweight has {width} inputs, which group_size {group} does not divide",
            "Correct group_size, as the model's authors published it, or fetch the checkpoint again.",
        )
    return group


def _looks(checkpoint: Checkpoint) -> bool:
    """Whether every quantized module has the shapes of a gemm file."""
    parts = Parts(checkpoint.tensors)
    modules = parts.modules("qweight")
    return bool(modules) and all(_group_by_shape(parts, m) for m in modules)


def _group_by_shape(parts: Parts, module: str) -> int:
    """The group size that a module's shapes tell, 0 where they are not those of a gemm file."""
    found = [parts.tensors.get(f"{module}.{p}") for p in ("qweight", "qzeros", "scales")]
    shapes = [ref.shape if ref is not None else () for ref in found]
    if any(len(s) != 2 or 0 in s for s in shapes):
        return 0
    (width, words), (groups, zero_words), (count, height) = shapes
    if words * PER_WORD != height or zero_words != words or groups != count or width % groups:
        return 0
    return width // groups


def _derived_group(parts: Parts, modules: Sequence[str]) -> int:
    """The one group size of all modules; -1 where each has a single group and their widths differ."""
    sizes = {m: _group_by_shape(parts, m) for m in modules}
    if len(set(sizes.values())) == 1:
        return next(iter(sizes.values()))
    if all(size == parts.tensors[f"{m}.qweight"].shape[0] for m, size in sizes.items()):
        return -1
    (one, size), *others = sizes.items()
    other = next(m for m, s in others if s != size)
    raise SourceError(
        "shape-mismatch",
        f"the scales of {one} make groups of {size}, those of {other} groups of {sizes[other]}, and no config says which",
        "Fetch config.json again, with its quantization_config, or quant_config.json.",
    )


def _refuse_activation_scales(checkpoint: Checkpoint, modules: Sequence[str]) -> None:
    """AutoAWQ's `ScaledActivation` divides what an activation gives: no weight says so."""
    quantized = set(modules)
    for name, ref in checkpoint.tensors.items():
        if name.endswith(".scales") and name.removesuffix(".scales") not in quantized and len(ref.shape) == 1:
            raise UnsupportedError(
                "activation-scales",
                f"{name} divides the outputs of an activation (AutoAWQ's ScaledActivation), which no plain model does",
                "Convert the model's 16-bit original.",
            )
