"""Qwen3-Next and Qwen3.5: layers of attention with a gate among layers of gated delta nets, stated once as data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from llmfit_core import (
    DECODER_CONFIG,
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
    UnsupportedError,
)
from llmfit_core.roles import PRE_NORM_DECODER
from llmfit_qwen2 import (
    EXPERTS,
    KEYS,
    QKV,
    RECOMPUTED,
    SHARED_EXPERT,
    SILU,
    all_experts_used,
    every_layer_mixed,
    sparse_by_step,
)
from llmfit_qwen2.nets import (
    ALPHA,
    BETA,
    BETA_ALPHA,
    CONV,
    DECAY,
    FORMS,
    FORMS_35,
    GROUPS,
    NET_K,
    NET_Q,
    NET_V,
    NET_Z,
    SIZE,
    STEP,
    VALUE_SIZE,
    VALUES,
)

FULL, LINEAR = "full_attention", "linear_attention"
INNER, KERNEL = "ssm.inner_size", "ssm.conv_kernel"
INTERVAL, RECURRENT = "full_attention_interval", "attention.recurrent_layers"
_CORRECT = "Correct config.json, as the model's authors published it."


def _net(name: str) -> str:
    return f"model.layers.{{layer}}.linear_attn.{name}"


ENDS_AND_ATTENTION: dict[str, str | Slot | Fused] = {
    "model.embed_tokens": Role.EMBED,
    "model.layers.{layer}.input_layernorm": Slot(Role.ATTN_NORM, shift=1.0),
    # Of each head its query, then its gate.
    "model.layers.{layer}.self_attn.q_proj": Slot(Role.ATTN_Q, bias="attention_bias", when="full"),
    "model.layers.{layer}.self_attn.k_proj": Slot(Role.ATTN_K, bias="attention_bias", when="full"),
    "model.layers.{layer}.self_attn.v_proj": Slot(Role.ATTN_V, bias="attention_bias", when="full"),
    "model.layers.{layer}.self_attn.o_proj": Slot(Role.ATTN_OUT, bias="attention_bias", when="full"),
    "model.layers.{layer}.self_attn.q_norm": Slot(Role.ATTN_Q_NORM, shift=1.0, when="full"),
    "model.layers.{layer}.self_attn.k_norm": Slot(Role.ATTN_K_NORM, shift=1.0, when="full"),
    "model.layers.{layer}.post_attention_layernorm": Slot(Role.FFN_NORM, shift=1.0),
    "model.norm": Slot(Role.OUTPUT_NORM, shift=1.0),
    "lm_head": Slot(Role.HEAD, optional=True),
}
NET: dict[str, str | Slot | Fused] = {
    _net("conv1d"): Slot(CONV, when="linear"),
    _net("A_log"): Slot(DECAY, when="linear", bare=True),
    _net("dt_bias"): Slot(STEP, when="linear", bare=True, part="bias"),
    _net("norm"): Slot("ssm_norm", when="linear"),
    _net("out_proj"): Slot("ssm_out", when="linear"),
}
# Qwen3-Next has one matrix whose rows are grouped by key heads; Qwen3.5 has them apart.
GROUPED: dict[str, str | Slot | Fused] = {
    _net("in_proj_qkvz"): Slot(Fused((NET_Q, NET_K, NET_V, NET_Z), groups=GROUPS), when="linear"),
    _net("in_proj_ba"): Slot(BETA_ALPHA, when="linear"),
}
APART: dict[str, str | Slot | Fused] = {
    _net("in_proj_qkv"): Slot(Fused((NET_Q, NET_K, NET_V)), when="linear"),
    _net("in_proj_z"): Slot(NET_Z, when="linear"),
    _net("in_proj_b"): Slot(BETA, when="linear"),
    _net("in_proj_a"): Slot(ALPHA, when="linear"),
}
DENSE: dict[str, str | Slot | Fused] = {
    "model.layers.{layer}.mlp.gate_proj": Role.FFN_GATE,
    "model.layers.{layer}.mlp.up_proj": Role.FFN_UP,
    "model.layers.{layer}.mlp.down_proj": Role.FFN_DOWN,
}
MIXED = EXPERTS | SHARED_EXPERT

WIDTH = "embedding_length"
SHAPES: dict[str, Any] = {
    Role.ATTN_Q: (("attention.head_count", 2, "attention.key_length"), WIDTH),
    NET_Q: ((GROUPS, SIZE), WIDTH),
    NET_K: ((GROUPS, SIZE), WIDTH),
    NET_V: (INNER, WIDTH),
    NET_Z: (INNER, WIDTH),
    BETA_ALPHA: ((2, VALUES), WIDTH),
    BETA: (VALUES, WIDTH),
    ALPHA: (VALUES, WIDTH),
    CONV: ("conv_rows", 1, KERNEL),
    DECAY: (VALUES,),
    STEP: (VALUES,),
    "ssm_norm": (VALUE_SIZE,),
    "ssm_out": (WIDTH, INNER),
}

CONFIG: dict[str, Reads | Asserts | Ignores] = {
    **DECODER_CONFIG,
    "head_dim": Reads("attention.key_length", 256),
    "partial_rotary_factor": Reads("partial_rotary_factor", 0.25),
    "attention_bias": Reads("attention_bias", False),
    "layer_types": Reads("layer_types", None, kind="texts"),
    "full_attention_interval": Reads("attention_every", 4, kind="count"),
    "linear_conv_kernel_dim": Reads(KERNEL, 4, kind="count"),
    "linear_key_head_dim": Reads(SIZE, 128, kind="count"),
    "linear_value_head_dim": Reads(VALUE_SIZE, 128, kind="count"),
    "linear_num_key_heads": Reads(GROUPS, 16, kind="count"),
    "linear_num_value_heads": Reads(VALUES, 32, kind="count"),
    "attn_output_gate": Asserts((True, None), "attention would have no gate"),
    "mlp_only_layers": Reads("mlp_only_layers", None, kind="counts"),
    "use_sliding_window": Ignores("the class has no such key"),
    "mamba_ssm_dtype": Ignores("how it runs, not what it computes"),
    "mtp_num_hidden_layers": Ignores("layers that predict further tokens are left out"),
    "mtp_use_dedicated_embeddings": Ignores("layers that predict further tokens are left out"),
    "mrope_section": Reads("mrope_section", None, kind="counts"),
    "mrope_interleaved": Ignores("which pairs take which of three equal positions; a graph has its own order"),
}
MIXTURE: dict[str, Reads | Asserts | Ignores] = {
    "intermediate_size": Reads("feed_forward_length", None),
    "num_experts": Reads("expert_count"),
    "num_local_experts": Reads("expert_count"),
    "num_experts_per_tok": Reads("expert_used_count"),
    "moe_intermediate_size": Reads("expert_feed_forward_length"),
    "shared_expert_intermediate_size": Reads("expert_shared_feed_forward_length"),
    "decoder_sparse_step": Reads("decoder_sparse_step", 1),
}


def kinds_by(flags: Sequence[object] | None, every: int, layers: int) -> tuple[str, ...]:
    """The layers' kinds by llama.cpp's keys: a flag for each, or every n-th layer attends to everything."""
    if flags is not None:
        return tuple(LINEAR if f else FULL for f in list(flags)[:layers])
    return tuple(LINEAR if (i + 1) % every else FULL for i in range(layers))


def derive(hparams: Mapping[str, Any]) -> dict[str, object]:
    """Each layer's kind and the sizes of the delta nets."""
    layers, every = hparams["block_count"], hparams.get("attention_every") or 0
    stated = hparams.get("layer_types")
    if stated is None and not every:
        raise UnsupportedError("config-value", "full_attention_interval in config.json is 0", _CORRECT)
    found = tuple(stated) if stated is not None else kinds_by(None, every, layers)
    odd = [k for k in found if k not in (FULL, LINEAR)]
    if odd or len(found) != layers:
        what = f"names {odd[0]}" if odd else f"has {len(found)} entries for {layers} layers"
        raise UnsupportedError("config-value", f"layer_types in config.json {what}", _CORRECT)
    if FULL not in found:
        raise UnsupportedError("config-value", f"layer_types in config.json names no {FULL}, which the class needs", _CORRECT)
    groups, values = hparams[GROUPS], hparams[VALUES]
    if not groups or not values or values % groups:
        message = f"linear_num_value_heads {values} is no multiple of linear_num_key_heads {groups}"
        raise UnsupportedError("config-value", message, _CORRECT)
    inner = values * hparams[VALUE_SIZE]
    return {
        "layer_types": found,
        INNER: inner,
        "conv_rows": 2 * groups * hparams[SIZE] + inner,
        "nets": LINEAR in found,
        "equal_heads": hparams[SIZE] == hparams[VALUE_SIZE],
        "rope.dimension_count": int(hparams["attention.key_length"] * (hparams.get("partial_rotary_factor") or 1.0)),
        "all_layers_mixed": all("mixed" in sparse_by_step(hparams, i) for i in range(layers))
        if hparams.get("expert_count")
        else None,
    }


