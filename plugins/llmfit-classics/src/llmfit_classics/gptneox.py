"""GPT-NeoX and Pythia: each head holds its q, k and v in turn; attention and feed-forward mostly side by side."""

from __future__ import annotations

from llmfit_classics.common import KEYS, LAYER_NORM_CONFIG, PLAIN_ROPE, QKV, gelu, norm
from llmfit_core import Architecture, Fix, Fused, Graph, Link, Reads, Role, Slot

_LAYER = "gpt_neox.layers.{layer}."

GPTNEOX = Architecture(
    name="gptneox",
    hf_classes=("GPTNeoXForCausalLM",),
    model_types=("gpt_neox",),
    tensors={
        "gpt_neox.embed_in": Role.EMBED,
        _LAYER + "input_layernorm": norm(Role.ATTN_NORM),
        _LAYER + "attention.query_key_value": Slot(Fused(QKV, groups="attention.head_count"), bias="attention_bias"),
        _LAYER + "attention.dense": Slot(Role.ATTN_OUT, bias="attention_bias"),
        _LAYER + "post_attention_layernorm": norm(Role.FFN_NORM),
        _LAYER + "mlp.dense_h_to_4h": Slot(Role.FFN_UP, bias=True),
        _LAYER + "mlp.dense_4h_to_h": Slot(Role.FFN_DOWN, bias=True),
        "gpt_neox.final_layer_norm": norm(Role.OUTPUT_NORM),
        "embed_out": Slot(Role.HEAD, optional=True),
        "lm_head": Slot(Role.HEAD, optional=True),
    },
    config={k: v for k, v in LAYER_NORM_CONFIG.items() if k != "num_key_value_heads"}
    | {
        "hidden_act": Reads("hidden_act", "gelu"),
        "attention_bias": Reads("attention_bias", True),
        "use_parallel_residual": Reads("use_parallel_residual", True),
        "partial_rotary_factor": Reads("partial_rotary_factor", 0.25),
        # How transformers 4 calls the rope's share and base.
        "rotary_pct": Reads("partial_rotary_factor", 0.25),
        "rotary_emb_base": Reads("rope.freq_base", 10000.0),
    },
    # Which head a row of v belongs to is not where o's columns are, so v's scale cannot move.
    wiring=(
        Link(source=Role.ATTN_NORM, sinks=QKV),
        Link(source=Role.FFN_NORM, sinks=(Role.FFN_UP,)),
    ),
    graphs=(
        Graph(
            format="gguf",
            name="gptneox",
            engine="llama.cpp",
            keys=(*(k for k in KEYS if k != "attention.head_count_kv"), "use_parallel_residual"),
            fixes={
                "hidden_act": gelu("gptneox", "gelu"),
                "attention_bias": Fix(values=(True,), why="the gptneox graph needs the biases of attention"),
            },
            rope=PLAIN_ROPE,
            merges={"attn_qkv": QKV},
            needs_head=True,
        ),
    ),
    waived={
        _LAYER + "attention.rotary_emb.inv_freq": "recomputed from config.json",
        _LAYER + "attention.bias": "the causal mask",
        _LAYER + "attention.masked_bias": "the causal mask",
    },
)
