"""Bamba: layers of Mamba-2 and a few of attention, which turn half of each head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmfit_core import DECODER_CONFIG, Architecture, Fix, Graph, Ignores, Reads, Role, Slot
from llmfit_core.resolve import rotated
from llmfit_recurrent.forms import (
    ATTENDING,
    CONV,
    DECAY,
    EPSILON,
    GROUPS,
    KV_HEADS,
    MAMBA2_FORMS,
    MAMBA2_SHAPES,
    NET,
    NET_CONFIG,
    SKIP,
    SSM_KEYS,
    STEP,
    WIDTH,
    WIRING,
    attention,
    biased,
    gated,
    heads_by_layer,
    net,
    net_sizes,
    silu,
    twice_as_wide,
    unlimited,
)

_LAYER = "model.layers.{layer}"
_NAME = "granitehybrid"


def derived(hparams: Mapping[str, Any]) -> dict[str, object]:
    """Which layers attend, and sizes that the class computes."""
    chosen = frozenset(hparams.get("attn_layer_indices") or ())
    attending = tuple(i in chosen for i in range(hparams["block_count"]))
    turned = rotated({k: v for k, v in hparams.items() if k != "rope.dimension_count"})
    return {
        **net_sizes(hparams),
        "attending_layers": attending,
        "both": any(attending) and not all(attending),
        "rope.dimension_count": turned,
    }


def kinds_of_layer(hparams: Mapping[str, Any], layer: int) -> frozenset[str]:
    """Whether it attends."""
    return frozenset({ATTENDING if hparams["attending_layers"][layer] else NET})


def assumed(keys: Mapping[str, Any]) -> dict[str, object]:
    """What a file's keys say in the table's words."""
    by_layer = keys.get(f"{KV_HEADS}_by_layer") or ()
    return {
        "attn_layer_indices": tuple(i for i, heads in enumerate(by_layer) if heads),
        "expand": keys["ssm.inner_size"] // keys[WIDTH],
        "partial_rotary_factor": keys.get("rope.dimension_count", keys["attention.key_length"]) / keys["attention.key_length"],
    }


BAMBA = Architecture(
    name="bamba",
    hf_classes=("BambaForCausalLM",),
    model_types=("bamba",),
    tensors={
        "model.embed_tokens": Role.EMBED,
        f"{_LAYER}.input_layernorm": Role.ATTN_NORM,
        **attention("attention_bias", when=ATTENDING),
        **net(f"{_LAYER}.mamba", when=NET),
        f"{_LAYER}.pre_ff_layernorm": Role.FFN_NORM,
        **gated(f"{_LAYER}.feed_forward", "mlp_bias"),
        "model.final_layernorm": Role.OUTPUT_NORM,
        "lm_head": Slot(Role.HEAD, optional=True),
    },
    config=DECODER_CONFIG
    | NET_CONFIG
    | {
        "num_key_value_heads": Reads(KV_HEADS, 8),
        "rms_norm_eps": Reads(EPSILON, 1e-5),
        "max_position_embeddings": Reads("context_length", 262144),
        "partial_rotary_factor": Reads("partial_rotary_factor", 0.5),
        "attention_bias": Reads("attention_bias", False),
        "mlp_bias": Reads("mlp_bias", False),
        "attn_layer_indices": Reads("attn_layer_indices", None, kind="counts"),
        "attn_rotary_emb": Ignores("the class turns half of each head"),
        "z_loss_coefficient": Ignores("training only"),
    },
    wiring=WIRING,
    graphs=(
        Graph(
            format="gguf",
            name=_NAME,
            engine="llama.cpp",
            keys=(
                "block_count", "context_length", WIDTH, "feed_forward_length", "attention.head_count", KV_HEADS,
                "rope.freq_base", EPSILON, "attention.key_length", "attention.value_length", "vocab_size",
                "rope.dimension_count", *SSM_KEYS, GROUPS,
            ),
            constants={"rope.scaling.finetuned": True},
            fixes={
                "hidden_act": silu(_NAME),
                "expand": twice_as_wide(_NAME),
                "use_conv_bias": biased(_NAME),
                "steps_limited": unlimited(_NAME),
                "both": Fix(values=(True,), why=f"llama.cpp's {_NAME} wants layers that attend and layers that do not"),
            },
            rope=frozenset({"default", "linear", "yarn", "dynamic"}),
            rope_rows="pairs",
            forms=MAMBA2_FORMS,
            bare=frozenset({DECAY, SKIP}),
            by_layer=frozenset({KV_HEADS}),
            values=lambda hp: {KV_HEADS: heads_by_layer(hp)},
            assumes=assumed,
            biases=frozenset({
                CONV, STEP, Role.ATTN_Q, Role.ATTN_K, Role.ATTN_V, Role.ATTN_OUT, Role.FFN_GATE, Role.FFN_UP, Role.FFN_DOWN,
            }),
        ),
    ),
    shapes=MAMBA2_SHAPES,
    hparams=derived,
    layer_kinds=kinds_of_layer,
)  # fmt: skip
