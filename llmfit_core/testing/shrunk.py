"""Tiny configs for architectures whose authors give none: the class's own defaults, with the sizes made small.

Which key is a size is what the table itself says (`Reads`), so nothing here speaks of any one family.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llmfit_core.architecture import Reads
from llmfit_core.testing.outcome import CheckFailed, NotRun
from llmfit_core.testing.with_transformers import MISSING, is_here, judge

if TYPE_CHECKING:
    from llmfit_core.architecture import Architecture

SIZES = {
    "embedding_length": 64,
    "block_count": 2,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "feed_forward_length": 96,
    "context_length": 512,
    "expert_count": 4,
    "expert_used_count": 2,
    "expert_feed_forward_length": 48,
    "expert_shared_feed_forward_length": 80,
    "attention.sliding_window": 16,
    "attention.key_length": 16,
    "attention.value_length": 16,
}
"""By hparam, the value where the class has one."""
_NEVER_NONE = ("attention.head_count_kv", "expert_used_count")


def samples_of(architecture: Architecture) -> dict[str, dict[str, object]]:
    """Settings of `ArchitectureTests` by class name, for each class of the architecture that transformers has.

    Raises:
        NotRun: transformers is not here, or has none of the classes.
    """
    if not is_here():
        raise NotRun(f"{MISSING}; or the plugin gives SAMPLES")
    found: dict[str, dict[str, object]] = {}
    with judge() as transformers:
        names = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        kinds = {cls: kind for kind, cls in names.items()}
        for cls in architecture.hf_classes:
            kind = kinds.get(cls)
            if kind not in transformers.CONFIG_MAPPING or kind not in architecture.model_types:
                continue  # a model of several parts, say, whose text part alone the table describes
            config = _config(architecture, cls, str(kind), transformers.CONFIG_MAPPING[kind])
            if {SIZES["embedding_length"], SIZES["block_count"]} <= {v for v in config.values() if isinstance(v, int)}:  # else it would be of true size
                found[cls] = {"config": config}
    if not found:
        classes = ", ".join(architecture.hf_classes)
        raise NotRun(f"transformers has none of {classes} that its config class makes a tiny model of, and the plugin gives no SAMPLES")
    return found


def _config(architecture: Architecture, cls: str, kind: str, config_cls: Any) -> dict[str, Any]:
    try:
        made = config_cls()
    except Exception as error:
        raise CheckFailed(f"transformers makes no config of {kind}: {error}") from error
    theirs = made.to_dict()
    config: dict[str, Any] = {"architectures": [cls], "model_type": kind}
    latent = "kv_lora_rank" in theirs  # its heads' sizes hang together in ways of their own, and are small already
    for key, use in architecture.config.items():
        if not isinstance(use, Reads) or use.hparam not in SIZES or key not in theirs:
            continue
        if latent and use.hparam in ("attention.key_length", "attention.value_length"):
            continue
        filled = use.hparam in _NEVER_NONE and theirs[key] is None
        if filled or (isinstance(theirs[key], int) and not isinstance(theirs[key], bool)):
            config[key] = SIZES[use.hparam]
    heads, grouped = theirs.get("num_attention_heads"), theirs.get("num_key_value_heads")
    if heads is not None and grouped in (heads, None) and "num_key_value_heads" in config:
        config["num_key_value_heads"] = config["num_attention_heads"]  # a class that may not know grouped heads
    for key, value in theirs.items():
        if key in ("layer_types", "no_rope_layers") and isinstance(value, list):
            config[key] = None  # as many as there are layers: the class fills it in
    return config
