"""Tiny models of these families, and the conversions of the end-to-end tests."""

from __future__ import annotations

import contextlib
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
    "olmo": ("OlmoForCausalLM", "OlmoConfig", "bpe:olmo", {}),
    "olmo2": ("Olmo2ForCausalLM", "Olmo2Config", "bpe:dbrx", {}),
    "olmo3": ("Olmo3ForCausalLM", "Olmo3Config", "bpe:dbrx", {"sliding_window": 16, "num_hidden_layers": 4}),
    "olmoe": (
        "OlmoeForCausalLM",
        "OlmoeConfig",
        "bpe:olmo",
        {"num_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 4, "intermediate_size": 128},
    ),
    "granite": (
        "GraniteForCausalLM",
        "GraniteConfig",
        "bpe:refact",
        {"embedding_multiplier": 12, "logits_scaling": 8, "residual_multiplier": 0.22, "attention_multiplier": 0.2},
    ),
    "cohere": ("CohereForCausalLM", "CohereConfig", "bpe:command-r", {"tie_word_embeddings": True}),
    "glm4": ("Glm4ForCausalLM", "Glm4Config", "bpe:glm4", {"head_dim": 32}),
    "exaone4": (
        "Exaone4ForCausalLM",
        "Exaone4Config",
        "bpe:exaone4",
        {"sliding_window": None, "layer_types": ["full_attention"] * 2},
    ),
    "ernie": ("Ernie4_5ForCausalLM", "Ernie4_5Config", "spm", {"head_dim": 32, "tie_word_embeddings": True}),
}
"""Family: model class, config class, tokenizer (of `tests/golden/tok`), what its small model has besides."""


def suppressing(calibrate: Callable[..., None]) -> Callable[..., None]:
    """`calibrate` where it can: tied models are scaled by their last norm, and OLMo's has no weight."""

    def run(model: Any, ids: Any, tied: bool) -> None:
        with contextlib.suppress(AttributeError):
            calibrate(model, ids, tied)

    return run


@pytest.fixture(scope="session")
def variation(golden_models: GoldenModels) -> Callable[..., Path]:
    """`variation(family, changes)`: a small model with `changes` to its config."""

    monkeypatch = pytest.MonkeyPatch()

    def make(family: str, changes: Mapping[str, Any] | None = None) -> Path:
        cls, config_cls, tokenizer, own = FAMILIES[family]
        config = {**SMALL, **own, **(changes or {})}
        name = f"open-{family}-{hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:12]}"

        def build(maker: ModuleType) -> None:
            monkeypatch.setattr(maker, "calibrate", suppressing(maker.calibrate))
            maker.case(name, cls, config_cls, tokenizer, config, base={})
            maker.build(name)
            monkeypatch.undo()

        return golden_models._made(name, build)

    return make


@pytest.fixture(scope="session")
def classes() -> Callable[[str], tuple[str, str]]:
    """`classes(family)`: the names of transformers' model class and config class."""
    return lambda family: FAMILIES[family][:2]
