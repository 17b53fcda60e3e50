"""Which tensor gets which type: the policy of llama-quantize, as tables.

`_m` and `_l` schemes give more bits to the tensors whose error hurts most: the output matrix, the values of
attention, the way down out of the feed-forward part, above all in the first and last layers. The result equals
llama-quantize's tensor by tensor (run without an importance matrix); the 16-bit schemes equal its converter's.
The tables say *who* gets *what* under which *condition*; the first condition that holds decides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llmfit_core.errors import UnsupportedError
from llmfit_core.events import Event
from llmfit_core.readers.ggml_types import BY_NAME as TYPES
from llmfit_gguf.ftypes import Scheme, scheme_named
from llmfit_gguf.mix_tables import (
    EIGHT_EXPERTS,
    FALCON,
    MIXES,
    NARROWER,
    SEVENTY_BILLION,
    MixFacts,
    Rules,
    Spot,
)
from llmfit_gguf.protected import keeps_float32, may_quantize

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FLOAT_TYPES = frozenset({"f32", "f16", "bf16", "f64"})
TARGETS = "f32 f16 bf16 q8_0 q4_0 q4_1 q5_0 q5_1 q2_k q3_k q4_k q5_k q6_k iq4_nl iq4_xs tq1_0 tq2_0 mxfp4".split()
"""What a tensor can be given by override."""


@dataclass(frozen=True, kw_only=True)
class TensorInfo:
    """A tensor as it would be written.

    Attributes:
        name: Its GGUF name.
        shape: Outermost axis first; the last is the row length.
        dtype: A float name, or a type to be kept as it is (integers).
        stored: The block type that it can be taken over in, bit for bit; empty where there is none.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "f32"
    stored: str = ""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The type of one tensor, and why where it is not what the scheme or the user wanted."""

    type: str
    event: Event | None = None


# Kinds of tensors, by a part of the name; the first that matches decides.
_KINDS: tuple[tuple[str, str], ...] = (
    ("attn_qkv.weight", "attn_v"),  # a fused matrix holds the values, so it is treated as they are
    ("attn_kv_b.weight", "attn_v"),
    ("attn_v.weight", "attn_v"),
    ("attn_k.weight", "attn_k"),
    ("attn_q.weight", "attn_q"),
    ("attn_output.weight", "attn_output"),
    ("ffn_up", "ffn_up"),
    ("ffn_gate", "ffn_gate"),
    ("ffn_down", "ffn_down"),
)
_EMBEDDINGS = ("token_embd.weight", "per_layer_token_embd.weight")


def facts_from_metadata(metadata: Mapping[str, Any]) -> MixFacts:
    """The facts as a loader reads them from GGUF keys (plain values; per-layer arrays count by their first entry)."""

    def first(key: str, default: int) -> int:
        value = metadata.get(f"{arch}.{key}", default)
        if hasattr(value, "__len__"):
            value = value[0] if len(value) else default
        return int(value)

    arch = str(metadata["general.architecture"])
    heads = first("attention.head_count", 0)
    return MixFacts(
        architecture=arch,
        n_layer=first("block_count", 0),
        n_head=heads,
        n_head_kv=first("attention.head_count_kv", heads),
        n_expert=first("expert_count", 0),
    )


def choose_types(
    scheme: str,
    tensors: Sequence[TensorInfo],
    facts: MixFacts,
    overrides: Sequence[tuple[str, str]] = (),
) -> list[Choice]:
    """The type of each tensor, in the order given.

    Args:
        scheme: A name of `ftypes.SCHEMES`, in either case.
        tensors: All tensors of the model: positions are counted over the whole, whatever files it is split into.
        facts: See `MixFacts`.
        overrides: `(regex, type)`, searched for in the GGUF names; the first that matches decides. Vectors, norms
            and the other tensors that no scheme quantizes keep their type.

    Returns:
        One `Choice` per tensor. A row length that the wanted type does not divide gives a narrower type and a
        `row-length` event of severity `fallback`.

    Raises:
        UnsupportedError: An override is no regex, names an unknown type, or decides no tensor; a layer number in a
            name exceeds `n_layer`.
    """
    plan = scheme_named(scheme)
    rules = _compiled(overrides)
    used = [False] * len(rules)
    matched = [False] * len(rules)
    choices: list[Choice | None] = [None] * len(tensors)
    counts = {"attn_v": 0, "ffn_down": 0}
    n_attn_v = sum(_kind(t.name) == "attn_v" for t in tensors)
    tied = all(t.name != "output.weight" for t in tensors)
    for at in sorted(range(len(tensors)), key=lambda i: _order(tensors[i].name)):
        tensor = tensors[at]
        if tensor.dtype not in FLOAT_TYPES:
            choices[at] = Choice(type=tensor.dtype)
            continue
        if not _changeable(plan, tensor, facts):
            for i, (pattern, _) in enumerate(rules):
                matched[i] |= pattern.search(tensor.name) is not None
            choices[at] = Choice(type="f32")
            continue
        forced: str | None = None
        for i, (pattern, wanted) in enumerate(rules):
            if pattern.search(tensor.name):
                matched[i] = True
                if forced is None:
                    forced, used[i] = wanted, True
        if forced is not None:
            choices[at] = _fitting(tensor, forced)
        elif plan.rule == "float":
            choices[at] = Choice(type=plan.base)
        elif plan.rule == "source":
            choices[at] = Choice(type=tensor.stored or tensor.dtype)
        else:
            choices[at] = _mixed(plan, tensor, facts, counts, n_attn_v, tied)
    _require_used(overrides, used, matched)
    return [c for c in choices if c is not None]


def _compiled(overrides: Sequence[tuple[str, str]]) -> list[tuple[re.Pattern[str], str]]:
    out = []
    for text, wanted in overrides:
        name = wanted.lower()
        if name not in TARGETS:
            raise UnsupportedError(
                "override-type", f"override {text}={wanted}: no such type", f"Choose one of: {', '.join(TARGETS)}."
            )
        try:
            out.append((re.compile(text), name))
        except re.error as error:
            raise UnsupportedError(
                "override-regex", f"override {text!r} is not a regular expression: {error}", "Mend the pattern."
            ) from None
    return out


def _require_used(overrides: Sequence[tuple[str, str]], used: list[bool], matched: list[bool]) -> None:
    for (text, wanted), was_used, was_matched in zip(overrides, used, matched, strict=True):
        if was_used:
            continue
        if was_matched:
            raise UnsupportedError(
                "override-without-effect",
                f"override {text}={wanted} matches only tensors that stay f32 or that an earlier override decides",
                "Leave it out, or put it before the others.",
            )
        raise UnsupportedError(
            "override-unmatched",
            f"override {text}={wanted} matches no tensor",
            "Patterns are searched for in GGUF names such as blk.0.attn_v.weight; list them with `llmfit plan`.",
        )


def _order(name: str) -> tuple[int, bytes]:
    """llama.cpp walks tensors by layer, those outside any layer first, and by the bytes of the name within."""
    match = re.match(r"blk\.(\d+)", name)
    return (int(match[1]) if match else -1, name.encode())


def _kind(name: str) -> str:
    if name == "output.weight":
        return "output"
    if name in _EMBEDDINGS:
        return "token_embd"
    return next((kind for part, kind in _KINDS if part in name), "other")


def _changeable(plan: Scheme, tensor: TensorInfo, facts: MixFacts) -> bool:
    if plan.rule != "mix":
        return bool(plan.rule == "source" and tensor.stored) or not keeps_float32(tensor.name, len(tensor.shape), facts.architecture)
    shape = tensor.shape
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    return may_quantize(tensor.name, len(shape), facts.architecture)


def _mixed(
    plan: Scheme, tensor: TensorInfo, facts: MixFacts, counts: dict[str, int], n_attn_v: int, tied: bool
) -> Choice:
    """What the tables say, asked in llama.cpp's order, because attention values are counted as they come."""
    kind = _kind(tensor.name)
    if plan.name == "mxfp4_moe":  # matrices of experts, and whatever else there is one for each of
        return _fitting(tensor, "mxfp4" if len(tensor.shape) == 3 and tensor.shape[0] > 1 else "q8_0")
    if facts.architecture == "glm5-next" and any(
        part in tensor.name for part in ("attn_q_a", "attn_q_b", "nextn.eh_proj")
    ):
        return _fitting(tensor, "q8_0")
    if kind == "output" or (kind == "token_embd" and tied):
        return _output(plan, tensor, facts)
    wanted = plan.base
    spot = Spot(index=0, count=1, facts=facts)
    if kind == "attn_v":
        spot = Spot(index=counts["attn_v"], count=n_attn_v, facts=facts)
        counts["attn_v"] += 1
    elif kind == "ffn_down":
        spot = Spot(index=_down_index(tensor.name, facts, counts["ffn_down"]), count=facts.n_layer, facts=facts)
        counts["ffn_down"] += 1
    for when, type_ in _rules(plan.name, kind, facts):
        if when(spot):
            wanted = type_
            break
    if kind == "attn_v" and _is_seventy_billion(facts) and wanted in ("q3_k", "q4_k"):
        wanted = "q5_k"
    if kind in ("attn_v", "attn_k") and facts.n_expert == 8:
        wanted = "q8_0"
    return _fitting(tensor, wanted)


