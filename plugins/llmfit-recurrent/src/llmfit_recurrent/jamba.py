"""Jamba: layers of Mamba and a few of attention without rope, every other one with experts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from llmfit_core import DECODER_CONFIG, Architecture, Fix, Fused, Graph, Link, Reads, Role, Slot, UnsupportedError
from llmfit_core.roles import PRE_NORM_DECODER
from llmfit_recurrent.forms import (
    ATTENDING,
    CONV,
    DECAY,
    EPSILON,
    IN,
    INNER,
    KERNEL,
    KV_HEADS,
    MAMBA_FORMS,
    NET,
    OUT,
    RANK,
    SHARES,
    SKIP,
    SSM_KEYS,
    STATE,
    STEP,
    TRAINING,
    WIDTH,
    Table,
    attention,
    biased,
    gated,
    heads_by_layer,
    silu,
    twice_as_wide,
)

_LAYER = "model.layers.{layer}"
_NET, _MLP = f"{_LAYER}.mamba", f"{_LAYER}.feed_forward"
TENSORS: Table = {
    "model.embed_tokens": Role.EMBED,
    f"{_LAYER}.input_layernorm": Role.ATTN_NORM,
    **attention(when=ATTENDING),
    f"{_NET}.in_proj": Slot(IN, bias="use_bias", when=NET),
    f"{_NET}.conv1d": Slot(CONV, bias="use_conv_bias", when=NET),
    f"{_NET}.x_proj": Slot(SHARES, when=NET),
    f"{_NET}.dt_layernorm": Slot("ssm_dt_norm", when=NET),
    f"{_NET}.b_layernorm": Slot("ssm_b_norm", when=NET),
    f"{_NET}.c_layernorm": Slot("ssm_c_norm", when=NET),
    f"{_NET}.dt_proj": Slot(STEP, bias=True, when=NET),
    f"{_NET}.A_log": Slot(DECAY, bare=True, when=NET),
    f"{_NET}.D": Slot(SKIP, bare=True, when=NET),
    f"{_NET}.out_proj": Slot(OUT, bias="use_bias", when=NET),
    f"{_LAYER}.pre_ff_layernorm": Role.FFN_NORM,
    **gated(_MLP, when="dense"),
    f"{_MLP}.router": Slot(Role.FFN_ROUTER, when="mixed"),
    f"{_MLP}.experts.{{expert}}.gate_proj": Slot(Role.FFN_GATE_EXPS, when="mixed"),
    f"{_MLP}.experts.{{expert}}.up_proj": Slot(Role.FFN_UP_EXPS, when="mixed"),
    f"{_MLP}.experts.{{expert}}.down_proj": Slot(Role.FFN_DOWN_EXPS, when="mixed"),
    f"{_MLP}.experts.gate_up_proj": Slot(Fused((Role.FFN_GATE_EXPS, Role.FFN_UP_EXPS)), bare=True, when="mixed"),
    f"{_MLP}.experts.down_proj": Slot(Role.FFN_DOWN_EXPS, bare=True, when="mixed"),
    "model.final_layernorm": Role.OUTPUT_NORM,
    "lm_head": Slot(Role.HEAD, optional=True),
}
_PERIODS = ("attn_layer_period", "attn_layer_offset", "expert_layer_period", "expert_layer_offset")


def derived(hparams: Mapping[str, Any]) -> dict[str, object]:
    """Which layers attend, and sizes that the class computes."""
    width, stated = hparams[WIDTH], hparams.get("mamba_dt_rank")
    rank = stated if isinstance(stated, int) else hparams.get(RANK) or math.ceil(width / 16)
    for key in ("attn_layer_period", "expert_layer_period"):
        if not hparams[key]:
            message = f"{key} in config.json is 0"
            raise UnsupportedError("config-value", message, "Correct config.json, as the model's authors published it.")
    every, first = hparams["attn_layer_period"], hparams["attn_layer_offset"]
    attending = tuple(i % every == first for i in range(hparams["block_count"]))
    return {
        INNER: hparams["expand"] * width,
        RANK: rank,
        "share_rows": rank + 2 * hparams[STATE],
        "attending_layers": attending,
        "both": any(attending) and not all(attending),
    }


def kinds_of_layer(hparams: Mapping[str, Any], layer: int) -> frozenset[str]:
    """Whether it attends, and whether it is mixed."""
    mixed = hparams["expert_count"] > 1 and layer % hparams["expert_layer_period"] == hparams["expert_layer_offset"]
    return frozenset({ATTENDING if hparams["attending_layers"][layer] else NET, "mixed" if mixed else "dense"})


def _period(chosen: tuple[bool, ...]) -> tuple[int, int]:
    """Every how manieth layer, and the first: `chosen` in two numbers.

    Raises:
        UnsupportedError: `gguf-variant` where no two numbers say it.
    """
    for every in range(1, len(chosen) + 2):
        for first in range(every):
            if all((i % every == first) == c for i, c in enumerate(chosen)):
                return every, first
    raise UnsupportedError(
        "gguf-variant",
        "the file's layers that attend come at no regular distance, which JambaForCausalLM has no words for",
        "Run this file in llama.cpp as it is, or take the model's original.",
    )


def assumed(keys: Mapping[str, Any]) -> dict[str, object]:
    """What a file's keys say in the table's words; which layers are mixed no key says, the file's own words do."""
    by_layer = keys.get(f"{KV_HEADS}_by_layer") or (1,) * keys["block_count"]
    every, first = _period(tuple(bool(h) for h in by_layer))
    return {
        "attn_layer_period": every,
        "attn_layer_offset": first,
        "expand": keys[INNER] // keys[WIDTH],
        "mamba_dt_rank": keys[RANK],
        "expert_count": 1,
    }


