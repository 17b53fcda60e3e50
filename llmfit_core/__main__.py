"""`python -m llmfit_core` is `llmfit`."""

from __future__ import annotations

from llmfit_core.cli import main

main()
