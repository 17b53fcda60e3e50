"""What decoders with LayerNorm share: config keys, keys that graphs read, and what graphs fix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from llmfit_core import DECODER_CONFIG, Asserts, Fix, Fused, Ignores, Link, Reads, Role, Slot

Table = dict[str, str | Slot | Fused]
Uses = dict[str, Reads | Asserts | Ignores]

EPSILON: Final = "attention.layer_norm_epsilon"

LAYER_NORM_CONFIG: Final[Uses] = {k: v for k, v in DECODER_CONFIG.items() if k not in ("rms_norm_eps", "head_dim")} | {
    "layer_norm_eps": Reads(EPSILON, 1e-5)
}
"""The keys of a decoder with rope and LayerNorm; the size of a head is always width by heads."""

KEYS: Final = (
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    EPSILON,
    "attention.key_length",
    "attention.value_length",
    "rope.freq_base",
    "rope.dimension_count",
)
"""What llama.cpp's common loader reads for every graph here that has rope."""

NORMS: Final = frozenset({Role.ATTN_NORM, Role.ATTN_NORM_2, Role.FFN_NORM, Role.OUTPUT_NORM})
QKV: Final = (Role.ATTN_Q, Role.ATTN_K, Role.ATTN_V)

GELU: Final = (
    "gelu_new",
    "gelu_pytorch_tanh",
    "gelu_python_tanh",
    "gelu_fast",
    "gelu_accurate",
    "gelu",
    "gelu_python",
)
"""GELU by its error function and by the hyperbolic tangent.

llama.cpp computes the latter from a table of float16 values. The two functions are nowhere further apart than 5e-4, which
is what that table's own rounding comes to.
"""

PLAIN_ROPE: Final = frozenset({"default", "linear", "yarn", "dynamic"})
"""What a graph computes that passes no rope factors."""

V_TO_OUT: Final = Link(source=Role.ATTN_V, sinks=(Role.ATTN_OUT,), when="no_gqa")

RECOMPUTED: Final = {
    "model.layers.{layer}.self_attn.rotary_emb.inv_freq": "recomputed from config.json",
    "model.rotary_emb.inv_freq": "recomputed from config.json",
}


def norm(role: Role, when: str = "") -> Slot:
    """A LayerNorm: it always has a bias."""
    return Slot(role, bias=True, when=when)


def gelu(name: str, usual: str) -> Fix:
    """The activation is GELU; `usual` is what the family's class takes where a GGUF file cannot say which."""
    return Fix(values=(usual, *(g for g in GELU if g != usual)), why=f"the {name} graph applies GELU")


def silu(name: str) -> Fix:
    """The activation is SiLU."""
    return Fix(values=("silu", "swish"), why=f"the {name} graph applies SiLU")


def whole_heads(name: str) -> Fix:
    """Rope turns all dimensions of a head."""
    return Fix(values=(1.0, 1), why=f"the {name} graph rotates whole heads")


def square(name: str) -> Fix:
    """Heads fill the width."""
    return Fix(
        values=(None,), why=f"the {name} graph wants heads times head size to be the width", unless=fills_the_width
    )


def fills_the_width(hparams: Mapping[str, Any]) -> bool:
    """Heads times head size is the model's width."""
    return bool(hparams["attention.head_count"] * hparams["attention.key_length"] == hparams["embedding_length"])
