"""Falcon-H1: attention and a Mamba-2 beside each other in every layer, with a multiplier nearly everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from llmfit_core import DECODER_CONFIG, PRE_NORM_DECODER, Architecture, Fix, Form, Graph, Link, Reads, Role, Slot
from llmfit_core.transform import Affine, Concat, Slice
from llmfit_recurrent.forms import (
    CONV,
    DECAY,
    EPSILON,
    GROUPS,
    IN,
    INNER,
    KV_HEADS,
    LIMITED,
    MAMBA2_FORMS,
    MAMBA2_SHAPES,
    NET_CONFIG,
    NORM,
    OUT,
    RANK,
    SKIP,
    SSM_KEYS,
    STATE,
    STEP,
    WIDTH,
    attention,
    biased,
    gated,
    limited,
    mamba2_sizes,
    net,
    silu,
    unlimited,
)

if TYPE_CHECKING:
    from llmfit_core.tensors import Tensor

_LAYER = "model.layers.{layer}"
_NAME = "falcon-h1"
_IN, _PARTS = "ssm_in_multiplier", "ssm_multipliers"
_TENSORS = net(f"{_LAYER}.mamba") | {
    f"{_LAYER}.mamba.norm": Slot(NORM, when="normed"),
    f"{_LAYER}.mamba.out_proj": Slot(OUT, bias="projectors_bias"),
}


def derived(hparams: Mapping[str, Any]) -> dict[str, object]:
    """Sizes that the class computes."""
    inner = hparams.get(INNER) or hparams["expand"] * hparams[WIDTH]
    return {
        INNER: inner,
        LIMITED: limited(hparams),
        "norm_before_gate": bool(hparams["normed"] and hparams["norm_first"]),
        **mamba2_sizes(inner, hparams[RANK], hparams[GROUPS], hparams[STATE]),
    }


def multipliers(hparams: Mapping[str, Any]) -> dict[str, float]:
    """Factors of the results of matrices, which the graph does not know."""
    entering = float(hparams.get("attention_in_multiplier", 1.0))
    gate, down = hparams.get("mlp_multipliers") or (1.0, 1.0)
    factors = {
        Role.EMBED: float(hparams.get("embedding_multiplier", 1.0)),
        Role.HEAD: float(hparams.get("lm_head_multiplier", 1.0)),
        Role.ATTN_Q: entering,
        Role.ATTN_K: entering * float(hparams.get("key_multiplier", 1.0)),
        Role.ATTN_V: entering,
        Role.ATTN_OUT: float(hparams.get("attention_out_multiplier", 1.0)),
        OUT: float(hparams.get("ssm_out_multiplier", 1.0)),
        Role.FFN_GATE: float(gate),
        Role.FFN_DOWN: float(down),
    }
    return {role: factor for role, factor in factors.items() if factor != 1.0}


def _by_part(tensor: Tensor, hparams: Mapping[str, Any], *, back: bool = False) -> Tensor:
    """Gate, input, B, C and steps in one matrix, each by its own factor."""
    factors = tuple(hparams.get(_PARTS) or (1.0,) * 5)
    entering = float(hparams.get(_IN, 1.0))
    if entering == 1.0 and set(factors) == {1.0}:
        return tensor
    inner, shared = hparams[INNER], hparams[GROUPS] * hparams[STATE]
    parts, at = [], 0
    for rows, factor in zip((inner, inner, shared, shared, hparams[RANK]), factors, strict=True):
        scale = float(factor) * entering
        parts.append(Affine(Slice(tensor, at, at + rows), scale=1 / scale if back else scale))
        at += rows
    return Concat(tuple(parts))


def assumed(keys: Mapping[str, Any]) -> dict[str, object]:
    """What a file's keys and tensors say in the table's words."""
    roles = keys["roles"]
    return {"normed": NORM in roles, "norm_first": False}


FALCON_H1 = Architecture(
    name="falcon_h1",
    hf_classes=("FalconH1ForCausalLM",),
    model_types=("falcon_h1",),
    tensors={
        "model.embed_tokens": Role.EMBED,
        f"{_LAYER}.input_layernorm": Role.ATTN_NORM,
        **attention("attention_bias"),
        **_TENSORS,
        f"{_LAYER}.pre_ff_layernorm": Role.FFN_NORM,
        **gated(f"{_LAYER}.feed_forward", "mlp_bias"),
        "model.final_layernorm": Role.OUTPUT_NORM,
        "lm_head": Slot(Role.HEAD, optional=True),
    },
    config=DECODER_CONFIG
    | NET_CONFIG
    | {
        "num_key_value_heads": Reads(KV_HEADS, 8),
        "rms_norm_eps": Reads(EPSILON, 1e-5),
        "max_position_embeddings": Reads("context_length", 8192),
        "attention_bias": Reads("attention_bias", False),
        "mlp_bias": Reads("mlp_bias", False),
        "projectors_bias": Reads("projectors_bias", False),
        "mamba_d_ssm": Reads(INNER, 1024, null_is_none=True, kind="count"),
        "mamba_rms_norm": Reads("normed", False),
        "mamba_norm_before_gate": Reads("norm_first", True),
        "embedding_multiplier": Reads("embedding_multiplier", 1.0, kind="number"),
        "lm_head_multiplier": Reads("lm_head_multiplier", 1.0, kind="number"),
        "key_multiplier": Reads("key_multiplier", 1.0, kind="number"),
        "attention_in_multiplier": Reads("attention_in_multiplier", 1.0, kind="number"),
        "attention_out_multiplier": Reads("attention_out_multiplier", 1.0, kind="number"),
        "ssm_in_multiplier": Reads(_IN, 1.0, kind="number"),
        "ssm_out_multiplier": Reads("ssm_out_multiplier", 1.0, kind="number"),
        "mlp_multipliers": Reads("mlp_multipliers", None),
        "ssm_multipliers": Reads(_PARTS, None),
    },
    wiring=(
        Link(source=Role.ATTN_NORM, sinks=(Role.ATTN_Q, Role.ATTN_K, Role.ATTN_V, IN)),
        *PRE_NORM_DECODER[1:],
        Link(source=NORM, sinks=(OUT,)),
    ),
    graphs=(
        Graph(
            format="gguf",
            name=_NAME,
            engine="llama.cpp",
            keys=(
                "block_count", "context_length", WIDTH, "feed_forward_length", "attention.head_count", KV_HEADS,
                "rope.freq_base", EPSILON, "attention.key_length", "attention.value_length", "vocab_size", *SSM_KEYS, GROUPS,
            ),
            fixes={
                "hidden_act": silu(_NAME),
                "use_conv_bias": biased(_NAME),
                LIMITED: unlimited(_NAME),
                "norm_before_gate": Fix(values=(False, None), why=f"the {_NAME} graph norms behind the gate"),
                "partial_rotary_factor": Fix(values=(1.0, 1), why=f"the {_NAME} graph rotates whole heads"),
            },
            rope=frozenset({"default", "linear", "yarn", "dynamic"}),
            forms=MAMBA2_FORMS
            | {IN: Form(there=_by_part, back=lambda t, hp: _by_part(t, hp, back=True))},
            bare=frozenset({DECAY, SKIP, Role.FFN_NORM}),
            assumes=assumed,
            scales=multipliers,
            biases=frozenset({CONV, STEP, Role.FFN_GATE, Role.FFN_UP, Role.FFN_DOWN}),
            needs_head=True,
        ),
    ),
    shapes=MAMBA2_SHAPES,
    hparams=derived,
    layer_kinds=lambda hp, _: frozenset({"normed"} if hp["normed"] else ()),
)  # fmt: skip
