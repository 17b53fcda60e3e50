"""The GGUF format and the Hugging Face folder, as exporters; GGUF files as sources."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from llmfit_core import Decoder, Exporter, Scheme, hookimpl

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from llmfit_core.architecture import Architecture
    from llmfit_core.checkpoint import Checkpoint
    from llmfit_core.export import Filled, FillOptions
    from llmfit_core.model import Model
    from llmfit_core.plan import OutputFile, Plan, Recipe

# Nominal bits per weight: those of the base type's blocks.
GGUF_SCHEMES = tuple(
    Scheme(name=name, summary=summary, bits=bits)
    for name, bits, summary in (
        ("q4_k_m", 4.5, "4-bit K-quants, more bits where it hurts: the usual choice"),
        ("f32", 32, "as exact as it gets"),
        ("f16", 16, "half precision"),
        ("bf16", 16, "bfloat16: what most models are published in"),
        ("q8_0", 8.5, "8 bits: nearly lossless"),
        ("q6_k", 6.5625, "6-bit K-quants"),
        ("q5_k_m", 5.5, "5-bit K-quants, more bits where it hurts"),
        ("q5_k_s", 5.5, "5-bit K-quants"),
        ("q5_1", 6, "5 bits with offsets"),
        ("q5_0", 5.5, "5 bits"),
        ("q4_k_s", 4.5, "4-bit K-quants"),
        ("q4_1", 5, "4 bits with offsets"),
        ("q4_0", 4.5, "4 bits"),
        ("iq4_nl", 4.5, "4 bits on a curve"),
        ("iq4_xs", 4.25, "4 bits on a curve, in large blocks"),
        ("q3_k_l", 3.4375, "3-bit K-quants, many more bits where it hurts"),
        ("q3_k_m", 3.4375, "3-bit K-quants, more bits where it hurts"),
        ("q3_k_s", 3.4375, "3-bit K-quants"),
        ("q2_k", 2.625, "2-bit K-quants: much is lost"),
        ("tq2_0", 2.0625, "ternary weights, fast"),
        ("tq1_0", 1.6875, "ternary weights, small"),
        ("mxfp4_moe", 4.25, "experts as 4-bit floats, the rest in 8 bits: what GPT-OSS was trained for"),
        ("source", 16, "each tensor in the type that the source stores it in, bit for bit: the usual choice for GPT-OSS"),
    )
)
GGUF_ALIASES = {
    "q3_k": "q3_k_m", "q4_k": "q4_k_m", "q5_k": "q5_k_m", "fp32": "f32", "fp16": "f16", "float32": "f32",
    "float16": "f16", "bfloat16": "bf16", "mxfp4": "mxfp4_moe", "auto": "source",
}  # fmt: skip
HF_ALIASES = {"fp32": "f32", "fp16": "f16", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}
HF_SCHEMES = (
    Scheme(name="bf16", summary="bfloat16: what most models are published in", bits=16),
    Scheme(name="f16", summary="half precision", bits=16),
    Scheme(name="f32", summary="as exact as it gets", bits=32),
)


def _plan_gguf(model: Model, recipe: Recipe) -> Plan:
    from llmfit_gguf.planner import plan

    return plan(model, recipe)


def _usual_gguf(model: Model) -> str:
    """A model that was trained in MXFP4 keeps it; to quantize it again would lose what nobody asked to lose."""
    return "source" if "mxfp4" in model.checkpoint.quantized else "q4_k_m"


def _plan_hf(model: Model, recipe: Recipe) -> Plan:
    from llmfit_gguf.hf_folder import plan

    return plan(model, recipe)


def _fill(file: OutputFile, path: Path, options: FillOptions) -> Filled:
    from llmfit_gguf.filling import fill_file

    return fill_file(file, path, options)


def _reopen_gguf(path: Path, plan: Plan) -> None:
    from llmfit_gguf.reopen import reopen_gguf

    reopen_gguf(path, plan)


def _reopen_hf(path: Path, plan: Plan) -> None:
    from llmfit_gguf.reopen import reopen_hf

    reopen_hf(path, plan)


def _is_gguf(checkpoint: Checkpoint) -> bool:
    return checkpoint.gguf is not None


def _decode_gguf(checkpoint: Checkpoint, architectures: Sequence[Architecture]) -> Checkpoint:
    from llmfit_gguf.decode import decode

    return decode(checkpoint, architectures)


@hookimpl
def llmfit_exporters() -> Iterable[Exporter]:
    """`gguf` files and `hf` folders."""
    yield Exporter(
        name="gguf", suffix=".gguf", schemes=GGUF_SCHEMES, aliases=GGUF_ALIASES, plan=_plan_gguf, fill=_fill, reopen=_reopen_gguf,
        usual=_usual_gguf,
    )
    yield Exporter(name="hf", suffix="", schemes=HF_SCHEMES, aliases=HF_ALIASES, plan=_plan_hf, fill=_fill, reopen=_reopen_hf)


@hookimpl
def llmfit_decoders() -> Iterable[Decoder]:
    """GGUF files as checkpoints."""
    yield Decoder(name="gguf", detects=_is_gguf, decode=_decode_gguf)
