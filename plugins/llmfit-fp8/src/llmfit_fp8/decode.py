"""fp8 checkpoints as plain ones: each 8-bit float times the scale of its tensor, row or block, in float32.

What is read: `float8_e4m3fn` and `float8_e5m2` weights, bare or with `weight_scale_inv` (DeepSeek and transformers'
`quant_method: fp8`), `weight_scale` (vLLM's `fp8`, `fbgemm_fp8`, NVIDIA ModelOpt), `scale` or `qscale_weight`; scales in
float32, bfloat16, float16 or powers of two (`float8_e8m0fnu`). Whatever the name says, all these writers multiply by the
scale: transformers' `integrations/finegrained_fp8.py` and `fbgemm_fp8.py`, ModelOpt's and vLLM's loaders.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from llmfit_core.errors import SourceError
from llmfit_core.events import Event
from llmfit_core.foreign import by_names, stated, unquantized
from llmfit_core.transform import Cast
from llmfit_fp8.blocks import derived_block, laid_over, stated_block
from llmfit_fp8.pairing import is_skipped, pair_up, refuse_orphans, skipped_modules, waived_scales

if TYPE_CHECKING:
    from llmfit_core.architecture import Architecture
    from llmfit_core.checkpoint import Checkpoint
    from llmfit_core.foreign import Stated

METHODS = ("fp8", "fbgemm_fp8", "modelopt")
MODELOPT = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "MXFP8")
"""What of ModelOpt's algorithms stores 8-bit floats times scales; `null` quantizes the cache alone."""


def detects(checkpoint: Checkpoint) -> bool:
    """fp8 by the config's word; where the config is silent, by 8-bit floats that no other kind of quantization explains."""
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
    said = stated(checkpoint.config, checkpoint.side)
    events: list[Event] = []
    block = stated_block(checkpoint, said)
    pairs, bare = pair_up(checkpoint, said)
    skipped = skipped_modules(said)
    waived = waived_scales(checkpoint)
    taken = {p.scale_name for p in pairs} | set(waived)
    refuse_orphans(checkpoint, taken, bool(pairs) or said is not None)
    unscaled = [n for n in bare if not is_skipped(n, skipped)] if pairs or said is not None else []
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
        block, derived = derived_block(pairs)
        events += derived
        laid = {p.name: laid_over(p, block, said, of_config=False) for p in pairs}
    else:
        laid = {p.name: laid_over(p, block, said, of_config=True) for p in pairs}
    for pair in pairs:
        tensor, kind = laid[pair.name]
        told[f"{pair.weight.dtype}, {kind}"] = None
        tensors[pair.name] = replace(pair.weight, tensor=tensor)
    listed = [p.name for p in pairs if is_skipped(p.name, skipped)]
    if listed:
        message = f"{listed[0]} is of a module that the config says was not converted, yet has a scale; it is decoded"
        events.append(Event(code="fp8-module-listed", message=message, subject=listed[0]))
    for name, ref in bare.items():
        tensors[name] = replace(ref, tensor=Cast(ref.tensor, "f32"))
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
    elif said is not None and not (said.method == "modelopt" and said.section.get("quant_algo") is None):  # the cache alone
        message = f"{said.place} says {said.method}, yet no tensor is an 8-bit float; they are read as they are"
        events.append(Event(code="quantization-unused", message=message, subject=said.place.split(" ")[0]))
    if waived:
        message = f"{len(waived)} scales of activations and caches are left out: they tell how a runtime rounds, not the weights"
        events.append(Event(code="scales-left-out", message=message, severity="info", subject=next(iter(waived))))
    return events
