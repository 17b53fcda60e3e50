"""What the repository's tests share."""

from __future__ import annotations

from tests.conftest import config_dir, golden_model, golden_models, pytest_configure, registry

__all__ = ["config_dir", "golden_model", "golden_models", "pytest_configure", "registry"]
