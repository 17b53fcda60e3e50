"""Families whose code lies beside their weights on the hub: a Llama under other names, or with a factor here and there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmfit_core import (
    DECODER_CONFIG,
    PRE_NORM_DECODER,
    Architecture,
    Asserts,
    Fix,
    Fused,
    Graph,
    Ignores,
    Reads,
    Role,
    Slot,
)
from llmfit_open.common import (
    ENDS,
    KEYS,
    KEYS_LAYER_NORM,
    PLAIN_ROPE,
    PRE_NORMS,
    RECOMPUTED,
    Table,
    attention,
    common_fixes,
    gated,
)

EPSILON = "attention.layer_norm_rms_epsilon"
_LAYER = "model.layers.{layer}"
_PLAIN = frozenset({"default", "linear"})
_TURNED = "rope.dimension_count"


def graph(name: str, *, square: bool = True, **more: Any) -> Graph:
    """A graph of llama.cpp with silu and rope on whole heads; with `square`, heads that fill the width."""
    return Graph(
        format="gguf",
        name=name,
        engine="llama.cpp",
        keys=more.pop("keys", KEYS) + more.pop("more_keys", ()),
        fixes={**common_fixes(name, square=square), **more.pop("fixes", {})},
        rope=more.pop("rope", PLAIN_ROPE),
        **more,
    )


INTERNLM3 = Architecture(
    name="internlm3",
    hf_classes=("InternLM3ForCausalLM",),
    model_types=("internlm3",),
    named_only=True,
    tensors=ENDS | PRE_NORMS | attention("qkv_bias", "bias") | gated("bias"),
    config=DECODER_CONFIG | {"qkv_bias": Reads("qkv_bias", False), "bias": Reads("bias", False)},
    wiring=PRE_NORM_DECODER,
    graphs=(graph("llama", square=False, rope_rows="pairs", rope_factors=True, more_keys=("vocab_size", _TURNED)),),
    waived=RECOMPUTED,
)

XVERSE = Architecture(
    name="xverse",
    hf_classes=("XverseForCausalLM",),
    model_types=("xverse",),
    named_only=True,
    tensors=ENDS | PRE_NORMS | attention() | gated(),
    config=DECODER_CONFIG,
    wiring=PRE_NORM_DECODER,
    graphs=(graph("xverse", rope_rows="pairs", needs_head=True, more_keys=(_TURNED,)),),
    waived=RECOMPUTED,
)

_NORMS: Table = {
    f"{_LAYER}.input_layernorm": Slot(Role.ATTN_NORM, bias=True),
    f"{_LAYER}.post_attention_layernorm": Slot(Role.FFN_NORM, bias=True),
    "model.norm": Slot(Role.OUTPUT_NORM, bias=True),
}
ORION = Architecture(
    name="orion",
    hf_classes=("OrionForCausalLM",),
    model_types=("orion",),
    tensors=ENDS | _NORMS | attention() | gated(),
    config=DECODER_CONFIG
    | {
        # The epsilon of LayerNorms, whatever it is called.
        "rms_norm_eps": Reads("attention.layer_norm_epsilon", 1e-5),
        "attention_bias": Asserts((False, None), "this class has no biases of projections"),
    },
    wiring=PRE_NORM_DECODER,
    graphs=(
        graph(
            "orion", needs_head=True, keys=KEYS_LAYER_NORM, biases=frozenset({Role.ATTN_NORM, Role.FFN_NORM, Role.OUTPUT_NORM})
        ),
    ),
    waived=RECOMPUTED,
)

EXAONE = Architecture(
    name="exaone",
    hf_classes=("ExaoneForCausalLM",),
    model_types=("exaone",),
    tensors={
        "transformer.wte": Role.EMBED,
        "transformer.h.{layer}.ln_1": Role.ATTN_NORM,
        "transformer.h.{layer}.attn.attention.q_proj": Role.ATTN_Q,
        "transformer.h.{layer}.attn.attention.k_proj": Role.ATTN_K,
        "transformer.h.{layer}.attn.attention.v_proj": Role.ATTN_V,
        "transformer.h.{layer}.attn.attention.out_proj": Role.ATTN_OUT,
        "transformer.h.{layer}.ln_2": Role.FFN_NORM,
        "transformer.h.{layer}.mlp.c_fc_0": Role.FFN_GATE,
        "transformer.h.{layer}.mlp.c_fc_1": Role.FFN_UP,
        "transformer.h.{layer}.mlp.c_proj": Role.FFN_DOWN,
        "transformer.ln_f": Role.OUTPUT_NORM,
        "lm_head": Slot(Role.HEAD, optional=True),
    },
    config={k: v for k, v in DECODER_CONFIG.items() if k not in ("num_hidden_layers", "rms_norm_eps", "hidden_act")}
    | {
        "num_layers": Reads("block_count"),
        "num_hidden_layers": Reads("block_count"),
        "layer_norm_epsilon": Reads(EPSILON, 1e-5),
        "activation_function": Reads("hidden_act", "silu"),
        "embed_dropout": Ignores("training only"),
    },
    wiring=PRE_NORM_DECODER,
    graphs=(graph("exaone", rope=PLAIN_ROPE | {"llama3"}, rope_factors=True, more_keys=(_TURNED,)),),
    waived={"transformer.h.{layer}.attn.attention.rotary.inv_freq": "recomputed from config.json"},
)


def scaled(hparams: Mapping[str, Any]) -> dict[str, object]:
    """MiniCPM's two factors that are made of others."""
    return {
        "residual_scale": hparams["scale_depth"] / hparams["block_count"] ** 0.5,
        "logit_scale": hparams["embedding_length"] / hparams["dim_model_base"],
    }


