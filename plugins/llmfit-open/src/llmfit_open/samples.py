"""Tiny models of these families, for the tests and for `llmfit plugins check open`. llmfit never loads this by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llmfit_open.samples_experts import EXPERTS
from llmfit_open.samples_hub import HUB

SMALL: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}  # fmt: skip
YARN: dict[str, Any] = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LINEAR: dict[str, Any] = {"rope_type": "linear", "factor": 2.5}
LLAMA3: dict[str, Any] = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
}  # fmt: skip
FULL, SLIDING = "full_attention", "sliding_attention"
CANNOT = "graph-cannot"
LARGE: dict[str, Any] = {"num_hidden_layers": 64}
MIXED: dict[str, Any] = {**LARGE, "layer_types": ([SLIDING] * 3 + [FULL]) * 16, "sliding_window": 16}
"""As many layers as tell the exaone4 and command-r graphs that it is the large model."""
MULTIPLIERS: dict[str, Any] = {"embedding_multiplier": 12, "logits_scaling": 8, "residual_multiplier": 0.22, "attention_multiplier": 0.2}
GELU = ({"hidden_act": "gelu"}, CANNOT)
BIASES = ({"attention_bias": True}, CANNOT)
WIDE_HEADS = ({"head_dim": 32}, CANNOT)


def rope(kind: dict[str, Any], theta: float = 10000.0, **more: Any) -> dict[str, Any]:
    """A config's rope."""
    return {"rope_parameters": {**kind, "rope_theta": theta, **more}}


def by_kind(sliding: dict[str, Any], full: dict[str, Any] = YARN) -> dict[str, Any]:
    """A config's rope, where layers that slide have one of their own."""
    default = {"rope_type": "default", "rope_theta": 500000.0}
    return {"rope_parameters": {FULL: {**default, **full}, SLIDING: {**default, **sliding}}}


