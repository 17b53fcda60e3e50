"""What these families share: names of tensors, keys that graphs read, and what graphs fix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from llmfit_core import DECODER_KEYS, Asserts, Fix, Fused, Ignores, Reads, Role, Slot, UnsupportedError

Table = dict[str, str | Slot | Fused]
Uses = dict[str, Reads | Asserts | Ignores]

ENDS: Final[Table] = {
    "model.embed_tokens": Role.EMBED,
    "model.norm": Role.OUTPUT_NORM,
    "lm_head": Slot(Role.HEAD, optional=True),
}
PRE_NORMS: Final[Table] = {
    "model.layers.{layer}.input_layernorm": Role.ATTN_NORM,
    "model.layers.{layer}.post_attention_layernorm": Role.FFN_NORM,
}
RECOMPUTED: Final = {
    "model.layers.{layer}.self_attn.rotary_emb.inv_freq": "recomputed from config.json",
    "model.rotary_emb.inv_freq": "recomputed from config.json",
}
QKV: Final = frozenset({Role.ATTN_Q, Role.ATTN_K, Role.ATTN_V})
PLAIN_ROPE: Final = frozenset({"default", "linear", "yarn", "dynamic"})
"""What a graph computes that passes no rope factors."""

KEYS: Final = DECODER_KEYS
"""What the common loader reads for every graph here; those with LayerNorm replace the epsilon's name."""
KEYS_LAYER_NORM: Final = tuple(
    "attention.layer_norm_epsilon" if k == "attention.layer_norm_rms_epsilon" else k for k in KEYS
)


def attention(bias: bool | str = False, bias_out: bool | str | None = None) -> Table:
    """The four projections; `bias` for q, k and v, and for o where `bias_out` says nothing else."""
    out = bias if bias_out is None else bias_out
    return {
        "model.layers.{layer}.self_attn.q_proj": Slot(Role.ATTN_Q, bias=bias),
        "model.layers.{layer}.self_attn.k_proj": Slot(Role.ATTN_K, bias=bias),
        "model.layers.{layer}.self_attn.v_proj": Slot(Role.ATTN_V, bias=bias),
        "model.layers.{layer}.self_attn.o_proj": Slot(Role.ATTN_OUT, bias=out),
    }


def gated(bias: bool | str = False) -> Table:
    """A dense gated feed-forward."""
    return {
        "model.layers.{layer}.mlp.gate_proj": Slot(Role.FFN_GATE, bias=bias),
        "model.layers.{layer}.mlp.up_proj": Slot(Role.FFN_UP, bias=bias),
        "model.layers.{layer}.mlp.down_proj": Slot(Role.FFN_DOWN, bias=bias),
    }


def common_fixes(name: str, *, square: bool = False) -> dict[str, Fix]:
    """What every graph here fixes: SiLU, rope on whole heads; with `square`, heads that fill the width."""
    fixes = {
        "hidden_act": Fix(values=("silu", "swish"), why=f"the {name} graph applies SiLU"),
        "partial_rotary_factor": Fix(values=(1.0, 1), why=f"the {name} graph rotates whole heads"),
    }
    if square:
        fixes["attention.key_length"] = Fix(
            values=(None,), why=f"the {name} graph wants heads times head size to be the width", unless=fills_the_width
        )
    return fixes


def fills_the_width(hparams: Mapping[str, Any]) -> bool:
    """Heads times head size is the model's width."""
    return bool(hparams["attention.head_count"] * hparams["attention.key_length"] == hparams["embedding_length"])


def kinds_of_layer(hparams: Mapping[str, Any]) -> tuple[str, ...] | None:
    """`layer_types`, one of the two known kinds for each layer, or `None` where it is not written down.

    Raises:
        UnsupportedError: `config-value`.
    """
    kinds = hparams.get("layer_types")
    if not kinds:
        return None
    odd = [k for k in kinds if k not in ("full_attention", "sliding_attention")]
    if odd or len(kinds) < hparams["block_count"]:
        what = f"names {odd[0]}" if odd else f"has {len(kinds)} entries for {hparams['block_count']} layers"
        raise wrong(f"layer_types in config.json {what}")
    return tuple(kinds[: hparams["block_count"]])


def wrong(cause: str) -> UnsupportedError:
    """The refusal of a config value that has no meaning in its class."""
    return UnsupportedError("config-value", cause, "Correct config.json, as the model's authors published it.")
