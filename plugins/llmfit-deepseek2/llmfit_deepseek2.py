"""DeepSeek-V2, DeepSeek-V2-Lite and DeepSeek-V3, stated once as data.

Hparams go by the names of llama.cpp's loader, which sees latent attention as it is computed: one key-value head as wide
as the latent and the turned part together (`attention.key_length`), out of which each head's own keys and values come
(`attention.key_length_mla`, `attention.value_length_mla`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
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
    PerHead,
    Reads,
    Role,
    Slot,
    SourceError,
    UnsupportedError,
    hookimpl,
)
from llmfit_core.architecture import ROLES
from llmfit_core.roles import Dim, Link
from llmfit_core.rope import Rope, yarn_mscale

K_B, V_B = "attn_k_b", "attn_v_b"
INNER_EPSILON = 1e-6
CORRECT = "Correct config.json, as the model's authors published it."

Table = dict[str, str | Slot | Fused]

ATTENTION: Table = {
    "model.layers.{layer}.self_attn.q_proj": Slot(Role.ATTN_Q, when="whole_q"),
    "model.layers.{layer}.self_attn.q_a_proj": Slot(Role.ATTN_Q_A, bias="attention_bias", when="latent_q"),
    "model.layers.{layer}.self_attn.q_a_layernorm": Slot(Role.ATTN_Q_A_NORM, when="latent_q"),
    "model.layers.{layer}.self_attn.q_b_proj": Slot(Role.ATTN_Q_B, when="latent_q"),
    "model.layers.{layer}.self_attn.kv_a_proj_with_mqa": Slot(Role.ATTN_KV_A_MQA, bias="attention_bias"),
    "model.layers.{layer}.self_attn.kv_a_layernorm": Role.ATTN_KV_A_NORM,
    "model.layers.{layer}.self_attn.kv_b_proj": Fused((K_B, V_B), groups="attention.head_count"),
    "model.layers.{layer}.self_attn.o_proj": Slot(Role.ATTN_OUT, bias="attention_bias"),
}
NORMS_AND_ENDS: Table = {
    "model.embed_tokens": Role.EMBED,
    "model.layers.{layer}.input_layernorm": Role.ATTN_NORM,
    "model.layers.{layer}.post_attention_layernorm": Role.FFN_NORM,
    "model.norm": Role.OUTPUT_NORM,
    "lm_head": Slot(Role.HEAD, optional=True),
}
EXPERTS: Table = {
    "model.layers.{layer}.mlp.gate": Slot(Role.FFN_ROUTER, when="mixed"),
    "model.layers.{layer}.mlp.experts.{expert}.gate_proj": Slot(Role.FFN_GATE_EXPS, when="mixed"),
    "model.layers.{layer}.mlp.experts.{expert}.up_proj": Slot(Role.FFN_UP_EXPS, when="mixed"),
    "model.layers.{layer}.mlp.experts.{expert}.down_proj": Slot(Role.FFN_DOWN_EXPS, when="mixed"),
    "model.layers.{layer}.mlp.experts.gate_up_proj": Slot(
        Fused((Role.FFN_GATE_EXPS, Role.FFN_UP_EXPS)), when="mixed", either_way=True, bare=True
    ),
    "model.layers.{layer}.mlp.experts.down_proj": Slot(Role.FFN_DOWN_EXPS, when="mixed", either_way=True, bare=True),
}


def feed_forward(bias: bool | str) -> Table:
    """The dense layers and the shared experts."""
    out: Table = {}
    for x, role, shared in (
        ("gate", Role.FFN_GATE, Role.FFN_GATE_SHEXP),
        ("up", Role.FFN_UP, Role.FFN_UP_SHEXP),
        ("down", Role.FFN_DOWN, Role.FFN_DOWN_SHEXP),
    ):
        out[f"model.layers.{{layer}}.mlp.{x}_proj"] = Slot(role, bias=bias, when="dense")
        out[f"model.layers.{{layer}}.mlp.shared_experts.{x}_proj"] = Slot(shared, bias=bias, when="mixed")
    return out


CORRECTION: Table = {
    "model.layers.{layer}.mlp.gate.e_score_correction_bias": Slot(
        Role.EXPERT_BIAS, when="mixed", bare=True, part="bias"
    ),
}

HEADS = "attention.head_count"
RANK = "attention.kv_lora_rank"
D = "embedding_length"
SHARED = ("expert_feed_forward_length", "expert_shared_count")
SHAPES: dict[str, tuple[Dim, ...]] = {
    Role.ATTN_Q: ((HEADS, "attention.key_length_mla"), D),
    Role.ATTN_Q_A: ("q_lora_rank", D),
    Role.ATTN_Q_A_NORM: ("q_lora_rank",),
    Role.ATTN_Q_B: ((HEADS, "attention.key_length_mla"), "q_lora_rank"),
    Role.ATTN_KV_A_MQA: ("attention.key_length", D),
    Role.ATTN_KV_A_NORM: (RANK,),
    K_B: ((HEADS, "qk_nope_head_dim"), RANK),
    V_B: ((HEADS, "attention.value_length_mla"), RANK),
    Role.ATTN_OUT: (D, (HEADS, "attention.value_length_mla")),
    Role.FFN_GATE_SHEXP: (SHARED, D),
    Role.FFN_UP_SHEXP: (SHARED, D),
    Role.FFN_DOWN_SHEXP: (D, SHARED),
    Role.EXPERT_BIAS: ("expert_count",),
}
# Each head's v feeds the output too, but lies in rows between those of k, where no group of channels can be addressed.
WIRING = (
    Link(source=Role.ATTN_NORM, sinks=(Role.ATTN_Q, Role.ATTN_Q_A, Role.ATTN_KV_A_MQA)),
    Link(source=Role.ATTN_Q_A_NORM, sinks=(Role.ATTN_Q_B,)),
    Link(source=Role.ATTN_KV_A_NORM, sinks=(K_B, V_B)),
    *(link for link in PRE_NORM_DECODER if link.source.startswith("ffn")),
)


def kinds(hparams: Mapping[str, Any], layer: int) -> frozenset[str]:
    """The first layers are dense; queries come from a latent of their own, or not, in all of them."""
    mixed = layer >= hparams["leading_dense_block_count"]
    return frozenset({"mixed" if mixed else "dense", "latent_q" if hparams.get("q_lora_rank") is not None else "whole_q"})


def mixed_layers(hparams: Mapping[str, Any]) -> bool:
    """Whether there is a layer with experts at all."""
    return bool(hparams["leading_dense_block_count"] < hparams["block_count"])


def latent(hparams: Mapping[str, Any]) -> dict[str, object]:
    """The sizes of latent attention, and what the loader's own rules depend on."""
    heads, turned = hparams[HEADS], hparams["rope.dimension_count"]
    own = hparams.get("mla_kv_heads", heads)
    if own != heads:
        raise SourceError(
            "config-key-invalid",
            f"num_key_value_heads {own} differs from num_attention_heads {heads}, and every head has keys of its own here",
            CORRECT,
        )
    if turned % 2 or not turned:
        raise SourceError("config-key-invalid", f"qk_rope_head_dim {turned} forms no pairs", CORRECT)
    layers, rows = hparams["block_count"], hparams.get("vocab_rows")
    lite = layers in (26, 27) or (layers == 48 and rows == 128256)
    return {
        "mla_kv_heads": heads,
        "attention.head_count_kv": 1,
        "attention.key_length": hparams[RANK] + turned,
        "attention.value_length": hparams[RANK],
        "attention.key_length_mla": hparams["qk_nope_head_dim"] + turned,
        "has_keys_without_rope": hparams["qk_nope_head_dim"] > 0,
        "has_shared_experts": hparams["expert_shared_count"] > 0,
        "loads_latent_q": hparams.get("q_lora_rank") is None or not lite,
    }