def kinds_of_layer(hparams: Mapping[str, Any], layer: int) -> frozenset[str]:
    """Whether it attends or is a delta net, and whether it is mixed."""
    kind = "linear" if hparams["layer_types"][layer] == LINEAR else "full"
    return frozenset({kind}) | (sparse_by_step(hparams, layer) if hparams.get("expert_count") else frozenset({"dense"}))


def written(hparams: Mapping[str, Any]) -> dict[str, object]:
    """Which layers attend: a flag for each, and every n-th where that says it."""
    found = tuple(hparams["layer_types"])
    every = next((n for n in range(1, len(found) + 2) if kinds_by(None, n, len(found)) == found), None)
    return {INTERVAL: every, RECURRENT: [k == LINEAR for k in found]}


def written_35(hparams: Mapping[str, Any]) -> dict[str, object]:
    """The same, and how pairs are shared out among time, height and width: of a text all three are one."""
    stated = tuple(hparams.get("mrope_section") or (11, 11, 10))[:4]
    return {**written(hparams), "rope.dimension_sections": (*stated, *[0] * (4 - len(stated)))}


def assumed(keys: Mapping[str, Any]) -> dict[str, object]:
    """What a file's keys say in the table's words."""
    sections = [int(n) for n in keys.get("rope.dimension_sections") or ()]
    return {
        "layer_types": kinds_by(keys.get(RECURRENT), keys.get(INTERVAL, 4), keys["block_count"]),
        VALUE_SIZE: keys[INNER] // keys[VALUES],
        **({"mrope_section": tuple(sections[:3] if sections[3:] == [0] else sections)} if sections else {}),
    }


