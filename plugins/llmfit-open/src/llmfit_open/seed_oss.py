"""Seed-OSS: a Llama with biases on q, k and v, and heads that need not fill the width."""

from __future__ import annotations

from llmfit_core import DECODER_CONFIG, PRE_NORM_DECODER, Architecture, Graph, Reads, Role
from llmfit_open.common import ENDS, KEYS, PLAIN_ROPE, PRE_NORMS, QKV, RECOMPUTED, attention, common_fixes, gated

SEED_OSS = Architecture(
    name="seed_oss",
    hf_classes=("SeedOssForCausalLM",),
    model_types=("seed_oss",),
    tensors=ENDS | PRE_NORMS | attention("attention_bias", "attention_out_bias") | gated("mlp_bias"),
    config=DECODER_CONFIG
    | {
        "num_key_value_heads": Reads("attention.head_count_kv", 8, null_is_none=True),
        "head_dim": Reads("attention.key_length", 128, null_is_none=True),
        "max_position_embeddings": Reads("context_length", 524288),
        "attention_bias": Reads("attention_bias", True),
        "attention_out_bias": Reads("attention_out_bias", False),
        "mlp_bias": Reads("mlp_bias", False),
    },
    wiring=PRE_NORM_DECODER,
    graphs=(
        Graph(
            format="gguf",
            name="seed_oss",
            engine="llama.cpp",
            keys=KEYS,
            fixes=common_fixes("seed_oss"),
            rope=PLAIN_ROPE,
            spelling={Role.FFN_NORM: Role.ATTN_POST_NORM},
            biases=QKV,
        ),
    ),
    waived=RECOMPUTED,
)
