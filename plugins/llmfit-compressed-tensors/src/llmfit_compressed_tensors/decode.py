"""A compressed-tensors checkpoint as a plain one: each module by the format of its group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from llmfit_compressed_tensors.floats import float_weight
from llmfit_compressed_tensors.integers import packed_weight, plain_integers
from llmfit_compressed_tensors.schemes import PLAIN_FORMATS, Scheme, read_schemes
from llmfit_core.errors import SourceError
from llmfit_core.events import Event
from llmfit_core.quantized_config import method_of, refuse_layout, section_of
from llmfit_core.quantized_source import Parts, as_stored, places_of, plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llmfit_core.architecture import Architecture
    from llmfit_core.checkpoint import Checkpoint
    from llmfit_core.tensors import Tensor

Reader = Callable[[Parts, str, Scheme], "Tensor"]
"""`(parts, module, its scheme) -> weight`; takes the parts that it understood."""


def _naive(parts: Parts, module: str, scheme: Scheme) -> Tensor:
    return (float_weight if scheme.type == "float" else plain_integers)(parts, module, scheme)


FORMATS: Mapping[str, Reader] = {
    "pack-quantized": packed_weight,
    "int-quantized": plain_integers,
    "naive-quantized": _naive,
    "float-quantized": float_weight,
}
"""How each format is read; another format is one more entry."""
METHODS = ("compressed-tensors", "compressed_tensors", "sparseml")
_OF_ACTIVATIONS = ("input_scale", "input_zero_point", "output_scale", "output_zero_point", "input_global_scale")
_OF_CACHE = ("k_scale", "v_scale", "q_scale", "k_zero_point", "v_zero_point", "q_zero_point")
_OF_WEIGHTS = ("weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx")


def detects(checkpoint: Checkpoint) -> bool:
    """Whether config.json says so."""
    if checkpoint.gguf is not None:
        return False
    method = method_of(checkpoint)
    return method in METHODS or (not method and "config_groups" in section_of(checkpoint).values)


def decode(checkpoint: Checkpoint, architectures: Sequence[Architecture]) -> Checkpoint:
    """The weights as floats, lazily.

    Raises:
        SourceError: `config-key-invalid`, `missing-tensor`, `orphan-tensor`, `shape-mismatch`, `tensor-dtype`, `no-scheme`,
            `no-quantized-tensors`.
        UnsupportedError: `unknown-packing`, `unknown-bits`, `online-rotation`, `not-compressed`.
    """
    schemes = read_schemes(checkpoint)
    parts = Parts(checkpoint.tensors)
    modules = list(dict.fromkeys([*parts.modules("weight_packed"), *parts.modules("weight_scale")]))
    for scheme in schemes.groups:
        if scheme.format not in FORMATS:
            raise refuse_layout(scheme.format, ", ".join(FORMATS), f"format of {scheme.where}")
    if modules and not schemes.groups:
        said = section_of(checkpoint).text("format") or "no format"
        raise refuse_layout(said, ", ".join(f for f in FORMATS if f not in PLAIN_FORMATS), schemes.where)
    if schemes.groups and not modules:
        raise SourceError(
            "no-quantized-tensors",
            f"{schemes.where} says {schemes.groups[0].format}, and {checkpoint.label} holds neither weight_packed nor weight_scale",
            "Remove quantization_config if the weights are plain again; else fetch the checkpoint again.",
        )
    places = places_of(checkpoint, modules, architectures)
    weights, used = {}, {}
    for module in modules:
        scheme = schemes.of(module)
        weights[f"{module}.weight"] = as_stored(FORMATS[scheme.format](parts, module, scheme), module, places)
        used[scheme.name] = scheme
    waived, events = _left_out(checkpoint)
    if any(s.activations for s in used.values()):
        message = "the model was made to quantize its activations too (input_activations); what is written here does not"
        events.append(Event(code="activations-plain", message=message, severity="info", subject="input_activations"))
    parts.refuse_orphans(_OF_WEIGHTS)
    if not modules:
        return plain(checkpoint, {}, parts, kinds=(), how="", events=events, waived=waived)
    return plain(
        checkpoint,
        weights,
        parts,
        kinds=sorted({_kind(s) for s in used.values()}),
        how=" and ".join(sorted({_said(s) for s in used.values()})),
        events=events,
        waived=waived,
    )


def _kind(scheme: Scheme) -> str:
    return f"{scheme.type}{scheme.bits}-{f'g{scheme.group}' if scheme.group else scheme.strategy}"


def _said(scheme: Scheme) -> str:
    of = {"group": f"groups of {scheme.group}", "channel": "rows", "tensor": "whole tensors", "block": "blocks"}[scheme.strategy]
    return f"{scheme.bits}-bit compressed-tensors ({scheme.format}, scales of {of})"


def _left_out(checkpoint: Checkpoint) -> tuple[dict[str, str], list[Event]]:
    """Scales of what is not stored: activations, and the cache."""
    waived: dict[str, str] = {}
    events = []
    for ends, what in ((_OF_ACTIVATIONS, "activations are"), (_OF_CACHE, "the cache is")):
        names = [n for n in checkpoint.tensors if n.rpartition(".")[2] in ends]
        if names:
            waived |= dict.fromkeys(names, f"{what} not quantized by what is written here")
            message = f"{len(names)} scales are left out ({names[0]}): {what} not quantized by what is written here"
            events.append(Event(code="scales-left-out", message=message, severity="info", subject=names[0]))
    return waived, events