def _of(cls: str, kind: str, *, quick: str = "", variations: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A sample. Of the variations only the quick ones are in the quick run."""
    settings: dict[str, Any] = {k: more.pop(k) for k in ("refused", "bounded", "told", "optional_keys", "saved_tensors", "reference") if k in more}
    found = dict(variations or {})
    config = {"architectures": [cls], "model_type": kind, **SMALL, **more}
    return {"config": config, "variations": found, "slow": frozenset(set(found) - set(quick.split())), **settings}


def internlm2_tensors(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """What InternLM2's own code saves."""
    width, ffn = config["hidden_size"], config["intermediate_size"]
    size = width // config["num_attention_heads"]
    rows = size * (config["num_attention_heads"] + 2 * config["num_key_value_heads"])
    shapes: dict[str, tuple[int, ...]] = {"model.tok_embeddings": (273, width), "model.norm": (width,), "output": (273, width)}
    for i in range(config["num_hidden_layers"]):
        shapes |= {
            f"model.layers.{i}.attention_norm": (width,),
            f"model.layers.{i}.attention.wqkv": (rows, width),
            f"model.layers.{i}.attention.wo": (width, width),
            f"model.layers.{i}.ffn_norm": (width,),
            f"model.layers.{i}.feed_forward.w1": (ffn, width),
            f"model.layers.{i}.feed_forward.w3": (ffn, width),
            f"model.layers.{i}.feed_forward.w2": (width, ffn),
        }
    return {f"{name}.weight": shape for name, shape in shapes.items()}


def internlm2_reference(folder: Path, ids: Sequence[int]) -> Any:
    """A Llama of the same weights, in transformers: InternLM2 keeps queries, key and value of each group together."""
    import json

    import torch
    import transformers

    from llmfit_core.testing import read_folder

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    names = {
        "model.tok_embeddings": "model.embed_tokens", "output.weight": "lm_head.weight", "attention_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm", "attention.wo": "self_attn.o_proj", "feed_forward.w1": "mlp.gate_proj",
        "feed_forward.w3": "mlp.up_proj", "feed_forward.w2": "mlp.down_proj",
    }  # fmt: skip
    groups, width = config["num_key_value_heads"], config["hidden_size"]
    size = width // config["num_attention_heads"]
    state = {}
    for name, array in read_folder(folder).items():
        tensor = torch.from_numpy(array.astype("float32"))
        if "wqkv" in name:
            parts = tensor.reshape(groups, -1, size, width)
            for key, part in (("q", parts[:, :-2]), ("k", parts[:, -2]), ("v", parts[:, -1])):
                state[name.replace("attention.wqkv", f"self_attn.{key}_proj")] = part.reshape(-1, width)
            continue
        for theirs, ours in names.items():
            name = name.replace(theirs, ours)
        state[name] = tensor
    keys = (*SMALL, "vocab_size", "rms_norm_eps", "rope_theta")
    said = {k: v for k, v in config.items() if k in keys}
    made: Any = transformers.LlamaForCausalLM(transformers.LlamaConfig(**said))
    net = made.float().eval()
    net.load_state_dict(state)
    with torch.inference_mode():
        return net(torch.tensor([list(ids)])).logits[0].double().log_softmax(-1).numpy()


SAMPLES: dict[str, dict[str, Any]] = {
    "architectures": {
        "smollm3": _of(
            "SmolLM3ForCausalLM", "smollm3", num_hidden_layers=4, quick="biases window",
            variations={
                "biases": {"no_rope_layer_interval": 9, "attention_bias": True, "mlp_bias": True},
                "window": {"use_sliding_window": True, "sliding_window": 16},
                "all-roped": {"no_rope_layers": [1] * 4},
                "eight-own-head": {"num_hidden_layers": 8, "num_key_value_heads": 1, "tie_word_embeddings": False},
                "yarn-wide-heads": {"head_dim": 32, **rope(YARN)},
                "three-layers": {"num_hidden_layers": 3},
                "llama3": {"no_rope_layers": [1] * 4, **rope(LLAMA3)},
                "no-size": {"no_rope_layers": [1, 1, 1, 0], "use_sliding_window": True},
                "dynamic": {**rope({"rope_type": "dynamic", "factor": 4.0}), "max_position_embeddings": 32},
            },
            bounded={"window": 16, "dynamic": 32},
            refused={
                "every-other": ({"no_rope_layers": [1, 0, 1, 0]}, CANNOT),
                "no-rope": ({"no_rope_layers": [0, 0, 0, 0]}, CANNOT),
                "interval": ({"no_rope_layer_interval": 2}, CANNOT),
                "attention-bias": BIASES,
                "mlp-bias": ({"mlp_bias": True}, CANNOT),
                "gelu": GELU,
                "llama3-and-no-rope": (rope(LLAMA3), CANNOT),
            },
        ),
        "olmo": _of(
            "OlmoForCausalLM", "olmo", pad_token_id=1, quick="clipped",
            variations={
                "clipped": {"clip_qkv": 1.0, "num_key_value_heads": 1},
                "tied-linear": {"tie_word_embeddings": True, **rope(LINEAR)},
                "yarn": {"clip_qkv": 8.0, "num_key_value_heads": 4, **rope(YARN)},
            },
            refused={"biases": BIASES, "wide-heads": WIDE_HEADS, "llama3": (rope(LLAMA3), CANNOT)},
        ),
        "olmo2": _of(
            "Olmo2ForCausalLM", "olmo2",
            variations={
                "one-kv-head": {"num_key_value_heads": 1, "rms_norm_eps": 1e-3},
                "tied-yarn": {"tie_word_embeddings": True, **rope(YARN, 5e5)},
            },
            refused={"biases": BIASES, "wide-heads": WIDE_HEADS},
        ),
        "olmoe": _of(
            "OlmoeForCausalLM", "olmoe", intermediate_size=64, num_key_value_heads=4, num_experts=4, num_experts_per_tok=2,
            variations={
                "tied": {"rms_norm_eps": 1e-3, "tie_word_embeddings": True},
                "all-used": {"norm_topk_prob": True, "num_experts_per_tok": 4},
                "three-linear": {"num_experts": 3, "num_experts_per_tok": 1, **rope(LINEAR)},
                "yarn": rope(YARN, attention_factor=1.3),
            },
            refused={
                "normalised": ({"norm_topk_prob": True}, CANNOT),
                "clipped": ({"clip_qkv": 2.0}, CANNOT),
                "grouped": ({"num_key_value_heads": 2}, CANNOT),
                "biases": BIASES,
            },
        ),
        "granite": _of(
            "GraniteForCausalLM", "granite", **MULTIPLIERS,
            variations={
                "llama3-wide-heads": {"head_dim": 32, **rope(LLAMA3)},
                "biases": {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1},
                "ones": dict.fromkeys(MULTIPLIERS, 1.0),
                "yarn-betas": {"tie_word_embeddings": True, **rope(YARN, beta_fast=16.0)},
                "linear": rope(LINEAR),
            },
            refused={"gelu": GELU},
        ),
        "cohere": _of(
            "CohereForCausalLM", "cohere",
            variations={
                "one-kv-head": {"num_key_value_heads": 1, "logit_scale": 0.5, "layer_norm_eps": 1e-3},
                "yarn": rope(YARN, attention_factor=1.3),
                "large-normed": {**LARGE, "use_qk_norm": True, **rope(LINEAR, 5e5)},
            },
            refused={
                "normed": ({"use_qk_norm": True}, CANNOT),
                "own-head": ({"tie_word_embeddings": False}, CANNOT),
                "biases": BIASES,
            },
        ),
        "cohere2": _of(
            "Cohere2ForCausalLM", "cohere2", num_hidden_layers=4, sliding_window=16, quick="odd-layers",
            variations={
                "odd-layers": {"layer_types": [FULL, SLIDING, FULL, SLIDING], "num_key_value_heads": 4, "logit_scale": 0.5},
                "everything-slides": {"layer_types": [SLIDING] * 4, **rope(YARN, 5e5)},
            },
            refused={
                "gelu": GELU,
                "own-head": ({"tie_word_embeddings": False}, CANNOT),
                "llama3": (rope(LLAMA3), CANNOT),
                "nothing-slides": ({"layer_types": [FULL] * 4}, CANNOT),
                "no-window": ({"sliding_window": None}, "config-value"),
                "odd-kind": ({"layer_types": ["chunked_attention"] * 4}, "config-value"),
            },
        ),
        "olmo3": _of(
            "Olmo3ForCausalLM", "olmo3", num_hidden_layers=4, sliding_window=16, **by_kind({}), quick="odd-layers",
            variations={
                "odd-layers": {"layer_types": [FULL, SLIDING, FULL, SLIDING], "num_key_value_heads": 4, "rope_parameters": None},
                "nothing-slides": {"layer_types": [FULL] * 4, "tie_word_embeddings": True},
                "everything-slides": {"layer_types": [SLIDING] * 4},
            },
            refused={
                "gelu": GELU,
                "two-bases": (by_kind({"rope_theta": 10000.0}), CANNOT),
                "scaled-sliding": (by_kind(YARN), CANNOT),
                "llama3": (by_kind({}, LLAMA3), CANNOT),
                "no-window": ({"sliding_window": None}, "config-value"),
                "whose-base": ({"rope_parameters": ..., "rope_theta": 10000.0}, "config-value"),
                "biases": BIASES,
            },
        ),
        "glm": _of(
            "GlmForCausalLM", "glm", head_dim=16, pad_token_id=272,
            variations={
                "tied-whole": {
                    "tie_word_embeddings": True, "partial_rotary_factor": 1.0, "attention_bias": False, "num_key_value_heads": 4,
                },
            },
            refused={"gelu": GELU, "wide-heads": WIDE_HEADS},
        ),
        "glm4": _of(
            "Glm4ForCausalLM", "glm4", head_dim=32, pad_token_id=272,
            variations={
                "quarter": {"head_dim": 64, **rope({"rope_type": "default"}, partial_rotary_factor=0.25)},
                "no-biases": {"num_key_value_heads": 4, "attention_bias": False, "tie_word_embeddings": True},
                "whole-yarn": rope(YARN, partial_rotary_factor=1.0),
                "half-yarn": rope(YARN, partial_rotary_factor=0.5),
                "half-linear": rope(LINEAR, partial_rotary_factor=0.5),
            },
            refused={"llama3": (rope(LLAMA3, partial_rotary_factor=0.5), CANNOT)},
        ),
        "exaone4": _of(
            "Exaone4ForCausalLM", "exaone4", sliding_window=None, layer_types=[FULL] * 2,
            variations={
                "llama3": {"num_key_value_heads": 1, **rope(LLAMA3, 1e6)},
                "tied-yarn": {"tie_word_embeddings": True, **rope(YARN, beta_fast=16.0)},
                "slides": {"sliding_window": 16, "layer_types": [SLIDING] * 2},
                "large": {**MIXED, **rope(LLAMA3, 1e6)},
                "large-other-layers": {**MIXED, "layer_types": ([FULL] + [SLIDING] * 6 + [FULL]) * 8},
                "large-no-window": {**LARGE, "layer_types": [FULL] * 64},
                "large-yarn": {**MIXED, **rope(YARN)},
            },
            bounded={"slides": 16},
            refused={
                "wide-heads": WIDE_HEADS,
                "window": ({"sliding_window": 16, "layer_types": [SLIDING, FULL]}, CANNOT),
                "no-rope": ({"sliding_window": 16}, CANNOT),
            },
        ),
        "ernie4_5": _of(
            "Ernie4_5ForCausalLM", "ernie4_5", head_dim=16,
            variations={
                "wide-heads": {"head_dim": 64, "num_key_value_heads": 1, "tie_word_embeddings": False},
                "yarn": rope(YARN),
                "linear": rope(LINEAR),
            },
            refused={"biases": ({"use_bias": True}, "missing-tensor")},
        ),
        "arcee": _of(
            "ArceeForCausalLM", "arcee", quick="yarn-betas",
            variations={
                "yarn-betas": {"head_dim": 32, **rope(YARN, beta_fast=16.0, truncate=False)},
                "llama3-tied": {"tie_word_embeddings": True, "num_key_value_heads": 4, **rope(LLAMA3)},
            },
            refused={"silu": ({"hidden_act": "silu"}, CANNOT), "biases": ({"mlp_bias": True}, "missing-tensor")},
        ),
        "seed_oss": _of(
            "SeedOssForCausalLM", "seed_oss", head_dim=32, quick="yarn",
            variations={
                "yarn": {"num_key_value_heads": 4, **rope(YARN)},
                "no-biases-tied": {"attention_bias": False, "tie_word_embeddings": True, "head_dim": None},
            },
            refused={"gelu": GELU, "llama3": (rope(LLAMA3), CANNOT)},
        ),
        "internlm2": _of(
            "InternLM2ForCausalLM", "internlm2", bias=False, tie_word_embeddings=False, rms_norm_eps=1e-5, rope_theta=10000.0,
            hidden_act="silu", quick="four-by-two",
            variations={
                "four-by-two": {"num_attention_heads": 8},
                "no-groups": {"num_key_value_heads": 4},
                "one-group": {"num_key_value_heads": 1},
            },
            saved_tensors=internlm2_tensors,
            reference=internlm2_reference,
        ),
        **EXPERTS,
        **HUB,
    }
}  # fmt: skip
