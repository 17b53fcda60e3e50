"""fp8 checkpoints as plain ones: each 8-bit float times the scale of its tensor, row or block, in float32.

What is read: `float8_e4m3fn` and `float8_e5m2` weights, bare or with `weight_scale_inv` (DeepSeek and transformers'
`quant_method: fp8`), `weight_scale` (vLLM's `fp8`, `fbgemm_fp8`, NVIDIA ModelOpt), `scale` or `qscale_weight`; scales in
float32, bfloat16, float16 or powers of two (`float8_e8m0fnu`). Whatever the name says, all these writers multiply by the
scale: transformers' `integrations/finegrained_fp8.py` and `fbgemm_fp8.py`, ModelOpt's and vLLM's loaders.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from llmfit_core import Decoder, Event, SourceError, UnsupportedError, hookimpl

if TYPE_CHECKING:
    from llmfit_core.architecture import Architecture
    from llmfit_core.checkpoint import Checkpoint
    from llmfit_core.foreign import Stated
    from llmfit_core.tensors import Tensor, TensorRef

FP8 = ("f8_e4m3", "f8_e5m2")
METHODS = ("fp8", "fbgemm_fp8", "modelopt")
MODELOPT = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "MXFP8")
"""What of ModelOpt's algorithms stores 8-bit floats times scales; `null` quantizes the cache alone."""
SCALES = ("_scale_inv", "_scale", ".weight_scale", ".scale", ".qscale_weight")
"""Ends of a scale's name: behind the weight's own name, or (from the third on) in place of `.weight`."""
NAMED = ("weight_scale_inv", "weight_scale", "qscale_weight", "gate_up_proj_scale_inv", "down_proj_scale_inv",
         "gate_up_proj_scale", "down_proj_scale")  # fmt: skip
"""Last parts of names that only a weight's scale has: none may be left over."""
ACTIVATIONS = ("input_scale", "activation_scale", "act_scale", "input_scale_ub", "output_scale", "qscale_act")
CACHES = ("k_scale", "v_scale", "q_scale", "kv_scale", "prob_scale")
BY_ACTIVATION = "how a runtime would round activations to 8 bits; without it they keep their precision"
BY_CACHE = "how a runtime would round its cache to 8 bits; without it the cache keeps its precision"
_DAMAGED = "Fetch the weights again, or correct config.json as the model's authors published it."
_SKIP_KEYS = ("modules_to_not_convert", "ignored_layers", "exclude_modules", "ignore")


@dataclass(frozen=True, kw_only=True)
class _Pair:
    """A weight and its scale."""

    name: str
    weight: TensorRef
    scale_name: str
    scale: Tensor


def detects(checkpoint: Checkpoint) -> bool:
    """fp8 by the config's word; where the config is silent, by 8-bit floats that no other kind of quantization explains."""
    from llmfit_core.foreign import by_names, stated

    if checkpoint.gguf is not None:
        return False
    said = stated(checkpoint.config, checkpoint.side)
    if said is None:
        kind = by_names(checkpoint)
        return kind is not None and kind.method == "fp8"
    return said.method in METHODS and (said.method != "modelopt" or _modelopt_reads(said.section))


def _modelopt_reads(section: Mapping[str, object]) -> bool:
    layers = section.get("quantized_layers")
    if isinstance(layers, Mapping) and layers:
        return all(isinstance(v, Mapping) and v.get("quant_algo") in MODELOPT for v in layers.values())
    return section.get("quant_algo") in (None, *MODELOPT)


