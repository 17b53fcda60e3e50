"""Granite 4: layers of Mamba-2 and of attention, each followed by a shared and perhaps by chosen experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmfit_core import DECODER_CONFIG, Architecture, Fix, Fused, Graph, Reads, Role, Slot, UnsupportedError
from llmfit_recurrent.forms import (
    ATTENDING,
    CONV,
    DECAY,
    EPSILON,
    GROUPS,
    KV_HEADS,
    MAMBA2_FORMS,
    MAMBA2_SHAPES,
    NET,
    NET_CONFIG,
    SKIP,
    SSM_KEYS,
    STEP,
    WIDTH,
    WIRING,
    Table,
    attention,
    biased,
    heads_by_layer,
    net,
    net_sizes,
    silu,
    twice_as_wide,
    unlimited,
)

SHARED_WIDTH, ROPED, USED = "expert_shared_feed_forward_length", "rope.scaling.finetuned", "experts_used"
_LAYER = "model.layers.{layer}"
_MOE = f"{_LAYER}.block_sparse_moe"
_GATE_UP = Fused((Role.FFN_GATE_EXPS, Role.FFN_UP_EXPS))
TENSORS: Table = {
    "model.embed_tokens": Role.EMBED,
    f"{_LAYER}.input_layernorm": Role.ATTN_NORM,
    **attention("attention_bias", when=ATTENDING),
    **net(f"{_LAYER}.mamba", when=NET),
    f"{_LAYER}.post_attention_layernorm": Role.FFN_NORM,
    # As files have them, and as transformers 5 holds them in memory.
    f"{_MOE}.input_linear": Slot(_GATE_UP, when="mixed"),
    f"{_MOE}.output_linear": Slot(Role.FFN_DOWN_EXPS, when="mixed"),
    f"{_MOE}.router.layer": Slot(Role.FFN_ROUTER, when="mixed"),
    f"{_MOE}.experts.gate_up_proj": Slot(_GATE_UP, bare=True, when="mixed"),
    f"{_MOE}.experts.down_proj": Slot(Role.FFN_DOWN_EXPS, bare=True, when="mixed"),
    f"{_MOE}.router": Slot(Role.FFN_ROUTER, when="mixed"),
    f"{_LAYER}.shared_mlp.input_linear": Fused((Role.FFN_GATE_SHEXP, Role.FFN_UP_SHEXP)),
    f"{_LAYER}.shared_mlp.output_linear": Role.FFN_DOWN_SHEXP,
    "model.norm": Role.OUTPUT_NORM,
    "lm_head": Slot(Role.HEAD, optional=True),
}
ATTENTION_KINDS, NET_KINDS = ("attention", "full_attention"), ("mamba", "linear_attention")


def derived(hparams: Mapping[str, Any]) -> dict[str, object]:
    """Which layers attend, with rope or without, and sizes that the class computes."""
    layers = hparams["block_count"]
    kinds = hparams.get("layer_types") or ("mamba",) * layers
    odd = [k for k in kinds if k not in ATTENTION_KINDS + NET_KINDS]
    if odd or len(kinds) != layers:
        what = f"names {odd[0]}" if odd else f"has {len(kinds)} entries for {layers} layers"
        message = f"layer_types in config.json {what}"
        raise UnsupportedError("config-value", message, "Correct config.json, as the model's authors published it.")
    attending = tuple(k in ATTENTION_KINDS for k in kinds)
    mixed = bool(hparams.get("expert_count"))
    return {
        **net_sizes(hparams),
        "attending_layers": attending,
        "nets": not all(attending),
        "attends": any(attending),
        "mixed": mixed,
        ROPED: hparams.get("position_embedding_type") == "rope",
        "expert_feed_forward_length": hparams["feed_forward_length"],
        "expert_used_count": hparams[USED] if mixed else None,
    }


def kinds_of_layer(hparams: Mapping[str, Any], layer: int) -> frozenset[str]:
    """Whether it attends, and whether it has experts to choose from."""
    return frozenset({ATTENDING if hparams["attending_layers"][layer] else NET, *(["mixed"] if hparams["mixed"] else [])})


def assumed(keys: Mapping[str, Any]) -> dict[str, object]:
    """What a file's keys say in the table's words."""
    by_layer = keys.get(f"{KV_HEADS}_by_layer") or (1,) * keys["block_count"]
    inner = keys.get("ssm.inner_size", 2 * keys[WIDTH])
    width = keys.get("feed_forward_length", 0)
    return {
        "layer_types": tuple("attention" if heads else "mamba" for heads in by_layer),
        "position_embedding_type": "rope" if keys.get(ROPED, True) else "nope",
        "expand": inner // keys[WIDTH],
        "expert_count": 0,
        USED: keys.get("expert_used_count", 0),
        SHARED_WIDTH: width,
        "attention.scale": keys.get("attention.key_length", 1) ** -0.5,
        "embedding_scale": 1.0,
        "residual_scale": 1.0,
    }


_NETS = (*SSM_KEYS, GROUPS)
_MIXED = ("expert_count", "expert_used_count", SHARED_WIDTH)
_SPELLING: dict[str, str] = {
    Role.FFN_GATE_SHEXP: Role.FFN_GATE, Role.FFN_UP_SHEXP: Role.FFN_UP, Role.FFN_DOWN_SHEXP: Role.FFN_DOWN,
}  # fmt: skip


def graph(name: str, *, nets: bool, mixed: bool) -> Graph:
    """One of llama.cpp's graphs of Granite. Without experts to choose from, the shared one is the feed-forward."""

    def written(hparams: Mapping[str, Any]) -> dict[str, object]:
        dense = {} if mixed else {"feed_forward_length": hparams[SHARED_WIDTH]}
        return {**dense, **({KV_HEADS: heads_by_layer(hparams)} if nets else {})}

    has = "no layers of Mamba-2" if nets else "layers of Mamba-2"
    experts = "experts" if not mixed else "no experts"
    fixes = {
        "hidden_act": silu(name),
        "mixed": Fix(values=(mixed,), why=f"a model with {experts} is another graph's than this {name}"),
        "nets": Fix(values=(nets,), why=f"a model with {has} is another graph's than {name}"),
    }
    if nets:
        more = {
            "expand": twice_as_wide(name), "use_conv_bias": biased(name), "steps_limited": unlimited(name),
            "attends": Fix(values=(True,), why=f"llama.cpp has no {name} in which no layer attends"),
        }  # fmt: skip
        fixes |= more
    return Graph(
        format="gguf",
        name=name,
        engine="llama.cpp",
        keys=(
            "block_count", "context_length", WIDTH, "feed_forward_length", "attention.head_count", KV_HEADS,
            "rope.freq_base", EPSILON, "attention.key_length", "attention.value_length", "vocab_size",
            "rope.dimension_count", "attention.scale", "embedding_scale", "residual_scale", "logit_scale", ROPED,
            *(_NETS if nets else ()), *(_MIXED if mixed else ()),
        ),
        fixes=fixes,
        rope=frozenset({"default", "linear", "yarn", "dynamic"}),
        rope_rows="pairs",
        spelling={} if mixed else _SPELLING,
        forms=MAMBA2_FORMS,
        bare=frozenset({DECAY, SKIP}),
        by_layer=frozenset({KV_HEADS}),
        values=written,
        assumes=assumed,
        biases=frozenset({CONV, STEP, Role.ATTN_Q, Role.ATTN_K, Role.ATTN_V, Role.ATTN_OUT}),
    )  # fmt: skip


