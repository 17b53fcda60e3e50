"""The vocabulary of meaning: what a tensor is, and which tensors feed which.

A role's value is GGUF's short tensor name, the one vocabulary the field shares. `Role` spells out
the common ones; any other name is a plain string, so an unusual model needs no change here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """The common roles. Members are strings: `Role.ATTN_Q == "attn_q"`."""

    EMBED = "token_embd"
    EMBED_NORM = "token_embd_norm"
    POSITION_EMBED = "position_embd"
    TOKEN_TYPES = "token_types"
    OUTPUT_NORM = "output_norm"
    HEAD = "output"
    ROPE_FREQS = "rope_freqs"
    ROPE_LONG = "rope_factors_long"
    ROPE_SHORT = "rope_factors_short"
    ATTN_NORM = "attn_norm"
    ATTN_NORM_2 = "attn_norm_2"
    ATTN_Q = "attn_q"
    ATTN_K = "attn_k"
    ATTN_V = "attn_v"
    ATTN_QKV = "attn_qkv"
    ATTN_OUT = "attn_output"
    ATTN_Q_NORM = "attn_q_norm"
    ATTN_K_NORM = "attn_k_norm"
    ATTN_SUB_NORM = "attn_sub_norm"
    ATTN_POST_NORM = "post_attention_norm"
    ATTN_SINKS = "attn_sinks"
    ATTN_Q_A = "attn_q_a"
    ATTN_Q_B = "attn_q_b"
    ATTN_Q_A_NORM = "attn_q_a_norm"
    ATTN_KV_A_MQA = "attn_kv_a_mqa"
    ATTN_KV_A_NORM = "attn_kv_a_norm"
    ATTN_KV_B = "attn_kv_b"
    FFN_NORM = "ffn_norm"
    FFN_POST_NORM = "post_ffw_norm"
    FFN_SUB_NORM = "ffn_sub_norm"
    FFN_GATE = "ffn_gate"
    FFN_UP = "ffn_up"
    FFN_DOWN = "ffn_down"
    FFN_ROUTER = "ffn_gate_inp"
    FFN_GATE_EXPS = "ffn_gate_exps"
    FFN_UP_EXPS = "ffn_up_exps"
    FFN_DOWN_EXPS = "ffn_down_exps"
    FFN_SHARED_ROUTER = "ffn_gate_inp_shexp"
    FFN_GATE_SHEXP = "ffn_gate_shexp"
    FFN_UP_SHEXP = "ffn_up_shexp"
    FFN_DOWN_SHEXP = "ffn_down_shexp"
    EXPERT_BIAS = "exp_probs_b"


EXPERT_ROLES = frozenset({Role.FFN_GATE_EXPS, Role.FFN_UP_EXPS, Role.FFN_DOWN_EXPS})
KEPT_FLOAT32 = frozenset({Role.EXPERT_BIAS})
"""Roles whose values are weighed against each other and multiply nothing: no 16-bit copy of a model narrows them."""
GLOBAL_ROLES = frozenset(
    {
        Role.EMBED,
        Role.EMBED_NORM,
        Role.POSITION_EMBED,
        Role.TOKEN_TYPES,
        Role.OUTPUT_NORM,
        Role.HEAD,
        Role.ROPE_FREQS,
        Role.ROPE_LONG,
        Role.ROPE_SHORT,
    }
)
"""Roles that exist once a model, not once a layer."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """Who feeds whom: the output of `source` is read by every one of `sinks`, and by nothing else.

    A scale divided out of `source`'s output channels, its bias included, may be multiplied into the input channels of
    all `sinks`: `llmfit_core.wiring.scale_groups` says where those lie. Roles that a checkpoint does not have (a dense
    model's experts) are left out of it. State a link only where everything between source and sinks passes a positive
    factor through: a product with a gate does, an activation on the source itself does not.

    Attributes:
        source: The tensor whose output channels can absorb a scale.
        sinks: Every consumer, routers, shared experts and their gates included.
        when: The link holds only where this is true: empty (always), `no_gqa` (as many key-value heads as heads, so
            that v's rows meet o's columns one to one), or in layers of this kind (see `Architecture.layer_kinds`).
        per_expert: The link holds expert by expert (up to down inside each).
    """

    source: str
    sinks: tuple[str, ...]
    when: str = ""
    per_expert: bool = False


_FFN_SINKS = (
    Role.FFN_GATE,
    Role.FFN_UP,
    Role.FFN_ROUTER,
    Role.FFN_GATE_EXPS,
    Role.FFN_UP_EXPS,
    Role.FFN_SHARED_ROUTER,
    Role.FFN_GATE_SHEXP,
    Role.FFN_UP_SHEXP,
)

PRE_NORM_DECODER: tuple[Link, ...] = (
    Link(source=Role.ATTN_NORM, sinks=(Role.ATTN_Q, Role.ATTN_K, Role.ATTN_V)),
    Link(source=Role.ATTN_V, sinks=(Role.ATTN_OUT,), when="no_gqa"),
    Link(source=Role.FFN_NORM, sinks=_FFN_SINKS),
    Link(source=Role.FFN_UP, sinks=(Role.FFN_DOWN,)),
    Link(source=Role.FFN_UP_EXPS, sinks=(Role.FFN_DOWN_EXPS,), per_expert=True),
    Link(source=Role.FFN_UP_SHEXP, sinks=(Role.FFN_DOWN_SHEXP,)),
)
"""The common decoder: norms before attention and before a gated feed-forward, dense or mixed.

`down` reads `act(gate) * up`: a factor on up's rows passes through the product unchanged."""

Dim = str | int | tuple[str | int, ...]
"""A dimension: an hparam's name, a number, or a product of such."""

_Q = ("attention.head_count", "attention.key_length")
_K = ("attention.head_count_kv", "attention.key_length")
_V = ("attention.head_count_kv", "attention.value_length")
_O = ("attention.head_count", "attention.value_length")
_D = "embedding_length"

SHAPES: Mapping[str, tuple[Dim, ...]] = {
    Role.EMBED: ("vocab_rows", _D),
    Role.OUTPUT_NORM: (_D,),
    Role.HEAD: ("vocab_rows", _D),
    Role.ATTN_NORM: (_D,),
    Role.ATTN_NORM_2: (_D,),
    Role.ATTN_Q: (_Q, _D),
    Role.ATTN_K: (_K, _D),
    Role.ATTN_V: (_V, _D),
    Role.ATTN_OUT: (_D, _O),
    Role.ATTN_Q_NORM: ("attention.key_length",),
    Role.ATTN_K_NORM: ("attention.key_length",),
    Role.ATTN_POST_NORM: (_D,),
    Role.FFN_NORM: (_D,),
    Role.FFN_POST_NORM: (_D,),
    Role.FFN_GATE: ("feed_forward_length", _D),
    Role.FFN_UP: ("feed_forward_length", _D),
    Role.FFN_DOWN: (_D, "feed_forward_length"),
    Role.FFN_ROUTER: ("expert_count", _D),
    Role.FFN_GATE_EXPS: ("expert_count", "expert_feed_forward_length", _D),
    Role.FFN_UP_EXPS: ("expert_count", "expert_feed_forward_length", _D),
    Role.FFN_DOWN_EXPS: ("expert_count", _D, "expert_feed_forward_length"),
    Role.FFN_SHARED_ROUTER: (1, _D),
    Role.FFN_GATE_SHEXP: ("expert_shared_feed_forward_length", _D),
    Role.FFN_UP_SHEXP: ("expert_shared_feed_forward_length", _D),
    Role.FFN_DOWN_SHEXP: (_D, "expert_shared_feed_forward_length"),
}
"""Shapes by role, outermost axis first, in terms of hparams. An `Architecture` may override or add."""
