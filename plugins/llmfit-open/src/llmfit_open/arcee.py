"""Arcee (AFM): a Llama whose feed-forward has no gate and squares a ReLU."""

from __future__ import annotations

from llmfit_core import DECODER_CONFIG, Architecture, Fix, Graph, Link, Reads, Role, Slot
from llmfit_open.common import ENDS, KEYS, PRE_NORMS, QKV, RECOMPUTED, attention

ARCEE = Architecture(
    name="arcee",
    hf_classes=("ArceeForCausalLM",),
    model_types=("arcee",),
    tensors=ENDS
    | PRE_NORMS
    | attention("attention_bias")
    | {
        "model.layers.{layer}.mlp.up_proj": Slot(Role.FFN_UP, bias="mlp_bias"),
        "model.layers.{layer}.mlp.down_proj": Slot(Role.FFN_DOWN, bias="mlp_bias"),
    },
    config=DECODER_CONFIG
    | {
        "hidden_act": Reads("hidden_act", "relu2"),
        "rms_norm_eps": Reads("attention.layer_norm_rms_epsilon", 1e-5),
        "max_position_embeddings": Reads("context_length", 4096),
        "attention_bias": Reads("attention_bias", False),
        "mlp_bias": Reads("mlp_bias", False),
    },
    # Nothing leads from up to down: between them values are squared.
    wiring=(
        Link(source=Role.ATTN_NORM, sinks=(Role.ATTN_Q, Role.ATTN_K, Role.ATTN_V)),
        Link(source=Role.ATTN_V, sinks=(Role.ATTN_OUT,), when="no_gqa"),
        Link(source=Role.FFN_NORM, sinks=(Role.FFN_UP,)),
    ),
    graphs=(
        Graph(
            format="gguf",
            name="arcee",
            engine="llama.cpp",
            keys=(*KEYS, "vocab_size", "rope.dimension_count"),
            fixes={
                "hidden_act": Fix(values=("relu2",), why="the arcee graph squares a ReLU"),
                "partial_rotary_factor": Fix(values=(1.0, 1), why="the arcee graph rotates whole heads"),
            },
            rope=frozenset({"default", "linear", "yarn", "llama3", "longrope", "dynamic"}),
            rope_rows="pairs",
            rope_factors=True,
            biases=QKV,
        ),
    ),
    waived=RECOMPUTED,
)
