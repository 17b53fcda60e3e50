"""Qwen2, Qwen2-MoE, Qwen3, Qwen3-MoE and the text models of Qwen-VL, stated once as data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from llmfit_core import (
    DECODER_CONFIG,
    DECODER_KEYS,
    PRE_NORM_DECODER,
    Architecture,
    Asserts,
    Fix,
    Fused,
    Graph,
    Ignores,
    Limit,
    Reads,
    Role,
    Slot,
    UnsupportedError,
    hookimpl,
)
from llmfit_qwen2.seeing import PART_DEFAULTS, SEEING, assumed_sections, with_sections

NORMS_AND_ENDS: dict[str, str | Slot | Fused] = {
    "model.embed_tokens": Role.EMBED,
    "model.layers.{layer}.input_layernorm": Role.ATTN_NORM,
    "model.layers.{layer}.post_attention_layernorm": Role.FFN_NORM,
    "model.norm": Role.OUTPUT_NORM,
    "lm_head": Slot(Role.HEAD, optional=True),
}

# Qwen2 always has biases on q, k and v, and none on o; Qwen3 normally has none at all.
ATTENTION_2: dict[str, str | Slot | Fused] = {
    "model.layers.{layer}.self_attn.q_proj": Slot(Role.ATTN_Q, bias=True),
    "model.layers.{layer}.self_attn.k_proj": Slot(Role.ATTN_K, bias=True),
    "model.layers.{layer}.self_attn.v_proj": Slot(Role.ATTN_V, bias=True),
    "model.layers.{layer}.self_attn.o_proj": Role.ATTN_OUT,
}
ATTENTION_2_MOE: dict[str, str | Slot | Fused] = ATTENTION_2 | {
    f"model.layers.{{layer}}.self_attn.{x}_proj": Slot(role, bias="qkv_bias")
    for x, role in (("q", Role.ATTN_Q), ("k", Role.ATTN_K), ("v", Role.ATTN_V))
}
ATTENTION_3: dict[str, str | Slot | Fused] = {
    "model.layers.{layer}.self_attn.q_proj": Slot(Role.ATTN_Q, bias="attention_bias"),
    "model.layers.{layer}.self_attn.k_proj": Slot(Role.ATTN_K, bias="attention_bias"),
    "model.layers.{layer}.self_attn.v_proj": Slot(Role.ATTN_V, bias="attention_bias"),
    "model.layers.{layer}.self_attn.o_proj": Slot(Role.ATTN_OUT, bias="attention_bias"),
    "model.layers.{layer}.self_attn.q_norm": Role.ATTN_Q_NORM,
    "model.layers.{layer}.self_attn.k_norm": Role.ATTN_K_NORM,
}

DENSE: dict[str, str | Slot | Fused] = {
    "model.layers.{layer}.mlp.gate_proj": Slot(Role.FFN_GATE, when="dense"),
    "model.layers.{layer}.mlp.up_proj": Slot(Role.FFN_UP, when="dense"),
    "model.layers.{layer}.mlp.down_proj": Slot(Role.FFN_DOWN, when="dense"),
}

# Experts one by one, as transformers saves them, and as one tensor, as some checkpoints hold them.
EXPERTS: dict[str, str | Slot | Fused] = {
    "model.layers.{layer}.mlp.gate": Slot(Role.FFN_ROUTER, when="mixed"),
    "model.layers.{layer}.mlp.experts.{expert}.gate_proj": Slot(Role.FFN_GATE_EXPS, when="mixed"),
    "model.layers.{layer}.mlp.experts.{expert}.up_proj": Slot(Role.FFN_UP_EXPS, when="mixed"),
    "model.layers.{layer}.mlp.experts.{expert}.down_proj": Slot(Role.FFN_DOWN_EXPS, when="mixed"),
    "model.layers.{layer}.mlp.experts.gate_up_proj": Slot(
        Fused((Role.FFN_GATE_EXPS, Role.FFN_UP_EXPS)), when="mixed", either_way=True, bare=True
    ),
    "model.layers.{layer}.mlp.experts.down_proj": Slot(Role.FFN_DOWN_EXPS, when="mixed", either_way=True, bare=True),
}
SHARED_EXPERT: dict[str, str | Slot | Fused] = {
    "model.layers.{layer}.mlp.shared_expert.gate_proj": Slot(Role.FFN_GATE_SHEXP, when="mixed"),
    "model.layers.{layer}.mlp.shared_expert.up_proj": Slot(Role.FFN_UP_SHEXP, when="mixed"),
    "model.layers.{layer}.mlp.shared_expert.down_proj": Slot(Role.FFN_DOWN_SHEXP, when="mixed"),
    "model.layers.{layer}.mlp.shared_expert_gate": Slot(Role.FFN_SHARED_ROUTER, when="mixed"),
}

RECOMPUTED = {
    "model.layers.{layer}.self_attn.rotary_emb.inv_freq": "recomputed from config.json",
    "model.rotary_emb.inv_freq": "recomputed from config.json",
}


def dense(_hparams: Mapping[str, Any], _layer: int) -> frozenset[str]:
    """Every layer is dense."""
    return frozenset({"dense"})


def sparse_by_step(hparams: Mapping[str, Any], layer: int) -> frozenset[str]:
    """Layers are mixed at every `decoder_sparse_step` (none at 0), but for those of `mlp_only_layers`."""
    if not hparams["decoder_sparse_step"]:
        return frozenset({"dense"})
    mixed = (
        layer not in (hparams.get("mlp_only_layers") or ())
        and hparams["expert_count"] > 0
        and (layer + 1) % hparams["decoder_sparse_step"] == 0
    )
    return frozenset({"mixed" if mixed else "dense"})


def known_kinds(hparams: Mapping[str, Any]) -> tuple[str, ...] | None:
    """`layer_types`, one of the two known kinds for each layer, or `None` where it is not written down."""
    kinds = hparams.get("layer_types")
    odd = [k for k in kinds or () if k not in ("full_attention", "sliding_attention")]
    if odd or len(kinds or ()) not in (0, hparams["block_count"]):
        what = f"names {odd[0]}" if odd else f"has {len(kinds or ())} entries for {hparams['block_count']} layers"
        raise UnsupportedError(
            "config-value",
            f"layer_types in config.json {what}",
            "Correct config.json, as the model's authors published it.",
        )
    return kinds


def window(hparams: Mapping[str, Any]) -> dict[str, object]:
    """The sliding window, if any layer uses it (transformers' own rule)."""
    kinds = known_kinds(hparams)
    size = hparams.get("sliding_window")
    if not hparams.get("use_sliding_window") or not size:
        return {}
    if kinds is not None and "sliding_attention" not in kinds:
        return {}
    if kinds is None and hparams.get("window_from_layer", 0) >= hparams["block_count"]:
        return {}
    return {"attention.sliding_window": size}


def window_of_mixture(hparams: Mapping[str, Any]) -> dict[str, object]:
    """The sliding window of a mixture.

    Which layers use it is another rule in each class and version of transformers (from a layer on, up to a layer, every
    other, all of them): only kinds of layer that are written down tell that none does.
    """
    size = hparams.get("sliding_window")
    kinds = known_kinds(hparams)
    if not hparams.get("use_sliding_window") or not size or (kinds and "sliding_attention" not in kinds):
        return {}
    return {"attention.sliding_window": size}


def mixture(hparams: Mapping[str, Any]) -> dict[str, object]:
    """The window, and whether every layer is mixed."""
    layers = range(hparams["block_count"])
    mixed = all("mixed" in sparse_by_step(hparams, i) for i in layers)
    return window_of_mixture(hparams) | {"all_layers_mixed": mixed}


def mixture_3(hparams: Mapping[str, Any]) -> dict[str, object]:
    """The same where the class knows no kinds of layer (Qwen3-MoE): every layer slides."""
    return mixture({**hparams, "layer_types": None})


WINDOW_CONFIG: dict[str, Reads | Asserts | Ignores] = {
    **SEEING,
    "use_mrope": Asserts((False, None), "positions would have three parts"),
    "use_sliding_window": Reads("use_sliding_window", False),
    "sliding_window": Reads("sliding_window", 4096, null_is_none=True),
    "max_window_layers": Reads("window_from_layer", 28),
    "layer_types": Reads("layer_types", None, kind="texts"),
}
MIXTURE_CONFIG: dict[str, Reads | Asserts | Ignores] = {
    "intermediate_size": Reads("feed_forward_length", None),
    "num_experts": Reads("expert_count"),
    "num_local_experts": Reads("expert_count"),  # transformers 5's spelling for Qwen3-MoE
    "num_experts_per_tok": Reads("expert_used_count"),
    "moe_intermediate_size": Reads("expert_feed_forward_length"),
    "norm_topk_prob": Reads("norm_topk_prob", False),
    "decoder_sparse_step": Reads("decoder_sparse_step", 1),
    "mlp_only_layers": Reads("mlp_only_layers", None, kind="counts"),
}

KEYS = (
    *DECODER_KEYS,
    "expert_count",
    "expert_used_count",
    "expert_feed_forward_length",
    "expert_shared_feed_forward_length",
)
SEEING_KEYS = (*KEYS, "rope.dimension_sections", "n_deepstack_layers")
SILU = Fix(values=("silu", "swish"), why="the graph applies SiLU")
TEXT_ONLY = Fix(values=(False, None), why="the graph does not share out a head's pairs among time, height and width")
DEEP = Fix(values=(True, None), why="pictures reach into its last layer (deepstack_visual_indexes), where the graph aborts")
SHARED_OUT = Fix(values=(True,), why="config.json has no mrope_section, and the graph wants one")
WHOLE_HEADS = Fix(values=(1.0, 1), why="the graph rotates whole heads")
QKV = frozenset({Role.ATTN_Q, Role.ATTN_K, Role.ATTN_V})


def graph(name: str, **more: Any) -> Graph:
    """A graph of llama.cpp's Qwen family; none of them knows a sliding window or loads rope factors."""
    fixes = {"hidden_act": SILU, "partial_rotary_factor": WHOLE_HEADS, "sections": TEXT_ONLY} | more.pop("fixes", {})
    return Graph(
        format="gguf",
        name=name,
        engine="llama.cpp",
        keys=more.pop("keys", KEYS),
        fixes=fixes,
        limits=(
            Limit(
                hparam="attention.sliding_window",
                message=f"the {name} graph knows no sliding window: exact up to {{tokens}} tokens",
            ),
        ),
        rope=frozenset({"default", "linear", "yarn", "dynamic"}),
        biases=QKV,
        **more,
    )


def all_experts_used(hparams: Mapping[str, Any]) -> bool:
    """With every expert in use the softmax already adds up to one, and normalising changes nothing."""
    return bool(hparams["expert_used_count"] == hparams["expert_count"])


def square_attention(hparams: Mapping[str, Any]) -> bool:
    """Heads times head size is the model's width."""
    return bool(hparams["attention.head_count"] * hparams["attention.key_length"] == hparams["embedding_length"])


def every_layer_mixed(name: str) -> Fix:
    """The refusal of dense layers among mixed ones."""
    return Fix(
        values=(True,),
        why=f"decoder_sparse_step and mlp_only_layers leave layers dense, and the {name} graph wants experts in every one",
    )


def square(name: str) -> Fix:
    """The refusal of heads that do not fill the width."""
    return Fix(
        values=(None,), why=f"the {name} graph wants heads times head size to be the width", unless=square_attention
    )


def seeing(name: str, **fixes: Fix) -> Graph:
    """The graph of a text model with eyes: of a text it computes the same, and a projector file goes with it."""
    fixes |= {"sections": SHARED_OUT, "deep_layers_left": DEEP}
    return graph(name, keys=SEEING_KEYS, assumes=assumed_sections, fixes=fixes)


# The same computation under another name: with biases on q, k and v, the llama graph is a Qwen2 that reads rope factors
# and heads of any size.
AS_LLAMA = Graph(
    format="gguf",
    name="llama",
    engine="llama.cpp",
    keys=(*KEYS, "vocab_size", "rope.dimension_count"),
    fixes={"hidden_act": SILU, "partial_rotary_factor": WHOLE_HEADS},
    limits=(
        Limit(
            hparam="attention.sliding_window",
            message="the llama graph knows no sliding window: exact up to {tokens} tokens",
        ),
    ),
    rope=frozenset({"default", "linear", "yarn", "llama3", "longrope", "dynamic"}),
    rope_rows="pairs",
    rope_factors=True,
)

QWEN2 = Architecture(
    name="qwen2",
    hf_classes=("Qwen2ForCausalLM", "Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"),
    model_types=("qwen2", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text", "qwen2_5_omni_text"),
    tensors=NORMS_AND_ENDS | ATTENTION_2 | DENSE,
    config=DECODER_CONFIG | WINDOW_CONFIG,
    wiring=PRE_NORM_DECODER,
    graphs=(
        graph("qwen2", fixes={"attention.key_length": square("qwen2")}),
        seeing("qwen2vl", **{"attention.key_length": square("qwen2vl")}),
        AS_LLAMA,
    ),
    hparams=with_sections(window),
    part_defaults=PART_DEFAULTS,
    layer_kinds=dense,
    waived=RECOMPUTED,
)

QWEN2_MOE = Architecture(
    name="qwen2moe",
    hf_classes=("Qwen2MoeForCausalLM",),
    model_types=("qwen2_moe",),
    tensors=NORMS_AND_ENDS | ATTENTION_2_MOE | DENSE | EXPERTS | SHARED_EXPERT,
    config=DECODER_CONFIG
    | WINDOW_CONFIG
    | MIXTURE_CONFIG
    | {
        "shared_expert_intermediate_size": Reads("expert_shared_feed_forward_length"),
        "qkv_bias": Reads("qkv_bias", True),
    },
    wiring=PRE_NORM_DECODER,
    graphs=(
        graph(
            "qwen2moe",
            fixes={
                "attention.key_length": square("qwen2moe"),
                "norm_topk_prob": Fix(
                    values=(False,),
                    why="the qwen2moe graph never normalises the chosen experts' weights",
                    unless=all_experts_used,
                ),
                "all_layers_mixed": every_layer_mixed("qwen2moe"),
            },
            needs_head=True,
        ),
    ),
    hparams=mixture,
    layer_kinds=sparse_by_step,
    waived=RECOMPUTED,
)

def mixed_3(name: str) -> dict[str, Fix]:
    """What the mixtures of Qwen3 take for granted."""
    why = f"the {name} graph always normalises the chosen experts' weights"
    return {
        "norm_topk_prob": Fix(values=(True,), why=why, unless=all_experts_used),
        "all_layers_mixed": every_layer_mixed(name),
    }


QWEN3 = Architecture(
    name="qwen3",
    hf_classes=("Qwen3ForCausalLM", "Qwen3VLForConditionalGeneration"),
    model_types=("qwen3", "qwen3_vl_text"),
    tensors=NORMS_AND_ENDS | ATTENTION_3 | DENSE,
    config=DECODER_CONFIG | WINDOW_CONFIG | {"attention_bias": Reads("attention_bias", False)},
    wiring=PRE_NORM_DECODER,
    graphs=(graph("qwen3"), seeing("qwen3vl")),
    hparams=with_sections(window),
    part_defaults=PART_DEFAULTS,
    layer_kinds=dense,
    waived=RECOMPUTED,
)

QWEN3_MOE = Architecture(
    name="qwen3moe",
    hf_classes=("Qwen3MoeForCausalLM", "Qwen3VLMoeForConditionalGeneration"),
    model_types=("qwen3_moe", "qwen3_vl_moe_text", "qwen3_omni_moe_text"),
    tensors=NORMS_AND_ENDS | ATTENTION_3 | DENSE | EXPERTS,
    config=DECODER_CONFIG | WINDOW_CONFIG | MIXTURE_CONFIG | {"attention_bias": Reads("attention_bias", False)},
    wiring=PRE_NORM_DECODER,
    graphs=(graph("qwen3moe", fixes=mixed_3("qwen3moe")), seeing("qwen3vlmoe", **mixed_3("qwen3vlmoe"))),
    hparams=with_sections(mixture_3),
    part_defaults=PART_DEFAULTS,
    layer_kinds=sparse_by_step,
    waived=RECOMPUTED,
)


@hookimpl
def llmfit_architectures() -> Iterable[Architecture]:
    """The four families, and the hybrid ones."""
    from llmfit_qwen2.hybrid import HYBRIDS

    return (QWEN2, QWEN2_MOE, QWEN3, QWEN3_MOE, *HYBRIDS)
