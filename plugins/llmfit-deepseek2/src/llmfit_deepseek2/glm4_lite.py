"""GLM-4.7-Flash: DeepSeek-V3's layers under GLM's name, with a list that says which of them are dense."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmfit_core import Architecture, Asserts, Fix, Reads
from llmfit_deepseek2.config import FURTHER_TOKENS, attention_keys, expert_keys, sigmoid_keys
from llmfit_deepseek2.graph import deepseek2_graph
from llmfit_deepseek2.read_back import v3_file
from llmfit_deepseek2.sizes import invalid, latent_and_groups
from llmfit_deepseek2.sizes import kinds as v3_kinds
from llmfit_deepseek2.v3 import DEEPSEEK3

DENSE, MIXED = "dense", "sparse"


def layers_of(hparams: Mapping[str, Any]) -> dict[str, object]:
    """How many layers are dense: what `mlp_layer_types` says, else the first alone.

    The class itself passes `first_k_dense_replace` over.
    """
    layers, stated = hparams["block_count"], hparams.get("mlp_layer_types")
    given = hparams.get("first_k_dense_replace")
    names = list(stated or [DENSE] * min(1 if given is None else given, layers))
    names += [] if stated else [MIXED] * (layers - len(names))
    odd = [n for n in names if n not in (DENSE, MIXED)]
    if odd or len(names) < layers:
        what = f"names {odd[0]!r:.40}" if odd else f"has {len(names)} entries for {layers} layers"
        raise invalid(f"mlp_layer_types {what}")
    names = names[:layers]
    lead = next((i for i, n in enumerate(names) if n != DENSE), layers)
    if given is not None and given != lead and (stated or given != 1):
        raise invalid(f"first_k_dense_replace {given} contradicts the {lead} dense layers that the class makes")
    hp = {**hparams, "leading_dense_block_count": lead}
    return {
        "leading_dense_block_count": lead,
        "dense_layers_come_first": DENSE not in names[lead:],
        "mlp_layer_types": tuple(names),
    } | latent_and_groups(hp)


def kinds(hparams: Mapping[str, Any], layer: int) -> frozenset[str]:
    """As the list says."""
    dense = hparams["mlp_layer_types"][layer] == DENSE
    return frozenset({"dense" if dense else "mixed"}) | (v3_kinds(hparams, layer) - {"dense", "mixed"})


def said_by_file(keys: Mapping[str, Any]) -> dict[str, object]:
    """As DeepSeek-V3's, with the list of dense layers."""
    lead = int(keys.get("leading_dense_block_count", 0))
    return v3_file(keys) | {"mlp_layer_types": [DENSE] * lead + [MIXED] * (keys["block_count"] - lead)}


GLM4_MOE_LITE = Architecture(
    name="glm4-moe-lite",
    hf_classes=("Glm4MoeLiteForCausalLM",),
    model_types=("glm4_moe_lite",),
    tensors=DEEPSEEK3.tensors,
    config=attention_keys(q_rank=768, nope=192, v=256)
    | expert_keys(experts=64, shared=1, width=1536, scale=1.8)
    | sigmoid_keys(used=4, groups=1, used_groups=1)
    | FURTHER_TOKENS
    | {
        "rms_norm_eps": Reads("attention.layer_norm_rms_epsilon", 1e-5),
        "mlp_layer_types": Reads("mlp_layer_types", None, kind="texts"),
        "first_k_dense_replace": Reads("first_k_dense_replace", None, kind="count"),
        "partial_rotary_factor": Asserts((1, None), "the class would turn fewer rows than qk_rope_head_dim says"),
    },
    wiring=DEEPSEEK3.wiring,
    graphs=(
        deepseek2_graph(
            2,
            assumes=said_by_file,
            fixes={"dense_layers_come_first": Fix(values=(True,), why="the graph wants dense layers before all others")},
        ),
    ),
    shapes=DEEPSEEK3.shapes,
    hparams=layers_of,
    layer_kinds=kinds,
    waived=DEEPSEEK3.waived,
    waived_layers=DEEPSEEK3.waived_layers,
    rope_rows="pairs",
)
