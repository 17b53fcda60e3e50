"""Phi-3, stated once as data: q, k and v in one tensor, gate and up in another."""

from __future__ import annotations

from llmfit_core import (
    DECODER_CONFIG,
    PRE_NORM_DECODER,
    Architecture,
    Asserts,
    Fix,
    Fused,
    Graph,
    Limit,
    Reads,
    Role,
    Slot,
)

PHI3_GRAPH = Graph(
    format="gguf",
    name="phi3",
    engine="llama.cpp",
    keys=(
        "context_length",
        "rope.scaling.original_context_length",
        "embedding_length",
        "feed_forward_length",
        "block_count",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.layer_norm_rms_epsilon",
        "rope.dimension_count",
        "rope.freq_base",
    ),
    fixes={
        "hidden_act": Fix(values=("silu", "swish"), why="the phi3 graph applies SiLU"),
        "attention.key_length": Fix(
            values=(None,),
            why="the phi3 graph wants heads times head size to be the width",
            unless=lambda hp: hp["attention.head_count"] * hp["attention.key_length"] == hp["embedding_length"],  # type: ignore[operator]
        ),
    },
    limits=(
        Limit(
            hparam="attention.sliding_window",
            message="llama.cpp switches Phi-3's sliding window off: exact up to {tokens} tokens",
        ),
    ),
    # transformers gives Phi-3 plain rope or longrope, which early revisions called "su" and "yarn".
    rope=frozenset({"default", "longrope"}),
    merges={"attn_qkv": (Role.ATTN_Q, Role.ATTN_K, Role.ATTN_V), "ffn_up": (Role.FFN_GATE, Role.FFN_UP)},
    biases=frozenset(),
)

PHI3 = Architecture(
    name="phi3",
    hf_classes=("Phi3ForCausalLM",),
    model_types=("phi3",),
    tensors={
        "model.embed_tokens": Role.EMBED,
        "model.layers.{layer}.input_layernorm": Role.ATTN_NORM,
        "model.layers.{layer}.self_attn.qkv_proj": Fused((Role.ATTN_Q, Role.ATTN_K, Role.ATTN_V)),
        "model.layers.{layer}.self_attn.o_proj": Role.ATTN_OUT,
        "model.layers.{layer}.post_attention_layernorm": Role.FFN_NORM,
        "model.layers.{layer}.mlp.gate_up_proj": Fused((Role.FFN_GATE, Role.FFN_UP)),
        "model.layers.{layer}.mlp.down_proj": Role.FFN_DOWN,
        "model.norm": Role.OUTPUT_NORM,
        "lm_head": Slot(Role.HEAD, optional=True),
    },
    config=DECODER_CONFIG
    | {
        "rms_norm_eps": Reads("attention.layer_norm_rms_epsilon", 1e-5),
        "sliding_window": Reads("attention.sliding_window", None),
        "original_max_position_embeddings": Reads("rope.scaling.original_context_length", 4096, kind="count"),
        # What Phi-4-mini's config says of variants that were never published.
        "attention_bias": Asserts((False, None), "this class has no biases"),
        "mlp_bias": Asserts((False, None), "this class has no biases"),
        "lm_head_bias": Asserts((False, None), "this class has no biases"),
        "full_attn_mod": Asserts((1, None), "attention would differ from layer to layer"),
        "interpolate_factor": Asserts((1, None), "positions would be stretched"),
    },
    wiring=PRE_NORM_DECODER,
    graphs=(PHI3_GRAPH,),
    waived={"model.layers.{layer}.self_attn.rotary_emb.inv_freq": "recomputed from config.json"},
)
