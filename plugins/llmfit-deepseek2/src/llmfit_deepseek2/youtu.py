"""Youtu-LLM: latent attention in a dense model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmfit_core import Architecture, Asserts, Ignores, Reads
from llmfit_deepseek2.config import INTERLEAVED, attention_keys
from llmfit_deepseek2.graph import deepseek2_graph
from llmfit_deepseek2.read_back import dense_file
from llmfit_deepseek2.sizes import kinds, latent
from llmfit_deepseek2.tables import ENDS, LATENT_ATTENTION, NORMS, RECOMPUTED, SHAPES, WIRING, feed_forward


def all_dense(hparams: Mapping[str, Any]) -> dict[str, object]:
    """No experts: the loader wants their sizes all the same."""
    no_experts = {
        "leading_dense_block_count": hparams["block_count"],
        "expert_feed_forward_length": hparams["feed_forward_length"],
        "expert_shared_count": 0,
    }
    return no_experts | latent({**hparams, **no_experts})


YOUTU = Architecture(
    name="youtu",
    hf_classes=("YoutuForCausalLM",),
    model_types=("youtu",),
    tensors=ENDS | NORMS | LATENT_ATTENTION | {k: v for k, v in feed_forward().items() if "shared" not in k},
    config=attention_keys()
    | {
        "tie_word_embeddings": Reads("tie_word_embeddings", True),
        "rope_interleave": INTERLEAVED,
        "embedding_initializer_range": Ignores("training only"),
        "mlp_bias": Asserts((False, None), "the class has no biases there"),
    },
    wiring=WIRING,
    graphs=(deepseek2_graph(None, assumes=dense_file),),
    shapes=SHAPES,
    hparams=all_dense,
    layer_kinds=kinds,
    waived=RECOMPUTED,
    rope_rows="pairs",
)
