"""MiniMax-M2: experts in every layer, gated by sigmoid, behind attention whose whole q and k are normalised."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmfit_core import (
    DECODER_CONFIG,
    PRE_NORM_DECODER,
    Architecture,
    Asserts,
    Fused,
    Graph,
    Ignores,
    Reads,
    Role,
    Slot,
)
from llmfit_open.common import ENDS, KEYS, PLAIN_ROPE, PRE_NORMS, RECOMPUTED, Table, attention, common_fixes, wrong
from llmfit_open.olmo import K_WIDTH, NORMED_QK, Q_WIDTH

_MOE = "model.layers.{layer}.block_sparse_moe"
EXPERTS: Table = {
    f"{_MOE}.gate": Role.FFN_ROUTER,
    f"{_MOE}.e_score_correction_bias": Slot(Role.EXPERT_BIAS, bare=True, part="bias"),
    f"{_MOE}.experts.{{expert}}.w1": Role.FFN_GATE_EXPS,
    f"{_MOE}.experts.{{expert}}.w3": Role.FFN_UP_EXPS,
    f"{_MOE}.experts.{{expert}}.w2": Role.FFN_DOWN_EXPS,
}
# As transformers 5 holds them in memory, under the names that go with it.
IN_MEMORY: Table = {
    "model.layers.{layer}.mlp.gate": Role.FFN_ROUTER,
    "model.layers.{layer}.mlp.e_score_correction_bias": Slot(Role.EXPERT_BIAS, bare=True, part="bias"),
    "model.layers.{layer}.mlp.experts.gate_up_proj": Slot(
        Fused((Role.FFN_GATE_EXPS, Role.FFN_UP_EXPS)), either_way=True, bare=True
    ),
    "model.layers.{layer}.mlp.experts.down_proj": Slot(Role.FFN_DOWN_EXPS, either_way=True, bare=True),
}


def derived(hparams: Mapping[str, Any]) -> dict[str, object]:
    """How much of a head is turned, and the width of an expert."""
    size, turned, share = (hparams.get(k) for k in ("attention.key_length", "rotary_dim", "partial_rotary_factor"))
    if turned and share not in (None, 1.0) and int(size * share) != turned:
        raise wrong(f"rotary_dim in config.json is {turned}, and partial_rotary_factor {share:g} of {size} another number")
    if turned and (turned > size or turned % 2):
        raise wrong(f"rotary_dim in config.json is {turned}, which is no even number of a head's {size} dimensions")
    out: dict[str, object] = {"expert_feed_forward_length": hparams["feed_forward_length"]}
    return out | ({"rope.dimension_count": turned} if turned else {})


MINIMAX_M2 = Architecture(
    name="minimax-m2",
    hf_classes=("MiniMaxM2ForCausalLM",),
    model_types=("minimax_m2",),
    tensors=ENDS | PRE_NORMS | attention() | NORMED_QK | EXPERTS | IN_MEMORY,
    config=DECODER_CONFIG
    | {
        "num_key_value_heads": Reads("attention.head_count_kv", 8),
        "head_dim": Reads("attention.key_length", 128),
        "max_position_embeddings": Reads("context_length", 196608),
        "rope_theta": Reads("rope.freq_base", 5000000.0),
        "rotary_dim": Reads("rotary_dim", None, kind="count"),
        "num_local_experts": Reads("expert_count", 256),
        "num_experts": Reads("expert_count", 256),
        "num_experts_per_tok": Reads("expert_used_count", 8),
        # What the published configs say besides.
        "scoring_func": Asserts(("sigmoid", None), "the class gates its experts by sigmoid"),
        "use_routing_bias": Asserts((True, None), "the class chooses its experts with a correcting bias"),
        "use_qk_norm": Asserts((True, None), "the class normalises q and k"),
        "qk_norm_type": Asserts(("per_layer", None), "the class normalises the whole of q and k"),
        "shared_intermediate_size": Asserts((0, None), "experts would be shared"),
        "sliding_window": Asserts((None,), "the class knows no window"),
        **dict.fromkeys(
            "attn_type_list layernorm_full_attention_beta layernorm_linear_attention_beta layernorm_mlp_beta max_model_len "
            "mlp_intermediate_size mtp_transformer_layers num_mtp_modules shared_moe_mode".split(),
            Ignores("the class does not read it"),
        ),
    },
    wiring=PRE_NORM_DECODER,
    graphs=(
        Graph(
            format="gguf",
            name="minimax-m2",
            engine="llama.cpp",
            keys=(*KEYS, "expert_count", "expert_used_count", "expert_feed_forward_length", "rope.dimension_count"),
            constants={"expert_gating_func": 2},
            fixes={k: v for k, v in common_fixes("minimax-m2").items() if k != "partial_rotary_factor"},
            rope=PLAIN_ROPE,
            needs_head=True,
            biases=frozenset({Role.EXPERT_BIAS}),
        ),
    ),
    shapes={Role.ATTN_Q_NORM: (Q_WIDTH,), Role.ATTN_K_NORM: (K_WIDTH,), Role.EXPERT_BIAS: ("expert_count",)},
    hparams=derived,
    waived=RECOMPUTED,
)
