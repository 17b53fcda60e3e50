"""Mamba-2: state spaces with heads, one decay each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmfit_core import Architecture, Graph, Link, Reads, Role, Slot
from llmfit_recurrent.forms import (
    CONV,
    DECAY,
    EPSILON,
    GROUPS,
    IN,
    INNER,
    LIMITED,
    MAMBA2_FORMS,
    MAMBA2_SHAPES,
    NORM,
    OUT,
    RANK,
    SKIP,
    SSM_KEYS,
    STATE,
    STEP,
    WIDTH,
    Table,
    Uses,
    biased,
    limited,
    mamba2_sizes,
    silu,
    unlimited,
)
from llmfit_recurrent.mamba import CONFIG as MAMBA_CONFIG

_LAYER = "backbone.layers.{layer}"
TENSORS: Table = {
    "backbone.embeddings": Role.EMBED,
    "backbone.embedding": Role.EMBED,
    f"{_LAYER}.norm": Role.ATTN_NORM,
    f"{_LAYER}.mixer.in_proj": Slot(IN, bias="use_bias"),
    f"{_LAYER}.mixer.conv1d": Slot(CONV, bias="use_conv_bias"),
    f"{_LAYER}.mixer.dt_bias": Slot(STEP, bare=True, part="bias"),
    f"{_LAYER}.mixer.A_log": Slot(DECAY, bare=True),
    f"{_LAYER}.mixer.D": Slot(SKIP, bare=True),
    f"{_LAYER}.mixer.norm": NORM,
    f"{_LAYER}.mixer.out_proj": Slot(OUT, bias="use_bias"),
    "backbone.norm_f": Role.OUTPUT_NORM,
    "lm_head": Slot(Role.HEAD, optional=True),
}
CONFIG: Uses = {
    **MAMBA_CONFIG,
    "tie_word_embeddings": Reads("tie_word_embeddings", False),
    "state_size": Reads(STATE, 128, kind="count"),
    "num_heads": Reads(RANK, 128, kind="count"),
    "head_dim": Reads("ssm.head_size", 64, kind="count"),
    "n_groups": Reads(GROUPS, 8, kind="count"),
    "time_step_limit": Reads("time_step_limit", None),
}


def derived(hparams: Mapping[str, Any]) -> dict[str, object]:
    """Sizes that the class computes."""
    inner = hparams["expand"] * hparams[WIDTH]
    sizes = mamba2_sizes(inner, hparams[RANK], hparams[GROUPS], hparams[STATE])
    return {INNER: inner, LIMITED: limited(hparams), **sizes}


def assumed(keys: Mapping[str, Any]) -> dict[str, object]:
    """What a file's keys say in the table's words."""
    return {"expand": keys[INNER] // keys[WIDTH], "ssm.head_size": keys[INNER] // keys[RANK]}


MAMBA2 = Architecture(
    name="mamba2",
    hf_classes=("Mamba2ForCausalLM",),
    model_types=("mamba2",),
    tensors=TENSORS,
    config=CONFIG,
    wiring=(Link(source=Role.ATTN_NORM, sinks=(IN,)), Link(source=NORM, sinks=(OUT,))),
    graphs=(
        Graph(
            format="gguf",
            name="mamba2",
            engine="llama.cpp",
            keys=("block_count", WIDTH, *SSM_KEYS, GROUPS, EPSILON),
            constants={"context_length": 1 << 20, "feed_forward_length": 0, "attention.head_count": 0},
            fixes={
                "hidden_act": silu("mamba2"),
                "use_conv_bias": biased("mamba2"),
                LIMITED: unlimited("mamba2"),
            },
            forms=MAMBA2_FORMS,
            bare=frozenset({DECAY, SKIP}),
            assumes=assumed,
            biases=frozenset({CONV, STEP}),
        ),
    ),
    shapes=MAMBA2_SHAPES,
    hparams=derived,
)
