"""DeepSeek-V3 and R1, and the models that were built as it is: Kimi-K2, Moonlight."""

from __future__ import annotations

from llmfit_core import Architecture, Reads
from llmfit_deepseek2.config import FURTHER_TOKENS, attention_keys, expert_keys, sigmoid_keys
from llmfit_deepseek2.graph import deepseek2_graph
from llmfit_deepseek2.read_back import v3_file
from llmfit_deepseek2.sizes import kinds, latent_and_groups
from llmfit_deepseek2.tables import (
    CORRECTION,
    ENDS,
    EXPERTS,
    FURTHER,
    FURTHER_NAMES,
    LATENT_ATTENTION,
    NORMS,
    RECOMPUTED,
    SHAPES,
    WIRING,
    feed_forward,
)

DEEPSEEK3 = Architecture(
    name="deepseek3",
    hf_classes=("DeepseekV3ForCausalLM",),
    model_types=("deepseek_v3", "kimi_k2"),
    tensors=ENDS | NORMS | LATENT_ATTENTION | feed_forward() | EXPERTS | CORRECTION,
    config=attention_keys()
    | expert_keys(experts=256, shared=1, width=2048, scale=2.5)
    | sigmoid_keys(used=8, groups=8, used_groups=4)
    | FURTHER_TOKENS
    | {"first_k_dense_replace": Reads("leading_dense_block_count", 3)},
    wiring=WIRING,
    graphs=(deepseek2_graph(2, assumes=v3_file),),
    shapes=SHAPES,
    hparams=latent_and_groups,
    layer_kinds=kinds,
    waived=RECOMPUTED | FURTHER_NAMES,
    waived_layers={"nextn_predict_layers": FURTHER},
    rope_rows="pairs",
)
