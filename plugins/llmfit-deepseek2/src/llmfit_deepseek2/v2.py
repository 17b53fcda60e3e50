"""DeepSeek-V2 and DeepSeek-V2-Lite: experts gated by softmax, chosen greedily."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmfit_core import Architecture, Asserts, Fix, Reads
from llmfit_deepseek2.config import NO_FURTHER_TOKENS, attention_keys, expert_keys
from llmfit_deepseek2.graph import deepseek2_graph
from llmfit_deepseek2.read_back import v2_file
from llmfit_deepseek2.sizes import kinds, latent
from llmfit_deepseek2.tables import ENDS, EXPERTS, LATENT_ATTENTION, NORMS, RECOMPUTED, SHAPES, WIRING, feed_forward


def best_of_all(hparams: Mapping[str, Any]) -> bool:
    """Groups that leave no expert out change nothing."""
    count = hparams.get("n_group") or 1
    return hparams.get("topk_method") == "group_limited_greedy" and (hparams.get("topk_group") or 1) >= count


BEST_GROUP = Fix(
    values=("greedy",),
    why="the graph scores a group by its two best experts, where DeepSeek-V2 takes the best one alone",
    unless=best_of_all,
)
DEEPSEEK2 = Architecture(
    name="deepseek2",
    hf_classes=("DeepseekV2ForCausalLM",),
    model_types=("deepseek_v2",),
    tensors=ENDS | NORMS | LATENT_ATTENTION | feed_forward("mlp_bias") | EXPERTS,
    config=attention_keys()
    | expert_keys(experts=64, shared=2, width=1407, scale=1.0)
    | NO_FURTHER_TOKENS
    | {
        "first_k_dense_replace": Reads("leading_dense_block_count", 0),
        "mlp_bias": Reads("mlp_bias", False),
        "num_experts_per_tok": Reads("expert_used_count"),
        "scoring_func": Asserts(("softmax",), "DeepSeek-V2 gates its experts by softmax"),
        "topk_method": Reads("topk_method", "greedy"),
        "n_group": Reads("n_group", None, kind="count"),
        "topk_group": Reads("topk_group", None, kind="count"),
        "norm_topk_prob": Asserts((False, None), "transformers ignores it and DeepSeek's own code does not"),
    },
    wiring=WIRING,
    graphs=(deepseek2_graph(1, fixes={"topk_method": BEST_GROUP}, assumes=v2_file),),
    shapes=SHAPES,
    hparams=latent,
    layer_kinds=kinds,
    waived=RECOMPUTED,
    rope_rows="pairs",
)
