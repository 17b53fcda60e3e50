"""Llama, Mistral and Mixtral, stated once as data."""

from __future__ import annotations

from collections.abc import Iterable

from llmfit_core import (
    DECODER_CONFIG,
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
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.head_count_kv",
        "rope.freq_base",
        "attention.layer_norm_rms_epsilon",
        "attention.key_length",
        "attention.value_length",
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
    shapes={
        Role.FFN_GATE_EXPS: ("expert_count", "feed_forward_length", "embedding_length"),
        Role.FFN_UP_EXPS: ("expert_count", "feed_forward_length", "embedding_length"),
        Role.FFN_DOWN_EXPS: ("expert_count", "embedding_length", "feed_forward_length"),
    },
    waived=RECOMPUTED,
)


@hookimpl
def llmfit_architectures() -> Iterable[Architecture]:
    """The three families."""
    return (LLAMA, MISTRAL, MIXTRAL)