def _rules(scheme: str, kind: str, facts: MixFacts) -> Rules:
    if facts.architecture == "falcon":
        special = FALCON.get(scheme, {})
        if kind in special:
            return special[kind]
    elif kind == "attn_output" and facts.n_expert == 8:
        return EIGHT_EXPERTS.get(scheme, ())
    return MIXES.get(scheme, {}).get(kind, ())


def _down_index(name: str, facts: MixFacts, counted: int) -> int:
    """With experts there are several `ffn_down` in a layer, so the layer is read from the name instead of counted."""
    if facts.n_expert <= 1:
        return counted
    match = re.match(r"blk\.(\d+)\.", name)
    if match is None or int(match[1]) >= facts.n_layer:
        raise UnsupportedError(
            "layer-number",
            f"{name} names no layer of the {facts.n_layer} there are",
            "Check block_count (num_hidden_layers) against the tensors.",
        )
    return int(match[1])


def _is_seventy_billion(facts: MixFacts) -> bool:
    if SEVENTY_BILLION.get(facts.architecture) != facts.n_layer:
        return False
    return not facts.architecture.startswith("llama") or facts.n_head != facts.n_head_kv


def _output(plan: Scheme, tensor: TensorInfo, facts: MixFacts) -> Choice:
    width, block = tensor.shape[-1], TYPES[plan.base].block
    if width % block:
        return _fitting(tensor, "q8_0", instead_of=plan.base)
    if facts.architecture == "falcon" or plan.base == "q8_0":
        return _fitting(tensor, "q8_0")
    return _fitting(tensor, "q6_k")


def _fitting(tensor: TensorInfo, wanted: str, instead_of: str | None = None) -> Choice:
    """`wanted` where its blocks divide the rows, else the narrower type, else f16."""
    width = tensor.shape[-1]
    chosen = wanted
    if width % TYPES[chosen].block:
        chosen = NARROWER.get(chosen, chosen)
        if width % TYPES[chosen].block:
            chosen = "f16"
    missed = instead_of or wanted
    if chosen == missed:
        return Choice(type=chosen)
    message = (
        f"{tensor.name}: rows of {width} cannot hold {missed}, whose blocks are {TYPES[missed].block} long; "
        f"{chosen} instead"
    )
    return Choice(
        type=chosen, event=Event(code="row-length", message=message, severity="fallback", subject=tensor.name)
    )
