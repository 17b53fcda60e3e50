"""The decoder against the kit."""

from __future__ import annotations

from typing import Any, ClassVar

from llmfit_core.testing import DecoderTests
from llmfit_mlx import llmfit_decoders
from tests.mlx_models import write

(DECODER,) = llmfit_decoders()


class TestMlx(DecoderTests):
    decoder = DECODER
    samples: ClassVar[Any] = {
        "four": lambda folder: write(folder),
        "six": lambda folder: write(folder, bits=6, group=64),
        "experts": lambda folder: write(folder, "qwen3moe", own={"model.layers.0.mlp.gate": (8, 64)}),
    }
