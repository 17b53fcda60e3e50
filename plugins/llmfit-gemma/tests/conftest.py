"""Tiny Gemmas, and the conversions of the end-to-end tests."""

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

__all__ = [
    "config_dir",
    "golden_model",
    "golden_models",
    "pytest_configure",
    "registry",
    "to_gguf",
    "to_hf",
    "with_config",
]

TEXT_2 = {"head_dim": 32, "sliding_window": 16, "query_pre_attn_scalar": 32}
FAMILIES: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "gemma": ("GemmaForCausalLM", "GemmaConfig", {"head_dim": 32}),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", TEXT_2),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", {**TEXT_2, "num_hidden_layers": 4}),
}
"""Family: model class, config class, what its small model has besides."""


@pytest.fixture(scope="session")
def variation(golden_models: GoldenModels) -> Callable[..., Path]:
    """`variation(family, changes)`: a small model with `changes` to its config."""

    def make(family: str, changes: Mapping[str, Any] | None = None) -> Path:
        cls, config_cls, own = FAMILIES[family]
        config = {**SMALL, **own, **(changes or {})}
        name = f"{family}-{hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:12]}"

        def build(maker: ModuleType) -> None:
            maker.case(name, cls, config_cls, "spm", config, base={})
            maker.build(name)

        return golden_models._made(name, build)

    return make


@pytest.fixture(scope="session")
def classes() -> Callable[[str], tuple[str, str]]:
    """`classes(family)`: the names of transformers' model class and config class."""
    return lambda family: FAMILIES[family][:2]


@pytest.fixture(scope="session")
def same_model() -> Callable[[Path, Path], None]:
    """`same_model(ours, theirs)`: tensors bit for bit, and the same logits in transformers.

    A norm is compared as what it multiplies by, one plus the stored values: of values below 2**-15 a sum in float32,
    which is what GGUF files hold and what transformers computes, keeps less than bf16 does.
    """
    from tests.e2e.test_round_trip import same_logits
    from tests.expert_forms import load

    def check(ours: Path, theirs: Path) -> None:
        a, b = load(ours), load(theirs)
        assert sorted(a) == sorted(b)
        for name, tensor in b.items():
            assert a[name].dtype == tensor.dtype, name
            one = 1.0 if "norm" in name else 0.0
            assert (a[name].float() + one).equal(tensor.float() + one), name
        same_logits(ours, theirs)

    return check
