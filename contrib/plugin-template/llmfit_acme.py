"""Acme models, stated once as data. Nothing heavy is imported here: llmfit loads this for every command."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmfit_core import (
    DECODER_CONFIG,
    DECODER_KEYS,
    PRE_NORM_DECODER,
    Architecture,
    Asserts,
    Fix,
    Graph,
    Reads,
    Role,
    Slot,
    hookimpl,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

# What computes it elsewhere: llama.cpp under the name `llama`, with what that graph reads and takes for granted.
LLAMA_GRAPH = Graph(
    format="gguf",
    name="llama",
    engine="llama.cpp",
    keys=(*DECODER_KEYS, "vocab_size", "rope.dimension_count"),
    fixes={"hidden_act": Fix(values=("silu",), why="the llama graph applies SiLU")},
    rope_rows="pairs",  # its rope takes neighbouring rows; Acme stores halves, as Hugging Face does
    rope_factors=True,
)

ACME = Architecture(
    name="acme",
    hf_classes=("AcmeForCausalLM",),
    model_types=("acme",),
    # Every tensor of the files, without `.weight` and `.bias`, and what it means.
    tensors={
        "decoder.embed": Role.EMBED,
        "decoder.blocks.{layer}.norm_1": Role.ATTN_NORM,
        "decoder.blocks.{layer}.attention.query": Role.ATTN_Q,
        "decoder.blocks.{layer}.attention.key": Role.ATTN_K,
        "decoder.blocks.{layer}.attention.value": Role.ATTN_V,
        "decoder.blocks.{layer}.attention.out": Role.ATTN_OUT,
        "decoder.blocks.{layer}.norm_2": Role.FFN_NORM,
        "decoder.blocks.{layer}.mlp.gate": Role.FFN_GATE,
        "decoder.blocks.{layer}.mlp.up": Role.FFN_UP,
        "decoder.blocks.{layer}.mlp.down": Role.FFN_DOWN,
        "decoder.norm": Role.OUTPUT_NORM,
        "head": Slot(Role.HEAD, optional=True),  # absent where it is tied to the embedding
    },
    # Every key of config.json: read, asserted, or ignored with a reason. The common ones are there already.
    config=DECODER_CONFIG
    | {
        "acme_mlp_size": Reads("feed_forward_length"),  # Acme's own name for intermediate_size
        "acme_clip_qkv": Asserts((None, 0), "queries, keys and values would be clipped, which no graph does"),
    },
    wiring=PRE_NORM_DECODER,
    graphs=(LLAMA_GRAPH,),
)


@hookimpl
def llmfit_architectures() -> Iterable[Architecture]:
    """Called once when plugins are loaded."""
    yield ACME