def decode(checkpoint: Checkpoint, architectures: Sequence[Architecture]) -> Checkpoint:
    """The checkpoint with every fp8 weight as its product in float32.

    Raises:
        SourceError: `missing-scale`, `orphan-scale`, `scale-mismatch`, `duplicate-scale`, `tensor-dtype`,
            `config-key-invalid`.
        UnsupportedError: `undecodable-source` where experts are packed in four bits.
    """
    from llmfit_core.foreign import stated, unquantized

    said = stated(checkpoint.config, checkpoint.side)
    events: list[Event] = []
    block = _stated_block(checkpoint, said)
    pairs, bare = _pairs(checkpoint, said)
    skipped = _skipped(said)
    waived = _waived(checkpoint)
    taken = {p.scale_name for p in pairs} | set(waived)
    _refuse_orphans(checkpoint, taken, bool(pairs) or said is not None)
    unscaled = [n for n in bare if not _is_skipped(n, skipped)] if pairs or said is not None else []
    if unscaled:
        raise SourceError(
            "missing-scale",
            f"{unscaled[0]} is stored as {bare[unscaled[0]].dtype} and has no scale beside it"
            + (f", nor have {len(unscaled) - 1} more" if len(unscaled) > 1 else ""),
            "Fetch the missing shard, or the checkpoint again.",
        )
    if bare:
        message = (
            f"{len(bare)} tensors are 8-bit floats without scales; they are taken as the values that they are, "
            "which is right where they were cast and wrong where a scale was lost"
        )
        events.append(Event(code="fp8-unscaled", message=message, subject=next(iter(bare))))
    tensors = {n: r for n, r in checkpoint.tensors.items() if n not in taken}
    told: dict[str, None] = {}
    if block is None:
        block, derived = _derived_block(pairs)
        events += derived
        laid = {p.name: _laid(p, block, said, stated_block=False) for p in pairs}
    else:
        laid = {p.name: _laid(p, block, said, stated_block=True) for p in pairs}
    for pair in pairs:
        tensor, kind = laid[pair.name]
        told[f"{pair.weight.dtype}, {kind}"] = None
        tensors[pair.name] = replace(pair.weight, tensor=tensor)
    listed = [p.name for p in pairs if _is_skipped(p.name, skipped)]
    if listed:
        message = f"{listed[0]} is of a module that the config says was not converted, yet has a scale; it is decoded"
        events.append(Event(code="fp8-module-listed", message=message, subject=listed[0]))
    for name, ref in bare.items():
        tensors[name] = replace(ref, tensor=_widened(ref.tensor))
        told[f"{ref.dtype}, no scales"] = None
    events = [*_source_events(told, waived, said), *events]
    return replace(
        checkpoint,
        config=unquantized(checkpoint.config),
        tensors=tensors,
        quantized=tuple(dict.fromkeys((*checkpoint.quantized, *(t.split(",")[0] for t in told)))),
        waived={**checkpoint.waived, **waived},
        events=(*checkpoint.events, *events),
    )


def _source_events(told: Iterable[str], waived: Mapping[str, str], said: Stated | None) -> list[Event]:
    kinds = "; ".join(told)
    events = []
    if kinds:
        message = f"the source is already quantized ({kinds}): what that lost stays lost"
        events.append(Event(code="source-quantized", message=message, severity="info"))
    elif said is not None:
        message = f"{said.place} says {said.method}, yet no tensor is an 8-bit float; they are read as they are"
        events.append(Event(code="quantization-unused", message=message, subject=said.place.split(" ")[0]))
    if waived:
        message = f"{len(waived)} scales of activations and caches are left out: they tell how a runtime rounds, not the weights"
        events.append(Event(code="scales-left-out", message=message, severity="info", subject=next(iter(waived))))
    return events


def _stated_block(checkpoint: Checkpoint, said: Stated | None) -> tuple[int, int] | None:
    """`weight_block_size`, where the config gives it."""
    if said is None:
        return None
    if said.section.get("expert_dtype") == "fp4":
        raise UnsupportedError(
            "undecodable-source",
            f"{checkpoint.label} packs its experts in four bits (expert_dtype fp4, {said.place}), which is not read",
            "Convert the model's 16-bit original instead.",
        )
    size = said.section.get("weight_block_size")
    if size is None:
        return None
    sound = isinstance(size, list) and len(size) == 2 and all(type(n) is int and 0 < n < 1 << 31 for n in size)
    if not sound:
        raise SourceError("config-key-invalid", f"weight_block_size of {said.place} is {size!r:.60}, not two counts", _DAMAGED)
    assert isinstance(size, list)
    return size[0], size[1]


