"""Rope in a GGUF file: the keys llama.cpp's loader reads, and factor tensors where keys cannot say it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from llmfit_core.errors import SourceError
from llmfit_core.readers.gguf_values import KV
from llmfit_core.roles import Role
from llmfit_core.rope import llama3_factors, yarn_factors, yarn_mscale
from llmfit_gguf.graphs import yarn_is_custom
from llmfit_gguf.rounding import as_computed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llmfit_core.architecture import Graph
    from llmfit_core.model import Model
    from llmfit_core.rope import Rope


@dataclass(frozen=True, kw_only=True)
class RopeKeys:
    """How a rope is written.

    Attributes:
        keys: Architecture-relative keys.
        factors: Factor tensors by role, one value per rotated pair.
        note: What was rewritten exactly, for the manifest; empty where nothing was.
    """

    keys: Mapping[str, KV]
    factors: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    note: str = ""


def rope_keys(model: Model, graph: Graph) -> RopeKeys:
    """The keys and tensors of the model's rope; none where it has learned positions instead."""
    if "rope.freq_base" not in model.hparams:
        return RopeKeys(keys={})
    base = float(model.hparams["rope.freq_base"])  # type: ignore[arg-type]
    found = keys_of(as_computed(model.rope, graph), base, model.integer("rope.dimension_count"))
    return replace(found, keys=with_own_keys(found.keys, model.rope, graph))


def with_own_keys(keys: Mapping[str, KV], rope: Rope, graph: Graph) -> dict[str, KV]:
    """The usual keys, and over them what this graph's loader wants to be told otherwise."""
    out = dict(keys)
    for key, value in graph.rope_keys(rope).items() if graph.rope_keys is not None else ():
        out.pop(key, None)
        if value is not None:
            out[key] = KV("float32", value)
    return out


def keys_of(rope: Rope, base: float, dims: int) -> RopeKeys:
    """The keys and tensors of a rope with this base that turns `dims` dimensions of each head.

    llama.cpp multiplies cosine and sine by `rope.scaling.attn_factor`, and under yarn by `1 + 0.1 ln(factor)` besides;
    its `beta_fast` and `beta_slow` are fixed at 32 and 1 for most architectures. yarn with other betas is written as
    plain rope with one factor per dimension, which is the same function.
    """
    keys: dict[str, KV] = {}
    if rope.type == "linear":
        keys["rope.scaling.type"] = KV("string", "linear")
        keys["rope.scaling.factor"] = KV("float32", rope.factor)
    elif rope.type == "llama3":
        return RopeKeys(keys={}, factors={Role.ROPE_FREQS: tuple(llama3_factors(rope, base, dims))})
    elif rope.type == "yarn" and yarn_is_custom(rope):
        keys["rope.scaling.type"] = KV("string", "none")
        if rope.attention_factor != 1:
            keys["rope.scaling.attn_factor"] = KV("float32", rope.attention_factor)
        return RopeKeys(
            keys=keys,
            factors={Role.ROPE_FREQS: tuple(yarn_factors(rope, base, dims))},
            note=f"yarn with {yarn_is_custom(rope)} is written as one rope factor per dimension",
        )
    elif rope.type == "yarn":
        keys["rope.scaling.type"] = KV("string", "yarn")
        keys["rope.scaling.factor"] = KV("float32", rope.factor)
        keys["rope.scaling.original_context_length"] = KV("uint32", rope.original_context)
        share = rope.attention_factor / yarn_mscale(rope.factor)
        if abs(share - 1) > 1e-7:
            keys["rope.scaling.attn_factor"] = KV("float32", share)
    elif rope.type == "longrope":
        for key, values in (("long_factor", rope.long_factor), ("short_factor", rope.short_factor)):
            if len(values) != dims // 2:
                raise SourceError(
                    "rope-key-invalid",
                    f"rope key {key} in config.json has {len(values)} values where {dims // 2} pairs are rotated",
                    "Correct rope_scaling, as the model's authors published it.",
                )
        # No rope.scaling.factor: the loader would divide every frequency by it.
        keys["rope.scaling.type"] = KV("string", "longrope")
        keys["rope.scaling.original_context_length"] = KV("uint32", rope.original_context)
        keys["rope.scaling.attn_factor"] = KV("float32", rope.attention_factor)
        return RopeKeys(keys=keys, factors={Role.ROPE_LONG: rope.long_factor, Role.ROPE_SHORT: rope.short_factor})
    return RopeKeys(keys=keys)
