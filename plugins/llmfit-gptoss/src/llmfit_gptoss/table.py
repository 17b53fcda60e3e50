"""GPT-OSS, stated once as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from llmfit_core import (
    DECODER_CONFIG,
    ENDLESS_WINDOW,
    FULL_ATTENTION,
    SLIDING_ATTENTION,
    WINDOW_PATTERN,
    Architecture,
    Asserts,
    Fix,
    Fused,
    Graph,
    Ignores,
    Link,
    Reads,
    Role,
    Slot,
    SourceError,
    kinds_by_pattern,
)

WINDOW: Final = "attention.sliding_window"
EVERY: Final = 2
"""Every second layer sees everything, where nothing else is said: the class's rule, and the loader's."""
PUBLISHED_ROPE: Final[Mapping[str, object]] = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""What the published models state, and what the class takes where a config states no rope."""
ROUNDING: Final = 5e-4
"""Radians a token by which phases may be off. The published rope is off by 2.2e-4."""
_CORRECT = "Correct config.json, as the model's authors published it."


def derived(hparams: Mapping[str, Any]) -> dict[str, object]:
    """Each layer's kind, as written down or by the class's own rule, and the experts' width.

    Raises:
        SourceError: `config-key-invalid`.
    """
    layers = hparams["block_count"]
    stated: Sequence[str] | None = hparams.get("layer_types")
    found = tuple(stated) if stated is not None else kinds_by_pattern(EVERY, layers)
    odd = [k for k in found if k not in (FULL_ATTENTION, SLIDING_ATTENTION)]
    if odd or len(found) != layers:
        what = f"names {odd[0]}" if odd else f"has {len(found)} entries for {layers} layers"
        raise SourceError("config-key-invalid", f"layer_types in config.json {what}", _CORRECT)
    if SLIDING_ATTENTION in found and not hparams.get(WINDOW):
        said, count = hparams.get(WINDOW), found.count(SLIDING_ATTENTION)
        raise SourceError(
            "config-key-invalid", f"sliding_window in config.json is {said!r}, and {count} layers need one", _CORRECT
        )
    return {"layer_types": found, "expert_feed_forward_length": hparams["feed_forward_length"]}


def written(hparams: Mapping[str, Any]) -> dict[str, object]:
    """Which layers slide, where it is not what the loader takes for granted; it always wants a window."""
    found = tuple(hparams["layer_types"])
    if SLIDING_ATTENTION not in found:
        return {WINDOW: max(ENDLESS_WINDOW, hparams["context_length"])}
    return {WINDOW_PATTERN: None if found == kinds_by_pattern(EVERY, len(found)) else [k == SLIDING_ATTENTION for k in found]}


def assumed(keys: Mapping[str, Any]) -> dict[str, object]:
    """What the loader takes where a file is silent."""
    if WINDOW not in keys:
        raise SourceError("gguf-key-missing", f"the file lacks {WINDOW}, which the gpt-oss loader wants", "Fetch the file again.")
    return {"layer_types": kinds_by_pattern(keys.get(WINDOW_PATTERN, EVERY), keys["block_count"])}


