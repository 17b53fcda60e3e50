"""Shared paths and judges of the tokenizer tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

GOLDEN = Path(__file__).parents[2] / "golden"


@pytest.fixture(scope="session")
def golden_tok() -> Path:
    return GOLDEN / "tok"
