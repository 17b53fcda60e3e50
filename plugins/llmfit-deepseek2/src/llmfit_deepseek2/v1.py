"""DeepSeekMoE (deepseek-moe-16b): ordinary attention, shared and routed experts gated by softmax.

The class lives in the model's own folder alone (`modeling_deepseek.py`); transformers has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmfit_core import DECODER_CONFIG, PRE_NORM_DECODER, Architecture, Asserts, Fix, Graph, Reads, Role, Slot
from llmfit_deepseek2.sizes import mixed_layers
from llmfit_deepseek2.tables import ENDS, EXPERTS, NORMS, RECOMPUTED, SHARED_SHAPES, feed_forward

ATTENTION = {
    f"model.layers.{{layer}}.self_attn.{name}_proj": Slot(role, bias="attention_bias")
    for name, role in (("q", Role.ATTN_Q), ("k", Role.ATTN_K), ("v", Role.ATTN_V), ("o", Role.ATTN_OUT))
}


def kinds(hparams: Mapping[str, Any], layer: int) -> frozenset[str]:
    """The first layers are dense."""
    return frozenset({"mixed" if layer >= hparams["leading_dense_block_count"] else "dense"})


def checked(hparams: Mapping[str, Any]) -> dict[str, object]:
    """What the graph depends on."""
    return {"rope.dimension_count": hparams["attention.key_length"], "has_shared_experts": hparams["expert_shared_count"] > 0}


def one_or_all(hparams: Mapping[str, Any]) -> bool:
    """The class normalises no single weight, and those of all experts sum up to one."""
    return hparams["expert_used_count"] in (1, hparams["expert_count"])


DEEPSEEK_GRAPH = Graph(
    format="gguf",
    name="deepseek",
    engine="llama.cpp",
    keys=(
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.head_count_kv",
        "rope.freq_base",
        "attention.layer_norm_rms_epsilon",
        "expert_count",
        "expert_used_count",
        "rope.dimension_count",
        "leading_dense_block_count",
        "vocab_size",
        "expert_feed_forward_length",
        "expert_weights_scale",
        "expert_shared_count",
    ),
    constants={"expert_weights_scale": 1.0},
    fixes={
        "hidden_act": Fix(values=("silu", "swish"), why="the deepseek graph applies SiLU"),
        "attention.key_length": Fix(
            values=(None,),
            why="the deepseek graph wants heads times head size to be the width",
            unless=lambda hp: hp["attention.head_count"] * hp["attention.key_length"] == hp["embedding_length"],  # type: ignore[operator]
        ),
        "expert_weights_norm": Fix(
            values=(False,), why="the deepseek graph does not normalise the weights of chosen experts", unless=one_or_all
        ),
        "has_shared_experts": Fix(
            values=(True,),
            why="n_shared_experts is 0, and the deepseek graph wants shared experts",
            unless=lambda hp: not mixed_layers(hp),
        ),
    },
    rope=frozenset({"default", "linear"}),
    rope_rows="pairs",
    assumes=lambda keys: {"leading_dense_block_count": 0, "expert_weights_norm": False},
    biases=frozenset({Role.ATTN_Q, Role.ATTN_K, Role.ATTN_V}),
)
DEEPSEEK = Architecture(
    name="deepseek",
    hf_classes=("DeepseekForCausalLM",),
    model_types=("deepseek",),
    tensors=ENDS | NORMS | ATTENTION | feed_forward() | EXPERTS,
    config={k: v for k, v in DECODER_CONFIG.items() if k not in ("partial_rotary_factor", "head_dim")}
    | {
        "attention_bias": Reads("attention_bias", False),
        "first_k_dense_replace": Reads("leading_dense_block_count", 0),
        "moe_layer_freq": Asserts((1,), "only every so many layers would have experts"),
        "n_routed_experts": Reads("expert_count"),
        "n_shared_experts": Reads("expert_shared_count", kind="count"),
        "num_experts_per_tok": Reads("expert_used_count"),
        "moe_intermediate_size": Reads("expert_feed_forward_length", 1407),
        "norm_topk_prob": Reads("expert_weights_norm", False),
        "scoring_func": Asserts(("softmax",), "the class knows softmax alone"),
    },
    wiring=PRE_NORM_DECODER,
    graphs=(DEEPSEEK_GRAPH,),
    shapes=SHARED_SHAPES,
    hparams=checked,
    layer_kinds=kinds,
    waived=RECOMPUTED,
)
