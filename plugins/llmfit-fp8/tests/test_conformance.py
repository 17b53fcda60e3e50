"""The decoder against the kit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import pytest

pytest.importorskip("torch", reason="the judge of 8-bit floats")

from llmfit_core.testing import DecoderTests
from llmfit_fp8 import llmfit_decoders
from tests.fp8_models import WHOLE, fp8

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

(DECODER,) = llmfit_decoders()
BLOCKS = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}


def sample(**writing: Any) -> Callable[[Path], tuple[Path, Any]]:
    return lambda folder: fp8(folder, **writing)


class TestFp8(DecoderTests):
    decoder = DECODER
    samples: ClassVar[Any] = {
        "blocks": sample(config=BLOCKS),
        "blocks-of-shapes": sample(),
        "groups": sample(rows=1, columns=32),
        "rows": sample(rows=1, columns=WHOLE, end="_scale"),
        "tensors": sample(rows=WHOLE, columns=WHOLE, end="_scale", stored=lambda s: s.reshape(1)),
        "experts": sample(config=BLOCKS, family="qwen3moe", experts="fused", hidden=256, head=64, moe=128),
        "bare": sample(scaled=False),
    }
