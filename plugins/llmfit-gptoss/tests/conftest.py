"""Tiny GPT-OSS models, and the conversions of the end-to-end tests."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import config_dir, golden_model, golden_models, pytest_configure, registry
from tests.e2e.conftest import to_gguf, to_hf, with_config
from tests.golden_models import SMALL

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from types import ModuleType

    from tests.golden_models import GoldenModels

__all__ = ["config_dir", "golden_model", "golden_models", "pytest_configure", "registry", "to_gguf", "to_hf", "with_config"]

OWN: Mapping[str, Any] = {
    "head_dim": 32,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "intermediate_size": 96,
    "sliding_window": 16,
    "rope_parameters": {"rope_type": "default", "rope_theta": 150000.0},
}


@pytest.fixture(scope="session")
def variation(golden_models: GoldenModels) -> Callable[..., Path]:
    """`variation(**changes)`: a small model with `changes` to its config."""

    def make(**changes: Any) -> Path:
        config = {**SMALL, **OWN, **changes}
        name = f"gptoss-{hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:12]}"

        def build(maker: ModuleType) -> None:
            maker.case(name, "GptOssForCausalLM", "GptOssConfig", "bpe:gpt-4o", config, base={})
            maker.build(name)

        return golden_models._made(name, build)

    return make
