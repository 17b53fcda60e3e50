"""Fixtures of all tests: golden models from a cache, plugins as installed, preferences of nobody."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.golden_models import GoldenModels

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from llmfit_core.plugins import PluginRegistry


def pytest_configure(config: pytest.Config) -> None:
    """Warnings stay errors, but for what the judges' own code warns of while it is imported or used."""
    for line in (
        # torch and transformers import modules and call functions that they have deprecated themselves.
        "ignore::DeprecationWarning:torch.*",
        "ignore::FutureWarning:torch.*",
        "ignore::DeprecationWarning:transformers.*",
        "ignore::FutureWarning:transformers.*",
        # sentencepiece and other SWIG modules: `builtin type SwigPyPacked has no __module__ attribute`, on import.
        "ignore:builtin type .* has no __module__ attribute:DeprecationWarning",
    ):
        config.addinivalue_line("filterwarnings", line)


@pytest.fixture(scope="session")
def golden_models(pytestconfig: pytest.Config) -> GoldenModels:
    """Tiny models, built once and kept in `.cache/` of the checkout (or in `LLMFIT_TEST_CACHE`)."""
    cache = os.environ.get("LLMFIT_TEST_CACHE") or pytestconfig.rootpath / ".cache" / "tiny-models"
    return GoldenModels(cache)


@pytest.fixture(scope="session")
def golden_model(golden_models: GoldenModels) -> Callable[[str], Path]:
    """`golden_model(case)`: the folder of a golden case's model. Do not write into it."""
    return golden_models.golden


@pytest.fixture
def config_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Preferences of this test only, and no selection of plugins from outside."""
    folder = tmp_path / "llmfit-config"
    monkeypatch.setenv("LLMFIT_CONFIG_DIR", str(folder))
    for name in ("LLMFIT_PLUGINS", "LLMFIT_TRACE", "LLMFIT_LLAMACPP"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def registry(config_dir: Path) -> PluginRegistry:
    """The installed plugins."""
    from llmfit_core.plugins import load_plugins

    return load_plugins()
