"""Quantizations of the field: what each is called, how its tensors look, who decodes it, and what to do where nobody does.

A decoder is asked first whatever this table says, so that a plugin may decode what is here called undecodable. Sources of
the facts: transformers' `utils/quantization_config.py` and `quantizers/`, and each tool's own writer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from llmfit_core.config import MAX_CONFIG_BYTES
from llmfit_core.dtypes import FLOATS
from llmfit_core.errors import SourceError, UnsupportedError
from llmfit_core.readers.folder import read_json_object

if TYPE_CHECKING:
    from pathlib import Path

    from llmfit_core.checkpoint import Checkpoint
    from llmfit_core.config import Config

_KEYS = ("quantization_config", "compression_config", "quantization")
_BY_TRANSFORMERS = (
    "Convert the model's 16-bit original, or load this one in transformers, call `model.dequantize()` and save that."
)
_ORIGINAL = "Its packing cannot be read here: convert the model's 16-bit original instead."


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """One way to quantize checkpoints.

    Attributes:
        method: `quant_method` in config.json.
        what: More words for a message.
        decoder: The name of the decoder that reads it, where there is one.
        remedy: What to do without a decoder.
        marks: Last parts of tensor names; where a checkpoint holds all of one set, it is of this kind.
    """

    method: str
    what: str = ""
    decoder: str = ""
    remedy: str = _ORIGINAL
    marks: tuple[frozenset[str], ...] = ()


def _sets(*marks: str) -> tuple[frozenset[str], ...]:
    return tuple(frozenset(m.split()) for m in marks)


QUANTIZATIONS: tuple[Quantization, ...] = (
    Quantization(
        method="bitsandbytes",
        what="NF4, FP4 or LLM.int8()",
        remedy=_BY_TRANSFORMERS,
        marks=_sets("absmax quant_map", "SCB", "bitsandbytes__nf4", "bitsandbytes__fp4"),
    ),
    Quantization(method="hqq", what="half-quadratic quantization", marks=_sets("W_q")),
    Quantization(method="aqlm", what="additive codebooks", marks=_sets("codes codebooks")),
    Quantization(method="quanto", what="optimum-quanto", marks=_sets("_data _scale")),
    Quantization(method="torchao", marks=_sets("_weight_qdata", "weight_qdata", "weight:qdata", "weight:_data")),
    Quantization(method="eetq", what="int8", marks=_sets("weight_scales weight")),
    Quantization(method="higgs", remedy=_BY_TRANSFORMERS, marks=_sets("tables tables2")),
    Quantization(method="spqr", marks=_sets("dense_weights row_offsets")),
    Quantization(method="vptq", what="vector codebooks", marks=_sets("centroids.weight indices")),
    Quantization(method="exl2", what="ExLlamaV2", marks=_sets("q_weight q_scale_max")),
    Quantization(method="exl3", what="ExLlamaV3", marks=_sets("trellis")),
    Quantization(method="fp_quant", what="rotated MXFP4 or NVFP4", marks=_sets("dqweight", "forward_hadamard_matrix")),
    Quantization(method="quark", what="AMD Quark"),
    Quantization(method="sinq"),
    Quantization(method="fouroversix", what="NVFP4"),
    Quantization(method="metal", what="affine packing of Metal kernels"),
    Quantization(method="ipex", what="Intel's packing"),
    Quantization(method="marlin", what="a kernel's own packing of GPTQ"),
    Quantization(method="nvfp4", what="4-bit floats of NVIDIA", marks=_sets("weight_scale_2 weight_scale", "weight_packed weight_global_scale")),
    Quantization(method="modelopt", what="NVIDIA ModelOpt", decoder="fp8"),
    Quantization(method="mlx", what="affine packing of Apple's MLX", decoder="mlx", marks=_sets("scales biases weight")),
    Quantization(method="bitnet", what="packed ternary weights", decoder="bitnet"),
    Quantization(method="mxfp4", what="4-bit floats in blocks of 32", decoder="mxfp4", marks=_sets("gate_up_proj_blocks gate_up_proj_scales")),
    Quantization(method="awq", decoder="awq"),
    Quantization(method="gptq", decoder="gptq", marks=_sets("qweight qzeros scales g_idx")),
    Quantization(method="gptq or awq", decoder="gptq", marks=_sets("qweight qzeros scales")),
    Quantization(method="auto-round"),
    Quantization(method="compressed-tensors", decoder="compressed-tensors", marks=_sets("weight_packed weight_scale")),
    Quantization(method="fp8", what="8-bit floats", decoder="fp8"),
    Quantization(method="fbgemm_fp8", what="8-bit floats", decoder="fp8"),
)
"""In the order in which tensor names are tried."""

_BY_METHOD = {q.method: q for q in QUANTIZATIONS}
_GPTQ_WORDS = frozenset(("desc_act", "sym", "checkpoint_format", "zero_point", "damp_percent"))
_ALIASES = {
    "bitsandbytes_4bit": "bitsandbytes", "bitsandbytes_8bit": "bitsandbytes", "bnb": "bitsandbytes", "intel/auto-round": "auto-round",
    "auto_round": "auto-round", "auto-awq": "awq", "autoawq": "awq", "optimum-quanto": "quanto", "compressed_tensors": "compressed-tensors",
    "compressed-tensors": "compressed-tensors", "sparseml": "compressed-tensors", "finegrained_fp8": "fp8", "fp-quant": "fp_quant",
    "modelopt_fp4": "nvfp4", "modelopt_fp8": "modelopt", "gptqmodel": "gptq",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Stated:
    """What a checkpoint says of its quantization.

    Attributes:
        place: Where: `quantization_config in config.json`.
        method: The method, in the words of `QUANTIZATIONS` where it is known there; empty where the section does not say.
        section: All it says.
    """

    place: str
    method: str
    section: Mapping[str, object]


def stated(config: Config, side: Mapping[str, Path]) -> Stated | None:
    """What config.json, or ModelOpt's own file beside it, says of a quantization; `None` where there is no word of it.

    Raises:
        SourceError: `config-key-invalid` for a section that is no object.
    """
    places = (config.values, config.raw)
    key, section = next(((k, p[k]) for p in places for k in _KEYS if p.get(k) not in (None, {})), ("", None))
    place = f"{key} in config.json"
    producer = "hf_quant_config.json"
    if producer in side and (section is None or (isinstance(section, Mapping) and not section.get("quant_method"))):
        place, section = producer, read_json_object(side[producer], MAX_CONFIG_BYTES).get("quantization")
        section = {"quant_method": "modelopt", **section} if isinstance(section, Mapping) else section
    if section is None:
        return None
    if not isinstance(section, Mapping):
        raise SourceError(
            "config-key-invalid",
            f"{place} is {section!r:.80}, no object",
            "Correct config.json, as the model's authors published it.",
        )
    return Stated(place=place, method=_method(section), section=section)


def _method(section: Mapping[str, object]) -> str:
    said = str(section.get("quant_method") or section.get("quant_type") or "").lower()
    method = _ALIASES.get(said, said)
    if section.get("load_in_4bit") or section.get("load_in_8bit"):
        return "bitsandbytes"
    if not method and {"group_size", "bits"} <= set(section):
        return "mlx" if _GPTQ_WORDS.isdisjoint(section) else "gptq"
    if method == "modelopt" and "NVFP4" in str(section.get("quant_algo", "")).upper():
        return "nvfp4"
    return method


def unquantized(config: Config) -> Config:
    """A config that speaks of no quantization, in its parts neither: what is true of decoded weights."""
    values = {k: v for k, v in config.values.items() if k not in _KEYS}
    return replace(config, raw=_without(config.raw), values=values)


def _without(raw: Mapping[str, object]) -> dict[str, object]:
    return {k: _without(v) if isinstance(v, Mapping) and k.endswith("config") else v for k, v in raw.items() if k not in _KEYS}


def by_names(checkpoint: Checkpoint) -> Quantization | None:
    """What tensor names and element types alone tell of a quantization; `None` where they look plain."""
    parts = [name.split(".") for name in checkpoint.tensors]
    last = {p[-1] for p in parts} | {".".join(p[-2:]) for p in parts}
    for kind in QUANTIZATIONS:
        if any(marks <= last for marks in kind.marks):
            return kind
    for name, ref in checkpoint.tensors.items():
        if ref.dtype in ("f8_e4m3", "f8_e5m2"):
            return _BY_METHOD["fp8"]
        if ref.dtype == "u8" and name.endswith(".weight") and f"{name}_scale" in checkpoint.tensors:
            return _BY_METHOD["bitnet"]
    return None


def refuse_undecoded(checkpoint: Checkpoint, decoders: Collection[str]) -> None:
    """Name the quantization of a source that no decoder took.

    Args:
        checkpoint: As it was opened.
        decoders: The names of the installed ones.

    Raises:
        UnsupportedError: `undecodable-source`.
    """
    said = stated(checkpoint.config, checkpoint.side)
    found = by_names(checkpoint)
    if said is not None:
        error = refusal(checkpoint.label, said, decoders)
        if found is None and checkpoint.tensors and all(r.dtype in FLOATS for r in checkpoint.tensors.values()):
            where = said.place.split(" ")[0]
            remedy = f"Its tensors are plain floats, though: if it was made whole again after that, remove {where}."
            raise UnsupportedError(error.code, error.cause, remedy)
        raise error
    if found is not None:
        raise _refusal(checkpoint.label, found, decoders, "by its tensors' names and types")


def refusal(label: str, said: Stated, decoders: Collection[str]) -> UnsupportedError:
    """The refusal of a quantization that the config states."""
    kind = _BY_METHOD.get(said.method)
    if kind is None:
        kind = Quantization(
            method=said.method or "a method that it does not name",
            remedy="Install a plugin that decodes it, or convert the model's 16-bit original instead.",
        )
    elif kind.method == "auto-round":
        inner = str(said.section.get("packing_format") or "").removeprefix("auto_round:")
        home = "awq" if "awq" in inner else "gptq" if "gptq" in inner or not inner else ""
        kind = Quantization(method=kind.method, what=inner, decoder=home)
    variant = said.section.get("quant_algo") or said.section.get("format")
    if isinstance(variant, str):
        kind = replace(kind, what=", ".join(filter(None, (kind.what, variant[:40]))))
    return _refusal(label, kind, decoders, f"as {said.place} says")


def is_known(said: Stated) -> bool:
    """Whether the method is one of `QUANTIZATIONS`."""
    return said.method in _BY_METHOD


def _refusal(label: str, kind: Quantization, decoders: Collection[str], evidence: str) -> UnsupportedError:
    from llmfit_core.index import known_distributions

    homes = known_distributions(kind.decoder, "decoder") if kind.decoder else []
    if kind.decoder in decoders:
        remedy = f"The installed decoder {kind.decoder} does not take this variant of it: convert the 16-bit original instead."
    elif homes:
        remedy = f"Install the plugin that decodes it: pip install {homes[0]}"
    else:
        remedy = kind.remedy
    what = f"{kind.method} ({kind.what})" if kind.what else kind.method
    return UnsupportedError(
        "undecodable-source", f"{label} is quantized by {what}, {evidence}; no installed plugin decodes it", remedy
    )
