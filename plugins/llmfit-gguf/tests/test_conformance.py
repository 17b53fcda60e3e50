"""The exporters and the decoder of this plugin against the kit."""

from __future__ import annotations

from llmfit_core.testing import DecoderTests, ExporterTests
from llmfit_gguf import llmfit_decoders, llmfit_exporters
from llmfit_gguf.samples import SAMPLES

GGUF, HF = llmfit_exporters()
(DECODER,) = llmfit_decoders()


class TestGguf(ExporterTests):
    exporter = GGUF
    sample = SAMPLES["exporters"]["gguf"]


class TestHf(ExporterTests):
    exporter = HF


class TestGgufDecoder(DecoderTests):
    decoder = DECODER
    sample = SAMPLES["decoders"]["gguf"][0]


class TestPlainGgufDecoder(DecoderTests):
    decoder = DECODER
    sample = SAMPLES["decoders"]["gguf"][1]
