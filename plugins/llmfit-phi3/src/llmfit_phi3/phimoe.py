"""Phi-3.5-MoE: a Mixtral with LayerNorm, biases, and experts weighed by a sparse mixer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from llmfit_core import (
    DECODER_CONFIG,
    PRE_NORM_DECODER,
    Architecture,
    Asserts,
    Fix,
    Fused,
    Graph,
    Ignores,
    Reads,
    Role,
    Slot,
    UnsupportedError,
)

_LAYER = "model.layers.{layer}"
MIXED: dict[str, str | Slot | Fused] = {
    f"{_LAYER}.block_sparse_moe.gate": Role.FFN_ROUTER,
    f"{_LAYER}.block_sparse_moe.experts.{{expert}}.w1": Role.FFN_GATE_EXPS,
    f"{_LAYER}.block_sparse_moe.experts.{{expert}}.w3": Role.FFN_UP_EXPS,
    f"{_LAYER}.block_sparse_moe.experts.{{expert}}.w2": Role.FFN_DOWN_EXPS,
    # As transformers 5 holds them in memory.
    f"{_LAYER}.mlp.router": Role.FFN_ROUTER,
    f"{_LAYER}.mlp.experts.gate_up_proj": Slot(
        Fused((Role.FFN_GATE_EXPS, Role.FFN_UP_EXPS)), either_way=True, bare=True
    ),
    f"{_LAYER}.mlp.experts.down_proj": Slot(Role.FFN_DOWN_EXPS, either_way=True, bare=True),
}
ATTENTION = {
    f"{_LAYER}.self_attn.{name}_proj": Slot(role, bias="attention_bias")
    for name, role in (("q", Role.ATTN_Q), ("k", Role.ATTN_K), ("v", Role.ATTN_V), ("o", Role.ATTN_OUT))
}


def as_built(hparams: Mapping[str, Any]) -> dict[str, object]:
    """What the class has built in: no config key says it."""
    return {"expert_feed_forward_length": hparams["feed_forward_length"], "built_in": "LayerNorm and sparse mixer"}


def no_such_model(keys: Mapping[str, Any]) -> NoReturn:
    """A phimoe file computes none of the models that a config.json can name."""
    raise UnsupportedError(
        "unknown-graph",
        "the file's graph is phimoe, which computes with RMS norms and one softmax over experts: no class of a "
        "config.json does",
        "Convert the model's original.",
    )


# A centred residual stream would make RMS norms of LayerNorms; for the routing no weights make up: each of its two
# weights is a softmax of its own, and they do not sum up to one.
PHIMOE_GRAPH = Graph(
    format="gguf",
    name="phimoe",
    engine="llama.cpp",
    keys=(),
    fixes={
        "built_in": Fix(
            values=("RMS norm and one softmax",),
            why="the graph weighs both chosen experts by one softmax, the model by a sparse mixer, each against its own "
            "near rivals; and the graph has RMS norms where the model has LayerNorm",
        ),
    },
    rope=frozenset({"default", "longrope"}),
    assumes=no_such_model,
)
PHIMOE = Architecture(
    name="phimoe",
    hf_classes=("PhimoeForCausalLM", "PhiMoEForCausalLM"),
    model_types=("phimoe",),
    tensors={
        "model.embed_tokens": Role.EMBED,
        f"{_LAYER}.input_layernorm": Slot(Role.ATTN_NORM, bias=True),
        **ATTENTION,
        f"{_LAYER}.post_attention_layernorm": Slot(Role.FFN_NORM, bias=True),
        **MIXED,
        "model.norm": Slot(Role.OUTPUT_NORM, bias=True),
        "lm_head": Slot(Role.HEAD, bias="lm_head_bias", optional=True),
    },
    config=DECODER_CONFIG
    | {
        "rms_norm_eps": Reads("attention.layer_norm_epsilon", 1e-5),
        "rope_theta": Reads("rope.freq_base", 1000000.0),
        "num_local_experts": Reads("expert_count", 16),
        "num_experts_per_tok": Asserts((2,), "the sparse mixer chooses two experts, whatever the config says"),
        "router_jitter_noise": Reads("router_jitter_noise", 0.01),
        "sliding_window": Reads("attention.sliding_window", None),
        "input_jitter_noise": Ignores("training only"),
        "attention_bias": Reads("attention_bias", False),
        "lm_head_bias": Reads("lm_head_bias", False),
        "original_max_position_embeddings": Reads("rope.scaling.original_context_length", None, kind="count"),
        "rope_scaling.short_mscale": Ignores("goes along in config.json; no graph computes the model"),
        "rope_scaling.long_mscale": Ignores("goes along in config.json; no graph computes the model"),
    },
    wiring=PRE_NORM_DECODER,
    graphs=(PHIMOE_GRAPH,),
    hparams=as_built,
    waived={f"{_LAYER}.self_attn.rotary_emb.inv_freq": "recomputed from config.json"},
)
