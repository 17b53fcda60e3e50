"""EXAONE 4: norms after each block, and in the large one windows with rope beside full layers without."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmfit_core import (
    DECODER_CONFIG,
    FULL_ATTENTION,
    SLIDING_ATTENTION,
    WINDOW_PATTERN,
    Architecture,
    Fix,
    Graph,
    Limit,
    Link,
    Reads,
    Role,
)
from llmfit_open.common import (
    ENDS,
    KEYS,
    PLAIN_ROPE,
    QKV,
    RECOMPUTED,
    attention,
    common_fixes,
    gated,
    kinds_of_layer,
    wrong,
)

LARGE = 64
"""The one number of layers at which llama.cpp's exaone4 has windows, and full layers without rope."""
WINDOW = "attention.sliding_window"


def kinds(hparams: Mapping[str, Any]) -> tuple[str, ...]:
    """Each layer's kind in a model with a window, by transformers' rule for numbers and LG's for letters."""
    stated, layers = kinds_of_layer(hparams), range(hparams["block_count"])
    if stated is not None:
        return stated
    pattern = hparams.get("sliding_window_pattern", 4)
    if isinstance(pattern, int) and pattern > 0:
        return tuple(SLIDING_ATTENTION if (i + 1) % pattern else FULL_ATTENTION for i in layers)
    if isinstance(pattern, str) and pattern and not pattern.strip("LG") and pattern[layers[-1] % len(pattern)] == "G":
        return tuple(SLIDING_ATTENTION if pattern[i % len(pattern)] == "L" else FULL_ATTENTION for i in layers)
    raise wrong(f"sliding_window_pattern in config.json is {pattern!r:.80}, and layer_types is missing")


def derived(hparams: Mapping[str, Any]) -> dict[str, object]:
    """What the graph has to be told: at 64 layers a window and who uses it, else nothing."""
    if WINDOW in hparams:
        return told(hparams)
    window, large = hparams.get("sliding_window"), hparams["block_count"] == LARGE
    if window == 0:
        raise wrong("sliding_window in config.json is 0, a window that sees nothing")
    if window is None:
        # With a window as long as the context, every layer of the large one may have rope and see everything.
        all_seen = {WINDOW: hparams["context_length"], WINDOW_PATTERN: (True,) * LARGE}
        return {"kinds_computed": True, **(all_seen if large else {})}
    found = kinds(hparams)
    if large:
        # The loader dies of a large model in which no layer has the window.
        return {"kinds_computed": SLIDING_ATTENTION in found, WINDOW: window, WINDOW_PATTERN: tuple(k == SLIDING_ATTENTION for k in found)}
    computed = FULL_ATTENTION not in found and bool(hparams.get("layer_types"))
    return {"kinds_computed": computed, **({"unseen.sliding_window": window} if computed else {})}


def told(hparams: Mapping[str, Any]) -> dict[str, object]:
    """Back from the keys of a large model's GGUF file."""
    window, pattern = hparams[WINDOW], hparams.get(WINDOW_PATTERN, 4)
    if isinstance(pattern, int):
        pattern = [bool(pattern) and i % pattern < pattern - 1 for i in range(hparams["block_count"])]
    if window >= hparams["context_length"] and all(pattern):
        return {"layer_types": (FULL_ATTENTION,) * hparams["block_count"]}
    return {"sliding_window": window, "layer_types": tuple(SLIDING_ATTENTION if p else FULL_ATTENTION for p in pattern)}


def assumed(keys: Mapping[str, Any]) -> dict[str, object]:
    """What the loader takes: a window of 4096 in three layers of four at 64 layers, none otherwise."""
    if keys["block_count"] == LARGE:
        return {WINDOW: 4096}
    return {"layer_types": (FULL_ATTENTION,) * keys["block_count"]}


EXAONE4 = Architecture(
    name="exaone4",
    hf_classes=("Exaone4ForCausalLM",),
    model_types=("exaone4",),
    tensors=ENDS
    | attention()
    | {
        "model.layers.{layer}.self_attn.q_norm": Role.ATTN_Q_NORM,
        "model.layers.{layer}.self_attn.k_norm": Role.ATTN_K_NORM,
        "model.layers.{layer}.post_attention_layernorm": Role.ATTN_POST_NORM,
        "model.layers.{layer}.post_feedforward_layernorm": Role.FFN_POST_NORM,
    }
    | gated(),
    config=DECODER_CONFIG
    | {
        "rms_norm_eps": Reads("attention.layer_norm_rms_epsilon", 1e-5),
        "sliding_window": Reads("sliding_window", 4096, null_is_none=True),
        "sliding_window_pattern": Reads("sliding_window_pattern", None),  # a number or letters
        "layer_types": Reads("layer_types", None, kind="texts"),
    },
    # The norms follow the blocks: what they give goes into the residual, where no scale can be taken up.
    wiring=(
        Link(source=Role.ATTN_V, sinks=(Role.ATTN_OUT,), when="no_gqa"),
        Link(source=Role.FFN_UP, sinks=(Role.FFN_DOWN,)),
    ),
    graphs=(
        Graph(
            format="gguf",
            name="exaone4",
            engine="llama.cpp",
            keys=(*KEYS, "vocab_size", WINDOW, WINDOW_PATTERN),
            fixes=common_fixes("exaone4", square=True)
            | {
                "kinds_computed": Fix(
                    values=(True,),
                    why=f"sliding_window and layer_types leave full layers without rope, and the exaone4 graph has such "
                    f"layers in models of {LARGE} layers only, and beside layers with windows",
                )
            },
            limits=(
                Limit(
                    hparam="unseen.sliding_window",
                    message=f"the exaone4 graph knows a sliding window only at {LARGE} layers: exact up to {{tokens}} tokens",
                ),
            ),
            rope=PLAIN_ROPE | {"llama3"},
            rope_factors=True,
            biases=QKV,
            assumes=assumed,
        ),
    ),
    hparams=derived,
    waived=RECOMPUTED,
)