def fills_the_width(hparams: Mapping[str, Any]) -> bool:
    """Heads times head size is the model's width."""
    return bool(hparams["attention.head_count"] * hparams["attention.key_length"] == hparams[WIDTH])


_MATRIX: tuple[Any, ...] = ("expert_count", "feed_forward_length", WIDTH)

JAMBA = Architecture(
    name="jamba",
    hf_classes=("JambaForCausalLM",),
    model_types=("jamba",),
    tensors=TENSORS,
    config={k: v for k, v in DECODER_CONFIG.items() if k not in ("rope_theta", "partial_rotary_factor")}
    | TRAINING
    | {
        "num_key_value_heads": Reads(KV_HEADS, 8),
        "max_position_embeddings": Reads("context_length", 262144),
        "num_experts": Reads("expert_count", 16),
        "num_local_experts": Reads("expert_count", 16),
        "num_experts_per_tok": Reads("expert_used_count", 2),
        "attn_layer_period": Reads("attn_layer_period", 8, kind="count"),
        "attn_layer_offset": Reads("attn_layer_offset", 4, kind="count"),
        "expert_layer_period": Reads("expert_layer_period", 2, kind="count"),
        "expert_layer_offset": Reads("expert_layer_offset", 1, kind="count"),
        "mamba_d_state": Reads(STATE, 16, kind="count"),
        "mamba_d_conv": Reads(KERNEL, 4, kind="count"),
        "mamba_expand": Reads("expand", 2, kind="count"),
        "mamba_dt_rank": Reads("mamba_dt_rank", None),
        "mamba_conv_bias": Reads("use_conv_bias", True),
        "mamba_proj_bias": Reads("use_bias", False),
    },
    wiring=(
        Link(source=Role.ATTN_NORM, sinks=(Role.ATTN_Q, Role.ATTN_K, Role.ATTN_V, IN)),
        *PRE_NORM_DECODER[1:],
        Link(source="ssm_dt_norm", sinks=(STEP,)),
    ),
    graphs=(
        Graph(
            format="gguf",
            name="jamba",
            engine="llama.cpp",
            keys=(
                "block_count", "context_length", WIDTH, "feed_forward_length", "attention.head_count", KV_HEADS,
                EPSILON, "vocab_size", "expert_count", "expert_used_count", *SSM_KEYS,
            ),
            fixes={
                "hidden_act": silu("jamba"),
                "expand": twice_as_wide("jamba"),
                "use_conv_bias": biased("jamba"),
                "both": Fix(values=(True,), why="llama.cpp's jamba wants layers that attend and layers that do not"),
                "attention.key_length": Fix(
                    values=(None,),
                    why="the jamba graph wants heads times head size to be the width",
                    unless=fills_the_width,
                ),
            },
            forms=MAMBA_FORMS,
            bare=frozenset({DECAY, SKIP}),
            by_layer=frozenset({KV_HEADS}),
            values=lambda hp: {KV_HEADS: heads_by_layer(hp)},
            assumes=assumed,
            biases=frozenset({CONV, STEP}),
        ),
    ),
    shapes={
        IN: ((2, INNER), WIDTH),
        CONV: (INNER, 1, KERNEL),
        SHARES: ("share_rows", INNER),
        "ssm_dt_norm": (RANK,),
        "ssm_b_norm": (STATE,),
        "ssm_c_norm": (STATE,),
        STEP: (INNER, RANK),
        DECAY: (INNER, STATE),
        SKIP: (INNER,),
        OUT: (WIDTH, INNER),
        Role.FFN_GATE_EXPS: _MATRIX,
        Role.FFN_UP_EXPS: _MATRIX,
        Role.FFN_DOWN_EXPS: ("expert_count", WIDTH, "feed_forward_length"),
    },
    hparams=derived,
    layer_kinds=kinds_of_layer,
)  # fmt: skip
