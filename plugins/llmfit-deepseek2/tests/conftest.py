"""Tiny models of these families, and the conversions of the end-to-end tests."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import config_dir, golden_model, golden_models, pytest_configure, registry
from tests.e2e.conftest import to_gguf, to_hf
from tests.expert_forms import load, one_by_one

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from types import ModuleType

    from tests.golden_models import GoldenModels

__all__ = ["config_dir", "golden_model", "golden_models", "pytest_configure", "registry", "to_gguf", "to_hf"]

SMALL = {
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 512,
    "kv_lora_rank": 64,
    "q_lora_rank": 96,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 48,
}
MIXED = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 2,
    "moe_intermediate_size": 64,
}
FAMILIES: Mapping[str, tuple[str, str, str, Mapping[str, Any]]] = {
    "deepseek2": ("DeepseekV2ForCausalLM", "DeepseekV2Config", "bpe:deepseek-llm", {**MIXED, "first_k_dense_replace": 1}),
    "deepseek3": (
        "DeepseekV3ForCausalLM",
        "DeepseekV3Config",
        "bpe:deepseek-v3",
        {**MIXED, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2, "num_mtp_layers": 0},
    ),
    "glm4-moe-lite": ("Glm4MoeLiteForCausalLM", "Glm4MoeLiteConfig", "bpe:glm4", MIXED),
    "youtu": ("YoutuForCausalLM", "YoutuConfig", "bpe:llama-bpe", {}),
}
"""Family: model class, config class, tokenizer (of `tests/golden/tok`), what its small model has besides `SMALL`."""


@pytest.fixture(scope="session")
def variation(golden_models: GoldenModels) -> Callable[..., Path]:
    """`variation(family, changes)`: a small model with `changes` to its config."""

    def make(family: str, changes: Mapping[str, Any] | None = None) -> Path:
        cls, config_cls, tokenizer, own = FAMILIES[family]
        config = {**SMALL, **own, **(changes or {})}
        name = f"{family}-{hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:12]}"

        def build(maker: ModuleType) -> None:
            maker.case(name, cls, config_cls, tokenizer, config, base={})
            maker.build(name)

        return golden_models._made(name, build)

    return make


@pytest.fixture(scope="session")
def same_tensors() -> Callable[[Path, Path], None]:
    """`same_tensors(ours, theirs)`: the same bits, in one form of experts; corrections of their choice in float32."""
    import torch

    def compare(ours: Path, theirs: Path) -> None:
        a, b = one_by_one(load(ours)), one_by_one(load(theirs))
        assert sorted(a) == sorted(b)
        for name, tensor in b.items():
            wide = name.endswith("e_score_correction_bias")
            assert a[name].dtype == (torch.float32 if wide else tensor.dtype), name
            assert a[name].equal(tensor.float() if wide else tensor), name

    return compare
