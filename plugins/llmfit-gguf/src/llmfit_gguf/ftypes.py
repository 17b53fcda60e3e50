"""The quantization schemes: what a user asks for, the type most tensors get, and the number GGUF files it under."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from llmfit_core.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping

QUANTIZATION_VERSION = 2
"""`general.quantization_version`: the generation of ggml's block layouts that we write."""


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """One way to spread types over a model.

    Attributes:
        name: Lower case (`q4_k_m`).
        base: The type of every tensor that no rule of the mix treats otherwise.
        file_type: `general.file_type`, llama.cpp's number for the scheme.
        rule: `float` follows the converter's rule (vectors and routers stay f32), `mix` llama-quantize's; `source` keeps
            each tensor's stored type, but for what the converter's rule makes f32.
    """

    name: str
    base: str
    file_type: int
    rule: Literal["float", "mix", "source"] = "mix"


SCHEMES: dict[str, Scheme] = {
    s.name: s
    for s in (
        Scheme(name="f32", base="f32", file_type=0, rule="float"),
        Scheme(name="f16", base="f16", file_type=1, rule="float"),
        Scheme(name="bf16", base="bf16", file_type=32, rule="float"),
        Scheme(name="q8_0", base="q8_0", file_type=7),
        Scheme(name="q4_0", base="q4_0", file_type=2),
        Scheme(name="q4_1", base="q4_1", file_type=3),
        Scheme(name="q5_0", base="q5_0", file_type=8),
        Scheme(name="q5_1", base="q5_1", file_type=9),
        Scheme(name="q2_k", base="q2_k", file_type=10),
        Scheme(name="q3_k_s", base="q3_k", file_type=11),
        Scheme(name="q3_k_m", base="q3_k", file_type=12),
        Scheme(name="q3_k_l", base="q3_k", file_type=13),
        Scheme(name="q4_k_s", base="q4_k", file_type=14),
        Scheme(name="q4_k_m", base="q4_k", file_type=15),
        Scheme(name="q5_k_s", base="q5_k", file_type=16),
        Scheme(name="q5_k_m", base="q5_k", file_type=17),
        Scheme(name="q6_k", base="q6_k", file_type=18),
        Scheme(name="iq4_nl", base="iq4_nl", file_type=25),
        Scheme(name="iq4_xs", base="iq4_xs", file_type=30),
        Scheme(name="tq1_0", base="tq1_0", file_type=36),
        Scheme(name="tq2_0", base="tq2_0", file_type=37),
        Scheme(name="mxfp4_moe", base="q8_0", file_type=38),
        Scheme(name="source", base="f32", file_type=0, rule="source"),
    )
}
"""Every scheme by name. Those that need an importance matrix (iq1, iq2, iq3_xxs, q2_k_s) are not among them."""

ALIASES: dict[str, str] = {"q3_k": "q3_k_m", "q4_k": "q4_k_m", "q5_k": "q5_k_m", "mxfp4": "mxfp4_moe"}
"""Short names that llama-quantize takes too."""


def file_type_of(types: Mapping[str, int]) -> int:
    """llama.cpp's number for a file that follows no scheme, by its matrices' types.

    Args:
        types: How many values each type has.
    """
    if "mxfp4" in types:
        return SCHEMES["mxfp4_moe"].file_type  # as llama.cpp's converter has it, whatever the rest is
    most = max(types, key=lambda t: types[t], default="f32")
    return next((s.file_type for s in SCHEMES.values() if s.base == most), 0)


def scheme_named(name: str) -> Scheme:
    """The scheme that a user means, in either case and by short name.

    Raises:
        UnsupportedError: `unknown-scheme`, with the names that exist.
    """
    wanted = name.lower()
    wanted = ALIASES.get(wanted, wanted)
    if wanted not in SCHEMES:
        raise UnsupportedError(
            "unknown-scheme", f"gguf has no scheme {name!r}", f"Choose one of: {', '.join(SCHEMES)}."
        )
    return SCHEMES[wanted]
