"""InternLM2: a Llama under other names, with q, k and v in one tensor, group by group of heads."""

from __future__ import annotations

from llmfit_core import DECODER_CONFIG, PRE_NORM_DECODER, Architecture, Fused, Graph, Reads, Role, Slot
from llmfit_open.common import KEYS, PLAIN_ROPE, QKV, common_fixes

INTERNLM2 = Architecture(
    name="internlm2",
    hf_classes=("InternLM2ForCausalLM",),
    model_types=("internlm2",),
    tensors={
        "model.tok_embeddings": Role.EMBED,
        "model.layers.{layer}.attention_norm": Role.ATTN_NORM,
        # For each key-value head: its queries, its key, its value.
        "model.layers.{layer}.attention.wqkv": Slot(
            Fused((Role.ATTN_Q, Role.ATTN_K, Role.ATTN_V), groups="attention.head_count_kv"), bias="bias"
        ),
        "model.layers.{layer}.attention.wo": Slot(Role.ATTN_OUT, bias="bias"),
        "model.layers.{layer}.ffn_norm": Role.FFN_NORM,
        "model.layers.{layer}.feed_forward.w1": Role.FFN_GATE,
        "model.layers.{layer}.feed_forward.w3": Role.FFN_UP,
        "model.layers.{layer}.feed_forward.w2": Role.FFN_DOWN,
        "model.norm": Role.OUTPUT_NORM,
        "output": Slot(Role.HEAD, optional=True),
    },
    config=DECODER_CONFIG | {"bias": Reads("bias", True)},
    wiring=PRE_NORM_DECODER,
    graphs=(
        Graph(
            format="gguf",
            name="internlm2",
            engine="llama.cpp",
            keys=KEYS,
            fixes=common_fixes("internlm2", square=True),
            rope=PLAIN_ROPE,
            rope_rows="pairs",
            biases=QKV,
            needs_head=True,
        ),
    ),
    waived={"model.layers.{layer}.attention.rotary_emb.inv_freq": "recomputed from config.json"},
)
