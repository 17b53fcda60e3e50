"""Falcon: one tensor for q, k and v, in groups of a key-value head each; one norm or two before what runs side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmfit_classics.common import (
    EPSILON,
    KEYS,
    LAYER_NORM_CONFIG,
    NORMS,
    PLAIN_ROPE,
    QKV,
    gelu,
    norm,
)
from llmfit_core import ROLES, Architecture, Asserts, Fix, Fused, Graph, Ignores, Link, Reads, Role, Slot

_LAYER = "transformer.h.{layer}."


def derived(hparams: Mapping[str, Any]) -> dict[str, object]:
    """Key-value heads by the make of the decoder, and the feed-forward's width where the config leaves it out."""
    heads = hparams["attention.head_count"]
    if hparams["new_decoder_architecture"]:
        kv = hparams.get("num_kv_heads") or heads
    else:
        # transformers 5 writes num_kv_heads = num_attention_heads where one was never stated; the class ignores it.
        kv = 1 if hparams["multi_query"] else heads
    return {
        "attention.head_count_kv": kv,
        "feed_forward_length": hparams.get("feed_forward_length") or 4 * hparams["embedding_length"],
    }


def kinds(hparams: Mapping[str, Any], _layer: int) -> frozenset[str]:
    """Attention and feed-forward in turn, side by side behind one norm, or each with a norm of its own."""
    if not hparams["new_decoder_architecture"] and not hparams["parallel_attn"]:
        return frozenset({"one norm", "in turn"})
    norms = hparams.get("num_ln_in_parallel_attn") or (2 if hparams["new_decoder_architecture"] else 1)
    return frozenset({"two norms"} if norms == 2 else {"one norm", "side by side"})


def assumed(hparams: Mapping[str, Any]) -> dict[str, object]:
    """What a file's tensors and heads tell of the decoder's make."""
    heads = hparams["attention.head_count"]
    kv = hparams.get("attention.head_count_kv", heads)
    two = Role.ATTN_NORM_2 in hparams[ROLES]
    return {
        "new_decoder_architecture": two or kv != 1,
        "num_kv_heads": kv,
        "multi_query": kv == 1,
        "num_ln_in_parallel_attn": 2 if two else 1,
    }


FALCON = Architecture(
    name="falcon",
    hf_classes=("FalconForCausalLM", "RWForCausalLM"),
    model_types=("falcon", "RefinedWebModel", "RefinedWeb"),
    tensors={
        "transformer.word_embeddings": Role.EMBED,
        _LAYER + "input_layernorm": norm(Role.ATTN_NORM, "one norm"),
        # The graph's first norm is the one that the feed-forward reads.
        _LAYER + "ln_mlp": norm(Role.ATTN_NORM, "two norms"),
        _LAYER + "ln_attn": norm(Role.ATTN_NORM_2, "two norms"),
        _LAYER + "post_attention_layernorm": norm(Role.FFN_NORM, "in turn"),
        _LAYER + "self_attention.query_key_value": Slot(Fused(QKV, groups="attention.head_count_kv"), bias="bias"),
        _LAYER + "self_attention.dense": Slot(Role.ATTN_OUT, bias="bias"),
        _LAYER + "mlp.dense_h_to_4h": Slot(Role.FFN_UP, bias="bias"),
        _LAYER + "mlp.dense_4h_to_h": Slot(Role.FFN_DOWN, bias="bias"),
        "transformer.ln_f": norm(Role.OUTPUT_NORM),
        "lm_head": Slot(Role.HEAD, optional=True),
    },
    config={
        k: v
        for k, v in LAYER_NORM_CONFIG.items()
        if k not in ("layer_norm_eps", "num_key_value_heads", "hidden_act", "partial_rotary_factor", "intermediate_size")
    }
    | {
        "max_position_embeddings": Reads("context_length", 2048),
        "tie_word_embeddings": Reads("tie_word_embeddings", True),
        "layer_norm_epsilon": Reads(EPSILON, 1e-5),
        "activation": Reads("hidden_act", "gelu"),
        "ffn_hidden_size": Reads("feed_forward_length", None),
        "num_kv_heads": Reads("num_kv_heads", None, kind="count"),
        "new_decoder_architecture": Reads("new_decoder_architecture", False),
        "multi_query": Reads("multi_query", True),
        "parallel_attn": Reads("parallel_attn", True),
        "num_ln_in_parallel_attn": Reads("num_ln_in_parallel_attn", None, kind="count"),
        "bias": Reads("bias", False),
        "alibi": Reads("alibi", False),
        "apply_residual_connection_post_layernorm": Asserts((False, None), "what is added to each layer would be normalised"),
        "ff_factor": Ignores("ffn_hidden_size is what counts"),
        # The names of the first revisions.
        "n_embed": Reads("embedding_length", None),
        "n_layer": Reads("block_count", None),
        "n_head": Reads("attention.head_count", None),
        "n_head_kv": Reads("num_kv_heads", None, kind="count"),
    },
    wiring=(
        Link(source=Role.ATTN_NORM, sinks=(*QKV, Role.FFN_UP), when="side by side"),
        Link(source=Role.ATTN_NORM, sinks=QKV, when="in turn"),
        Link(source=Role.FFN_NORM, sinks=(Role.FFN_UP,), when="in turn"),
        Link(source=Role.ATTN_NORM, sinks=(Role.FFN_UP,), when="two norms"),
        Link(source=Role.ATTN_NORM_2, sinks=QKV, when="two norms"),
    ),
    graphs=(
        Graph(
            format="gguf",
            name="falcon",
            engine="llama.cpp",
            keys=KEYS,
            # How llama.cpp calls the order q, k, v in the merged tensor.
            constants={"tensor_data_layout": "jploski"},
            fixes={
                "hidden_act": gelu("falcon", "gelu"),
                "alibi": Fix(values=(False,), why="the falcon graph has rope, and no ALiBi"),
                "parallel_attn": Fix(
                    values=(True,),
                    why="the falcon graph computes attention and feed-forward side by side",
                    unless=lambda hp: bool(hp["new_decoder_architecture"]),
                ),
                "bias": Fix(values=(False,), why="the falcon graph loads no biases but those of norms"),
            },
            rope=PLAIN_ROPE,
            merges={"attn_qkv": QKV},
            biases=NORMS,
            assumes=assumed,
        ),
    ),
    hparams=derived,
    layer_kinds=kinds,
    waived={_LAYER + "self_attention.rotary_emb.inv_freq": "recomputed from config.json"},
)
