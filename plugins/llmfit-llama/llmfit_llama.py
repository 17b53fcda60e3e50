"""Llama, Mistral and Mixtral, stated once as data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from llmfit_core import (
    DECODER_CONFIG,
    DECODER_KEYS,
    PRE_NORM_DECODER,
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
    hookimpl,
)

ATTENTION: dict[str, str | Slot | Fused] = {
    "model.embed_tokens": Role.EMBED,
    "model.layers.{layer}.input_layernorm": Role.ATTN_NORM,
    "model.layers.{layer}.self_attn.q_proj": Slot(Role.ATTN_Q, bias="attention_bias"),
    "model.layers.{layer}.self_attn.k_proj": Slot(Role.ATTN_K, bias="attention_bias"),
    "model.layers.{layer}.self_attn.v_proj": Slot(Role.ATTN_V, bias="attention_bias"),
    "model.layers.{layer}.self_attn.o_proj": Slot(Role.ATTN_OUT, bias="attention_bias"),
    "model.layers.{layer}.post_attention_layernorm": Role.FFN_NORM,
    "model.norm": Role.OUTPUT_NORM,
    "lm_head": Slot(Role.HEAD, optional=True),
}

DENSE: dict[str, str | Slot | Fused] = {
    "model.layers.{layer}.mlp.gate_proj": Slot(Role.FFN_GATE, bias="mlp_bias"),
    "model.layers.{layer}.mlp.up_proj": Slot(Role.FFN_UP, bias="mlp_bias"),
    "model.layers.{layer}.mlp.down_proj": Slot(Role.FFN_DOWN, bias="mlp_bias"),
}

# Mixtral's experts: one by one as published, under transformers 5's names, and as one tensor.
MIXED: dict[str, str | Slot | Fused] = {
    "model.layers.{layer}.block_sparse_moe.gate": Role.FFN_ROUTER,
    "model.layers.{layer}.block_sparse_moe.experts.{expert}.w1": Role.FFN_GATE_EXPS,
    "model.layers.{layer}.block_sparse_moe.experts.{expert}.w3": Role.FFN_UP_EXPS,
    "model.layers.{layer}.block_sparse_moe.experts.{expert}.w2": Role.FFN_DOWN_EXPS,
    "model.layers.{layer}.mlp.gate": Role.FFN_ROUTER,
    "model.layers.{layer}.mlp.experts.{expert}.gate_proj": Role.FFN_GATE_EXPS,
    "model.layers.{layer}.mlp.experts.{expert}.up_proj": Role.FFN_UP_EXPS,
    "model.layers.{layer}.mlp.experts.{expert}.down_proj": Role.FFN_DOWN_EXPS,
    "model.layers.{layer}.mlp.experts.gate_up_proj": Slot(
        Fused((Role.FFN_GATE_EXPS, Role.FFN_UP_EXPS)), either_way=True, bare=True
    ),
    "model.layers.{layer}.mlp.experts.down_proj": Slot(Role.FFN_DOWN_EXPS, either_way=True, bare=True),
}

RECOMPUTED = {
    "model.layers.{layer}.self_attn.rotary_emb.inv_freq": "recomputed from config.json",
    "model.rotary_emb.inv_freq": "recomputed from config.json",
}

NO_BIASES: dict[str, Reads | Asserts | Ignores] = {
    "attention_bias": Asserts((False, None), "this class has no biases"),
    "mlp_bias": Asserts((False, None), "this class has no biases"),
}

LLAMA_GRAPH = Graph(
    format="gguf",
    name="llama",
    engine="llama.cpp",
    keys=(
        *DECODER_KEYS,
        "expert_count",
        "expert_used_count",
        "vocab_size",
        "rope.dimension_count",
    ),
    fixes={
        "hidden_act": Fix(values=("silu", "swish"), why="the llama graph applies SiLU"),
        "partial_rotary_factor": Fix(values=(1.0, 1), why="the llama graph rotates whole heads"),
    },
    limits=(
        Limit(
            hparam="attention.sliding_window",
            message="the llama graph knows no sliding window: exact up to {tokens} tokens",
        ),
    ),
    rope=frozenset({"default", "linear", "yarn", "llama3", "longrope", "dynamic"}),
    rope_rows="pairs",
    rope_factors=True,
)

# What transformers' config classes assume, and leave out of a text part that is saved inside a larger model.
OF_4096: dict[str, object] = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}
PART_DEFAULTS: dict[str, dict[str, object]] = {
    "llama": {**OF_4096, "intermediate_size": 11008, "max_position_embeddings": 2048},
    "mistral": {
        **OF_4096, "intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 131072,
    },
    "mixtral": {
        **OF_4096, "intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 131072,
    },
    "ministral3": {
        **OF_4096, "num_hidden_layers": 34, "intermediate_size": 14336, "num_key_value_heads": 8,
        "max_position_embeddings": 262144,
    },
}  # fmt: skip

LLAMA = Architecture(
    name="llama",
    hf_classes=("LlamaForCausalLM", "LLaMAForCausalLM"),
    model_types=("llama",),
    tensors=ATTENTION | DENSE,
    config=DECODER_CONFIG
    | {
        "attention_bias": Reads("attention_bias", False),
        "mlp_bias": Reads("mlp_bias", False),
        "rope_interleaved": Asserts((False,), "the rows of q and k would be laid out otherwise"),
    },
    wiring=PRE_NORM_DECODER,
    graphs=(LLAMA_GRAPH,),
    part_defaults=PART_DEFAULTS,
    waived=RECOMPUTED,
)

MISTRAL = Architecture(
    name="mistral",
    hf_classes=("MistralForCausalLM",),
    model_types=("mistral",),
    tensors=ATTENTION | DENSE,
    config=DECODER_CONFIG | NO_BIASES | {"sliding_window": Reads("attention.sliding_window", 4096, null_is_none=True)},
    wiring=PRE_NORM_DECODER,
    graphs=(LLAMA_GRAPH,),
    part_defaults=PART_DEFAULTS,
    waived=RECOMPUTED,
)

MIXTRAL = Architecture(
    name="mixtral",
    hf_classes=("MixtralForCausalLM",),
    model_types=("mixtral",),
    tensors=ATTENTION | MIXED,
    config=DECODER_CONFIG
    | NO_BIASES
    | {
        "num_local_experts": Reads("expert_count", 8),
        "num_experts_per_tok": Reads("expert_used_count", 2),
        "num_experts": Reads("expert_count", 8),  # transformers' second name of num_local_experts
        "rms_norm_eps": Reads("attention.layer_norm_rms_epsilon", 1e-5),
        "rope_theta": Reads("rope.freq_base", 1000000.0),
        "sliding_window": Reads("attention.sliding_window", None),
    },
    wiring=PRE_NORM_DECODER,
    graphs=(LLAMA_GRAPH,),
    part_defaults=PART_DEFAULTS,
    shapes={
        Role.FFN_GATE_EXPS: ("expert_count", "feed_forward_length", "embedding_length"),
        Role.FFN_UP_EXPS: ("expert_count", "feed_forward_length", "embedding_length"),
        Role.FFN_DOWN_EXPS: ("expert_count", "embedding_length", "feed_forward_length"),
    },
    waived=RECOMPUTED,
)


TEMPERATURE = "attention.temperature_scale"


def _growth(factor: float, share: float = 1.0) -> float:
    """By how much yarn raises cosine and sine: `1 + 0.1 share ln(factor)` (arXiv 2309.00071)."""
    return 1.0 + 0.1 * share * math.log(factor) if factor > 1 else 1.0


def yarn_of_mistral3(rope: Any) -> dict[str, float | None]:
    """The keys under which llama.cpp's mistral3 computes this yarn.

    With `m(x) = 1 + 0.1 x ln(factor)`, its context comes to a factor of `m(1) / m(L)` on cosine and sine, where `L` is
    the log multiplier, which is what a config with `mscale` of 1 and `mscale_all_dim` of `L` wants.
    """
    if rope.type != "yarn" or not rope.mscale_all_dim:
        return {}
    if abs(rope.attention_factor * _growth(rope.factor, rope.mscale_all_dim) - _growth(rope.factor)) > 1e-6:
        return {}
    return {"rope.scaling.attn_factor": None, "rope.scaling.yarn_log_multiplier": rope.mscale_all_dim}


def mistral3_read(keys: Mapping[str, Any]) -> dict[str, object]:
    """What a config says of the yarn that llama.cpp's mistral3 computes by these keys."""
    log, factor = float(keys.get("rope.scaling.yarn_log_multiplier", 0.0)), float(keys.get("rope.scaling.factor", 1.0))
    turned = float(keys.get("rope.scaling.attn_factor", 1.0))
    if log and turned == 1:
        plain = float(f"{log:.6g}")
        return {"mscale": 1.0, "mscale_all_dim": plain}
    return {"attention_factor": turned * _growth(factor) / (_growth(factor, log) if log else 1.0)}


