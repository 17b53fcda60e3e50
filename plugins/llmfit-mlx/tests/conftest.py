"""Fixtures of all tests."""

from __future__ import annotations

from tests.conftest import config_dir, pytest_configure, registry

__all__ = ["config_dir", "pytest_configure", "registry"]
