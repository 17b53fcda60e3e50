"""ModernBERT: norms before each half of a layer, rope, a gate, and windows to both sides in most layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from llmfit_bert.common import CAUSAL, ENCODER_CONFIG, EPSILON, KEYS, QKV, Table, Uses
from llmfit_core import Architecture, Asserts, Fix, Fused, Graph, Ignores, Link, Reads, Role, Slot

_LAYER = "layers.{layer}."
_GATE_UP: Final = (Role.FFN_GATE, Role.FFN_UP)
_TENSORS: Table = {
    "embeddings.tok_embeddings": Role.EMBED,
    "embeddings.norm": Role.EMBED_NORM,
    _LAYER + "attn_norm": Slot(Role.ATTN_NORM, when="normed"),
    _LAYER + "attn.Wqkv": Slot(Fused(QKV)),
    _LAYER + "attn.Wo": Role.ATTN_OUT,
    _LAYER + "mlp_norm": Role.FFN_NORM,
    _LAYER + "mlp.Wi": Slot(Fused(_GATE_UP)),
    _LAYER + "mlp.Wo": Role.FFN_DOWN,
    "final_norm": Role.OUTPUT_NORM,
}
_NO_BIAS: Final = "there is no table for matrices and norms with biases"
_WORDS = "of the head that predicts words"
_FULL, _SLIDING = "full_attention", "sliding_attention"

_CONFIG: Uses = {k: v for k, v in ENCODER_CONFIG.items() if k not in ("type_vocab_size", "hidden_act", "layer_norm_eps")} | {
    "hidden_activation": Reads("hidden_act", "gelu"),
    "max_position_embeddings": Reads("context_length", 8192),
    "norm_eps": Reads(EPSILON, 1e-5),
    "position_embedding_type": Ignores("positions are told by rope"),
    "global_attn_every_n_layers": Reads("every", None, kind="count"),
    "layer_types": Reads("layer_types", None, kind="texts"),
    "local_attention": Reads("attention.sliding_window", 128),
    "rope_theta": Reads("rope.freq_base", 160000.0),
    "global_rope_theta": Reads("rope.freq_base", None),
    "local_rope_theta": Reads("rope.freq_base_swa", 10000.0),
    "partial_rotary_factor": Reads("partial_rotary_factor", 1.0),
    "attention_bias": Asserts((False, None), _NO_BIAS),
    "mlp_bias": Asserts((False, None), _NO_BIAS),
    "norm_bias": Asserts((False, None), _NO_BIAS),
    **dict.fromkeys(
        (
            "decoder_bias classifier_activation classifier_bias classifier_pooling classifier_dropout sparse_prediction "
            "sparse_pred_ignore_index"
        ).split(),
        Ignores("of a head, which is left out"),
    ),
    **dict.fromkeys("deterministic_flash_attn reference_compile repad_logits_with_grad".split(), Ignores("how it runs")),
    **dict.fromkeys("embedding_dropout mlp_dropout initializer_cutoff_factor".split(), Ignores("training only")),
}


def derived(hparams: Mapping[str, Any]) -> dict[str, object]:
    """Which layers see everything: every n-th, the first among them, unless each layer's kind is listed."""
    layers = int(hparams["block_count"])
    listed = hparams.get("layer_types")
    every = hparams.get("every") or 3
    slides = [k == _SLIDING for k in listed] if listed else [i % every != 0 for i in range(layers)]
    return {
        "attention.sliding_window_pattern": tuple(slides),
        "slides": len(slides) == layers and set(listed or (_FULL, _SLIDING)) <= {_FULL, _SLIDING},
        "rope.dimension_count": hparams["attention.key_length"],
        "layer_types": tuple(_SLIDING if s else _FULL for s in slides),
    }


def assumed(hparams: Mapping[str, Any]) -> dict[str, object]:
    """The kinds of layers by a file's pattern: a list, or a number that the loader counts by."""
    pattern = hparams.get("attention.sliding_window_pattern")
    layers = int(hparams["block_count"])
    if isinstance(pattern, int):
        pattern = [i % pattern != 0 for i in range(layers)]
    slides = pattern or [i % 3 != 0 for i in range(layers)]
    return {
        "layer_types": [_SLIDING if s else _FULL for s in slides],
        "hidden_act": hparams.get("hidden_activation", "gelu"),
    }


def kinds(_hparams: Mapping[str, Any], layer: int) -> frozenset[str]:
    """The first layer reads what the embedding's norm has brought to size."""
    return frozenset({"normed"} if layer else ())


MODERNBERT = Architecture(
    name="modern-bert",
    hf_classes=("ModernBertModel", "ModernBertForMaskedLM"),
    model_types=("modernbert",),
    tensors=_TENSORS,
    config=_CONFIG,
    wiring=(
        Link(source=Role.ATTN_NORM, sinks=QKV),
        Link(source=Role.ATTN_V, sinks=(Role.ATTN_OUT,), when="no_gqa"),
        Link(source=Role.FFN_NORM, sinks=_GATE_UP),
        Link(source=Role.FFN_UP, sinks=(Role.FFN_DOWN,)),
    ),
    graphs=(
        Graph(
            format="gguf",
            name="modern-bert",
            engine="llama.cpp",
            keys=(
                *KEYS,
                "rope.freq_base",
                "rope.freq_base_swa",
                "attention.sliding_window",
                "attention.sliding_window_pattern",
                "hidden_activation",
            ),
            values=lambda hp: {"hidden_activation": hp["hidden_act"]},
            constants=CAUSAL,
            fixes={
                "hidden_act": Fix(values=("gelu", "silu"), why="the modern-bert graph applies GELU or SiLU to the gate"),
                "slides": Fix(values=(True,), why="the modern-bert graph knows full and sliding attention, one for each layer"),
                "partial_rotary_factor": Fix(values=(1.0, 1, None), why="the modern-bert graph rotates whole heads"),
                f"rope_type.{_SLIDING}": Fix(values=("default", None), why="the modern-bert graph stretches no rope under windows"),
            },
            rope=frozenset({"default"}),
            merges={"attn_qkv": QKV, "ffn_up": _GATE_UP},
            assumes=assumed,
        ),
    ),
    shapes={Role.EMBED_NORM: ("embedding_length",)},
    hparams=derived,
    layer_kinds=kinds,
    waived={
        "head.dense": _WORDS,
        "head.norm": _WORDS,
        "decoder": _WORDS,
        _LAYER + "attn.rotary_emb.inv_freq": "recomputed from config.json",
    },
    base_prefix="model.",
    rope_kinds={_FULL: "rope_theta", _SLIDING: "local_rope_theta"},
)
