"""The core's own readers of tokenizer files against the kit."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from llmfit_core import TokenizerReader
from llmfit_core.testing import TokenizerTests
from llmfit_core.testing.tokenizer_files import write_tokenizer
from llmfit_core.tokenizer.read import read_vocab

FILES = Path(__file__).parents[2] / "golden" / "tok"
CORE = TokenizerReader(name="core", detects=lambda side, config: True, read=read_vocab)


class TestCoreReaders(TokenizerTests):
    reader = CORE
    of_core = True
    samples: ClassVar = {"kit": write_tokenizer, "spm": FILES / "spm", **{p.name: p for p in sorted(FILES.glob("bpe-*"))[:6]}}
