"""What the keys of a deepseek2 file mean in a config's words, and whose file it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmfit_core import ROLES, Role, SourceError, UnsupportedError
from llmfit_deepseek2.tables import HEADS, RANK


def said_by_file(keys: Mapping[str, Any]) -> dict[str, object]:
    """What a file's keys mean in a config's words, and what the loader takes where it has none."""
    for key in ("attention.key_length_mla", "attention.value_length_mla", RANK, "rope.dimension_count", "expert_shared_count"):
        if not isinstance(keys.get(key), int):
            raise SourceError(
                "gguf-key-missing",
                f"the file lacks the key deepseek2.{key}",
                "Files from before latent attention was split by heads have to be converted again from the original.",
            )
    if keys.get("attention.temperature_scale"):
        raise UnsupportedError(
            "unknown-graph",
            "deepseek2.attention.temperature_scale is set, which belongs to another family that shares this graph",
            "Install the plugin that knows that family.",
        )
    rank = keys.get("attention.q_lora_rank") or None
    return {
        "mla_kv_heads": keys[HEADS],
        "qk_nope_head_dim": keys["attention.key_length_mla"] - keys["rope.dimension_count"],
        "leading_dense_block_count": 0,
        "n_group": keys.get("expert_group_count") or 1,
        "topk_group": keys.get("expert_group_used_count") or 1,
        "expert_weights_norm": False,
        "expert_weights_scale": 1.0,
        "nextn_predict_layers": 0,
    } | ({"q_lora_rank": rank} if rank else {})


def v2_file(keys: Mapping[str, Any]) -> dict[str, object]:
    """A file that computes what DeepSeek-V2's class computes."""
    out = said_by_file(keys)
    held = keys.get(ROLES, frozenset())
    if _mixed(keys):
        if keys.get("expert_gating_func", 1) not in (0, 1):
            raise _foreign("its experts are not gated by softmax, as DeepSeek-V2's are")
        if keys.get("expert_weights_norm") or Role.EXPERT_BIAS in held:
            raise _foreign("its experts are weighed otherwise than DeepSeek-V2's")
        if keys.get("expert_group_count", 0) > 1:
            raise _foreign("it chooses among groups of experts otherwise than DeepSeek-V2")
    return {k: v for k, v in out.items() if k not in ("n_group", "topk_group", "nextn_predict_layers", "expert_weights_norm")}


def v3_file(keys: Mapping[str, Any]) -> dict[str, object]:
    """A file that computes what DeepSeek-V3's class computes."""
    if _mixed(keys) and keys.get("expert_gating_func", 1) != 2:
        raise _foreign("its experts are not gated by sigmoid (expert_gating_func 2), as DeepSeek-V3's are")
    return said_by_file(keys)


def dense_file(keys: Mapping[str, Any]) -> dict[str, object]:
    """A file without experts."""
    if _mixed(keys):
        raise _foreign("it has layers with experts, which Youtu has not")
    out = said_by_file(keys)
    return {k: out[k] for k in ("mla_kv_heads", "qk_nope_head_dim", "q_lora_rank") if k in out}


def _mixed(keys: Mapping[str, Any]) -> bool:
    return bool(keys.get("leading_dense_block_count", 0) < keys["block_count"])


def _foreign(what: str) -> UnsupportedError:
    return UnsupportedError(
        "unknown-graph",
        f"the file's graph is deepseek2, yet {what}",
        "It is another family's, or was not written as its model computes: convert the model's original.",
    )