MISTRAL3_GRAPH = replace(
    LLAMA_GRAPH,
    name="mistral3",
    keys=(*LLAMA_GRAPH.keys, TEMPERATURE),
    # Its floor is yarn's original context: written only for the rope types that say one.
    rope=frozenset({"yarn"}),
    rope_factors=False,
    rope_keys=yarn_of_mistral3,
    rope_read=mistral3_read,
)

MINISTRAL3 = Architecture(
    name="ministral3",
    hf_classes=("Ministral3ForCausalLM",),
    model_types=("ministral3",),
    tensors=ATTENTION | DENSE,
    config=DECODER_CONFIG
    | NO_BIASES
    | {
        "rms_norm_eps": Reads("attention.layer_norm_rms_epsilon", 1e-5),
        "rope_scaling.max_position_embeddings": Ignores("the class writes it, and reads original_max_position_embeddings"),
        "rope_theta": Reads("rope.freq_base", 1000000.0),
        "sliding_window": Reads("attention.sliding_window", None),
        "llama_4_scaling_beta": Reads(TEMPERATURE, kind="number"),
    },
    wiring=PRE_NORM_DECODER,
    graphs=(MISTRAL3_GRAPH,),
    part_defaults=PART_DEFAULTS,
    waived=RECOMPUTED,
)


@hookimpl
def llmfit_architectures() -> Iterable[Architecture]:
    """The four families."""
    return (LLAMA, MISTRAL, MIXTRAL, MINISTRAL3)