def _pairs(checkpoint: Checkpoint, said: Stated | None) -> tuple[list[_Pair], dict[str, TensorRef]]:
    """Every fp8 weight with its scale, and those that have none."""
    pairs, bare = [], {}
    for name, ref in checkpoint.tensors.items():
        if ref.dtype not in FP8 or name.endswith(("_scale", "_scale_inv", ".scale")):
            continue
        stem = name.removesuffix(".weight")
        names = [name + end for end in SCALES[:2]]
        if stem != name:
            names += [stem + end for end in SCALES[2:]]
        found = list(dict.fromkeys(n for n in names if n in checkpoint.tensors))
        if len(found) > 1:
            raise SourceError(
                "duplicate-scale", f"{name} has two scales, {found[0]} and {found[1]}", "Remove the one that is not its own."
            )
        if found:
            scale = _scale(found[0], checkpoint.tensors[found[0]], said)
            pairs.append(_Pair(name=name, weight=ref, scale_name=found[0], scale=scale))
        else:
            bare[name] = ref
    return pairs, bare


def _scale(name: str, ref: TensorRef, said: Stated | None) -> Tensor:
    """A scale as floats; bytes are powers of two where the config says so (`scale_fmt: ue8m0`, ModelOpt's MXFP8)."""
    from llmfit_core.tensors import Stored

    if ref.dtype in ("f32", "bf16", "f16", "f8_e8m0"):
        return ref.tensor
    powers = said is not None and (said.section.get("scale_fmt") == "ue8m0" or said.section.get("quant_algo") == "MXFP8")
    if ref.dtype == "u8" and powers and isinstance(ref.tensor, Stored):
        return replace(ref.tensor, dtype="f8_e8m0")
    raise SourceError(
        "tensor-dtype",
        f"{name} holds {ref.dtype} values where scales are f32, bf16, f16 or f8_e8m0",
        "If its bytes are exponents, config.json has to say so (scale_fmt: ue8m0); else fetch the weights again.",
    )


def _refuse_orphans(checkpoint: Checkpoint, taken: set[str], ours: bool) -> None:
    """A scale whose weight is not there, or is no 8-bit float any more: nobody can know whether it still applies."""
    for name in checkpoint.tensors if ours else ():
        stem, _, last = name.rpartition(".")
        if last not in NAMED or name in taken:
            continue
        weight = f"{stem}.weight" if last.startswith(("weight", "qscale")) else name.split("_scale")[0]
        ref = checkpoint.tensors.get(weight)
        if ref is None:
            raise SourceError(
                "orphan-scale", f"{name} is the scale of {weight}, which is not there", "Fetch the missing shard, or the checkpoint again."
            )
        if ref.dtype in ("f32", "f16", "bf16", "f64"):
            raise SourceError(
                "orphan-scale",
                f"{name} is the scale of {weight}, which is stored as {ref.dtype}: multiplied already, or not?",
                "If the weights were made whole before, remove the scale; else fetch the checkpoint again.",
            )


def _derived_block(pairs: Sequence[_Pair]) -> tuple[tuple[int, int] | None, list[Event]]:
    """The block that the shapes of all weights and scales agree on, where some are cut into blocks at all."""
    from llmfit_core.scaled import is_blocks, only_block, possible_blocks

    cut = [p for p in pairs if is_blocks(p.weight.shape, p.scale.shape)]
    if not cut:
        return None, []
    rows, columns = limits = possible_blocks((p.weight.shape, p.scale.shape) for p in cut)
    for at in limits:
        if at.high is not None and at.low > at.high:
            one, other = cut[at.least], cut[at.most]
            raise SourceError(
                "scale-mismatch",
                f"no block explains both {one.scale_name}, {list(one.scale.shape)} for a weight {list(one.weight.shape)}, and "
                f"{other.scale_name}, {list(other.scale.shape)} for a weight {list(other.weight.shape)}",
                _DAMAGED,
            )
    block = (only_block(rows.low, rows.high), only_block(columns.low, columns.high))
    if block[0] is None or block[1] is None:
        ways = " x ".join(f"{at.low} to {at.high}" if at.high is not None else "all" for at in limits)
        raise SourceError(
            "scale-mismatch",
            f"config.json does not say weight_block_size, and the shapes of {cut[0].scale_name} and its like leave it open ({ways})",
            'Add "weight_block_size" to quantization_config in config.json, as the model\'s authors published it.',
        )
    words = " x ".join(str(b) if at.high is not None else "all" for b, at in zip(block, limits, strict=True))
    message = f"config.json does not say weight_block_size; the shapes of the scales say {words}"
    told = Event(code="inferred-from-shapes", message=message, severity="fallback", subject="weight_block_size")
    return (block[0], block[1]), [told]


