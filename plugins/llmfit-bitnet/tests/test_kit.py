"""The architecture and the decoder against the conformance kit."""

from __future__ import annotations

from llmfit_bitnet import BITNET, llmfit_decoders
from llmfit_bitnet.samples import SAMPLES
from llmfit_core.testing import ArchitectureTests, DecoderTests


class TestBitNet(ArchitectureTests):
    """What llama.cpp's graph computes, and what it does not."""

    architecture = BITNET
    sample = SAMPLES["architectures"]["bitnet"]


class TestBitNetDecoder(DecoderTests):
    """Packed both ways."""

    decoder = next(iter(llmfit_decoders()))
    sample = SAMPLES["decoders"]["bitnet"]
