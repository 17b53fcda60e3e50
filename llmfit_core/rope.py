"""Rotary position embeddings as data, and the frequencies each kind means.

The formulas are those of transformers' `modeling_rope_utils`, which defines what a checkpoint means.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from llmfit_core.errors import SourceError, UnsupportedError
from llmfit_core.events import Event

ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "llama3", "longrope")
_READS = {
    "default": "",
    "linear": "factor",
    "dynamic": "factor original_max_position_embeddings",
    "yarn": "factor original_max_position_embeddings attention_factor beta_fast beta_slow mscale mscale_all_dim truncate",
    "llama3": "factor original_max_position_embeddings low_freq_factor high_freq_factor",
    "longrope": "factor original_max_position_embeddings attention_factor short_factor long_factor",
}
_HARMLESS = ("rope_type", "finetuned")
_CORRECT = "Correct rope_scaling or rope_parameters, as the model's authors published it."


@dataclass(frozen=True, kw_only=True)
class Rope:
    """What a config says of rope, with every default made explicit.

    Attributes:
        type: One of `ROPE_TYPES`.
        factor: By how much the context was extended; 1 for none.
        original_context: Tokens of context before the extension; 0 where it plays no part.
        attention_factor: Factor on cosine and sine.
        mscale_all_dim: yarn: what some models scale their softmax by, as `yarn_mscale(factor, mscale_all_dim)` squared; 0 for none.
        beta_fast: yarn: rotations above which a dimension is left alone.
        beta_slow: yarn: rotations below which a dimension is interpolated.
        truncate: yarn: the correction range is rounded to whole dimensions.
        low_freq_factor: llama3.
        high_freq_factor: llama3.
        short_factor: longrope: per-dimension factors up to the original context.
        long_factor: longrope: per-dimension factors beyond it.
    """

    type: str = "default"
    factor: float = 1.0
    original_context: int = 0
    attention_factor: float = 1.0
    mscale_all_dim: float = 0.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()


def read_rope(
    scaling: Mapping[str, object], *, context: int, default_original: int | None = None
) -> tuple[Rope, tuple[Event, ...]]:
    """The rope of a normalised config.

    Args:
        scaling: The keys of `rope_scaling` or `rope_parameters` without base and partial factor.
        context: `max_position_embeddings`.
        default_original: What the model class takes for it where the config is silent.

    Raises:
        SourceError: `rope-key-missing` or `rope-key-invalid`.
        UnsupportedError: `unknown-rope-type`.
    """
    kind = scaling.get("rope_type")
    if kind is None:
        if any(v is not None for k, v in scaling.items() if k not in _HARMLESS):
            raise SourceError(
                "rope-key-missing",
                f"rope_scaling in config.json has {', '.join(scaling)} and does not name its rope_type",
                "Add rope_type, as the model's authors published it.",
            )
        kind = "default"
    if kind not in ROPE_TYPES:
        raise UnsupportedError(
            "unknown-rope-type",
            f"config.json names the rope type {kind!r}, which is none of {', '.join(ROPE_TYPES)}",
            "Correct rope_scaling or rope_parameters; a new kind of rope needs a newer llmfit-core.",
        )
    assert isinstance(kind, str)
    events = _unread(kind, scaling)
    if kind == "default":
        return Rope(), tuple(events)

    def number(key: str, default: float | None = None) -> float:
        value = scaling.get(key)
        if value is not None:
            return number_of(value, f"rope key {key}")
        if default is None:
            raise _missing(kind, key)
        return default

    stated = scaling.get("original_max_position_embeddings")
    if stated is None:
        stated = default_original
    if stated is not None:
        original = _tokens(stated)
    elif kind == "llama3":
        raise _missing(kind, "original_max_position_embeddings")
    else:
        original = context
        if kind in ("yarn", "longrope"):
            events.append(
                Event(
                    code="rope-original-context-assumed",
                    message=f"{kind} without original_max_position_embeddings: max_position_embeddings "
                    f"({context}) is taken for it, as transformers does",
                    severity="fallback",
                    subject="original_max_position_embeddings",
                )
            )
    if kind == "linear":
        return Rope(type=kind, factor=number("factor")), tuple(events)
    if kind == "dynamic":
        return Rope(type=kind, factor=number("factor"), original_context=min(original, context)), tuple(events)
    if kind == "llama3":
        low, high = number("low_freq_factor"), number("high_freq_factor")
        if high <= low:
            raise SourceError(
                "rope-key-invalid",
                f"rope key high_freq_factor ({high:g}) in config.json does not exceed low_freq_factor ({low:g})",
                _CORRECT,
            )
        rope = Rope(
            type=kind, factor=number("factor"), original_context=original, low_freq_factor=low, high_freq_factor=high
        )
        return rope, tuple(events)
    extension = max(1.0, context / original)
    if kind == "longrope":
        factor = number("factor", extension)
        default = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
        rope = Rope(
            type=kind,
            factor=factor,
            original_context=original,
            attention_factor=number("attention_factor", default),
            short_factor=_factors(scaling, "short_factor"),
            long_factor=_factors(scaling, "long_factor"),
        )
        return rope, tuple(events)
    factor = number("factor", extension)
    if scaling.get("factor") is None:
        events.append(
            Event(
                code="rope-factor-assumed",
                message=f"yarn without factor: {factor:g}, the ratio of both context lengths, is taken for it",
                severity="fallback",
                subject="rope_scaling.factor",
            )
        )
    truncate = scaling.get("truncate", True)
    if truncate not in (None, True, False):
        raise SourceError("rope-key-invalid", f"rope key truncate in config.json is {truncate!r:.40}", _CORRECT)
    mscale, all_dim = scaling.get("mscale"), scaling.get("mscale_all_dim")
    if mscale and all_dim:
        default = yarn_mscale(factor, number("mscale")) / yarn_mscale(factor, number("mscale_all_dim"))
    else:
        default = yarn_mscale(factor)
    rope = Rope(
        type="yarn",
        factor=factor,
        original_context=original,
        attention_factor=number("attention_factor", default),
        mscale_all_dim=number("mscale_all_dim") if all_dim else 0.0,
        beta_fast=number("beta_fast", 32.0),
        beta_slow=number("beta_slow", 1.0),
        truncate=bool(truncate),  # an explicit null is false, as in transformers
    )
    return rope, tuple(events)


def _unread(kind: str, scaling: Mapping[str, object]) -> list[Event]:
    """Keys that this kind of rope does not read: another kind's, or nobody's."""
    for key in ("short_factor", "long_factor"):
        if scaling.get(key) is not None and kind != "longrope":
            raise SourceError(
                "rope-key-invalid", f"rope type {kind} in config.json has the key {key}, which only longrope has", _CORRECT
            )
    known = {k for keys in _READS.values() for k in keys.split()}
    events = []
    for key, value in scaling.items():
        if value is None or key in _HARMLESS or key in _READS[kind].split():
            continue
        if key in known:
            message = f"rope type {kind} does not read its key {key}; it is left out"
        else:
            message = f"the rope in config.json has the key {key}, which nobody here knows; it may change what is computed"
        code = "rope-key-unread" if key in known else "unknown-config-key"
        events.append(Event(code=code, message=message, subject=f"rope_scaling.{key}"))
    return events


def _missing(kind: str, key: str) -> SourceError:
    return SourceError(
        "rope-key-missing",
        f"rope type {kind} in config.json lacks its key {key}",
        f"Add {key} to rope_scaling or rope_parameters, as the model's authors published it.",
    )


def number_of(value: object, key: str) -> float:
    """A positive number from config.json, or `SourceError`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e30:
        raise SourceError(
            "rope-key-invalid", f"{key} in config.json is {value!r:.40}, not a positive number", _CORRECT
        )
    return float(value)


