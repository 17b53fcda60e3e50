"""BLOOM: ALiBi instead of positions, a norm behind the embedding, each head's q, k and v in turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmfit_classics.common import EPSILON, QKV, norm
from llmfit_core import COMMON_CONFIG, Architecture, Fix, Fused, Graph, Ignores, Link, Reads, Role, Slot

_LAYER = "transformer.h.{layer}."


def derived(hparams: Mapping[str, Any]) -> dict[str, object]:
    """The feed-forward is always four times as wide."""
    return {"feed_forward_length": 4 * hparams["embedding_length"]}


BLOOM = Architecture(
    name="bloom",
    hf_classes=("BloomForCausalLM",),
    model_types=("bloom",),
    tensors={
        "transformer.word_embeddings": Role.EMBED,
        "transformer.word_embeddings_layernorm": norm(Role.EMBED_NORM),
        _LAYER + "input_layernorm": norm(Role.ATTN_NORM),
        _LAYER + "self_attention.query_key_value": Slot(Fused(QKV, groups="attention.head_count"), bias=True),
        _LAYER + "self_attention.dense": Slot(Role.ATTN_OUT, bias=True),
        _LAYER + "post_attention_layernorm": norm(Role.FFN_NORM),
        _LAYER + "mlp.dense_h_to_4h": Slot(Role.FFN_UP, bias=True),
        _LAYER + "mlp.dense_4h_to_h": Slot(Role.FFN_DOWN, bias=True),
        "transformer.ln_f": norm(Role.OUTPUT_NORM),
        "lm_head": Slot(Role.HEAD, optional=True),
    },
    config=COMMON_CONFIG
    | {
        "hidden_size": Reads("embedding_length"),
        "n_layer": Reads("block_count"),
        "n_head": Reads("attention.head_count"),
        # The class takes these names for the same.
        "n_embed": Reads("embedding_length", None),
        "num_hidden_layers": Reads("block_count", None),
        "num_attention_heads": Reads("attention.head_count", None),
        # ALiBi has no end; the length of training is what published configs tell.
        "seq_length": Reads("context_length", 2048),
        "layer_norm_epsilon": Reads(EPSILON, 1e-5),
        "apply_residual_connection_post_layernorm": Reads("apply_residual_connection_post_layernorm", False),
        "tie_word_embeddings": Reads("tie_word_embeddings", True),
        "vocab_size": Reads("vocab_size", None),
        **dict.fromkeys(
            "slow_but_exact masked_softmax_fusion attention_softmax_in_fp32 bias_dropout_fusion skip_bias_add "
            "skip_bias_add_qkv offset_alibi n_inner".split(),
            Ignores("the class does not read it, or how it runs"),
        ),
    },
    wiring=(
        Link(source=Role.ATTN_NORM, sinks=QKV),
        Link(source=Role.FFN_NORM, sinks=(Role.FFN_UP,)),
    ),
    graphs=(
        Graph(
            format="gguf",
            name="bloom",
            engine="llama.cpp",
            keys=(
                "block_count",
                "context_length",
                "embedding_length",
                "feed_forward_length",
                "attention.head_count",
                "attention.head_count_kv",
                EPSILON,
            ),
            fixes={
                "apply_residual_connection_post_layernorm": Fix(
                    values=(False,), why="the bloom graph adds to what came before the norm"
                ),
            },
            rope=frozenset({"default"}),
            merges={"attn_qkv": QKV},
        ),
    ),
    shapes={Role.EMBED_NORM: ("embedding_length",)},
    hparams=derived,
)
