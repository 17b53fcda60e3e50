"""Tiny models of these families, and the conversions of the end-to-end tests."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import config_dir, golden_model, golden_models, pytest_configure, registry
from tests.e2e.conftest import to_gguf, to_hf
from tests.golden_models import SMALL

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from types import ModuleType

    from tests.golden_models import GoldenModels

__all__ = ["config_dir", "golden_model", "golden_models", "pytest_configure", "registry", "to_gguf", "to_hf"]

FAMILIES: Mapping[str, tuple[str, str, str, Mapping[str, Any]]] = {
    "smollm3": ("SmolLM3ForCausalLM", "SmolLM3Config", "bpe:smaug-bpe", {"num_hidden_layers": 4}),
}
"""Family: model class, config class, tokenizer (of `tests/golden/tok`), what its small model has besides."""


@pytest.fixture(scope="session")
def variation(golden_models: GoldenModels) -> Callable[..., Path]:
    """`variation(family, changes)`: a small model with `changes` to its config."""

    def make(family: str, changes: Mapping[str, Any] | None = None) -> Path:
        cls, config_cls, tokenizer, own = FAMILIES[family]
        config = {**SMALL, **own, **(changes or {})}
        name = f"open-{family}-{hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:12]}"

        def build(maker: ModuleType) -> None:
            maker.case(name, cls, config_cls, tokenizer, config, base={})
            maker.build(name)

        return golden_models._made(name, build)

    return make


@pytest.fixture(scope="session")
def classes() -> Callable[[str], tuple[str, str]]:
    """`classes(family)`: the names of transformers' model class and config class."""
    return lambda family: FAMILIES[family][:2]
