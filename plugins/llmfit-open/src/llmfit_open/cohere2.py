"""Cohere's Command R7B and A: a Command-R whose layers slide and rotate, but for those that see everything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmfit_core import SLIDING_ATTENTION, WINDOW_PATTERN, Architecture, Asserts, Fix, Graph, Reads, kinds_by_pattern
from llmfit_open.cohere import COHERE
from llmfit_open.common import KEYS_LAYER_NORM, PLAIN_ROPE, QKV, common_fixes
from llmfit_open.layers import WINDOW, kinds_or_every, pattern_of

EVERY = 4
"""Every fourth layer sees everything where nothing else is said: the class's rule, and the loader's."""


def derived(hparams: Mapping[str, Any]) -> dict[str, object]:
    """Each layer's kind, and whether any slides."""
    found = kinds_or_every(hparams, EVERY)
    return {"layer_types": found, "slides": SLIDING_ATTENTION in found}


def written(hparams: Mapping[str, Any]) -> dict[str, object]:
    """Which layers slide, where it is not what the loader takes for granted."""
    return {WINDOW_PATTERN: pattern_of(hparams["layer_types"], EVERY)}


def assumed(keys: Mapping[str, Any]) -> dict[str, object]:
    """What the loader takes where a file is silent."""
    return {"layer_types": kinds_by_pattern(keys.get(WINDOW_PATTERN, EVERY), keys["block_count"])}


COHERE2 = Architecture(
    name="cohere2",
    hf_classes=("Cohere2ForCausalLM",),
    model_types=("cohere2",),
    tensors={k: v for k, v in COHERE.tensors.items() if "_norm" not in k.rpartition(".")[2]},
    config={k: v for k, v in COHERE.config.items() if k not in ("use_qk_norm", "model_max_length", "rope_theta")}
    | {
        "rope_theta": Reads("rope.freq_base", 10000.0),
        "sliding_window": Reads(WINDOW, 4096, null_is_none=True),
        "layer_types": Reads("layer_types", None, kind="texts"),
        "sliding_window_pattern": Reads("window_every", EVERY),
        # What the published configs say besides.
        "rotary_pct": Reads("partial_rotary_factor", None, kind="number"),
        "order_of_interleaved_layers": Asserts(("local_attn_first", None), "other layers would slide"),
        "position_embedding_type": Asserts(("rope_gptj", None), "positions would be told otherwise"),
        "use_embedding_sharing": Asserts((True, None), "the head would be its own"),
        "use_gated_activation": Asserts((True, None), "the feed-forward would have no gate"),
        "use_parallel_block": Asserts((True, None), "attention and feed-forward would come in turn"),
        "use_parallel_embedding": Asserts((False, None), "the embedding would be computed otherwise"),
        "use_qk_norm": Asserts((False, None), "q and k would be normalised"),
        "layer_switch": Reads("window_every", None, kind="count"),
    },
    wiring=COHERE.wiring,
    graphs=(
        Graph(
            format="gguf",
            name="cohere2",
            engine="llama.cpp",
            keys=(*KEYS_LAYER_NORM, "logit_scale", WINDOW, WINDOW_PATTERN, "vocab_size", "rope.dimension_count"),
            fixes=common_fixes("cohere2", square=True)
            | {"slides": Fix(values=(True,), why="layer_types has no layer that slides, without which the cohere2 graph aborts")},
            rope=PLAIN_ROPE,
            rope_rows="pairs",
            biases=QKV,
            own_head=False,
            values=written,
            assumes=assumed,
        ),
    ),
    hparams=derived,
    waived=COHERE.waived,
    rope_rows="pairs",
)
