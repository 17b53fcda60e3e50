"""The version, alone, so that anything may import it."""

from __future__ import annotations

__version__ = "0.1.0"
