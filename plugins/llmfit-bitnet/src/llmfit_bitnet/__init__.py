"""BitNet b1.58: the architecture, stated once as data, and the decoder of ternary checkpoints of any architecture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from llmfit_core import (
    DECODER_CONFIG,
    Architecture,
    Asserts,
    Decoder,
    Fix,
    Fused,
    Graph,
    Ignores,
    Link,
    Reads,
    Role,
    Slot,
    hookimpl,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llmfit_core.checkpoint import Checkpoint

TENSORS: dict[str, str | Slot | Fused] = {
    "model.embed_tokens": Role.EMBED,
    "model.layers.{layer}.input_layernorm": Role.ATTN_NORM,
    "model.layers.{layer}.self_attn.q_proj": Slot(Role.ATTN_Q, bias="attention_bias"),
    "model.layers.{layer}.self_attn.k_proj": Slot(Role.ATTN_K, bias="attention_bias"),
    "model.layers.{layer}.self_attn.v_proj": Slot(Role.ATTN_V, bias="attention_bias"),
    "model.layers.{layer}.self_attn.attn_sub_norm": Role.ATTN_SUB_NORM,
    "model.layers.{layer}.self_attn.o_proj": Slot(Role.ATTN_OUT, bias="attention_bias"),
    "model.layers.{layer}.post_attention_layernorm": Role.FFN_NORM,
    "model.layers.{layer}.mlp.gate_proj": Role.FFN_GATE,
    "model.layers.{layer}.mlp.up_proj": Role.FFN_UP,
    "model.layers.{layer}.mlp.ffn_sub_norm": Role.FFN_SUB_NORM,
    "model.layers.{layer}.mlp.down_proj": Role.FFN_DOWN,
    "model.norm": Role.OUTPUT_NORM,
    "lm_head": Slot(Role.HEAD, optional=True),
}

# A norm stands between v and o, and between up and down: no scale passes it channel by channel.
WIRING = (
    Link(source=Role.ATTN_NORM, sinks=(Role.ATTN_Q, Role.ATTN_K, Role.ATTN_V)),
    Link(source=Role.ATTN_SUB_NORM, sinks=(Role.ATTN_OUT,)),
    Link(source=Role.FFN_NORM, sinks=(Role.FFN_GATE, Role.FFN_UP)),
    Link(source=Role.FFN_SUB_NORM, sinks=(Role.FFN_DOWN,)),
)

KEYS = (
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "rope.freq_base",
    "attention.layer_norm_rms_epsilon",
)


def square_attention(hparams: Mapping[str, Any]) -> bool:
    """Heads times head size is the model's width."""
    return bool(hparams["attention.head_count"] * hparams["attention.key_length"] == hparams["embedding_length"])


def fixes(name: str, act: Fix) -> dict[str, Fix]:
    """What every BitNet graph has built in, and its activation."""
    return {
        "hidden_act": act,
        "partial_rotary_factor": Fix(values=(1.0, 1), why=f"the {name} graph rotates whole heads"),
        "attention.key_length": Fix(
            values=(None,), why=f"the {name} graph wants heads times head size to be the width", unless=square_attention
        ),
    }


SQUARED_RELU = Fix(values=("relu2",), why="the bitnet-b1.58 graph applies squared ReLU")

# Nothing else in llama.cpp has a norm before `down`, and none of its gated feed-forwards squares a ReLU, so there is no
# other graph of that engine to write a squared ReLU for.
MAINLINE = Graph(
    format="gguf",
    name="bitnet",
    engine="llama.cpp",
    keys=KEYS,
    fixes=fixes("bitnet", Fix(values=("silu", "swish"), why="the bitnet graph applies SiLU")),
    rope=frozenset({"default", "linear", "yarn", "dynamic"}),
    biases=frozenset(),
    own_head=False,
)

# microsoft/BitNet's converter writes this name and these keys; its graph takes the embedding for the head even where
# the file has one.
BITNET_CPP = Graph(
    format="gguf",
    name="bitnet-b1.58",
    engine="bitnet.cpp",
    keys=(*KEYS, "vocab_size", "rope.dimension_count"),
    fixes=fixes("bitnet-b1.58", SQUARED_RELU),
    rope=frozenset({"default", "linear", "dynamic"}),
    biases=frozenset(),
    own_head=False,
)

# ik_llama.cpp reads both names with the same loader and the same graph. Its ggml has no ternary types of llama.cpp's.
FLOATS_AND_BLOCKS = frozenset(
    "f32 f16 bf16 q8_0 q4_0 q4_1 q5_0 q5_1 q2_k q3_k q4_k q5_k q6_k iq4_nl iq4_xs".split()
)


def ik_llama(name: str) -> Graph:
    """ik_llama.cpp's graph under one of its two names."""
    return Graph(
        format="gguf",
        name=name,
        engine="ik_llama.cpp",
        keys=(*KEYS, "vocab_size", "rope.dimension_count"),
        fixes=fixes(name, Fix(values=("relu2",), why=f"the {name} graph applies squared ReLU")),
        rope=frozenset({"default", "linear", "dynamic"}),
        biases=frozenset(),
        types=FLOATS_AND_BLOCKS,
    )


BITNET = Architecture(
    name="bitnet",
    hf_classes=("BitNetForCausalLM", "BitnetForCausalLM"),
    model_types=("bitnet",),
    tensors=TENSORS,
    config=DECODER_CONFIG
    | {
        "max_position_embeddings": Reads("context_length", 2048),
        "num_key_value_heads": Reads("attention.head_count_kv", 5, null_is_none=True),
        "rms_norm_eps": Reads("attention.layer_norm_rms_epsilon", 1e-5),
        "rope_theta": Reads("rope.freq_base", 500000.0),
        "hidden_act": Reads("hidden_act", "relu2"),
        "attention_bias": Reads("attention_bias", False),
        "mlp_bias": Asserts((False, None), "this class has no biases in its feed-forward"),
        "weight_bits": Asserts((1, None), "only ternary weights (1) are known"),
        "input_bits": Ignores("the rounding of activations, which no file can hold"),
    },
    wiring=WIRING,
    graphs=(MAINLINE, BITNET_CPP, ik_llama("bitnet-b1.58"), ik_llama("bitnet-25")),
    shapes={Role.ATTN_SUB_NORM: ("embedding_length",), Role.FFN_SUB_NORM: ("feed_forward_length",)},
    waived={
        "model.layers.{layer}.self_attn.rotary_emb.inv_freq": "recomputed from config.json",
        "model.rotary_emb.inv_freq": "recomputed from config.json",
    },
)


def _detects(checkpoint: Checkpoint) -> bool:
    from llmfit_bitnet.decoding import detects

    return detects(checkpoint)


def _decode(checkpoint: Checkpoint, architectures: Sequence[Architecture]) -> Checkpoint:
    from llmfit_bitnet.decoding import decode

    return decode(checkpoint, architectures)


@hookimpl
def llmfit_architectures() -> Iterable[Architecture]:
    """BitNet b1.58."""
    return (BITNET,)


@hookimpl
def llmfit_decoders() -> Iterable[Decoder]:
    """Ternary checkpoints, of this architecture and of others."""
    yield Decoder(name="bitnet", detects=_detects, decode=_decode)
