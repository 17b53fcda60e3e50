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

SMALL = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 512}
WIDE = {"intermediate_size": 256}
GROUPED = {**WIDE, "num_key_value_heads": 2}

FAMILIES: Mapping[str, tuple[str, str, str, Mapping[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", "bpe:gpt-2", {}),
    "bigcode": ("GPTBigCodeForCausalLM", "GPTBigCodeConfig", "bpe:starcoder", {}),
    "bloom": ("BloomForCausalLM", "BloomConfig", "bpe:gpt-2", {"max_position_embeddings": ...}),
    "gptneox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", "bpe:olmo", WIDE),
    "falcon": ("FalconForCausalLM", "FalconConfig", "bpe:falcon", {}),
    "phi": ("PhiForCausalLM", "PhiConfig", "bpe:gpt-2", WIDE),
    "stablelm": ("StableLmForCausalLM", "StableLmConfig", "bpe:gpt-2", GROUPED),
    "starcoder2": ("Starcoder2ForCausalLM", "Starcoder2Config", "bpe:starcoder", GROUPED),
    "nemotron": ("NemotronForCausalLM", "NemotronConfig", "spm", GROUPED),
}
"""Family: model class, config class, tokenizer (of `tests/golden/tok`), what its small model has besides `SMALL`."""


@pytest.fixture(scope="session")
def variation(golden_models: GoldenModels) -> Callable[..., Path]:
    """`variation(family, changes)`: a small model with `changes` to its config."""

    def make(family: str, changes: Mapping[str, Any] | None = None) -> Path:
        cls, config_cls, tokenizer, own = FAMILIES[family]
        config = {k: v for k, v in {**SMALL, **own, **(changes or {})}.items() if v is not ...}
        name = f"classics-{family}-{hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:12]}"

        def build(maker: ModuleType) -> None:
            maker.case(name, cls, config_cls, tokenizer, config, base={})
            maker.build(name)

        return golden_models._made(name, build)

    return make


@pytest.fixture(scope="session")
def classes() -> Callable[[str], tuple[str, str]]:
    """`classes(family)`: the names of transformers' model class and config class."""
    return lambda family: FAMILIES[family][:2]
