"""Gemma, Gemma 2 and the text model of Gemma 3, stated once as data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from llmfit_core import (
    DECODER_CONFIG,
    ENDLESS_WINDOW,
    FULL_ATTENTION,
    PRE_NORM_DECODER,
    SLIDING_ATTENTION,
    WINDOW_PATTERN,
    Architecture,
    Asserts,
    Fix,
    Fused,
    Graph,
    Ignores,
    Reads,
    Role,
    Slot,
    SourceError,
    hookimpl,
    kinds_by_pattern,
)

_CORRECT = "Correct config.json, as the model's authors published it."


def norm(role: str) -> Slot:
    """A norm, stored minus one."""
    return Slot(role, shift=1.0)


ENDS_AND_MATRICES: dict[str, str | Slot | Fused] = {
    "model.embed_tokens": Role.EMBED,
    "model.layers.{layer}.input_layernorm": norm(Role.ATTN_NORM),
    "model.layers.{layer}.self_attn.q_proj": Slot(Role.ATTN_Q, bias="attention_bias"),
    "model.layers.{layer}.self_attn.k_proj": Slot(Role.ATTN_K, bias="attention_bias"),
    "model.layers.{layer}.self_attn.v_proj": Slot(Role.ATTN_V, bias="attention_bias"),
    "model.layers.{layer}.self_attn.o_proj": Slot(Role.ATTN_OUT, bias="attention_bias"),
    "model.layers.{layer}.mlp.gate_proj": Role.FFN_GATE,
    "model.layers.{layer}.mlp.up_proj": Role.FFN_UP,
    "model.layers.{layer}.mlp.down_proj": Role.FFN_DOWN,
    "model.norm": norm(Role.OUTPUT_NORM),
    "lm_head": Slot(Role.HEAD, optional=True),
}
ONE_NORM: dict[str, str | Slot | Fused] = {
    "model.layers.{layer}.post_attention_layernorm": norm(Role.FFN_NORM),
}
# From Gemma 2 on, norms stand before and after attention and feed-forward.
NORMS_AROUND: dict[str, str | Slot | Fused] = {
    "model.layers.{layer}.post_attention_layernorm": norm(Role.ATTN_POST_NORM),
    "model.layers.{layer}.pre_feedforward_layernorm": norm(Role.FFN_NORM),
    "model.layers.{layer}.post_feedforward_layernorm": norm(Role.FFN_POST_NORM),
}
NORMS_OF_HEADS: dict[str, str | Slot | Fused] = {
    "model.layers.{layer}.self_attn.q_norm": norm(Role.ATTN_Q_NORM),
    "model.layers.{layer}.self_attn.k_norm": norm(Role.ATTN_K_NORM),
}

RECOMPUTED = {
    "model.layers.{layer}.self_attn.rotary_emb.inv_freq": "recomputed from config.json",
    "model.rotary_emb.inv_freq": "recomputed from config.json",
}

CONFIG: dict[str, Reads | Asserts | Ignores] = {
    **DECODER_CONFIG,
    "head_dim": Reads("attention.key_length", 256),
    "max_position_embeddings": Reads("context_length", 8192),
    "tie_word_embeddings": Reads("tie_word_embeddings", True),
    "attention_bias": Reads("attention_bias", False),
    "use_bidirectional_attention": Asserts((False, None), "attention would look ahead"),
}
# From Gemma 2 on, the activation has another key, and the one of old is not read.
CONFIG_2: dict[str, Reads | Asserts | Ignores] = {
    **CONFIG,
    "hidden_activation": Reads("hidden_act", "gelu_pytorch_tanh"),
    "hidden_act": Ignores("hidden_activation is what the class reads"),
    "sliding_window_size": Ignores("sliding_window is what the class reads"),
    "query_pre_attn_scalar": Reads("query_pre_attn_scalar", 256, kind="number"),
    "sliding_window": Reads("attention.sliding_window", 4096, null_is_none=True),
    "layer_types": Reads("layer_types", None, kind="texts"),
}


def pattern_of(kinds: Sequence[str]) -> int | list[bool]:
    """The inverse: a number where one says it, else a flag for each layer."""
    for every in range(1, len(kinds) + 2):
        if kinds_by_pattern(every, len(kinds)) == tuple(kinds):
            return every
    return [k == SLIDING_ATTENTION for k in kinds]


def kinds(every: int) -> Callable[[Mapping[str, Any]], dict[str, object]]:
    """Each layer's kind: as written down, or every n-th attends to everything, as the class has it by itself.

    Raises (the result):
        SourceError: `config-key-invalid`.
    """

    def derive(hparams: Mapping[str, Any]) -> dict[str, object]:
        layers = hparams["block_count"]
        stated = hparams.get("layer_types")
        spacing = hparams.get("window_every", every)
        if stated is None and not spacing:
            raise SourceError("config-key-invalid", "sliding_window_pattern in config.json is 0", _CORRECT)
        found = tuple(stated) if stated is not None else kinds_by_pattern(spacing, layers)
        odd = [k for k in found if k not in (FULL_ATTENTION, SLIDING_ATTENTION)]
        if odd or len(found) != layers:
            what = f"names {odd[0]}" if odd else f"has {len(found)} entries for {layers} layers"
            raise SourceError("config-key-invalid", f"layer_types in config.json {what}", _CORRECT)
        if SLIDING_ATTENTION in found and not hparams.get("attention.sliding_window"):
            said = hparams.get("attention.sliding_window")
            raise SourceError(
                "config-key-invalid",
                f"sliding_window in config.json is {said!r}, and {found.count(SLIDING_ATTENTION)} layers need one",
                _CORRECT,
            )
        return {"layer_types": found}

    return derive


def written_kinds(every: int) -> Callable[[Mapping[str, Any]], dict[str, object]]:
    """Which layers slide, where it is not what the loader takes for granted."""

    def values(hparams: Mapping[str, Any]) -> dict[str, object]:
        found = tuple(hparams["layer_types"])
        return {WINDOW_PATTERN: None if found == kinds_by_pattern(every, len(found)) else pattern_of(found)}

    return values


def written_2(hparams: Mapping[str, Any]) -> dict[str, object]:
    """gemma2 aborts where no layer slides: then those that usually do have a window that nothing leaves."""
    if SLIDING_ATTENTION not in hparams["layer_types"]:
        return {"attention.sliding_window": max(ENDLESS_WINDOW, hparams["context_length"])}
    return written_kinds(2)(hparams)


def written_3(hparams: Mapping[str, Any]) -> dict[str, object]:
    """gemma3 without a window has no layer that slides."""
    if SLIDING_ATTENTION not in hparams["layer_types"]:
        return {"attention.sliding_window": None}
    return written_kinds(6)(hparams)


def scalar_of(layers_27b: int) -> Callable[[Mapping[str, Any]], int]:
    """What a graph takes for `query_pre_attn_scalar`: the head size, but in the largest model its share of the width."""

    def scalar(hparams: Mapping[str, Any]) -> int:
        if hparams["block_count"] == layers_27b:
            return int(hparams["embedding_length"] // hparams["attention.head_count"])
        return int(hparams["attention.key_length"])

    return scalar


def folded_into(role: str, scalar: Callable[[Mapping[str, Any]], int]) -> Callable[[Mapping[str, Any]], dict[str, float]]:
    """Scores are divided by the root of the scalar: the factor by which `role` has to grow where the graph's is another."""

    def scales(hparams: Mapping[str, Any]) -> dict[str, float]:
        own, graphs = hparams.get("query_pre_attn_scalar"), scalar(hparams)
        if isinstance(own, bool) or not isinstance(own, (int, float)) or not 0 < own < 1e30 or own == graphs:
            return {}
        return {role: math.sqrt(graphs / own)}

    return scales


