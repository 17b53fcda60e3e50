"""GLM-4.5 and GLM-4.6: DeepSeek-V3's experts behind ordinary attention that turns half of each head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmfit_core import (
    DECODER_CONFIG,
    PRE_NORM_DECODER,
    ROLES,
    Architecture,
    Fix,
    Graph,
    Reads,
    Role,
    Slot,
    UnsupportedError,
)
from llmfit_deepseek2.config import FURTHER_TOKENS, expert_keys, sigmoid_keys
from llmfit_deepseek2.graph import KEYS
from llmfit_deepseek2.sizes import groups, mixed_layers
from llmfit_deepseek2.tables import (
    CORRECTION,
    ENDS,
    EXPERTS,
    FURTHER,
    FURTHER_NAMES,
    NORMS,
    RECOMPUTED,
    SHARED_SHAPES,
    Table,
    feed_forward,
)

_ATTENTION = "model.layers.{layer}.self_attn"
ATTENTION: Table = {
    f"{_ATTENTION}.q_proj": Slot(Role.ATTN_Q, bias="attention_bias"),
    f"{_ATTENTION}.k_proj": Slot(Role.ATTN_K, bias="attention_bias"),
    f"{_ATTENTION}.v_proj": Slot(Role.ATTN_V, bias="attention_bias"),
    f"{_ATTENTION}.o_proj": Role.ATTN_OUT,
    f"{_ATTENTION}.q_norm": Slot(Role.ATTN_Q_NORM, when="normed_qk"),
    f"{_ATTENTION}.k_norm": Slot(Role.ATTN_K_NORM, when="normed_qk"),
}


def kinds(hparams: Mapping[str, Any], layer: int) -> frozenset[str]:
    """The first layers are dense; norms of q and k in all, or in none."""
    mixed = layer >= hparams["leading_dense_block_count"]
    return frozenset({"mixed" if mixed else "dense", "normed_qk" if hparams.get("use_qk_norm") else ""}) - {""}


def checked(hparams: Mapping[str, Any]) -> dict[str, object]:
    """Groups of experts, and what the graph depends on."""
    return groups(hparams) | {
        "has_shared_experts": hparams["expert_shared_count"] > 0,
        "has_mixed_layers": mixed_layers(hparams),
    }


def said_by_file(keys: Mapping[str, Any]) -> dict[str, object]:
    """What a file's keys mean in a config's words, and what the loader takes where it has none."""
    if any(keys.get("rope.dimension_sections") or ()) or keys.get("expert_gating_func", 2) not in (0, 2):
        raise UnsupportedError(
            "unknown-graph",
            "the file's graph is glm4moe, yet it has sections of rope or gates its experts otherwise than by sigmoid",
            "It is another family's: convert the model's original.",
        )
    return {
        "leading_dense_block_count": 0,
        "n_group": keys.get("expert_group_count") or 1,
        "topk_group": keys.get("expert_group_used_count") or 1,
        "expert_weights_norm": False,
        "expert_weights_scale": 1.0,
        "nextn_predict_layers": 0,
        "use_qk_norm": Role.ATTN_Q_NORM in keys.get(ROLES, ()),
    }


GLM4_MOE_GRAPH = Graph(
    format="gguf",
    name="glm4moe",
    engine="llama.cpp",
    keys=tuple(k for k in KEYS if "mla" not in k and "lora" not in k),
    constants={"expert_gating_func": 2},
    fixes={
        "hidden_act": Fix(values=("silu", "swish"), why="the glm4moe graph applies SiLU"),
        "has_shared_experts": Fix(values=(True,), why="n_shared_experts is 0, and the glm4moe graph wants shared experts"),
        "has_mixed_layers": Fix(values=(True,), why="every layer is dense, and the glm4moe graph wants experts"),
    },
    rope=frozenset({"default", "linear", "yarn", "dynamic"}),
    spelling={Role.FFN_NORM: "post_attention_norm"},
    values=lambda hparams: {"nextn_predict_layers": 0},
    assumes=said_by_file,
    biases=frozenset({Role.ATTN_Q, Role.ATTN_K, Role.ATTN_V, Role.EXPERT_BIAS}),
)
GLM4_MOE = Architecture(
    name="glm4moe",
    hf_classes=("Glm4MoeForCausalLM",),
    model_types=("glm4_moe",),
    tensors=ENDS | NORMS | ATTENTION | feed_forward() | EXPERTS | CORRECTION,
    config=DECODER_CONFIG
    | expert_keys(experts=128, shared=1, width=1408, scale=1.0)
    | {k: v for k, v in sigmoid_keys(used=8, groups=1, used_groups=1).items() if k != "rope_interleave"}
    | FURTHER_TOKENS
    | {
        "rms_norm_eps": Reads("attention.layer_norm_rms_epsilon", 1e-5),
        "partial_rotary_factor": Reads("partial_rotary_factor", 0.5),
        "first_k_dense_replace": Reads("leading_dense_block_count", 1),
        "attention_bias": Reads("attention_bias", False),
        "use_qk_norm": Reads("use_qk_norm", False),
    },
    wiring=PRE_NORM_DECODER,
    graphs=(GLM4_MOE_GRAPH,),
    shapes=SHARED_SHAPES,
    hparams=checked,
    layer_kinds=kinds,
    waived=RECOMPUTED | FURTHER_NAMES,
    waived_layers={"nextn_predict_layers": FURTHER},
)
