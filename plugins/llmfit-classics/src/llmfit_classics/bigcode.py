"""GPT-BigCode (StarCoder, SantaCoder): a GPT-2 whose heads share one key and one value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmfit_classics.common import EPSILON, QKV, gelu, norm
from llmfit_classics.gpt2 import GPT2, LEARNED, derived
from llmfit_core import Architecture, Fix, Fused, Graph, Ignores, Link, Reads, Role, Slot

_SPEED = Ignores("how it runs, not what it computes")


def shared(hparams: Mapping[str, Any]) -> dict[str, object]:
    """As GPT-2's, and the key-value heads."""
    heads = hparams["attention.head_count"]
    return derived(hparams) | {"attention.head_count_kv": 1 if hparams["multi_query"] else heads}


GPT_BIGCODE = Architecture(
    name="gpt-bigcode",
    hf_classes=("GPTBigCodeForCausalLM",),
    model_types=("gpt_bigcode",),
    tensors={
        "transformer.wte": Role.EMBED,
        "transformer.wpe": Role.POSITION_EMBED,
        "transformer.h.{layer}.ln_1": norm(Role.ATTN_NORM),
        "transformer.h.{layer}.attn.c_attn": Slot(Fused(QKV, groups="attention.head_count_kv"), bias=True),
        "transformer.h.{layer}.attn.c_proj": Slot(Role.ATTN_OUT, bias=True),
        "transformer.h.{layer}.ln_2": norm(Role.FFN_NORM),
        "transformer.h.{layer}.mlp.c_fc": Slot(Role.FFN_UP, bias=True),
        "transformer.h.{layer}.mlp.c_proj": Slot(Role.FFN_DOWN, bias=True),
        "transformer.ln_f": norm(Role.OUTPUT_NORM),
        "lm_head": Slot(Role.HEAD, optional=True),
    },
    config={k: v for k, v in GPT2.config.items() if k not in ("scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn")}
    | {
        "activation_function": Reads("hidden_act", "gelu_pytorch_tanh"),
        "multi_query": Reads("multi_query", True),
        "num_key_value_heads": Ignores("multi_query is what counts"),
        **dict.fromkeys(
            "attention_softmax_in_fp32 scale_attention_softmax_in_fp32 inference_runner validate_runner_input "
            "pre_allocate_kv_cache max_batch_size".split(),
            _SPEED,
        ),
    },
    wiring=(
        Link(source=Role.ATTN_NORM, sinks=QKV),
        Link(source=Role.FFN_NORM, sinks=(Role.FFN_UP,)),
    ),
    graphs=(
        Graph(
            format="gguf",
            name="starcoder",
            engine="llama.cpp",
            keys=(
                "block_count",
                "context_length",
                "embedding_length",
                "feed_forward_length",
                "attention.head_count",
                "attention.head_count_kv",
                EPSILON,
            ),
            fixes={
                "hidden_act": gelu("starcoder", "gelu_pytorch_tanh"),
                "scale_attn_weights": Fix(values=(True,), why="the starcoder graph divides by the root of the head size"),
                "learned_positions": LEARNED,
            },
            rope=frozenset({"default"}),
            merges={"attn_qkv": QKV},
            assumes=lambda hp: {"multi_query": hp.get("attention.head_count_kv") == 1},
        ),
    ),
    shapes=GPT2.shapes,
    hparams=shared,
    waived={"transformer.h.{layer}.attn.bias": "the causal mask"},
)