def unscaled(keys: Mapping[str, Any]) -> dict[str, object]:
    """What a MiniCPM's file says in config.json's words; without keys its loader takes the 2B model's own factors."""
    layers, width = keys["block_count"], keys["embedding_length"]
    depth = keys["residual_scale"] * layers**0.5 if "residual_scale" in keys else 1.4
    base = width / keys["logit_scale"] if "logit_scale" in keys else 65536 / width
    return {"embedding_scale": 12.0, "scale_depth": float(f"{depth:.6g}"), "dim_model_base": round(base)}


MINICPM = Architecture(
    name="minicpm",
    hf_classes=("MiniCPMForCausalLM",),
    model_types=("minicpm",),
    tensors=ENDS | PRE_NORMS | attention() | gated(),
    config=DECODER_CONFIG
    | {
        "tie_word_embeddings": Reads("tie_word_embeddings", True),
        "scale_emb": Reads("embedding_scale", 1.0, kind="number"),
        "scale_depth": Reads("scale_depth", 1.0, kind="number"),
        "dim_model_base": Reads("dim_model_base", 1, kind="count"),
        "attention_bias": Asserts((False, None), "this table has no biases"),
        "num_experts": Asserts((0, None), "this table has no experts"),
        "sparse_config": Asserts((None,), "attention would leave out tokens"),
        "mup_denominator": Ignores("training only"),
    },
    wiring=PRE_NORM_DECODER,
    graphs=(
        graph(
            "minicpm",
            rope=_PLAIN,
            rope_rows="pairs",
            more_keys=("vocab_size", _TURNED, "embedding_scale", "residual_scale", "logit_scale"),
            assumes=unscaled,
        ),
    ),
    hparams=scaled,
    waived=RECOMPUTED,
)

_OF_32 = Fix(values=(32,), why="the baichuan graph has rope in models of 32 layers alone")
BAICHUAN = Architecture(
    name="baichuan",
    # Baichuan2's class, with a small c, norms its head's rows, and the 13B models have no rope.
    hf_classes=("BaiChuanForCausalLM",),
    model_types=("baichuan",),
    tensors=ENDS
    | PRE_NORMS
    | gated()
    | {
        f"{_LAYER}.self_attn.W_pack": Fused((Role.ATTN_Q, Role.ATTN_K, Role.ATTN_V)),
        f"{_LAYER}.self_attn.o_proj": Role.ATTN_OUT,
    },
    config=DECODER_CONFIG,
    wiring=PRE_NORM_DECODER,
    graphs=(
        graph("baichuan", rope_rows="pairs", needs_head=True, more_keys=(_TURNED,), fixes={"block_count": _OF_32}),
        graph("llama", square=False, rope_rows="pairs", more_keys=("vocab_size", _TURNED)),
    ),
    waived=RECOMPUTED,
)

VARIATIONS = (INTERNLM3, XVERSE, ORION, EXAONE, MINICPM, BAICHUAN)