KEYS = (
    "context_length",
    "embedding_length",
    "block_count",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "rope.freq_base",
    "attention.layer_norm_rms_epsilon",
    "attention.key_length",
    "attention.value_length",
)
TANH = ("gelu_pytorch_tanh", "gelu_new", "gelu_fast")  # one formula under three names
QKV = frozenset({Role.ATTN_Q, Role.ATTN_K, Role.ATTN_V})
WHOLE_HEADS = Fix(values=(1.0, 1), why="the graph rotates whole heads")
SCALAR_2, SCALAR_3 = scalar_of(46), scalar_of(62)


def gelu(*more: str) -> Fix:
    """The activation, under every name that means it."""
    return Fix(values=(*TANH, *more), why="the graph applies the tanh approximation of GELU")


def assumed_2(keys: Mapping[str, Any]) -> dict[str, object]:
    """What the loader of gemma2 takes where a file is silent."""
    return {
        "layer_types": kinds_by_pattern(keys.get(WINDOW_PATTERN, 2), keys["block_count"]),
        "attention.sliding_window": 4096,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "query_pre_attn_scalar": SCALAR_2(keys),
    }


def assumed_3(keys: Mapping[str, Any]) -> dict[str, object]:
    """What the loader of gemma3 takes where a file is silent; without a window no layer slides."""
    pattern = keys.get(WINDOW_PATTERN, 6) if keys.get("attention.sliding_window") else 1
    return {
        "layer_types": kinds_by_pattern(pattern, keys["block_count"]),
        "attention.sliding_window": 4096,  # of no layer, and yet transformers wants a number
        "rope.freq_base_swa": 10000.0,
        "query_pre_attn_scalar": SCALAR_3(keys),
    }