GRANITE_HYBRID = Architecture(
    name="granitemoehybrid",
    hf_classes=("GraniteMoeHybridForCausalLM",),
    model_types=("granitemoehybrid",),
    tensors=TENSORS,
    config=DECODER_CONFIG
    | NET_CONFIG
    | {
        "attention_bias": Reads("attention_bias", False),
        "embedding_multiplier": Reads("embedding_scale", 1.0, kind="number"),
        "residual_multiplier": Reads("residual_scale", 1.0, kind="number"),
        "attention_multiplier": Reads("attention.scale", 1.0, kind="number"),
        "logits_scaling": Reads("logit_scale", 1.0, kind="number"),
        "num_local_experts": Reads("expert_count", 8),
        "num_experts_per_tok": Reads(USED, 2, kind="count"),
        "shared_intermediate_size": Reads(SHARED_WIDTH, 1024),
        "layer_types": Reads("layer_types", None, kind="texts"),
        "layers_block_type": Reads("layer_types", None, kind="texts"),
        "position_embedding_type": Reads("position_embedding_type", None, kind="text"),
    },
    wiring=WIRING,
    graphs=(
        graph("granitehybrid", nets=True, mixed=True),
        graph("granitehybrid", nets=True, mixed=False),
        graph("granitemoe", nets=False, mixed=True),
        graph("granite", nets=False, mixed=False),
    ),
    shapes=MAMBA2_SHAPES,
    hparams=derived,
    layer_kinds=kinds_of_layer,
)
