"""SmolLM3: a Llama that leaves rope out of every fourth layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmfit_core import DECODER_CONFIG, PRE_NORM_DECODER, Architecture, Fix, Graph, Ignores, Limit, Reads
from llmfit_open.common import ENDS, KEYS, PLAIN_ROPE, PRE_NORMS, QKV, RECOMPUTED, attention, common_fixes, gated, wrong
from llmfit_open.common import kinds_of_layer as kinds

STEP = 4
"""`n_no_rope_layer_step` of llama.cpp's smollm3: fixed, and read from no key."""


def derived(hparams: Mapping[str, Any]) -> dict[str, object]:
    """Which layers have rope, by transformers' own rule, and the window, if any layer uses it."""
    layers = range(hparams["block_count"])
    stated = hparams.get("no_rope_layers")
    if stated and len(stated) < len(layers):
        raise wrong(f"no_rope_layers in config.json has {len(stated)} entries for {len(layers)} layers")
    step = hparams.get("no_rope_layer_interval", STEP)
    if not stated and step == 0:
        raise wrong("no_rope_layer_interval in config.json is 0")
    roped = [bool(stated[i]) if stated else (i + 1) % step != 0 for i in layers]
    out: dict[str, object] = {
        "rope_in_layers": "all" if all(roped) else "three in four" if roped == [(i + 1) % STEP != 0 for i in layers] else "some",
        "fourth_layers": len(layers) >= STEP,
    }
    size, stated_kinds = hparams.get("sliding_window"), kinds(hparams)
    if stated_kinds is not None:
        slides = "sliding_attention" in stated_kinds
    else:
        slides = bool(hparams.get("use_sliding_window")) and not all(roped)
    if size == 0 and slides:
        raise wrong("sliding_window in config.json is 0, a window that sees nothing")
    return out | ({"attention.sliding_window": size} if size and slides else {})


def no_fourth_layer(hparams: Mapping[str, Any]) -> bool:
    """With rope in every layer and fewer than four of them the graph leaves rope out of none."""
    return bool(hparams["rope_in_layers"] == "all" and not hparams["fourth_layers"])


def window(name: str) -> tuple[Limit, ...]:
    """The bound of a graph without windows."""
    message = f"the {name} graph knows no sliding window: exact up to {{tokens}} tokens"
    return (Limit(hparam="attention.sliding_window", message=message),)


SMOLLM3 = Architecture(
    name="smollm3",
    hf_classes=("SmolLM3ForCausalLM",),
    model_types=("smollm3",),
    tensors=ENDS | PRE_NORMS | attention("attention_bias") | gated("mlp_bias"),
    config=DECODER_CONFIG
    | {
        "rope_theta": Reads("rope.freq_base", 2000000.0),
        "tie_word_embeddings": Reads("tie_word_embeddings", True),
        "attention_bias": Reads("attention_bias", False),
        "mlp_bias": Reads("mlp_bias", False),
        "no_rope_layers": Reads("no_rope_layers", None, kind="counts"),
        "no_rope_layer_interval": Reads("no_rope_layer_interval", STEP),
        "use_sliding_window": Reads("use_sliding_window", False),
        "sliding_window": Reads("sliding_window", None, kind="count"),
        "layer_types": Reads("layer_types", None, kind="texts"),
        "max_window_layers": Ignores("layer_types says which layers have a window"),
    },
    wiring=PRE_NORM_DECODER,
    graphs=(
        Graph(
            format="gguf",
            name="smollm3",
            engine="llama.cpp",
            keys=(*KEYS, "vocab_size", "rope.dimension_count"),
            fixes=common_fixes("smollm3")
            | {
                "rope_in_layers": Fix(
                    values=("three in four",),
                    why="no_rope_layers leaves rope out of other layers than every fourth, as the smollm3 graph always does",
                    unless=no_fourth_layer,
                ),
            },
            limits=window("smollm3"),
            rope=PLAIN_ROPE,
            rope_rows="pairs",
            biases=QKV,
        ),
        # With rope in every layer it is a Llama, biases and rope factors included.
        Graph(
            format="gguf",
            name="llama",
            engine="llama.cpp",
            keys=(*KEYS, "vocab_size", "rope.dimension_count"),
            fixes=common_fixes("llama")
            | {"rope_in_layers": Fix(values=("all",), why="no_rope_layers leaves layers without rope, and the llama graph none")},
            limits=window("llama"),
            rope=PLAIN_ROPE | {"llama3", "longrope"},
            rope_rows="pairs",
            rope_factors=True,
        ),
    ),
    hparams=derived,
    waived=RECOMPUTED,
)
