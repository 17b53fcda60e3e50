"""What these tests share with those of the core."""

from __future__ import annotations

from tests.conftest import config_dir, golden_models, pytest_configure, registry
from tests.e2e.conftest import to_gguf, to_hf

__all__ = ["config_dir", "golden_models", "pytest_configure", "registry", "to_gguf", "to_hf"]