def rope_of(keys: Mapping[str, Any]) -> dict[str, object]:
    """Back from a file's keys, which cannot say `truncate`: the published rope is known not to be rounded."""
    told = {k: keys.get(f"rope.scaling.{k}") for k in ("factor", "original_context_length")}
    published = {"factor": PUBLISHED_ROPE["factor"], "original_context_length": PUBLISHED_ROPE["original_max_position_embeddings"]}
    out: dict[str, object] = {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": told != published}
    factor = float(keys.get("rope.scaling.attn_factor", 1.0))
    if factor != 1:
        from llmfit_core.rope import yarn_mscale

        out["attention_factor"] = factor * yarn_mscale(float(keys.get("rope.scaling.factor", 1.0)))
    return out


EXPERTS = Fused((Role.FFN_GATE_EXPS, Role.FFN_UP_EXPS), groups="expert_feed_forward_length")
"""Gate and up in turn, row by row."""

TENSORS: Final[Mapping[str, str | Fused | Slot]] = {
    "model.embed_tokens": Role.EMBED,
    "model.layers.{layer}.input_layernorm": Role.ATTN_NORM,
    "model.layers.{layer}.self_attn.q_proj": Slot(Role.ATTN_Q, bias="attention_bias"),
    "model.layers.{layer}.self_attn.k_proj": Slot(Role.ATTN_K, bias="attention_bias"),
    "model.layers.{layer}.self_attn.v_proj": Slot(Role.ATTN_V, bias="attention_bias"),
    "model.layers.{layer}.self_attn.o_proj": Slot(Role.ATTN_OUT, bias="attention_bias"),
    "model.layers.{layer}.self_attn.sinks": Slot(Role.ATTN_SINKS, bare=True),
    "model.layers.{layer}.post_attention_layernorm": Role.FFN_NORM,
    "model.layers.{layer}.mlp.router": Slot(Role.FFN_ROUTER, bias=True),
    "model.layers.{layer}.mlp.experts.gate_up_proj": Slot(EXPERTS, transposed=True, bare=True),
    "model.layers.{layer}.mlp.experts.gate_up_proj_bias": Slot(EXPERTS, bare=True, part="bias"),
    "model.layers.{layer}.mlp.experts.down_proj": Slot(Role.FFN_DOWN_EXPS, transposed=True, bare=True),
    "model.layers.{layer}.mlp.experts.down_proj_bias": Slot(Role.FFN_DOWN_EXPS, bare=True, part="bias"),
    "model.norm": Role.OUTPUT_NORM,
    "lm_head": Slot(Role.HEAD, optional=True),
}

CONFIG: Final[Mapping[str, Reads | Asserts | Ignores]] = DECODER_CONFIG | {
    "num_attention_heads": Reads("attention.head_count", 64),
    "num_key_value_heads": Reads("attention.head_count_kv", 8, null_is_none=True),
    "head_dim": Reads("attention.key_length", 64, null_is_none=True),
    "max_position_embeddings": Reads("context_length", 131072),
    "rms_norm_eps": Reads("attention.layer_norm_rms_epsilon", 1e-5),
    "rope_theta": Reads("rope.freq_base", 150000.0),
    "attention_bias": Reads("attention_bias", True),
    "num_local_experts": Reads("expert_count", 128),
    "num_experts": Reads("expert_count", 128),
    "num_experts_per_tok": Reads("expert_used_count", 4),
    "sliding_window": Reads(WINDOW, 128, null_is_none=True),
    "layer_types": Reads("layer_types", None, kind="texts"),
    "swiglu_alpha": Reads("swiglu_alpha", 1.702),
    "swiglu_limit": Reads("swiglu_limit", 7.0),
    "hidden_act": Ignores("the experts' activation is built into the class"),
    "experts_per_token": Ignores("num_experts_per_tok is what the class reads"),
    "initial_context_length": Ignores("rope_scaling says it to the class"),
}

GPT_OSS = Architecture(
    name="gpt-oss",
    hf_classes=("GptOssForCausalLM",),
    model_types=("gpt_oss",),
    tensors=TENSORS,
    config=CONFIG,
    # Nothing leads through the experts: their up is clamped, and one is added to it.
    wiring=(
        Link(source=Role.ATTN_NORM, sinks=(Role.ATTN_Q, Role.ATTN_K, Role.ATTN_V)),
        Link(source=Role.ATTN_V, sinks=(Role.ATTN_OUT,), when="no_gqa"),
        Link(source=Role.FFN_NORM, sinks=(Role.FFN_ROUTER, Role.FFN_GATE_EXPS, Role.FFN_UP_EXPS)),
    ),
    shapes={Role.ATTN_SINKS: ("attention.head_count",)},
    graphs=(
        Graph(
            format="gguf",
            name="gpt-oss",
            engine="llama.cpp",
            keys=(
                "block_count",
                "context_length",
                "embedding_length",
                "feed_forward_length",
                "attention.head_count",
                "attention.head_count_kv",
                "rope.freq_base",
                "attention.layer_norm_rms_epsilon",
                "expert_count",
                "expert_used_count",
                "attention.key_length",
                "attention.value_length",
                WINDOW,
                WINDOW_PATTERN,
                "expert_feed_forward_length",
            ),
            fixes={
                "attention_bias": Fix(values=(True,), why="the gpt-oss graph wants biases on all four projections"),
                "partial_rotary_factor": Fix(values=(1.0, 1), why="the gpt-oss graph rotates whole heads"),
                "swiglu_alpha": Fix(values=(1.702,), why="the gpt-oss graph has a gain of 1.702 built in"),
                "swiglu_limit": Fix(values=(7.0, 7), why="the gpt-oss graph clamps at 7"),
            },
            rope=frozenset({"default", "linear", "yarn", "dynamic"}),
            rope_rounding=ROUNDING,
            rope_read=rope_of,
            spelling={Role.FFN_NORM: Role.ATTN_POST_NORM},
            values=written,
            assumes=assumed,
            needs_head=True,
        ),
    ),
    hparams=derived,
    waived={
        "model.layers.{layer}.self_attn.rotary_emb.inv_freq": "recomputed from config.json",
        "model.rotary_emb.inv_freq": "recomputed from config.json",
    },
    rope_default=PUBLISHED_ROPE,
)
