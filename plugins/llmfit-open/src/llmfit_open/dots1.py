"""dots.llm1: DeepSeek-V3's experts behind ordinary attention with norms of q and k."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmfit_core import (
    DECODER_CONFIG,
    PRE_NORM_DECODER,
    SLIDING_ATTENTION,
    Architecture,
    Asserts,
    Fix,
    Fused,
    Graph,
    Ignores,
    Limit,
    Reads,
    Role,
    Slot,
)
from llmfit_open.common import (
    ENDS,
    KEYS,
    PLAIN_ROPE,
    PRE_NORMS,
    RECOMPUTED,
    Table,
    attention,
    common_fixes,
    kinds_of_layer,
)
from llmfit_open.layers import WINDOW
from llmfit_open.olmo import NORMED_QK, no_groups

_MLP = "model.layers.{layer}.mlp"
SHARED_WIDTH = ("expert_shared_count", "expert_feed_forward_length")


def feed_forward() -> Table:
    """Dense layers, shared and routed experts, and what corrects the choice of these."""
    out: Table = {
        f"{_MLP}.gate": Slot(Role.FFN_ROUTER, when="mixed"),
        f"{_MLP}.gate.e_score_correction_bias": Slot(Role.EXPERT_BIAS, when="mixed", bare=True, part="bias"),
        f"{_MLP}.experts.gate_up_proj": Slot(
            Fused((Role.FFN_GATE_EXPS, Role.FFN_UP_EXPS)), when="mixed", either_way=True, bare=True
        ),
        f"{_MLP}.experts.down_proj": Slot(Role.FFN_DOWN_EXPS, when="mixed", either_way=True, bare=True),
    }
    for x, role, shared, routed in (
        ("gate", Role.FFN_GATE, Role.FFN_GATE_SHEXP, Role.FFN_GATE_EXPS),
        ("up", Role.FFN_UP, Role.FFN_UP_SHEXP, Role.FFN_UP_EXPS),
        ("down", Role.FFN_DOWN, Role.FFN_DOWN_SHEXP, Role.FFN_DOWN_EXPS),
    ):
        out[f"{_MLP}.{x}_proj"] = Slot(role, when="dense")
        out[f"{_MLP}.shared_experts.{x}_proj"] = Slot(shared, when="mixed")
        out[f"{_MLP}.experts.{{expert}}.{x}_proj"] = Slot(routed, when="mixed")
    return out


def kinds(hparams: Mapping[str, Any], layer: int) -> frozenset[str]:
    """The first layers are dense."""
    return frozenset({"mixed" if layer >= hparams["leading_dense_block_count"] else "dense"})


def derived(hparams: Mapping[str, Any]) -> dict[str, object]:
    """The window, if any layer has one, and whether there are shared experts."""
    stated, layers = kinds_of_layer(hparams), hparams["block_count"]
    slides = SLIDING_ATTENTION in stated if stated is not None else hparams["window_from_layer"] < layers
    return {
        WINDOW: hparams.get("stated_window") if slides else None,
        "shares": hparams["expert_shared_count"] > 0,
    }


def said_by_file(_keys: Mapping[str, Any]) -> dict[str, object]:
    """What the loader takes where a file is silent."""
    return {"leading_dense_block_count": 0, "expert_weights_norm": False, "expert_weights_scale": 1.0}


DOTS1 = Architecture(
    name="dots1",
    hf_classes=("Dots1ForCausalLM",),
    model_types=("dots1",),
    tensors=ENDS | PRE_NORMS | attention("attention_bias") | NORMED_QK | feed_forward(),
    config=DECODER_CONFIG
    | {
        "num_key_value_heads": Reads("attention.head_count_kv", 32, null_is_none=True),
        "max_position_embeddings": Reads("context_length", 2048),
        "attention_bias": Reads("attention_bias", False),
        "moe_intermediate_size": Reads("expert_feed_forward_length", 1408),
        "n_routed_experts": Reads("expert_count"),
        "num_local_experts": Reads("expert_count"),
        "n_shared_experts": Reads("expert_shared_count", kind="count"),
        "num_experts_per_tok": Reads("expert_used_count"),
        "first_k_dense_replace": Reads("leading_dense_block_count", 0),
        "norm_topk_prob": Reads("expert_weights_norm", False, kind="flag"),
        "routed_scaling_factor": Reads("expert_weights_scale", 1.0, kind="number"),
        "n_group": Asserts((1, None), "experts would be chosen by groups"),
        "topk_group": Asserts((1, None), "experts would be chosen by groups"),
        "scoring_func": Asserts(("sigmoid", None), "the class gates its experts by sigmoid"),
        "topk_method": Asserts(("noaux_tc", None), "the class chooses its experts with a correcting bias"),
        "moe_layer_freq": Asserts((1, None), "later layers would be dense"),
        "sliding_window": Reads("stated_window", 4096, null_is_none=True, kind="count"),
        "max_window_layers": Reads("window_from_layer", 62),
        "layer_types": Reads("layer_types", None, kind="texts"),
        "use_sliding_window": Ignores("layer_types and max_window_layers say which layers have a window"),
    },
    wiring=PRE_NORM_DECODER,
    graphs=(
        Graph(
            format="gguf",
            name="dots1",
            engine="llama.cpp",
            keys=(
                *KEYS,
                "expert_count",
                "expert_used_count",
                "expert_feed_forward_length",
                "leading_dense_block_count",
                "expert_shared_count",
                "expert_weights_scale",
                "expert_weights_norm",
            ),
            constants={"expert_gating_func": 2},
            fixes=common_fixes("dots1")
            | {
                "attention.head_count_kv": Fix(
                    values=(None,), why="the dots1 graph wants as many key-value heads as heads", unless=no_groups
                ),
                "shares": Fix(values=(True,), why="n_shared_experts is 0, and the dots1 graph wants shared experts"),
            },
            limits=(
                Limit(hparam=WINDOW, message="the dots1 graph knows no sliding window: exact up to {tokens} tokens"),
            ),
            rope=PLAIN_ROPE,
            needs_head=True,
            biases=frozenset({Role.ATTN_Q, Role.ATTN_K, Role.ATTN_V, Role.EXPERT_BIAS}),
            assumes=said_by_file,
        ),
    ),
    shapes={
        Role.FFN_GATE_SHEXP: (SHARED_WIDTH, "embedding_length"),
        Role.FFN_UP_SHEXP: (SHARED_WIDTH, "embedding_length"),
        Role.FFN_DOWN_SHEXP: ("embedding_length", SHARED_WIDTH),
        Role.EXPERT_BIAS: ("expert_count",),
    },
    hparams=derived,
    layer_kinds=kinds,
    waived=RECOMPUTED,
)
