"""Solar Open: GLM-4.5's experts in every layer, behind attention that turns whole heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmfit_core import PRE_NORM_DECODER, Architecture, Reads
from llmfit_deepseek2.glm4_moe import ATTENTION, GLM4_MOE, GLM4_MOE_GRAPH, checked
from llmfit_deepseek2.sizes import invalid
from llmfit_deepseek2.tables import CORRECTION, ENDS, EXPERTS, NORMS, RECOMPUTED, SHARED_SHAPES, feed_forward

_OWN_WAYS = (
    "first_k_dense_replace", "use_qk_norm", "num_nextn_predict_layers", "num_mtp_layers", "moe_layer_freq",
)  # fmt: skip


def derived(hparams: Mapping[str, Any]) -> dict[str, object]:
    """As GLM-4.5's, with experts from the first layer on.

    Raises:
        SourceError: `config-key-invalid`, for a part of heads to be turned: the class turns the whole.
    """
    share = hparams.get("partial_rotary_factor", 1.0)
    if share != 1:
        raise invalid(f"partial_rotary_factor in config.json is {share:g}, and the class turns whole heads")
    none_dense = {"leading_dense_block_count": 0}
    return checked({**hparams, **none_dense}) | none_dense


def kinds(_hparams: Mapping[str, Any], _layer: int) -> frozenset[str]:
    """Every layer is mixed."""
    return frozenset({"mixed"})


SOLAR_OPEN = Architecture(
    name="solar-open",
    hf_classes=("SolarOpenForCausalLM",),
    model_types=("solar_open",),
    tensors=ENDS
    | NORMS
    | {n: s for n, s in ATTENTION.items() if "norm" not in n}
    | {n: s for n, s in feed_forward().items() if "shared" in n}
    | EXPERTS
    | CORRECTION,
    config={k: v for k, v in GLM4_MOE.config.items() if k not in _OWN_WAYS}
    | {
        "num_key_value_heads": Reads("attention.head_count_kv", 8),
        "head_dim": Reads("attention.key_length", 128),
        "max_position_embeddings": Reads("context_length", 131072),
        "intermediate_size": Reads("feed_forward_length", None),
        "rope_theta": Reads("rope.freq_base", 1000000.0),
        "partial_rotary_factor": Reads("partial_rotary_factor", 1.0),
        "moe_intermediate_size": Reads("expert_feed_forward_length", 1280),
    },
    wiring=PRE_NORM_DECODER,
    graphs=(GLM4_MOE_GRAPH,),
    shapes=SHARED_SHAPES,
    hparams=derived,
    layer_kinds=kinds,
    waived=RECOMPUTED,
)
