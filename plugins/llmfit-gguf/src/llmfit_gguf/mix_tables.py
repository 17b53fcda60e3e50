"""The tables of the mix: who gets what, under which condition.

Facts about llama-quantize, in our own order. A table gives a kind of tensor its rules; the first condition that holds
decides, the scheme's base type where none does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class MixFacts:
    """What the policy asks about a model.

    Attributes:
        architecture: `general.architecture`.
        n_layer: `block_count`.
        n_head: Attention heads of the first layer.
        n_head_kv: Key and value heads of the first layer; 0 if it has none.
        n_expert: `expert_count`, 0 for dense models.
    """

    architecture: str
    n_layer: int
    n_head: int = 0
    n_head_kv: int = 0
    n_expert: int = 0


@dataclass(frozen=True, kw_only=True)
class Spot:
    """Where a rule is asked: the `index`-th of `count` tensors of its kind, in a model with `facts`."""

    index: int
    count: int
    facts: MixFacts


When = Callable[[Spot], bool]
Rules = tuple[tuple[When, str], ...]


def _always(_: Spot) -> bool:
    return True


def _outer_and_every_third(s: Spot) -> bool:
    eighth = s.count // 8
    return s.index < eighth or s.index >= 7 * s.count // 8 or (s.index - eighth) % 3 == 2


def _first_eighth(s: Spot) -> bool:
    return s.index < s.count // 8


def _first_sixteenth(s: Spot) -> bool:
    return s.index < s.count // 16


def _first(count: int) -> When:
    return lambda s: s.index < count


def _grouped_by_four(s: Spot) -> bool:
    f = s.facts
    return f.n_head_kv > 0 and f.n_head // f.n_head_kv >= 4


MIXES: dict[str, dict[str, Rules]] = {
    "q2_k": {
        "attn_v": ((_grouped_by_four, "q4_k"), (_always, "q3_k")),
        "ffn_down": ((_always, "q3_k"),),
        "attn_output": ((_always, "q3_k"),),
    },
    "q3_k_m": {
        "attn_v": ((_first(2), "q5_k"), (_always, "q4_k")),
        "ffn_down": ((_first_sixteenth, "q5_k"), (_always, "q4_k")),
        "attn_output": ((_always, "q4_k"),),
    },
    "q3_k_l": {
        "attn_v": ((_always, "q5_k"),),
        "ffn_down": ((_always, "q5_k"),),
        "attn_output": ((_always, "q5_k"),),
    },
    "q4_k_s": {"attn_v": ((_first(4), "q5_k"),), "ffn_down": ((_first_eighth, "q5_k"),)},
    "q4_k_m": {"attn_v": ((_outer_and_every_third, "q6_k"),), "ffn_down": ((_outer_and_every_third, "q6_k"),)},
    "q5_k_m": {"attn_v": ((_outer_and_every_third, "q6_k"),), "ffn_down": ((_outer_and_every_third, "q6_k"),)},
    "iq4_nl": {"attn_v": ((_grouped_by_four, "q5_k"),), "ffn_down": ((_first_eighth, "q5_k"),)},
    "iq4_xs": {"attn_v": ((_grouped_by_four, "q5_k"),), "ffn_down": ((_first_eighth, "q5_k"),)},
    "tq1_0": {"token_embd": ((_always, "q4_k"),)},
    "tq2_0": {"token_embd": ((_always, "q4_k"),)},
}
"""Scheme to kind of tensor to rules; the scheme's base type where none holds."""

FALCON: dict[str, dict[str, Rules]] = {
    "q2_k": {"attn_output": ()},
    "q3_k_m": {
        "ffn_down": ((_first_sixteenth, "q5_k"), (_outer_and_every_third, "q4_k")),
        "attn_output": (),
    },
    "q3_k_l": {"ffn_down": ((_always, "q4_k"),), "attn_output": ((_always, "q4_k"),)},
    "q4_k_s": {"ffn_down": ()},
    "q4_k_m": {"ffn_down": ((_first_sixteenth, "q6_k"), (_outer_and_every_third, "q5_k"))},
}
"""What Falcon does otherwise."""

_MORE = ((_always, "q5_k"),)
EIGHT_EXPERTS: dict[str, Rules] = {
    "q2_k": _MORE,
    "q3_k_s": _MORE,
    "q3_k_m": _MORE,
    "q4_k_s": _MORE,
    "q4_k_m": _MORE,
    "iq4_nl": _MORE,
    "iq4_xs": _MORE,
}
"""Models of eight experts: `attn_output` by scheme (others keep the base); their keys and values are q8_0."""

SEVENTY_BILLION: dict[str, int] = {"llama": 80, "llama-embed": 80, "qwen2": 80, "deci": 80, "olmo": 80, "jais2": 68}
"""Architecture to layer count of what llama.cpp takes for a 70B model, whose small value matrices get q5_k at least."""

NARROWER: dict[str, str] = {
    "iq4_xs": "iq4_nl",
    "q2_k": "q4_0",
    "q3_k": "q4_0",
    "tq1_0": "q4_0",
    "tq2_0": "q4_0",
    "q4_k": "q5_0",
    "q5_k": "q5_1",
    "q6_k": "q8_0",
}
"""What stands in where 256 does not divide the row length but 32 does."""