_OF_EXPERTS = tuple(k for k in KEYS if k.startswith("expert_"))
_DENSE_WIDTH = "feed_forward_length"
LOADED = (*(k for k in KEYS if not k.startswith("expert_") and k != _DENSE_WIDTH), "rope.dimension_count", KERNEL, SIZE, GROUPS, VALUES, INNER, INTERVAL, RECURRENT)


def graph(name: str, **more: Any) -> Graph:
    """A graph of llama.cpp's hybrid Qwens."""
    fixes = {
        "hidden_act": SILU,
        "equal_heads": Fix(
            values=(True, None), why=f"linear_key_head_dim is not linear_value_head_dim, and the {name} graph has one size"
        ),
        "nets": Fix(values=(True, None), why=f"layer_types names no {LINEAR}, without which the {name} graph aborts"),
        "attention.layer_norm_rms_epsilon": Fix(
            values=(1e-6,), why=f"the {name} graph takes it for the delta nets' own epsilon too, which the model has at 1e-06"
        ),
        **more.pop("fixes", {}),
    }
    return Graph(
        format="gguf",
        name=name,
        engine="llama.cpp",
        keys=LOADED + more.pop("keys", ()),
        fixes=fixes,
        merges={"attn_qkv": (NET_Q, NET_K, NET_V)},
        spelling={Role.FFN_NORM: "post_attention_norm"},
        bare=frozenset({DECAY}),
        assumes=assumed,
        rope=frozenset({"default", "linear", "yarn", "dynamic"}),
        biases=QKV | {STEP},
        **more,
    )


def _mixed(name: str) -> dict[str, Fix]:
    return {"all_layers_mixed": every_layer_mixed(name)}


