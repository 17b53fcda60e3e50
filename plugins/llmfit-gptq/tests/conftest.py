"""The fixtures of the whole suite, and a small GPT-2, whose Conv1D lies transposed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conftest import config_dir, golden_model, golden_models, pytest_configure, registry

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import ModuleType

    from tests.golden_models import GoldenModels

__all__ = ["config_dir", "golden_model", "golden_models", "pytest_configure", "registry"]


@pytest.fixture(scope="session")
def variation(golden_models: GoldenModels) -> Callable[[str], Path]:
    """`variation("gpt2")`: a small model."""

    def make(family: str) -> Path:
        name = f"quantized-{family}"
        config = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 512}

        def build(maker: ModuleType) -> None:
            maker.case(name, "GPT2LMHeadModel", "GPT2Config", "bpe:gpt-2", config, base={})
            maker.build(name)

        return golden_models._made(name, build)

    return make
