"""llama.cpp's graph deepseek2: what its loader reads, what it takes for granted, what is folded for it.

Hparams go by the names of the loader, which sees latent attention as it is computed: one key-value head as wide as the
latent and the turned part together (`attention.key_length`), out of which each head's own keys and values come
(`attention.key_length_mla`, `attention.value_length_mla`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from llmfit_core import Fix, Graph, PerHead, Role
from llmfit_deepseek2.sizes import mixed_layers
from llmfit_deepseek2.tables import HEADS, K_B, K_TURNED, KV_A, V_B
from llmfit_deepseek2.yarn import yarn_keys, yarn_read

INNER_EPSILON = 1e-6
"""Of the norms of both latents, whatever `rms_norm_eps` says: the classes give them none of their own."""
EPSILON = "attention.layer_norm_rms_epsilon"

KEYS = (
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "rope.freq_base",
    EPSILON,
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


def loader_values(hparams: Mapping[str, Any]) -> dict[str, object]:
    """What a file holds otherwise than its source.

    The rank of the queries' latent is 0 for none, since without the key the loader takes only some sizes of model; no
    layers that predict further tokens are written.
    """
    further = {"nextn_predict_layers": 0} if "nextn_predict_layers" in hparams else {}
    return {"attention.q_lora_rank": hparams.get("q_lora_rank") or 0} | further


def latents_to_the_epsilon(hparams: Mapping[str, Any]) -> dict[str, float]:
    """The factors by which the graph's one epsilon becomes the latents' own.

    A norm of `c x` with the epsilon `c^2 e` is the norm of `x` with `e`; what makes the latents is therefore scaled.
    """
    stated = float(f"{float(hparams[EPSILON]):.6g}")  # a file's float32 is not quite what was written
    factor = math.sqrt(stated / INNER_EPSILON)
    if abs(factor - 1) < 1e-6:
        return {}
    return {KV_A: factor} | ({Role.ATTN_Q_A: factor} if hparams.get("q_lora_rank") else {})


def deepseek2_graph(gating: int | None, *, fixes: Mapping[str, Fix] | None = None, **more: Any) -> Graph:
    """The graph with softmax (1) or sigmoid (2) for the experts, or for a model that has none."""
    return Graph(
        format="gguf",
        name="deepseek2",
        engine="llama.cpp",
        keys=KEYS,
        constants={} if gating is None else {"expert_gating_func": gating},
        fixes=FIXES | dict(fixes or {}),
        rope=frozenset({"default", "yarn"}),
        rope_rows="pairs",
        rope_keys=yarn_keys,
        rope_read=yarn_read,
        merges={Role.ATTN_KV_A_MQA: (KV_A, K_TURNED)},
        per_head={K_B: PerHead(heads=HEADS, transposed=True), V_B: PerHead(heads=HEADS)},
        values=loader_values,
        scales=latents_to_the_epsilon,
        biases=frozenset({Role.EXPERT_BIAS}),
        **more,
    )
