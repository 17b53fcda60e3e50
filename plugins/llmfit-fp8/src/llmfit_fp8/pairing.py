"""Which scale belongs to which 8-bit weight, and which scales belong to none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from llmfit_core.errors import SourceError
from llmfit_core.readers.remote import Remote
from llmfit_core.tensors import Stored

if TYPE_CHECKING:
    from llmfit_core.checkpoint import Checkpoint
    from llmfit_core.foreign import Stated
    from llmfit_core.tensors import Tensor, TensorRef

FP8 = ("f8_e4m3", "f8_e5m2")
SCALES = ("_scale_inv", "_scale", ".weight_scale", ".scale", ".qscale_weight")
"""Ends of a scale's name: behind the weight's own name, or (from the third on) in place of `.weight`."""
NAMED = ("weight_scale_inv", "weight_scale", "qscale_weight", "gate_up_proj_scale_inv", "down_proj_scale_inv",
         "gate_up_proj_scale", "down_proj_scale")  # fmt: skip
"""Last parts of names that only a weight's scale has: none may be left over."""
ACTIVATIONS = ("input_scale", "activation_scale", "act_scale", "input_scale_ub", "output_scale", "qscale_act")
CACHES = ("k_scale", "v_scale", "q_scale", "kv_scale", "prob_scale")
BY_ACTIVATION = "how a runtime would round activations to 8 bits; without it they keep their precision"
BY_CACHE = "how a runtime would round its cache to 8 bits; without it the cache keeps its precision"
_SKIP_KEYS = ("modules_to_not_convert", "ignored_layers", "exclude_modules", "ignore")


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A weight and its scale."""

    name: str
    weight: TensorRef
    scale_name: str
    scale: Tensor


def pair_up(checkpoint: Checkpoint, said: Stated | None) -> tuple[list[Pair], dict[str, TensorRef]]:
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
            pairs.append(Pair(name=name, weight=ref, scale_name=found[0], scale=scale))
        else:
            bare[name] = ref
    return pairs, bare


def _scale(name: str, ref: TensorRef, said: Stated | None) -> Tensor:
    """A scale as floats; bytes are powers of two where the config says so (`scale_fmt: ue8m0`, ModelOpt's MXFP8)."""
    if ref.dtype in ("f32", "bf16", "f16", "f8_e8m0"):
        return ref.tensor
    powers = said is not None and (said.section.get("scale_fmt") == "ue8m0" or said.section.get("quant_algo") == "MXFP8")
    if ref.dtype == "u8" and powers and isinstance(ref.tensor, Stored | Remote):
        return replace(ref.tensor, dtype="f8_e8m0")
    raise SourceError(
        "tensor-dtype",
        f"{name} holds {ref.dtype} values where scales are f32, bf16, f16 or f8_e8m0",
        "If its bytes are exponents, config.json has to say so (scale_fmt: ue8m0); else fetch the weights again."
        if ref.dtype == "u8"
        else "Fetch the weights again; if they are so published, store the scales as float32.",
    )


def refuse_orphans(checkpoint: Checkpoint, taken: set[str], ours: bool) -> None:
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


def waived_scales(checkpoint: Checkpoint) -> dict[str, str]:
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


def skipped_modules(said: Stated | None) -> tuple[str, ...]:
    """Modules that the config says were not converted."""
    if said is None:
        return ()
    listed = next((said.section[k] for k in _SKIP_KEYS if isinstance(said.section.get(k), list)), [])
    assert isinstance(listed, list)
    return tuple(n for n in listed if isinstance(n, str) and n)


def is_skipped(name: str, skipped: Iterable[str]) -> bool:
    """Whether a tensor's module is one of those, or within one."""
    module = f".{name.removesuffix('.weight')}."
    return any(f".{s.strip('.*')}." in module for s in skipped)