def _laid(pair: _Pair, block: tuple[int, int] | None, said: Stated | None, *, stated_block: bool) -> tuple[Tensor, str]:
    """The product, and in words what the scales are for."""
    from llmfit_core.scaled import Scaled, fit_scale, is_blocks
    from llmfit_core.transform import Reshape

    weight, scale = pair.weight.shape, pair.scale.shape
    cut = stated_block or is_blocks(weight, scale)
    fit = fit_scale(weight, scale, block if cut else None)
    if fit is None:
        if cut and block is not None:
            rows, columns = (-(-n // b) for n, b in zip((1, *weight)[-2:], block, strict=True))
            where = f"weight_block_size in {said.place}" if said is not None and stated_block else "the other scales' shapes"
            wanted = [*weight[:-2], rows, columns]
            why = f"{where} ({block[0]} x {block[1]}) makes it {wanted} for a weight {list(weight)}"
        else:
            why = f"its weight is {list(weight)}: neither one, nor one for each row, nor blocks"
        raise SourceError("scale-mismatch", f"{pair.scale_name} has the shape {list(scale)}, but {why}", _DAMAGED)
    view = pair.scale if scale == fit.view else Reshape(pair.scale, fit.view)
    tall, wide = fit.block
    if cut:
        kind = f"blocks of {tall} x {wide}" if block is not None else "blocks"
    elif tall == 1 and wide == weight[-1]:
        kind = "a scale for each row"
    else:
        kind = "a scale for each tensor" if wide == weight[-1] else "a scale for each column"
    return Scaled(pair.weight.tensor, view, fit.block), kind


def _widened(tensor: Tensor) -> Tensor:
    from llmfit_core.transform import Cast

    return Cast(tensor, "f32")


def _waived(checkpoint: Checkpoint) -> dict[str, str]:
    """Scales that are none of the weights', with the reason: beside a weight, or of an attention's cache."""
    out = {}
    for name in checkpoint.tensors:
        stem, _, last = name.rpartition(".")
        if last in ACTIVATIONS and (f"{stem}.weight" in checkpoint.tensors or "attn" in stem):
            out[name] = BY_ACTIVATION
        elif last.endswith(("_input_scale", "_activation_scale")) and any(
            f"{stem}.{last.removesuffix(end)}" in checkpoint.tensors for end in ("_input_scale", "_activation_scale")
        ):
            out[name] = BY_ACTIVATION
        elif last in CACHES and ("attn" in stem or "attention" in stem):
            out[name] = BY_CACHE
    return out


def _skipped(said: Stated | None) -> tuple[str, ...]:
    """Modules that the config says were not converted."""
    if said is None:
        return ()
    listed = next((said.section[k] for k in _SKIP_KEYS if isinstance(said.section.get(k), list)), [])
    assert isinstance(listed, list)
    return tuple(n for n in listed if isinstance(n, str) and n)


def _is_skipped(name: str, skipped: Iterable[str]) -> bool:
    module = f".{name.removesuffix('.weight')}."
    return any(f".{s.strip('.*')}." in module for s in skipped)


@hookimpl
def llmfit_decoders() -> Iterable[Decoder]:
    """fp8 checkpoints."""
    yield Decoder(name="fp8", detects=detects, decode=decode)