def groups(hparams: Mapping[str, Any]) -> dict[str, object]:
    """Groups of experts, where choosing among them leaves any out (transformers' `DeepseekV3TopkRouter`)."""
    experts, count, used = hparams["expert_count"], hparams["n_group"], hparams["topk_group"]
    if not mixed_layers(hparams) or (count == 1 and used == 1):
        return {"expert_group_count": None, "expert_group_used_count": None}
    if not 0 < used <= count or experts % count or experts // count < 2:
        raise SourceError(
            "config-key-invalid",
            f"n_routed_experts {experts}, n_group {count} and topk_group {used} make no groups of two experts and more",
            CORRECT,
        )
    if hparams["expert_used_count"] > used * (experts // count):
        raise SourceError(
            "config-key-invalid",
            f"num_experts_per_tok {hparams['expert_used_count']} exceeds the experts of {used} of {count} groups",
            CORRECT,
        )
    if used == count:
        return {"expert_group_count": None, "expert_group_used_count": None}
    return {"expert_group_count": count, "expert_group_used_count": used}


def latent_and_groups(hparams: Mapping[str, Any]) -> dict[str, object]:
    """Both, for DeepSeek-V3."""
    return latent(hparams) | groups(hparams)


def best_of_all(hparams: Mapping[str, Any]) -> bool:
    """Groups that leave no expert out change nothing."""
    count = hparams.get("n_group") or 1
    return hparams.get("topk_method") == "group_limited_greedy" and (hparams.get("topk_group") or 1) >= count


def loader_values(hparams: Mapping[str, Any]) -> dict[str, object]:
    """What a file holds otherwise than its source.

    The rank of the queries' latent is 0 for none, since without the key the loader takes only some sizes of model; no
    layers that predict further tokens are written.
    """
    further = {"nextn_predict_layers": 0} if "nextn_predict_layers" in hparams else {}
    return {"attention.q_lora_rank": hparams.get("q_lora_rank") or 0} | further


def yarn_keys(rope: Rope) -> dict[str, float | None]:
    """The keys under which llama.cpp's deepseek2 computes this yarn.

    With `m(x) = 1 + 0.1 x ln(factor)`, `A` for `rope.scaling.attn_factor` and `L` for ten times the log multiplier, its
    context and graph come to a factor of `A` on cosine and sine and of `(A m(L))^2` on the softmax, but for `L = 0`,
    where it is `A m(1)` and its square. The model wants `attention_factor` and `m(mscale_all_dim)^2`.
    """
    if rope.type != "yarn":
        return {}
    scale = yarn_mscale(rope.factor, rope.mscale_all_dim)
    turned = rope.attention_factor
    if turned == 1 and rope.factor > 1:
        log = rope.mscale_all_dim
    elif rope.factor != 1:
        log = (scale / turned - 1) / (0.1 * math.log(rope.factor))
    elif turned == scale:
        log = 0.0
    else:
        raise UnsupportedError(
            "graph-cannot",
            f"llama.cpp's deepseek2: yarn has the factor 1 and attention_factor {turned:g}, "
            "which this graph would apply to the whole of a head",
            "Run this checkpoint in transformers (--to hf), or choose a model whose config the graph computes.",
        )
    if abs(log) < 1e-6:
        turned, log = turned / yarn_mscale(rope.factor), 0.0
    return {
        "rope.scaling.attn_factor": turned if abs(turned - 1) > 1e-7 else None,
        "rope.scaling.yarn_log_multiplier": 0.1 * log or None,
    }


def yarn_read(keys: Mapping[str, Any]) -> dict[str, object]:
    """What a config says of the yarn that llama.cpp computes by these keys."""
    factor = float(keys.get("rope.scaling.factor", 1.0))
    turned, log = float(keys.get("rope.scaling.attn_factor", 1.0)), keys.get("rope.scaling.yarn_log_multiplier", 0.0) / 0.1
    if factor == 1:
        return {"attention_factor": turned}
    if turned == 1 and log > 0:
        plain = float(f"{log:.6g}")
        return {"mscale": plain, "mscale_all_dim": plain}
    if log:
        scale = turned * (1 + 0.1 * log * math.log(factor))
    else:
        scale = turned = turned * yarn_mscale(factor)
    all_dim = (scale - 1) / (0.1 * math.log(factor))
    return {"attention_factor": turned} | ({"mscale_all_dim": all_dim} if abs(all_dim) > 1e-6 else {})


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


def _foreign(what: str) -> UnsupportedError:
    return UnsupportedError(
        "unknown-graph",
        f"the file's graph is deepseek2, yet {what}",
        "It is another family's, or was not written as its model computes: convert the model's original.",
    )


def v2_file(keys: Mapping[str, Any]) -> dict[str, object]:
    """A file that computes what DeepSeek-V2's class computes."""
    out = said_by_file(keys)
    held = keys.get(ROLES, frozenset())
    mixed = keys.get("leading_dense_block_count", 0) < keys["block_count"]
    if mixed and keys.get("expert_gating_func", 1) not in (0, 1):
        raise _foreign("its experts are not gated by softmax, as DeepSeek-V2's are")
    if mixed and (keys.get("expert_weights_norm") or Role.EXPERT_BIAS in held):
        raise _foreign("its experts are weighed otherwise than DeepSeek-V2's")
    if mixed and keys.get("expert_group_count", 0) > 1:
        raise _foreign("it chooses among groups of experts otherwise than DeepSeek-V2")
    return {k: v for k, v in out.items() if k not in ("n_group", "topk_group", "nextn_predict_layers", "expert_weights_norm")}


def v3_file(keys: Mapping[str, Any]) -> dict[str, object]:
    """A file that computes what DeepSeek-V3's class computes."""
    mixed = keys.get("leading_dense_block_count", 0) < keys["block_count"]
    if mixed and keys.get("expert_gating_func", 1) != 2:
        raise _foreign("its experts are not gated by sigmoid (expert_gating_func 2), as DeepSeek-V3's are")
    return said_by_file(keys)


KEYS = (
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
    "expert_group_count",
    "expert_group_used_count",
    "attention.key_length",
    "attention.value_length",
    "leading_dense_block_count",
    "vocab_size",
    "attention.q_lora_rank",
    "attention.kv_lora_rank",
    "attention.key_length_mla",
    "attention.value_length_mla",
    "expert_feed_forward_length",
    "expert_shared_count",
    "expert_weights_scale",
    "expert_weights_norm",
    "rope.dimension_count",
    "nextn_predict_layers",
)
FIXES: dict[str, Fix] = {
    "hidden_act": Fix(values=("silu", "swish"), why="the graph applies SiLU"),
    "attention.layer_norm_rms_epsilon": Fix(
        values=(INNER_EPSILON,),
        why=f"the graph takes it for the norms of the latents too, where the model has {INNER_EPSILON:g} whatever it says",
    ),
    "has_keys_without_rope": Fix(values=(True,), why="qk_nope_head_dim is 0, and the graph wants a part that is not turned"),
    "has_shared_experts": Fix(
        values=(True,),
        why="n_shared_experts is 0, and the graph wants shared experts",
        unless=lambda hparams: not mixed_layers(hparams),
    ),
    "loads_latent_q": Fix(
        values=(True,),
        why="the loader takes a model of so many layers for a lite one, whose queries have no latent (q_lora_rank null)",
    ),
}
BEST_GROUP = Fix(
    values=("greedy",),
    why="the graph scores a group by its two best experts, where DeepSeek-V2 takes the best one alone",
    unless=best_of_all,
)


def graph(gating: int, **more: Any) -> Graph:
    """llama.cpp's deepseek2, with softmax (1) or sigmoid (2) for the experts."""
    return Graph(
        format="gguf",
        name="deepseek2",
        engine="llama.cpp",
        keys=KEYS,
        constants={"expert_gating_func": gating},
        fixes=FIXES | more.pop("fixes", {}),
        rope=frozenset({"default", "yarn"}),
        rope_rows="pairs",
        rope_keys=yarn_keys,
        rope_read=yarn_read,
        per_head={K_B: PerHead(heads=HEADS, transposed=True), V_B: PerHead(heads=HEADS)},
        values=loader_values,
        biases=frozenset({Role.EXPERT_BIAS}),
        **more,
    )


def config(**defaults: Any) -> dict[str, Reads | Asserts | Ignores]:
    """The keys that both generations have, with the defaults of a generation's class."""
    common: dict[str, Reads | Asserts | Ignores] = {
        k: v for k, v in DECODER_CONFIG.items() if k not in ("partial_rotary_factor", "head_dim")
    }
    return common | {
        "num_key_value_heads": Reads("mla_kv_heads", None, kind="count"),
        "head_dim": Ignores("the class takes qk_rope_head_dim for it"),
        "qk_head_dim": Ignores("the sum of qk_nope_head_dim and qk_rope_head_dim"),
        "attention_bias": Reads("attention_bias", False),
        "kv_lora_rank": Reads(RANK, 512),
        "q_lora_rank": Reads("q_lora_rank", 1536, null_is_none=True),
        "qk_nope_head_dim": Reads("qk_nope_head_dim", 128),
        "qk_rope_head_dim": Reads("rope.dimension_count", 64),
        "v_head_dim": Reads("attention.value_length_mla", 128),
        "first_k_dense_replace": Reads("leading_dense_block_count", defaults["dense"]),
        "moe_layer_freq": Asserts((1,), "transformers gives every later layer experts, DeepSeek's own code does not"),
        "n_routed_experts": Reads("expert_count", defaults["experts"]),
        "n_shared_experts": Reads("expert_shared_count", defaults["shared"]),
        "moe_intermediate_size": Reads("expert_feed_forward_length", defaults["width"]),
        "routed_scaling_factor": Reads("expert_weights_scale", defaults["scale"]),
        "ep_size": Ignores("how it runs, not what it computes"),
    }


WAIVED = {"model.layers.{layer}.self_attn.rotary_emb.inv_freq": "recomputed from config.json"}
FURTHER = "part of a layer that predicts the token after the next, which the model itself does not run"

DEEPSEEK2 = Architecture(
    name="deepseek2",
    hf_classes=("DeepseekV2ForCausalLM",),
    model_types=("deepseek_v2",),
    tensors=NORMS_AND_ENDS | ATTENTION | feed_forward("mlp_bias") | EXPERTS,
    config=config(dense=0, experts=64, shared=2, width=1407, scale=1.0)
    | {
        "mlp_bias": Reads("mlp_bias", False),
        "num_experts_per_tok": Reads("expert_used_count"),
        "scoring_func": Asserts(("softmax",), "DeepSeek-V2 gates its experts by softmax"),
        "topk_method": Reads("topk_method", "greedy"),
        "n_group": Reads("n_group", None, kind="count"),
        "topk_group": Reads("topk_group", None, kind="count"),
        "norm_topk_prob": Asserts((False, None), "transformers ignores it and DeepSeek's own code does not"),
    },
    wiring=WIRING,
    graphs=(graph(1, fixes={"topk_method": BEST_GROUP}, assumes=v2_file),),
    shapes=SHAPES,
    hparams=latent,
    layer_kinds=kinds,
    waived=WAIVED,
    rope_rows="pairs",
)

DEEPSEEK3 = Architecture(
    name="deepseek3",
    hf_classes=("DeepseekV3ForCausalLM",),
    model_types=("deepseek_v3",),
    tensors=NORMS_AND_ENDS | ATTENTION | feed_forward(bias=False) | EXPERTS | CORRECTION,
    config=config(dense=3, experts=256, shared=1, width=2048, scale=2.5)
    | {
        "num_experts_per_tok": Reads("expert_used_count", 8),
        "scoring_func": Asserts(("sigmoid",), "DeepSeek-V3 gates its experts by sigmoid"),
        "topk_method": Asserts(("noaux_tc",), "DeepSeek-V3 chooses its experts with a correcting bias"),
        "n_group": Reads("n_group", 8),
        "topk_group": Reads("topk_group", 4),
        "norm_topk_prob": Reads("expert_weights_norm", True, null_is_none=True, kind="flag"),
        "rope_interleave": Asserts((True,), "the turned rows of q and k would lie in halves"),
        "num_nextn_predict_layers": Reads("nextn_predict_layers", 1),
        "num_mtp_layers": Reads("nextn_predict_layers", 1),
    },
    wiring=WIRING,
    graphs=(graph(2, assumes=v3_file),),
    shapes=SHAPES,
    hparams=latent_and_groups,
    layer_kinds=kinds,
    waived=WAIVED
    | {
        f"model.layers.{{layer}}.{name}": FURTHER
        for name in ("eh_proj", "enorm", "hnorm", "embed_tokens", "shared_head.norm", "shared_head.head")
    },
    waived_layers={"nextn_predict_layers": FURTHER},
    rope_rows="pairs",
)


@hookimpl
def llmfit_architectures() -> Iterable[Architecture]:
    """Both generations."""
    return (DEEPSEEK2, DEEPSEEK3)
