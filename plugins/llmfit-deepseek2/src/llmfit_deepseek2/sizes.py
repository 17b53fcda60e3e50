"""What follows from a config: the sizes of latent attention, kinds of layers, groups of experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmfit_core import SourceError
from llmfit_deepseek2.tables import HEADS, RANK

CORRECT = "Correct config.json, as the model's authors published it."


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
        raise invalid(
            f"num_key_value_heads {own} differs from num_attention_heads {heads}, and every head has keys of its own here"
        )
    if turned % 2 or not turned:
        raise invalid(f"qk_rope_head_dim {turned} forms no pairs")
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
        raise invalid(
            f"n_routed_experts {experts}, n_group {count} and topk_group {used} make no groups of two experts and more"
        )
    if hparams["expert_used_count"] > used * (experts // count):
        raise invalid(
            f"num_experts_per_tok {hparams['expert_used_count']} exceeds the experts of {used} of {count} groups"
        )
    if used == count:
        return {"expert_group_count": None, "expert_group_used_count": None}
    return {"expert_group_count": count, "expert_group_used_count": used}


def latent_and_groups(hparams: Mapping[str, Any]) -> dict[str, object]:
    """Both, for the generation that gates by sigmoid."""
    return latent(hparams) | groups(hparams)


def invalid(cause: str) -> SourceError:
    """The refusal of values that cannot go together."""
    return SourceError("config-key-invalid", cause, CORRECT)