def _tokens(value: object) -> int:
    number = number_of(value, "original_max_position_embeddings")
    if number != int(number) or not 2 <= number < 1 << 31:
        raise SourceError(
            "rope-key-invalid",
            f"original_max_position_embeddings in config.json is {value!r:.40}, not a number of tokens",
            _CORRECT,
        )
    return int(number)


def yarn_mscale(factor: float, mscale: float = 1.0) -> float:
    """The attention factor of yarn: `0.1 * mscale * ln(factor) + 1`, 1 without extension (arXiv 2309.00071)."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def llama3_factors(rope: Rope, base: float, dims: int) -> list[float]:
    """By how much each pair's frequency is divided under llama3 scaling (Llama 3.1's own formula).

    In float32 and in the order of torch's operations, where a number over a tensor is a product with its reciprocal:
    that is how everybody else computes them, so the files agree to the last bit.
    """
    import numpy as np

    one, f32 = np.float32(1), np.float32
    exponents = (np.arange(0, dims, 2, dtype=np.float32) / f32(dims)).astype(np.float64)
    low, high = rope.low_freq_factor, rope.high_freq_factor
    out = []
    for frequency in one / (np.float64(f32(base)) ** exponents).astype(np.float32):
        wave = (one / frequency) * f32(2 * math.pi)
        if wave < rope.original_context / high:
            out.append(1.0)
        elif wave > rope.original_context / low:
            out.append(rope.factor)
        else:
            smooth = ((one / wave) * f32(rope.original_context) - f32(low)) / f32(high - low)
            out.append(float(one / ((one - smooth) / f32(rope.factor) + smooth)))
    return out


def yarn_range(rope: Rope, base: float, dims: int) -> tuple[float, float]:
    """The correction range of yarn: the pairs between which frequencies go from left alone to interpolated."""

    def dimension(rotations: float) -> float:
        return dims * math.log(rope.original_context / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    return max(low, 0), min(high, dims - 1)


def yarn_factors(rope: Rope, base: float, dims: int) -> list[float]:
    """By how much each pair's frequency is divided under yarn (arXiv 2309.00071, section 3.2)."""
    low, high = yarn_range(rope, base, dims)
    if low == high:
        high += 0.001
    out = []
    for i in range(dims // 2):
        keep = 1 - min(1.0, max(0.0, (i - low) / (high - low)))
        out.append(1.0 / ((1 - keep) / rope.factor + keep))
    return out


def _factors(scaling: Mapping[str, object], key: str) -> tuple[float, ...]:
    values = scaling.get(key)
    if not isinstance(values, (list, tuple)) or not values:
        raise _missing("longrope", key)
    return tuple(number_of(v, key) for v in values)
