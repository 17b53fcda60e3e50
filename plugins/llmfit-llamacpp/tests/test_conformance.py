"""This runtime against the kit."""

from __future__ import annotations

from llmfit_core.testing import RuntimeTests
from llmfit_llamacpp import LLAMACPP


class TestLlamaCpp(RuntimeTests):
    runtime = LLAMACPP