GEMMA = Architecture(
    name="gemma",
    hf_classes=("GemmaForCausalLM",),
    model_types=("gemma",),
    tensors=ENDS_AND_MATRICES | ONE_NORM,
    config=CONFIG
    | {
        "num_attention_heads": Reads("attention.head_count", 16),
        "num_key_value_heads": Reads("attention.head_count_kv", 16),
        "hidden_act": Reads("hidden_act", "gelu_pytorch_tanh"),
        # Read by some versions of the class only; the first Gemmas have none.
        "hidden_activation": Asserts((None, *TANH), "versions of transformers disagree on what is computed then"),
    },
    wiring=PRE_NORM_DECODER,
    graphs=(
        Graph(
            format="gguf",
            name="gemma",
            engine="llama.cpp",
            keys=KEYS,
            # transformers too takes this class's "gelu" for the approximation.
            fixes={"hidden_act": gelu("gelu"), "partial_rotary_factor": WHOLE_HEADS},
            rope=frozenset({"default", "linear", "yarn", "dynamic"}),
            biases=QKV,
            own_head=False,
        ),
    ),
    waived=RECOMPUTED,
)

GEMMA_2 = Architecture(
    name="gemma2",
    hf_classes=("Gemma2ForCausalLM",),
    model_types=("gemma2",),
    tensors=ENDS_AND_MATRICES | NORMS_AROUND,
    config=CONFIG_2
    | {
        "num_attention_heads": Reads("attention.head_count", 8),
        "num_key_value_heads": Reads("attention.head_count_kv", 4),
        "attn_logit_softcapping": Reads("attn_logit_softcapping", 50.0, null_is_none=True),
        "final_logit_softcapping": Reads("final_logit_softcapping", 30.0, null_is_none=True),
    },
    wiring=PRE_NORM_DECODER,
    graphs=(
        Graph(
            format="gguf",
            name="gemma2",
            engine="llama.cpp",
            keys=(*KEYS, "attn_logit_softcapping", "final_logit_softcapping", "attention.sliding_window", WINDOW_PATTERN),
            fixes={
                "hidden_act": gelu(),
                "partial_rotary_factor": WHOLE_HEADS,
                "caps_attention": Fix(values=(True,), why="attn_logit_softcapping is null, and the gemma2 graph always caps"),
                "caps_logits": Fix(values=(True,), why="final_logit_softcapping is null, and the gemma2 graph always caps"),
            },
            values=written_2,
            assumes=assumed_2,
            scales=folded_into(Role.ATTN_Q, SCALAR_2),
            rope=frozenset({"default", "linear", "yarn", "dynamic"}),
            biases=QKV,
            own_head=False,
        ),
    ),
    hparams=lambda hp: kinds(2)(hp)
    | {"caps_attention": bool(hp.get("attn_logit_softcapping")), "caps_logits": bool(hp.get("final_logit_softcapping"))},
    waived=RECOMPUTED,
)

GEMMA_3 = Architecture(
    name="gemma3",
    hf_classes=("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
    model_types=("gemma3_text",),
    tensors=ENDS_AND_MATRICES | NORMS_AROUND | NORMS_OF_HEADS,
    config=CONFIG_2
    | {
        "num_attention_heads": Reads("attention.head_count", 8),
        "num_key_value_heads": Reads("attention.head_count_kv", 4),
        "max_position_embeddings": Reads("context_length", 131072),
        "rope_theta": Reads("rope.freq_base", 1000000.0),
        "rope_local_base_freq": Reads("rope.freq_base_swa", 10000.0),
        "sliding_window_pattern": Reads("window_every", 6),
        "attn_logit_softcapping": Asserts((None,), "this class has a key for it and never caps"),
        "final_logit_softcapping": Reads("final_logit_softcapping", None, kind="number"),
    },
    wiring=PRE_NORM_DECODER,
    graphs=(
        Graph(
            format="gguf",
            name="gemma3",
            engine="llama.cpp",
            keys=(*KEYS, "rope.freq_base_swa", "final_logit_softcapping", "attention.sliding_window", WINDOW_PATTERN),
            fixes={
                "hidden_act": gelu(),
                "partial_rotary_factor": WHOLE_HEADS,
                f"rope_type.{SLIDING_ATTENTION}": Fix(
                    values=(None, "default"),
                    why="the gemma3 graph has plain rope in sliding layers",
                    unless=lambda hp: SLIDING_ATTENTION not in hp["layer_types"],  # type: ignore[operator]
                ),
            },
            values=written_3,
            assumes=assumed_3,
            # The norm after the query matrix takes any factor away again: it goes into the norm.
            scales=folded_into(Role.ATTN_Q_NORM, SCALAR_3),
            rope=frozenset({"default", "linear"}),
            biases=QKV,
        ),
    ),
    hparams=kinds(6),
    waived=RECOMPUTED,
    rope_kinds={FULL_ATTENTION: "rope_theta", SLIDING_ATTENTION: "rope_local_base_freq"},
)


@hookimpl
def llmfit_architectures() -> Iterable[Architecture]:
    """The three families."""
    return (GEMMA, GEMMA_2, GEMMA_3)
