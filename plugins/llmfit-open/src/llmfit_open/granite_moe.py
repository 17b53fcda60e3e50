"""Granite with experts, one tensor for all of them, and with a shared one besides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmfit_core import PRE_NORM_DECODER, Architecture, Fix, Fused, Graph, Reads, Role, Slot
from llmfit_open.common import ENDS, PRE_NORMS, RECOMPUTED, Table, attention
from llmfit_open.granite import GRANITE

_MOE = "model.layers.{layer}.block_sparse_moe"
_GATE_UP = Fused((Role.FFN_GATE_EXPS, Role.FFN_UP_EXPS))
# As files have them, and as transformers 5 holds them in memory.
EXPERTS: Table = {
    f"{_MOE}.input_linear": _GATE_UP,
    f"{_MOE}.output_linear": Role.FFN_DOWN_EXPS,
    f"{_MOE}.router.layer": Role.FFN_ROUTER,
    f"{_MOE}.experts.gate_up_proj": Slot(_GATE_UP, bare=True),
    f"{_MOE}.experts.down_proj": Slot(Role.FFN_DOWN_EXPS, bare=True),
    f"{_MOE}.router": Role.FFN_ROUTER,
}
SHARED: Table = {
    "model.layers.{layer}.shared_mlp.input_linear": Slot(Fused((Role.FFN_GATE_SHEXP, Role.FFN_UP_SHEXP)), when="sharing"),
    "model.layers.{layer}.shared_mlp.output_linear": Slot(Role.FFN_DOWN_SHEXP, when="sharing"),
}
SHARED_WIDTH = "expert_shared_feed_forward_length"


def derived(hparams: Mapping[str, Any]) -> dict[str, object]:
    """As Granite's; an expert is as wide as the config's feed-forward."""
    own = GRANITE.hparams(hparams) if GRANITE.hparams is not None else {}
    return {**own, "expert_feed_forward_length": hparams["feed_forward_length"], SHARED_WIDTH: hparams.get(SHARED_WIDTH) or None}


def kinds(hparams: Mapping[str, Any], _layer: int) -> frozenset[str]:
    """Whether an expert is shared."""
    return frozenset({"sharing"} if hparams.get(SHARED_WIDTH) else ())


def graph() -> Graph:
    """Granite's own, with experts in every layer; their width is the feed-forward's."""
    dense = GRANITE.graphs[0]
    return Graph(
        format="gguf",
        name="granitemoe",
        engine="llama.cpp",
        keys=(*dense.keys, "expert_count", "expert_used_count", SHARED_WIDTH),
        fixes={
            **{k: Fix(values=f.values, why=f.why.replace("granite ", "granitemoe ")) for k, f in dense.fixes.items()},
            "expert_count": Fix(
                values=(None,), why="without experts it is another graph's model", unless=lambda hp: bool(hp.get("expert_count"))
            ),
        },
        rope=dense.rope,
        rope_rows="pairs",
        rope_factors=True,
        assumes=dense.assumes,
    )


_CONFIG = {k: v for k, v in GRANITE.config.items() if k != "mlp_bias"} | {
    "num_local_experts": Reads("expert_count", 8),
    "num_experts_per_tok": Reads("expert_used_count", 2),
}

GRANITE_MOE = Architecture(
    name="granitemoe",
    hf_classes=("GraniteMoeForCausalLM",),
    model_types=("granitemoe",),
    tensors=ENDS | PRE_NORMS | attention("attention_bias") | EXPERTS,
    config=_CONFIG,
    wiring=PRE_NORM_DECODER,
    graphs=(graph(),),
    hparams=derived,
    waived=RECOMPUTED,
)

GRANITE_MOE_SHARED = Architecture(
    name="granitemoeshared",
    hf_classes=("GraniteMoeSharedForCausalLM",),
    model_types=("granitemoeshared",),
    tensors=ENDS | PRE_NORMS | attention("attention_bias") | EXPERTS | SHARED,
    config=_CONFIG | {"shared_intermediate_size": Reads(SHARED_WIDTH, 0)},
    wiring=PRE_NORM_DECODER,
    graphs=(graph(),),
    hparams=derived,
    layer_kinds=kinds,
    waived=RECOMPUTED,
)
