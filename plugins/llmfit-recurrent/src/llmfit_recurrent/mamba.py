"""Mamba and Falcon-Mamba: layers of selective state spaces and nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from llmfit_core import Architecture, Graph, Ignores, Link, Reads, Role, Slot
from llmfit_core.hparams import COMMON_CONFIG
from llmfit_recurrent.forms import (
    CONV,
    DECAY,
    EPSILON,
    IN,
    INNER,
    KERNEL,
    MAMBA_FORMS,
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
    Uses,
    biased,
    silu,
    twice_as_wide,
)

NORMED, NORM_EPSILON = "ssm.dt_b_c_rms", "mixer_rms_epsilon"
_LAYER = "backbone.layers.{layer}"
TENSORS: Table = {
    "backbone.embeddings": Role.EMBED,
    "backbone.embedding": Role.EMBED,
    f"{_LAYER}.norm": Role.ATTN_NORM,
    f"{_LAYER}.mixer.in_proj": Slot(IN, bias="use_bias"),
    f"{_LAYER}.mixer.conv1d": Slot(CONV, bias="use_conv_bias"),
    f"{_LAYER}.mixer.x_proj": SHARES,
    f"{_LAYER}.mixer.dt_proj": Slot(STEP, bias=True),
    f"{_LAYER}.mixer.A_log": Slot(DECAY, bare=True),
    f"{_LAYER}.mixer.D": Slot(SKIP, bare=True),
    f"{_LAYER}.mixer.out_proj": Slot(OUT, bias="use_bias"),
    "backbone.norm_f": Role.OUTPUT_NORM,
    "lm_head": Slot(Role.HEAD, optional=True),
}
CONFIG: Uses = {
    **COMMON_CONFIG,
    **TRAINING,
    "hidden_size": Reads(WIDTH),
    "num_hidden_layers": Reads("block_count"),
    "vocab_size": Reads("vocab_size", None),
    "layer_norm_epsilon": Reads(EPSILON, 1e-5),
    "hidden_act": Reads("hidden_act", "silu"),
    "tie_word_embeddings": Reads("tie_word_embeddings", True),
    "expand": Reads("expand", 2, kind="count"),
    "state_size": Reads(STATE, 16, kind="count"),
    "conv_kernel": Reads(KERNEL, 4, kind="count"),
    "time_step_rank": Reads("time_step_rank", None),
    "use_bias": Reads("use_bias", False),
    "use_conv_bias": Reads("use_conv_bias", True),
    **dict.fromkeys(("intermediate_size", "d_inner", "d_model", "n_layer"), Ignores("the class computes or renames it")),
    "pad_vocab_size_multiple": Ignores("the embedding's rows tell"),
    "ssm_cfg": Ignores("of the authors' own code; other keys say the same"),
    "rms_norm": Ignores("of the authors' own code; the class has no other"),
}
SHAPES: dict[str, Any] = {
    IN: ((2, INNER), WIDTH),
    CONV: (INNER, 1, KERNEL),
    SHARES: ("share_rows", INNER),
    STEP: (INNER, RANK),
    DECAY: (INNER, STATE),
    SKIP: (INNER,),
    OUT: (WIDTH, INNER),
}


def derived(hparams: Mapping[str, Any]) -> dict[str, object]:
    """Sizes that the class computes."""
    width, stated = hparams[WIDTH], hparams.get("time_step_rank")
    rank = stated if isinstance(stated, int) else hparams.get(RANK) or math.ceil(width / 16)
    return {INNER: hparams["expand"] * width, RANK: rank, "share_rows": rank + 2 * hparams[STATE]}


def assumed(keys: Mapping[str, Any]) -> dict[str, object]:
    """What a file's keys say in the table's words."""
    return {"expand": keys[INNER] // keys[WIDTH], "time_step_rank": keys[RANK], NORM_EPSILON: keys[EPSILON]}


def graph(*, normed: bool, **more: Any) -> Graph:
    """llama.cpp's `mamba`; with `normed`, steps, B and C go through norms without weights."""
    return Graph(
        format="gguf",
        name="mamba",
        engine="llama.cpp",
        keys=("block_count", WIDTH, *SSM_KEYS, EPSILON),
        constants={"context_length": 1 << 20, "feed_forward_length": 0, "attention.head_count": 0, NORMED: normed},
        fixes={"hidden_act": silu("mamba"), "expand": twice_as_wide("mamba"), "use_conv_bias": biased("mamba")},
        forms=MAMBA_FORMS,
        bare=frozenset({DECAY, SKIP}),
        assumes=assumed,
        biases=frozenset({CONV, STEP}),
        **more,
    )


WIRING = (Link(source=Role.ATTN_NORM, sinks=(IN,)),)

MAMBA = Architecture(
    name="mamba",
    hf_classes=("MambaForCausalLM",),
    model_types=("mamba",),
    tensors=TENSORS,
    config=CONFIG,
    wiring=WIRING,
    graphs=(graph(normed=False),),
    shapes=SHAPES,
    hparams=derived,
)


def to_one_epsilon(hparams: Mapping[str, Any]) -> dict[str, float]:
    """Norms of steps, B and C with an epsilon of their own, in a graph that has one for all.

    A vector `s x`, normed with an epsilon `s^2 e`, is what `x` is with `e`; and all three come out of one matrix.
    """
    own, all_have = hparams.get(NORM_EPSILON), hparams[EPSILON]
    return {SHARES: math.sqrt(all_have / own)} if own and own != all_have else {}


FALCON_MAMBA = Architecture(
    name="falcon_mamba",
    hf_classes=("FalconMambaForCausalLM",),
    model_types=("falcon_mamba",),
    tensors=TENSORS,
    config=CONFIG | {"mixer_rms_eps": Reads(NORM_EPSILON, 1e-6, kind="number")},
    wiring=WIRING,
    graphs=(graph(normed=True, scales=to_one_epsilon),),
    shapes=SHAPES,
    hparams=derived,
)
