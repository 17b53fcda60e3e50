"""The config keys that the families with latent attention share."""

from __future__ import annotations

from typing import Any

from llmfit_core import DECODER_CONFIG, Asserts, Ignores, Reads
from llmfit_deepseek2.tables import RANK

Uses = dict[str, Reads | Asserts | Ignores]

INTERLEAVED = Asserts((True,), "the turned rows of q and k would lie in halves")
EVERY_LAYER = Asserts((1,), "transformers gives every later layer experts, DeepSeek's own code does not")
FURTHER_TOKENS: Uses = {
    "num_nextn_predict_layers": Reads("nextn_predict_layers", 1),
    "num_mtp_layers": Reads("nextn_predict_layers", 1),
}
"""How many layers are stored behind the last; transformers 5 writes the second name."""
NO_FURTHER_TOKENS: Uses = dict.fromkeys(FURTHER_TOKENS, Ignores("the class has no layers that predict further tokens"))


def attention_keys(**defaults: Any) -> Uses:
    """The decoder's keys and those of latent attention; `defaults` over DeepSeek's own."""
    common: Uses = {k: v for k, v in DECODER_CONFIG.items() if k not in ("partial_rotary_factor", "head_dim")}
    return common | {
        "num_key_value_heads": Reads("mla_kv_heads", None, kind="count"),
        "head_dim": Ignores("the class takes qk_rope_head_dim for it"),
        "qk_head_dim": Ignores("the sum of qk_nope_head_dim and qk_rope_head_dim"),
        "attention_bias": Reads("attention_bias", False),
        "kv_lora_rank": Reads(RANK, 512),
        "q_lora_rank": Reads("q_lora_rank", defaults.get("q_rank", 1536), null_is_none=True),
        "qk_nope_head_dim": Reads("qk_nope_head_dim", defaults.get("nope", 128)),
        "qk_rope_head_dim": Reads("rope.dimension_count", 64),
        "v_head_dim": Reads("attention.value_length_mla", defaults.get("v", 128)),
        "ep_size": Ignores("how it runs, not what it computes"),
    }


def expert_keys(*, experts: int, shared: int, width: int, scale: float) -> Uses:
    """Routed and shared experts, with the defaults of a class."""
    return {
        "n_routed_experts": Reads("expert_count", experts),
        "n_shared_experts": Reads("expert_shared_count", shared),
        "moe_intermediate_size": Reads("expert_feed_forward_length", width),
        "routed_scaling_factor": Reads("expert_weights_scale", scale),
        "moe_layer_freq": EVERY_LAYER,
    }


def sigmoid_keys(*, used: int, groups: int, used_groups: int) -> Uses:
    """The choice of experts since DeepSeek-V3: sigmoid, a correcting bias, groups scored by their two best."""
    return {
        "num_experts_per_tok": Reads("expert_used_count", used),
        "scoring_func": Asserts(("sigmoid",), "the class gates its experts by sigmoid"),
        "topk_method": Asserts(("noaux_tc",), "the class chooses its experts with a correcting bias"),
        "n_group": Reads("n_group", groups),
        "topk_group": Reads("topk_group", used_groups),
        "norm_topk_prob": Reads("expert_weights_norm", True, null_is_none=True, kind="flag"),
        "rope_interleave": INTERLEAVED,
    }
