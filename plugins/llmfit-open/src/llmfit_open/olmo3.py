"""OLMo 3: an OLMo 2 whose layers slide, but for those that see everything; only these have a scaled rope."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmfit_core import (
    FULL_ATTENTION,
    SLIDING_ATTENTION,
    WINDOW_PATTERN,
    Architecture,
    Fix,
    Graph,
    Reads,
    kinds_by_pattern,
)
from llmfit_open.common import KEYS, PLAIN_ROPE, QKV, common_fixes, wrong
from llmfit_open.layers import WINDOW, kinds_or_every
from llmfit_open.olmo import OLMO2

EVERY = 4
"""Every fourth layer sees everything where nothing else is said: the class's rule, and the loader's."""
BASE_SLIDING, USUAL_BASE = "rope_base_sliding", 500000.0
BASE_KEY = "rope.freq_base_swa"


def derived(hparams: Mapping[str, Any]) -> dict[str, object]:
    """Each layer's kind, and whether layers that slide rotate from the same base.

    Raises:
        UnsupportedError: `config-value`, for a base of which versions of transformers disagree whose it is.
    """
    found = kinds_or_every(hparams, EVERY)
    base, own = hparams["rope.freq_base"], hparams.get(BASE_SLIDING)
    if own is None and base != USUAL_BASE and SLIDING_ATTENTION in found:
        raise wrong(
            f"rope_theta in config.json is {base:g}, which is all layers' in some versions of transformers and in others only "
            "theirs that see everything; rope_parameters can state it for each kind"
        )
    return {
        "layer_types": found,
        "one_base": own in (None, base),
        "slides": SLIDING_ATTENTION in found,
        f"rope_type.{SLIDING_ATTENTION}": hparams.get(f"rope_type.{SLIDING_ATTENTION}", "default"),
    }


def written(hparams: Mapping[str, Any]) -> dict[str, object]:
    """Which layers slide, and from which base they turn; without a window none does."""
    found = hparams["layer_types"]
    if SLIDING_ATTENTION not in found:
        return {WINDOW: None}
    return {WINDOW_PATTERN: [k == SLIDING_ATTENTION for k in found], BASE_KEY: hparams["rope.freq_base"]}


def assumed(keys: Mapping[str, Any]) -> dict[str, object]:
    """What the loader takes where a file is silent; without a window no layer slides."""
    pattern = keys.get(WINDOW_PATTERN, EVERY) if keys.get(WINDOW) else 1
    # A window of no layer, and yet transformers wants a number.
    return {"layer_types": kinds_by_pattern(pattern, keys["block_count"]), **({} if keys.get(WINDOW) else {WINDOW: 4096})}


OLMO3 = Architecture(
    name="olmo3",
    hf_classes=("Olmo3ForCausalLM",),
    model_types=("olmo3",),
    tensors=OLMO2.tensors,
    config=dict(OLMO2.config)
    | {
        "rope_theta": Reads("rope.freq_base", USUAL_BASE),
        "rope_theta_sliding": Reads(BASE_SLIDING, None, kind="number"),
        "sliding_window": Reads(WINDOW, 4096, null_is_none=True),
        "layer_types": Reads("layer_types", None, kind="texts"),
    },
    wiring=OLMO2.wiring,
    graphs=(
        Graph(
            format="gguf",
            name="olmo2",
            engine="llama.cpp",
            keys=(*KEYS, WINDOW, WINDOW_PATTERN, BASE_KEY),
            fixes=common_fixes("olmo2", square=True)
            | {
                "one_base": Fix(
                    values=(True,),
                    why="the layers that slide rotate from a base of their own, and the olmo2 graph has one for all",
                    unless=lambda hp: not hp["slides"],
                ),
                f"rope_type.{SLIDING_ATTENTION}": Fix(
                    values=("default",),
                    why="the olmo2 graph has plain rope in layers that slide",
                    unless=lambda hp: not hp["slides"],
                ),
            },
            rope=PLAIN_ROPE,
            biases=QKV,
            needs_head=True,
            values=written,
            assumes=assumed,
        ),
    ),
    shapes=OLMO2.shapes,
    hparams=derived,
    waived=OLMO2.waived,
    rope_kinds={FULL_ATTENTION: "rope_theta", SLIDING_ATTENTION: "rope_theta_sliding"},
)
