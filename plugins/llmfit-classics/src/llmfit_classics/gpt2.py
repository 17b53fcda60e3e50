"""GPT-2: learned positions, matrices stored `[in, out]`, q, k and v in one of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmfit_classics.common import EPSILON, V_TO_OUT, gelu, norm
from llmfit_core import COMMON_CONFIG, Architecture, Fix, Fused, Graph, Ignores, Link, Reads, Role, Slot


def derived(hparams: Mapping[str, Any]) -> dict[str, object]:
    """The feed-forward's width where the config leaves it out, and how many positions were learned."""
    return {
        "feed_forward_length": hparams.get("feed_forward_length") or 4 * hparams["embedding_length"],
        "learned_positions": hparams["context_length"],
    }


LEARNED = Fix(
    values=(None,),
    why="the graph has a learned position for each token of the context, no more and no less",
    unless=lambda hp: hp["learned_positions"] == hp["context_length"],
)

GPT2 = Architecture(
    name="gpt2",
    hf_classes=("GPT2LMHeadModel",),
    model_types=("gpt2",),
    tensors={
        "transformer.wte": Role.EMBED,
        "transformer.wpe": Role.POSITION_EMBED,
        "transformer.h.{layer}.ln_1": norm(Role.ATTN_NORM),
        "transformer.h.{layer}.attn.c_attn": Slot(
            Fused((Role.ATTN_Q, Role.ATTN_K, Role.ATTN_V)), bias=True, transposed=True
        ),
        "transformer.h.{layer}.attn.c_proj": Slot(Role.ATTN_OUT, bias=True, transposed=True),
        "transformer.h.{layer}.ln_2": norm(Role.FFN_NORM),
        "transformer.h.{layer}.mlp.c_fc": Slot(Role.FFN_UP, bias=True, transposed=True),
        "transformer.h.{layer}.mlp.c_proj": Slot(Role.FFN_DOWN, bias=True, transposed=True),
        "transformer.ln_f": norm(Role.OUTPUT_NORM),
        "lm_head": Slot(Role.HEAD, optional=True),
    },
    config=COMMON_CONFIG
    | {
        "n_embd": Reads("embedding_length"),
        "n_layer": Reads("block_count"),
        "n_head": Reads("attention.head_count"),
        "n_positions": Reads("context_length"),
        "n_inner": Reads("feed_forward_length", None),
        # The class takes these names for the same.
        "hidden_size": Reads("embedding_length", None),
        "num_hidden_layers": Reads("block_count", None),
        "num_attention_heads": Reads("attention.head_count", None),
        "max_position_embeddings": Reads("context_length", None),
        "n_ctx": Ignores("n_positions is what counts"),
        "layer_norm_epsilon": Reads(EPSILON, 1e-5),
        "activation_function": Reads("hidden_act", "gelu_new"),
        "scale_attn_weights": Reads("scale_attn_weights", True),
        "scale_attn_by_inverse_layer_idx": Reads("scale_attn_by_inverse_layer_idx", False),
        "reorder_and_upcast_attn": Ignores("the order of two operations in mixed precision"),
        "tie_word_embeddings": Reads("tie_word_embeddings", True),
        "vocab_size": Reads("vocab_size", None),
        **dict.fromkeys(
            "summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout".split(),
            Ignores("of a classifier"),
        ),
    },
    wiring=(
        Link(source=Role.ATTN_NORM, sinks=(Role.ATTN_Q, Role.ATTN_K, Role.ATTN_V)),
        V_TO_OUT,
        Link(source=Role.FFN_NORM, sinks=(Role.FFN_UP,)),
    ),
    graphs=(
        Graph(
            format="gguf",
            name="gpt2",
            engine="llama.cpp",
            keys=(
                "block_count",
                "context_length",
                "embedding_length",
                "feed_forward_length",
                "attention.head_count",
                EPSILON,
            ),
            fixes={
                "hidden_act": gelu("gpt2", "gelu_new"),
                "scale_attn_weights": Fix(values=(True,), why="the gpt2 graph divides by the root of the head size"),
                "scale_attn_by_inverse_layer_idx": Fix(
                    values=(False, None), why="the gpt2 graph scales attention alike in all layers"
                ),
                "learned_positions": LEARNED,
            },
            rope=frozenset({"default"}),
            merges={"attn_qkv": (Role.ATTN_Q, Role.ATTN_K, Role.ATTN_V)},
        ),
    ),
    shapes={Role.POSITION_EMBED: ("context_length", "embedding_length")},
    hparams=derived,
    waived={
        "transformer.h.{layer}.attn.bias": "the causal mask",
        "transformer.h.{layer}.attn.masked_bias": "the causal mask",
    },
)
