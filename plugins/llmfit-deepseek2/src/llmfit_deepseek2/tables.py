"""What the files of these families hold: names, shapes, and who feeds whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from llmfit_core import PRE_NORM_DECODER, Fused, Link, Role, Slot

if TYPE_CHECKING:
    from llmfit_core.roles import Dim

Table = dict[str, str | Slot | Fused]

KV_A, K_TURNED = "attn_kv_a", "attn_k_turned"
"""The two halves of `kv_a_proj_with_mqa`: the latent of keys and values, and the one turned part of all keys."""
K_B, V_B = "attn_k_b", "attn_v_b"
"""What each head takes out of the latent: its keys, its values."""

ENDS: Final[Table] = {
    "model.embed_tokens": Role.EMBED,
    "model.norm": Role.OUTPUT_NORM,
    "lm_head": Slot(Role.HEAD, optional=True),
}
NORMS: Final[Table] = {
    "model.layers.{layer}.input_layernorm": Role.ATTN_NORM,
    "model.layers.{layer}.post_attention_layernorm": Role.FFN_NORM,
}
LATENT_ATTENTION: Final[Table] = {
    "model.layers.{layer}.self_attn.q_proj": Slot(Role.ATTN_Q, when="whole_q"),
    "model.layers.{layer}.self_attn.q_a_proj": Slot(Role.ATTN_Q_A, bias="attention_bias", when="latent_q"),
    "model.layers.{layer}.self_attn.q_a_layernorm": Slot(Role.ATTN_Q_A_NORM, when="latent_q"),
    "model.layers.{layer}.self_attn.q_b_proj": Slot(Role.ATTN_Q_B, when="latent_q"),
    "model.layers.{layer}.self_attn.kv_a_proj_with_mqa": Slot(Fused((KV_A, K_TURNED)), bias="attention_bias"),
    "model.layers.{layer}.self_attn.kv_a_layernorm": Role.ATTN_KV_A_NORM,
    "model.layers.{layer}.self_attn.kv_b_proj": Fused((K_B, V_B), groups="attention.head_count"),
    "model.layers.{layer}.self_attn.o_proj": Slot(Role.ATTN_OUT, bias="attention_bias"),
}
EXPERTS: Final[Table] = {
    "model.layers.{layer}.mlp.gate": Slot(Role.FFN_ROUTER, when="mixed"),
    "model.layers.{layer}.mlp.experts.{expert}.gate_proj": Slot(Role.FFN_GATE_EXPS, when="mixed"),
    "model.layers.{layer}.mlp.experts.{expert}.up_proj": Slot(Role.FFN_UP_EXPS, when="mixed"),
    "model.layers.{layer}.mlp.experts.{expert}.down_proj": Slot(Role.FFN_DOWN_EXPS, when="mixed"),
    "model.layers.{layer}.mlp.experts.gate_up_proj": Slot(
        Fused((Role.FFN_GATE_EXPS, Role.FFN_UP_EXPS)), when="mixed", either_way=True, bare=True
    ),
    "model.layers.{layer}.mlp.experts.down_proj": Slot(Role.FFN_DOWN_EXPS, when="mixed", either_way=True, bare=True),
}
CORRECTION: Final[Table] = {
    "model.layers.{layer}.mlp.gate.e_score_correction_bias": Slot(
        Role.EXPERT_BIAS, when="mixed", bare=True, part="bias"
    ),
}
RECOMPUTED: Final = {"model.layers.{layer}.self_attn.rotary_emb.inv_freq": "recomputed from config.json"}

FURTHER: Final = "part of a layer that predicts the token after the next, which the model itself does not run"
FURTHER_NAMES: Final = {
    f"model.layers.{{layer}}.{name}": FURTHER
    for name in ("eh_proj", "enorm", "hnorm", "embed_tokens", "shared_head.norm", "shared_head.head")
}


def feed_forward(bias: bool | str = False) -> Table:
    """The dense layers and the shared experts."""
    out: Table = {}
    for x, role, shared in (
        ("gate", Role.FFN_GATE, Role.FFN_GATE_SHEXP),
        ("up", Role.FFN_UP, Role.FFN_UP_SHEXP),
        ("down", Role.FFN_DOWN, Role.FFN_DOWN_SHEXP),
    ):
        out[f"model.layers.{{layer}}.mlp.{x}_proj"] = Slot(role, bias=bias, when="dense")
        out[f"model.layers.{{layer}}.mlp.shared_experts.{x}_proj"] = Slot(shared, bias=bias, when="mixed")
    return out


HEADS: Final = "attention.head_count"
RANK: Final = "attention.kv_lora_rank"
_D = "embedding_length"
_SHARED = ("expert_feed_forward_length", "expert_shared_count")
SHARED_SHAPES: Final[dict[str, tuple[Dim, ...]]] = {
    Role.FFN_GATE_SHEXP: (_SHARED, _D),
    Role.FFN_UP_SHEXP: (_SHARED, _D),
    Role.FFN_DOWN_SHEXP: (_D, _SHARED),
    Role.EXPERT_BIAS: ("expert_count",),
}
SHAPES: Final[dict[str, tuple[Dim, ...]]] = SHARED_SHAPES | {
    Role.ATTN_Q: ((HEADS, "attention.key_length_mla"), _D),
    Role.ATTN_Q_A: ("q_lora_rank", _D),
    Role.ATTN_Q_A_NORM: ("q_lora_rank",),
    Role.ATTN_Q_B: ((HEADS, "attention.key_length_mla"), "q_lora_rank"),
    KV_A: (RANK, _D),
    K_TURNED: ("rope.dimension_count", _D),
    Role.ATTN_KV_A_NORM: (RANK,),
    K_B: ((HEADS, "qk_nope_head_dim"), RANK),
    V_B: ((HEADS, "attention.value_length_mla"), RANK),
    Role.ATTN_OUT: (_D, (HEADS, "attention.value_length_mla")),
}
WIRING: Final = (
    Link(source=Role.ATTN_NORM, sinks=(Role.ATTN_Q, Role.ATTN_Q_A, KV_A, K_TURNED)),
    Link(source=Role.ATTN_Q_A_NORM, sinks=(Role.ATTN_Q_B,)),
    Link(source=Role.ATTN_KV_A_NORM, sinks=(K_B, V_B)),
    Link(source=V_B, sinks=(Role.ATTN_OUT,)),
    *(link for link in PRE_NORM_DECODER if link.source.startswith("ffn")),
)
