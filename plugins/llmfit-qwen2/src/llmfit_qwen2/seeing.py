"""Text models of Qwen-VL and Qwen-Omni: what their configs say beside a Qwen's, and what their classes assume."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from llmfit_core import Asserts, Ignores, Reads, UnsupportedError

# What transformers' config classes assume, and may leave out of a text part that is saved inside a larger model.
_VL: dict[str, object] = {
    "hidden_size": 8192, "num_hidden_layers": 80, "intermediate_size": 29568, "num_attention_heads": 64,
    "num_key_value_heads": 8, "max_position_embeddings": 32768, "rms_norm_eps": 1e-5, "max_window_layers": 80,
    "rope_theta": 1000000.0,
}  # fmt: skip
_QWEN: dict[str, object] = {
    "hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 22016, "num_attention_heads": 32,
    "num_key_value_heads": 32, "max_position_embeddings": 32768,
}  # fmt: skip
_MOE: dict[str, object] = {
    "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 32, "num_key_value_heads": 4,
    "max_position_embeddings": 32768, "intermediate_size": 6144, "num_experts": 128, "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
}  # fmt: skip
PART_DEFAULTS: dict[str, dict[str, object]] = {
    "qwen2": _QWEN,
    **dict.fromkeys(("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"), _VL),
    "qwen2_5_omni_text": {
        **_VL, "hidden_size": 3584, "num_hidden_layers": 28, "intermediate_size": 18944, "num_attention_heads": 28,
        "num_key_value_heads": 4, "rms_norm_eps": 1e-6, "max_window_layers": 28,
    },
    "qwen3": {**_QWEN, "head_dim": 128},
    "qwen3_vl_text": {**_QWEN, "head_dim": 128, "max_position_embeddings": 128000, "rope_theta": 500000.0},
    "qwen3_moe": _MOE,
    "qwen3_vl_moe_text": {
        **_MOE, "intermediate_size": 5632, "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 128,
        "max_position_embeddings": 128000, "num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408,
        "rope_theta": 500000.0, "norm_topk_prob": True,
    },
    "qwen3_omni_moe_text": {
        **_MOE, "num_hidden_layers": 28, "intermediate_size": 18944, "num_attention_heads": 28, "rope_theta": 1000000.0,
        "norm_topk_prob": True,
    },
}  # fmt: skip

SEEING: dict[str, Reads | Asserts | Ignores] = {
    "mrope_section": Reads("mrope_section", None, kind="counts"),
    "mrope_interleaved": Ignores("which pairs take which of three equal positions; a graph has its own order"),
    "num_deepstack_layers": Reads("n_deepstack_layers", None, kind="count"),
}


def sections(hparams: Mapping[str, Any]) -> dict[str, object]:
    """How a text model of Qwen-VL shares out its pairs among time, height and width, as four counts.

    A text's three positions are one, and whichever a pair takes, it is the same.
    """
    stated = hparams.get("mrope_section")
    if stated is None:
        return {"sections": False}
    pairs = hparams.get("attention.key_length", 0) // 2
    if not stated or len(stated) > 4 or (pairs and sum(stated) != pairs):
        raise UnsupportedError(
            "config-value",
            f"mrope_section in config.json is {list(stated)}, which does not share out {pairs} pairs of dimensions",
            "Correct config.json, as the model's authors published it.",
        )
    return {
        "rope.dimension_sections": (*stated, *[0] * (4 - len(stated))),
        "sections": True,
        "deep_layers_left": hparams["block_count"] > (hparams.get("n_deepstack_layers") or 0),
    }


def with_sections(derive: Callable[[Mapping[str, Any]], Mapping[str, object]]) -> Callable[[Mapping[str, Any]], Mapping[str, object]]:
    """What `derive` gives, and the sections."""
    return lambda hparams: {**derive(hparams), **sections(hparams)}


def assumed_sections(keys: Mapping[str, Any]) -> dict[str, object]:
    """The sections of a file as a config has them."""
    stated = [int(n) for n in keys.get("rope.dimension_sections", ())]
    return {"mrope_section": tuple(stated[:3] if stated[3:] == [0] else stated)}
