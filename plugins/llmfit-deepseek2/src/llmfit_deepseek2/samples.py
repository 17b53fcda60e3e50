"""Tiny models, for the tests and for `llmfit plugins check deepseek2`. llmfit never loads this by itself."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 256,
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 24,
    "rms_norm_eps": 1e-6,
}
MIXED: dict[str, Any] = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 2,
    "moe_intermediate_size": 32,
}
YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "mscale": 0.5,
    "mscale_all_dim": 0.9,
}
GROUPS = frozenset({"expert_group_count", "expert_group_used_count"})
"""Of DeepSeek-V3's graph, which is the same."""


def saved(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """What the files of a DeepSeekMoE hold, whose class transformers lacks."""
    width, rows, each = config["hidden_size"], config["vocab_size"], config["moe_intermediate_size"]
    kv = width // config["num_attention_heads"] * config["num_key_value_heads"]
    out = {"model.embed_tokens.weight": (rows, width), "model.norm.weight": (width,), "lm_head.weight": (rows, width)}
    for n in range(config["num_hidden_layers"]):
        layer = f"model.layers.{n}"
        out |= {f"{layer}.{x}_layernorm.weight": (width,) for x in ("input", "post_attention")}
        out |= {f"{layer}.self_attn.{x}_proj.weight": (kv if x in "kv" else width, width) for x in "qkvo"}
        widths = {f"{layer}.mlp": config["intermediate_size"]}
        if n >= config["first_k_dense_replace"]:
            out[f"{layer}.mlp.gate.weight"] = (config["n_routed_experts"], width)
            widths = {f"{layer}.mlp.experts.{e}": each for e in range(config["n_routed_experts"])}
            widths[f"{layer}.mlp.shared_experts"] = each * config["n_shared_experts"]
        for name, inner in widths.items():
            out |= {f"{name}.gate_proj.weight": (inner, width), f"{name}.up_proj.weight": (inner, width)}
            out[f"{name}.down_proj.weight"] = (width, inner)
    return out


def by_qwen2_moe(folder: Path, ids: list[int]) -> Any:
    """A Qwen2-MoE that computes the same, but for the names.

    Same attention, experts and softmax. Its shared expert is multiplied by a sigmoid, which is a half where the gate in front
    of it is zero; so its `down_proj` is twice DeepSeek's. Biases of q, k and v are zero.
    """
    from llmfit_core.testing.with_transformers import judge

    said = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    same = "hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads vocab_size".split()
    same += ["max_position_embeddings", "moe_intermediate_size", "num_experts_per_tok"]
    shared = said["moe_intermediate_size"] * said["n_shared_experts"]
    with judge() as transformers, tempfile.TemporaryDirectory() as work:
        import torch
        from safetensors.torch import load_file, save_file

        config = transformers.Qwen2MoeConfig(
            **{k: said[k] for k in same}, num_experts=said["n_routed_experts"], shared_expert_intermediate_size=shared,
            mlp_only_layers=list(range(said["first_k_dense_replace"])), norm_topk_prob=False, rms_norm_eps=said["rms_norm_eps"],
            tie_word_embeddings=False, architectures=["Qwen2MoeForCausalLM"],
        )  # fmt: skip
        tensors: dict[str, torch.Tensor] = {}
        for file in folder.glob("*.safetensors"):
            for name, tensor in load_file(file).items():
                twice = name.endswith("shared_experts.down_proj.weight")
                tensors[name.replace("shared_experts.", "shared_expert.")] = tensor.float() * (2 if twice else 1)
        for name in list(tensors):
            if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
                tensors[name.replace("weight", "bias")] = torch.zeros(tensors[name].shape[0])
            if name.endswith("mlp.gate.weight"):
                tensors[name.replace("gate.weight", "shared_expert_gate.weight")] = torch.zeros(1, said["hidden_size"])
        config.save_pretrained(work)
        save_file(tensors, Path(work, "model.safetensors"), metadata={"format": "pt"})
        net: Any = transformers.Qwen2MoeForCausalLM.from_pretrained(work, dtype=torch.float32, attn_implementation="eager")
        with torch.inference_mode():
            return net.eval()(torch.tensor([list(ids)])).logits[0].double().log_softmax(-1).numpy()


DEEPSEEK: dict[str, Any] = {
    "config": {
        **{k: v for k, v in SMALL.items() if "rank" not in k and "head_dim" not in k},
        **MIXED, "architectures": ["DeepseekForCausalLM"], "model_type": "deepseek", "num_key_value_heads": 2,
        "first_k_dense_replace": 1, "vocab_size": 512, "n_routed_experts": 4,
    },
    "saved_tensors": saved,
    "reference": by_qwen2_moe,
    "refused": {"normalised": ({"norm_topk_prob": True}, "graph-cannot")},
}

DEEPSEEK2: dict[str, Any] = {
    "config": {
        **SMALL, **MIXED, "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "first_k_dense_replace": 1,
    },
    "variations": {"whole-q": {"q_lora_rank": None}, "yarn": {"rope_parameters": YARN}},
    "refused": {
        "best-group": ({"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2}, "graph-cannot"),
        "sigmoid": ({"scoring_func": "sigmoid"}, "config-value"),
    },
    "slow": frozenset({"whole-q", "yarn"}),
    "optional_keys": GROUPS,
}

DEEPSEEK3: dict[str, Any] = {
    "config": {
        **SMALL, **MIXED, "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "first_k_dense_replace": 1,
        "n_group": 4, "topk_group": 2, "num_mtp_layers": 0,
    },
    "variations": {
        "whole-q": {"q_lora_rank": None},
        "epsilon": {"rms_norm_eps": 1e-4},
        "yarn-one-group": {"rope_parameters": YARN, "n_group": 1, "topk_group": 1, "norm_topk_prob": False},
    },
    "refused": {
        "halves": ({"rope_interleave": False}, "config-value"),
        "softmax": ({"scoring_func": "softmax"}, "config-value"),
    },
    "slow": frozenset({"whole-q", "epsilon", "yarn-one-group"}),
}

GLM4_MOE_LITE: dict[str, Any] = {
    "config": {**SMALL, **MIXED, "architectures": ["Glm4MoeLiteForCausalLM"], "model_type": "glm4_moe_lite"},
    "variations": {
        "whole-q": {"q_lora_rank": None},
        "all-mixed": {"mlp_layer_types": ["sparse", "sparse"], "rms_norm_eps": 1e-5, "n_group": 4, "topk_group": 2},
    },
    "refused": {"few-kinds": ({"mlp_layer_types": ["dense"]}, "config-key-invalid")},
    "slow": frozenset({"base", "whole-q", "all-mixed"}),  # computed as DeepSeek-V3 is
}

YOUTU: dict[str, Any] = {
    "config": {**SMALL, "architectures": ["YoutuForCausalLM"], "model_type": "youtu"},
    "variations": {"whole-q": {"q_lora_rank": None, "tie_word_embeddings": False, "rope_parameters": YARN}},
    "slow": frozenset({"whole-q"}),
    "optional_keys": GROUPS,
}

GLM4_MOE: dict[str, Any] = {
    "config": {
        **{k: v for k, v in SMALL.items() if "rank" not in k and "head_dim" not in k},
        **MIXED, "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "num_key_value_heads": 2, "head_dim": 24,
        "num_mtp_layers": 0,
    },
    "variations": {
        "biases-normed": {"attention_bias": True, "use_qk_norm": True, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5},
        "whole-heads-mha": {
            "partial_rotary_factor": 1.0, "num_key_value_heads": 4, "first_k_dense_replace": 0, "norm_topk_prob": False,
        },
        "yarn": {"rope_parameters": {**YARN, "mscale": None, "mscale_all_dim": None, "partial_rotary_factor": 0.5}},
    },
    "refused": {
        "softmax": ({"scoring_func": "softmax"}, "config-value"),
        "gelu": ({"hidden_act": "gelu"}, "graph-cannot"),
    },
    "slow": frozenset({"biases-normed", "whole-heads-mha", "yarn"}),
}

SOLAR_OPEN: dict[str, Any] = {
    "config": {
        **{k: v for k, v in SMALL.items() if k.startswith(("hidden", "num_", "max_"))},
        "architectures": ["SolarOpenForCausalLM"], "model_type": "solar_open", "num_key_value_heads": 2, "head_dim": 32,
        "intermediate_size": 96,  # as published, though no layer is dense
        **MIXED, "routed_scaling_factor": 1.5,
    },
    "variations": {
        "groups": {"n_group": 4, "topk_group": 2, "norm_topk_prob": False, "attention_bias": True},
    },
    "refused": {
        "gelu": ({"hidden_act": "gelu"}, "graph-cannot"),
        "half-heads": (
            {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}},
            "config-key-invalid",
        ),
    },
    "slow": frozenset({"groups"}),
}

SAMPLES: dict[str, dict[str, Any]] = {
    "architectures": {
        "deepseek": DEEPSEEK, "deepseek2": DEEPSEEK2, "deepseek3": DEEPSEEK3, "glm4-moe-lite": GLM4_MOE_LITE, "youtu": YOUTU,
        "glm4moe": GLM4_MOE, "solar-open": SOLAR_OPEN,
    }
}  # fmt: skip
