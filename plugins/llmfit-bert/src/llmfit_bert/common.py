"""What encoders share: config keys, norms, what the graphs fix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from llmfit_core import COMMON_CONFIG, Asserts, Fix, Fused, Ignores, Link, Reads, Role, Slot

Table = dict[str, str | Slot | Fused]
Uses = dict[str, Reads | Asserts | Ignores]

EPSILON: Final = "attention.layer_norm_epsilon"
TOKEN_TYPES: Final = "tokenizer.ggml.token_type_count"
ATTN_OUT_NORM: Final = "attn_output_norm"
LAYER_OUT_NORM: Final = "layer_output_norm"
POOLED: Final = "cls"
CLASSES: Final = "cls.output"
QKV: Final = (Role.ATTN_Q, Role.ATTN_K, Role.ATTN_V)

GELU: Final = ("gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_fast", "gelu_accurate", "gelu_python")
"""GELU by its error function and by the hyperbolic tangent.

llama.cpp computes the latter from a table of float16 values. The two functions are nowhere further apart than 5e-4, which
is what that table's own rounding comes to.
"""

ENCODER_CONFIG: Final[Uses] = {
    **COMMON_CONFIG,
    "is_decoder": Asserts((False, None), "each token would see only those before it, which the graph does not compute"),
    "hidden_size": Reads("embedding_length"),
    "num_hidden_layers": Reads("block_count"),
    "num_attention_heads": Reads("attention.head_count"),
    "intermediate_size": Reads("feed_forward_length"),
    "hidden_act": Reads("hidden_act", "gelu"),
    "max_position_embeddings": Reads("context_length", 512),
    "layer_norm_eps": Reads(EPSILON, 1e-12),
    "type_vocab_size": Reads(TOKEN_TYPES, 2, kind="count"),
    "vocab_size": Reads("vocab_size", None),
    "tie_word_embeddings": Ignores("of the head that predicts words, which is left out"),
    "position_embedding_type": Asserts(("absolute", None), "positions would be told by distance, which the graph does not compute"),
    "is_encoder": Ignores("it is one"),
    "embedding_size": Ignores("the embedding's shape tells"),
    "cls_token_id": Ignores("read by another part"),
    "mask_token_id": Ignores("read by another part"),
}
"""The keys of BERT's own config, to be extended with `|`."""

KEYS: Final = ("block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count", EPSILON)
CAUSAL: Final[Mapping[str, object]] = {"attention.causal": False}

V_TO_OUT: Final = Link(source=Role.ATTN_V, sinks=(Role.ATTN_OUT,), when="no_gqa")
"""All that a scale can move across: what a norm feeds, the residual stream takes too, and GELU lets no factor through."""

LEARNED: Final = Fix(
    values=(None,),
    why="the graph has a learned position for each token of the context, no more and no less",
    unless=lambda hp: hp["learned_positions"] == hp["context_length"],
)


def gelu(name: str) -> Fix:
    """The activation is GELU."""
    return Fix(values=GELU, why=f"the {name} graph applies GELU")


def norm(role: str) -> Slot:
    """A LayerNorm: it always has a bias."""
    return Slot(role, bias=True)


def old_norms(table: Table) -> Table:
    """The table, and the names that TensorFlow's checkpoints gave its norms: `gamma` and `beta`."""
    more: Table = {}
    for pattern, slot in table.items():
        if isinstance(slot, Slot) and pattern.endswith("LayerNorm"):
            more[f"{pattern}.gamma"] = Slot(slot.role, bare=True)
            more[f"{pattern}.beta"] = Slot(slot.role, bare=True, part="bias")
    return table | more


def two_types(hparams: Mapping[str, Any]) -> tuple[str, ...]:
    """What a graph that knows one kind of token leaves out, where a model was trained on pairs of texts."""
    if hparams.get(TOKEN_TYPES, 0) < 2:
        return ()
    return (
        "the graph takes every token for one of a first text: exact for single texts, while of two texts together the second "
        "would have a kind of its own",
    )


def labels(hparams: Mapping[str, Any]) -> dict[str, object]:
    """A classifier's labels in the order of their numbers, as the class has them where a config says nothing."""
    stated = hparams.get("labels")
    names = stated if isinstance(stated, Mapping) and stated else {"0": "LABEL_0", "1": "LABEL_1"}
    count = hparams.get("label_count")
    if not (isinstance(stated, Mapping) and stated) and count:
        names = {str(i): f"LABEL_{i}" for i in range(int(count))}
    ordered = [str(v) for _, v in sorted(names.items(), key=lambda item: int(item[0]) if str(item[0]).isdigit() else -1)]
    return {"classifier.output_labels": ordered, "classes": len(ordered)}


CLASSIFIER_CONFIG: Final[Uses] = {"id2label": Reads("labels", None), "num_labels": Reads("label_count", None, kind="count")}
CLASSIFIER_SHAPES: Final = {POOLED: ("embedding_length", "embedding_length"), CLASSES: ("classes", "embedding_length")}


def assumed_labels(hparams: Mapping[str, Any]) -> dict[str, object]:
    """The config's labels by those of a file."""
    names = hparams.get("classifier.output_labels")
    return {"labels": {str(i): name for i, name in enumerate(names)}} if names else {}
