"""Tiny models of these families, and the conversions of the end-to-end tests."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import config_dir, golden_model, golden_models, pytest_configure, registry
from tests.e2e.conftest import to_gguf, to_hf

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
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 2,
    "moe_intermediate_size": 64,
    "first_k_dense_replace": 1,
}
FAMILIES: Mapping[str, tuple[str, str, str, Mapping[str, Any]]] = {
    "deepseek2": ("DeepseekV2ForCausalLM", "DeepseekV2Config", "bpe:deepseek-llm", {}),
    "deepseek3": ("DeepseekV3ForCausalLM", "DeepseekV3Config", "bpe:deepseek-v3", {"n_group": 4, "topk_group": 2, "num_mtp_layers": 0}),
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
