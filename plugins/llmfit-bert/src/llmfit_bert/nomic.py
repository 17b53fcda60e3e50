"""Nomic BERT: BERT with rope, a gate and no biases but those of its norms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from llmfit_bert.common import (
    ATTN_OUT_NORM,
    CAUSAL,
    ENCODER_CONFIG,
    EPSILON,
    KEYS,
    LAYER_OUT_NORM,
    QKV,
    TOKEN_TYPES,
    V_TO_OUT,
    Table,
    Uses,
    norm,
)
from llmfit_core import Architecture, Asserts, Fix, Fused, Graph, Ignores, Link, Reads, Role, Slot

_LAYER = "encoder.layers.{layer}."
_TENSORS: Table = {
    "embeddings.word_embeddings": Role.EMBED,
    "embeddings.token_type_embeddings": Role.TOKEN_TYPES,
    "emb_ln": norm(Role.EMBED_NORM),
    _LAYER + "attn.Wqkv": Slot(Fused(QKV)),
    _LAYER + "attn.out_proj": Role.ATTN_OUT,
    _LAYER + "norm1": norm(ATTN_OUT_NORM),
    _LAYER + "mlp.fc11": Role.FFN_UP,
    _LAYER + "mlp.fc12": Role.FFN_GATE,
    _LAYER + "mlp.fc2": Role.FFN_DOWN,
    _LAYER + "norm2": norm(LAYER_OUT_NORM),
}
_NO_BIAS: Final = "there is no table for matrices with biases"

# The spelling of transformers, and that of the model's own code, which is a GPT-2 config with keys of flash-attention.
_CONFIG: Uses = {k: v for k, v in ENCODER_CONFIG.items() if k != "position_embedding_type"} | {
    "hidden_act": Reads("hidden_act", "silu"),
    "max_position_embeddings": Reads("context_length", None),
    "layer_norm_eps": Reads(EPSILON, 1e-12),
    "head_dim": Reads("attention.key_length", None),
    "rope_theta": Reads("rope.freq_base", 1000.0),
    "partial_rotary_factor": Reads("partial_rotary_factor", 1.0),
    "hidden_size": Reads("embedding_length", None),
    "num_hidden_layers": Reads("block_count", None),
    "num_attention_heads": Reads("attention.head_count", None),
    "intermediate_size": Reads("feed_forward_length", None),
    "n_embd": Reads("embedding_length", None),
    "n_layer": Reads("block_count", None),
    "n_head": Reads("attention.head_count", None),
    "n_inner": Reads("feed_forward_length", None),
    "n_positions": Reads("context_length", None),
    "layer_norm_epsilon": Reads(EPSILON, None),
    "rotary_emb_base": Reads("rope.freq_base", None),
    "activation_function": Reads("hidden_act", None),
    "max_trained_positions": Reads("max_trained_positions", None, kind="count"),
    "rotary_emb_fraction": Reads("partial_rotary_factor", None, kind="number"),
    "rotary_emb_interleaved": Asserts((False, None), "rope would turn neighbouring values"),
    "rotary_emb_scale_base": Asserts((None,), "rope would fade with distance"),
    "rotary_scaling_factor": Asserts((None, 1, 1.0), "rope would be stretched as the model's own code does it"),
    "prenorm": Asserts((False, None), "norms would come before each half of a layer"),
    "parallel_block": Asserts((False, None), "the halves of a layer would run side by side"),
    "parallel_block_tied_norm": Ignores("of blocks whose halves run side by side"),
    "causal": Asserts((False, None), "each token would see only those before it"),
    "use_rms_norm": Asserts((False, None), "norms would be RMS norms"),
    "qkv_proj_bias": Asserts((False, None), _NO_BIAS),
    "mlp_fc1_bias": Asserts((False, None), _NO_BIAS),
    "mlp_fc2_bias": Asserts((False, None), _NO_BIAS),
    "moe_every_n_layers": Asserts((0, None), "layers with experts are another graph"),
    "scale_attn_weights": Asserts((True, None), "attention would not be scaled"),
    "scale_attn_by_inverse_layer_idx": Asserts((False, None), "attention would be scaled layer by layer"),
    "reorder_and_upcast_attn": Ignores("the order of two operations in mixed precision"),
    "pad_vocab_size_multiple": Ignores("the embedding's rows tell"),
    "fused_bias_fc": Ignores("how it runs, not what it computes"),
    "fused_dropout_add_ln": Ignores("how it runs, not what it computes"),
    "use_xentropy": Ignores("training only"),
    "mlp_bias": Asserts((False, None), _NO_BIAS),
    **dict.fromkeys(
        "summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout".split(),
        Ignores("of a classifier"),
    ),
}
_SWIGLU = ("silu", "swish", "swiglu")


def derived(hparams: Mapping[str, Any]) -> dict[str, object]:
    """The context it was trained for: its own code writes the length up to which it stretches rope by NTK."""
    context = hparams.get("context_length", 2048)
    trained = hparams.get("max_trained_positions")
    return {
        "context_length": min(context, trained) if trained else context,
        "rope.dimension_count": hparams["attention.key_length"],
    }


NOMIC = Architecture(
    name="nomic-bert",
    hf_classes=("NomicBertModel",),
    model_types=("nomic_bert",),
    tensors=_TENSORS,
    config=_CONFIG,
    wiring=(V_TO_OUT, Link(source=Role.FFN_UP, sinks=(Role.FFN_DOWN,))),
    graphs=(
        Graph(
            format="gguf",
            name="nomic-bert",
            engine="llama.cpp",
            keys=(*KEYS, "rope.freq_base", TOKEN_TYPES),
            constants=CAUSAL,
            fixes={
                "hidden_act": Fix(values=_SWIGLU, why="the nomic-bert graph applies SiLU to the gate"),
                "partial_rotary_factor": Fix(values=(1.0, 1, None), why="the nomic-bert graph rotates whole heads"),
            },
            rope=frozenset({"default", "linear", "dynamic"}),
            merges={"attn_qkv": QKV},
        ),
    ),
    shapes={
        Role.TOKEN_TYPES: (TOKEN_TYPES, "embedding_length"),
        Role.EMBED_NORM: ("embedding_length",),
        ATTN_OUT_NORM: ("embedding_length",),
        LAYER_OUT_NORM: ("embedding_length",),
    },
    hparams=derived,
    waived={
        _LAYER + "attn.rotary_emb.inv_freq": "recomputed from config.json",
        "embeddings.position_ids": "0, 1, 2, ... as they are counted anyway",
    },
)
