"""ERNIE 4.5 with experts: softmax, a correcting bias, and shared experts, behind the attention of the dense models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmfit_core import PRE_NORM_DECODER, Architecture, Asserts, Fix, Fused, Graph, Ignores, Reads, Role, Slot
from llmfit_open.common import ENDS, KEYS, PLAIN_ROPE, PRE_NORMS, QKV, RECOMPUTED, attention, common_fixes, wrong
from llmfit_open.ernie import ERNIE4_5

_MLP = "model.layers.{layer}.mlp"
FURTHER_NAMES = (
    *(f"model.mtp_{name}.{{layer}}" for name in ("emb_norm", "hidden_norm", "linear_proj")),
    *(f"model.mtp_block.{{layer}}.{name}" for name in ("input_layernorm", "post_attention_layernorm")),
    *(f"model.mtp_block.{{layer}}.self_attn.{x}_proj" for x in "qkvo"),
    *(f"model.mtp_block.{{layer}}.mlp.{x}_proj" for x in ("gate", "up", "down")),
)
FURTHER = "part of a layer that predicts further tokens, which the model itself does not run"


def mixed(hparams: Mapping[str, Any], layer: int) -> bool:
    """Whether a layer has experts (transformers' `Ernie4_5_MoeDecoderLayer`)."""
    return bool(
        (layer + 1) % hparams["moe_layer_interval"] == 0
        and hparams["leading_dense_block_count"] <= layer <= hparams["moe_layer_end_index"]
    )


def kinds(hparams: Mapping[str, Any], layer: int) -> frozenset[str]:
    """Dense or mixed, and whether experts are shared."""
    if not mixed(hparams, layer):
        return frozenset({"dense"})
    return frozenset({"mixed", "sharing"} if hparams["expert_shared_count"] else {"mixed"})


def feed_forward() -> dict[str, str | Slot | Fused]:
    """Dense layers, shared and routed experts."""
    out: dict[str, str | Slot | Fused] = {
        f"{_MLP}.gate": Slot(Role.FFN_ROUTER, when="mixed"),
        f"{_MLP}.moe_statics.e_score_correction_bias": Slot(
            Role.EXPERT_BIAS, when="mixed", bare=True, part="bias", ones=1
        ),
        f"{_MLP}.experts.gate_up_proj": Slot(
            Fused((Role.FFN_GATE_EXPS, Role.FFN_UP_EXPS)), when="mixed", either_way=True, bare=True
        ),
        f"{_MLP}.experts.down_proj": Slot(Role.FFN_DOWN_EXPS, when="mixed", either_way=True, bare=True),
    }
    for x, role, shared, routed in (
        ("gate", Role.FFN_GATE, Role.FFN_GATE_SHEXP, Role.FFN_GATE_EXPS),
        ("up", Role.FFN_UP, Role.FFN_UP_SHEXP, Role.FFN_UP_EXPS),
        ("down", Role.FFN_DOWN, Role.FFN_DOWN_SHEXP, Role.FFN_DOWN_EXPS),
    ):
        out[f"{_MLP}.{x}_proj"] = Slot(role, bias="use_bias", when="dense")
        out[f"{_MLP}.shared_experts.{x}_proj"] = Slot(shared, bias="use_bias", when="sharing")
        out[f"{_MLP}.experts.{{expert}}.{x}_proj"] = Slot(routed, when="mixed")
    return out


def layers_and_widths(hparams: Mapping[str, Any]) -> dict[str, object]:
    """Which layers have experts, and how wide the shared ones are together."""
    layers, end = hparams["block_count"], hparams.get("moe_layer_end_index")
    if end is not None and (isinstance(end, bool) or not isinstance(end, int) or end < -1):
        raise wrong(f"moe_layer_end_index in config.json is {end!r:.40}")
    end = layers - 1 if end in (None, -1) else end
    if hparams["moe_layer_interval"] < 1:
        raise wrong(f"moe_layer_interval in config.json is {hparams['moe_layer_interval']}")
    held = [mixed({**hparams, "moe_layer_end_index": end}, n) for n in range(layers)]
    shared = hparams["expert_shared_count"] * hparams["expert_feed_forward_length"]
    return {
        "moe_layer_end_index": end,
        "expert_shared_feed_forward_length": shared or None,
        "dense_layers_come_first": True in held and all(held[held.index(True) :]),
        "interleave_moe_layer_step": 1,
    }


def said_by_file(keys: Mapping[str, Any]) -> dict[str, object]:
    """What a file's keys mean in a config's words."""
    width, each = keys.get("expert_shared_feed_forward_length") or 0, keys.get("expert_feed_forward_length") or 1
    return {
        "leading_dense_block_count": 0,
        "moe_layer_interval": keys.get("interleave_moe_layer_step", 1),
        "expert_shared_count": width // each,
    }


def first_mixed(hparams: Mapping[str, Any]) -> dict[str, object]:
    """Dense layers in front, whatever the interval: where it is more than one, the first with experts may come later."""
    lead = next((n for n in range(hparams["block_count"]) if mixed(hparams, n)), hparams["block_count"])
    return {"leading_dense_block_count": lead}


ERNIE4_5_MOE = Architecture(
    name="ernie4_5-moe",
    hf_classes=("Ernie4_5_MoeForCausalLM",),
    model_types=("ernie4_5_moe",),
    tensors=ENDS
    | {"lm_head": Slot(Role.HEAD, bias="use_bias", optional=True)}
    | PRE_NORMS
    | attention("use_bias")
    | feed_forward(),
    config={k: v for k, v in ERNIE4_5.config.items() if k != "head_dim"}
    | {
        "head_dim": Reads("attention.key_length", None),
        "moe_num_experts": Reads("expert_count", 64),
        "moe_k": Reads("expert_used_count", 6),
        "moe_num_shared_experts": Reads("expert_shared_count", 2),
        "moe_intermediate_size": Reads("expert_feed_forward_length", 1536),
        "moe_layer_start_index": Reads("leading_dense_block_count", 1),
        "moe_layer_end_index": Reads("moe_layer_end_index", None),
        "moe_layer_interval": Reads("moe_layer_interval", 1),
        "moe_norm_min": Asserts((1e-12,), "the weights of chosen experts would be divided by at least so much"),
        "moe_gate": Asserts(("topk",), "experts would be chosen otherwise"),
        "moe_use_aux_free": Asserts((True,), "experts would be chosen without a correcting bias"),
        "moe_capacity": Ignores("training only"),
        "num_nextn_predict_layers": Ignores("what predicts further tokens is left out by its names"),
    },
    wiring=PRE_NORM_DECODER,
    graphs=(
        Graph(
            format="gguf",
            name="ernie4_5-moe",
            engine="llama.cpp",
            keys=(
                *KEYS,
                "expert_count",
                "expert_used_count",
                "interleave_moe_layer_step",
                "leading_dense_block_count",
                "expert_feed_forward_length",
                "expert_shared_count",
                "expert_shared_feed_forward_length",
            ),
            fixes=common_fixes("ernie4_5-moe")
            | {
                "use_bias": Fix(values=(False,), why="the ernie4_5-moe graph adds no biases behind attention and in the feed-forward"),
                "dense_layers_come_first": Fix(
                    values=(True,), why="the loader wants experts in every layer from the first that has them to the last"
                ),
            },
            rope=PLAIN_ROPE,
            rope_rows="pairs",
            values=first_mixed,
            assumes=said_by_file,
            biases=QKV | {Role.EXPERT_BIAS},
        ),
    ),
    shapes={Role.EXPERT_BIAS: ("expert_count",)},
    hparams=layers_and_widths,
    layer_kinds=kinds,
    waived=RECOMPUTED | dict.fromkeys(FURTHER_NAMES, FURTHER),
    rope_rows="pairs",
)