def wiring(*of_nets: str) -> tuple[Link, ...]:
    """The usual links; the first norm feeds attention in some layers and a delta net in others."""
    sinks = (Role.ATTN_Q, Role.ATTN_K, Role.ATTN_V, NET_Q, NET_K, NET_V, NET_Z, *of_nets)
    return (Link(source=Role.ATTN_NORM, sinks=sinks), *PRE_NORM_DECODER[1:])


def _ahead(tensors: Mapping[str, str | Slot | Fused]) -> dict[str, str]:
    """Layers that predict further tokens, behind `mtp.`, look like the model's own."""
    names = [p.replace("model.layers.", "mtp.layers.") for p in tensors if "{layer}" in p and "linear_attn" not in p]
    names += ["mtp.fc", "mtp.norm", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.embed_tokens", "mtp.lm_head"]
    return dict.fromkeys(names, "predicts further tokens; the model answers without it")


_NEXT = ENDS_AND_ATTENTION | NET | GROUPED | MIXED
_DENSE_35 = ENDS_AND_ATTENTION | NET | APART | DENSE
_MIXED_35 = ENDS_AND_ATTENTION | NET | APART | MIXED
_DEFAULT_35 = {
    "hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 12288, "num_attention_heads": 16,
    "num_key_value_heads": 4, "max_position_embeddings": 32768,
}  # fmt: skip
_DEFAULT_35_MOE = {
    "hidden_size": 2048, "num_hidden_layers": 40, "num_attention_heads": 16, "num_key_value_heads": 2, "num_experts": 256,
    "max_position_embeddings": 32768, "num_experts_per_tok": 8, "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}  # fmt: skip

QWEN3_NEXT = Architecture(
    name="qwen3next",
    hf_classes=("Qwen3NextForCausalLM",),
    model_types=("qwen3_next",),
    tensors=_NEXT,
    config=CONFIG | MIXTURE | {"norm_topk_prob": Reads("norm_topk_prob", True)},
    wiring=wiring(BETA_ALPHA),
    graphs=(
        graph(
            "qwen3next",
            keys=(_DENSE_WIDTH, *_OF_EXPERTS),
            forms=FORMS,
            values=written,
            fixes={
                "norm_topk_prob": Fix(
                    values=(True,),
                    why="the qwen3next graph always normalises the chosen experts' weights",
                    unless=all_experts_used,
                ),
                **_mixed("qwen3next"),
            },
        ),
    ),
    shapes=SHAPES,
    hparams=derive,
    layer_kinds=kinds_of_layer,
    waived=RECOMPUTED | _ahead(_NEXT),
)

QWEN35 = Architecture(
    name="qwen35",
    hf_classes=("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"),
    model_types=("qwen3_5_text", "qwen3_5"),
    tensors=_DENSE_35,
    config=CONFIG,
    wiring=wiring(BETA, ALPHA),
    graphs=(graph("qwen35", keys=(_DENSE_WIDTH, "rope.dimension_sections"), forms=FORMS | FORMS_35, values=written_35),),
    shapes=SHAPES,
    hparams=derive,
    layer_kinds=kinds_of_layer,
    waived=RECOMPUTED | _ahead(_DENSE_35),
    part_defaults={"qwen3_5_text": _DEFAULT_35},
)

QWEN35_MOE = Architecture(
    name="qwen35moe",
    hf_classes=("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"),
    model_types=("qwen3_5_moe_text", "qwen3_5_moe"),
    tensors=_MIXED_35,
    config=CONFIG | MIXTURE | {"norm_topk_prob": Asserts((True, None), "this class always normalises")},
    wiring=wiring(BETA, ALPHA),
    graphs=(
        graph(
            "qwen35moe",
            keys=("rope.dimension_sections", *_OF_EXPERTS),
            forms=FORMS | FORMS_35,
            values=written_35,
            fixes=_mixed("qwen35moe"),
        ),
    ),
    shapes=SHAPES,
    hparams=derive,
    layer_kinds=kinds_of_layer,
    waived=RECOMPUTED | _ahead(_MIXED_35),
    part_defaults={"qwen3_5_moe_text": _DEFAULT_35_MOE},
)

HYBRIDS: Iterable[Architecture] = (QWEN3_NEXT, QWEN35, QWEN35_MOE)
