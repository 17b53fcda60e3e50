"""Each family against llmfit's conformance kit."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any, ClassVar

from llmfit_core.testing import ArchitectureTests
from llmfit_deepseek2 import DEEPSEEK, DEEPSEEK2, DEEPSEEK3, GLM4_MOE, GLM4_MOE_LITE, YOUTU, samples

SAMPLES = samples.SAMPLES["architectures"]


class TestDeepseek2(ArchitectureTests):
    architecture = DEEPSEEK2
    sample = SAMPLES["deepseek2"]


class TestDeepseek3(ArchitectureTests):
    architecture = DEEPSEEK3
    sample = SAMPLES["deepseek3"]


class TestGlm4MoeLite(ArchitectureTests):
    architecture = GLM4_MOE_LITE
    sample = SAMPLES["glm4-moe-lite"]


class TestYoutu(ArchitectureTests):
    architecture = YOUTU
    sample = SAMPLES["youtu"]


class TestGlm4Moe(ArchitectureTests):
    architecture = GLM4_MOE
    sample = SAMPLES["glm4moe"]


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
    """A Qwen2-MoE that computes the same: see test_v1.py."""
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM

    said = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    same = "hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads vocab_size".split()
    same += ["max_position_embeddings", "moe_intermediate_size", "num_experts_per_tok"]
    shared = said["moe_intermediate_size"] * said["n_shared_experts"]
    config = Qwen2MoeConfig(
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
    with tempfile.TemporaryDirectory() as work:
        config.save_pretrained(work)
        save_file(tensors, Path(work, "model.safetensors"), metadata={"format": "pt"})
        net = Qwen2MoeForCausalLM.from_pretrained(work, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.inference_mode():
        return net(torch.tensor([list(ids)])).logits[0].double().log_softmax(-1).numpy()


class TestDeepseek(ArchitectureTests):
    architecture = DEEPSEEK
    config: ClassVar = {
        **{k: v for k, v in samples.SMALL.items() if "rank" not in k and "head_dim" not in k},
        **samples.MIXED, "architectures": ["DeepseekForCausalLM"], "model_type": "deepseek", "num_key_value_heads": 2,
        "first_k_dense_replace": 1, "vocab_size": 512, "n_routed_experts": 4,
    }  # fmt: skip
    saved_tensors = staticmethod(saved)
    reference = staticmethod(by_qwen2_moe)
    refused: ClassVar = {"normalised": ({"norm_topk_prob": True}, "graph-cannot")}
