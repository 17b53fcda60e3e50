"""`TokenizerTests`: what a reader of tokenizer files promises, judged by the libraries that own the formats."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from llmfit_core.errors import LlmfitError
from llmfit_core.testing.declared import Declared
from llmfit_core.testing.outcome import CheckFailed, NotRun, few, require
from llmfit_core.testing.parity import TEXTS

if TYPE_CHECKING:
    from llmfit_core.declarations import SideFiles, TokenizerReader
    from llmfit_core.tokenizer.vocab import Vocab


class TokenizerTests(Declared, kit=True):
    """Inherit, set `reader` and `samples`, and name the class `Test...`.

    Attributes:
        reader: The declaration.
        samples: By name, a folder of tokenizer files, or `(empty folder) -> None` that writes them.
        reference: `(folder, text) -> ids` by the format's own library; where it is left out, `tokenizers` for a
            tokenizer.json, `sentencepiece` for a tokenizer.model.
        texts: What is cut.
        config: What config.json would say.
    """

    settings: ClassVar[frozenset[str]] = frozenset({"reader", "samples", "reference", "texts", "config"})
    parameters: ClassVar[tuple[str, ...]] = ("sample",)
    plural: ClassVar[str] = "tokenizers"
    setting: ClassVar[str] = "reader"

    reader: ClassVar[TokenizerReader]
    samples: ClassVar[Mapping[str, Path | str | Callable[[Path], object]]] = {}
    reference: ClassVar[Any] = None
    texts: ClassVar[Sequence[str]] = TEXTS
    config: ClassVar[Mapping[str, object]] = {}

    @classmethod
    def values_for(cls, parameter: str) -> tuple[str, ...]:
        """The samples."""
        return tuple(cls.samples)

    def test_it_detects_its_own(self, sample: str) -> None:
        """It says yes to its files, and no to a folder without any."""
        require(self.reader.detects(_side(self, sample), self.config), "it does not detect its own files")
        if not self.of_core:
            require(not self.reader.detects({}, self.config), "it detects a folder without files")

    def test_the_vocabulary_is_whole(self, sample: str) -> None:
        """A type for each token, a score for each where there are scores, ids of specials and stops inside, merges of tokens."""
        vocab = _vocab(self, sample)
        count = len(vocab.tokens)
        require(count > 0 and len(vocab.types) == count, f"{count} tokens have {len(vocab.types)} types")
        require(len(vocab.scores) in (0, count), f"{count} tokens have {len(vocab.scores)} scores")
        wrong = [i for i in (*vocab.specials.values(), *vocab.stops) if not 0 <= i < count]
        require(not wrong, f"special ids outside the vocabulary: {few(wrong)}")
        texts = set(vocab.tokens)
        odd = [m for m in vocab.merges if "".join(m.split(" ")) not in texts and len(m.split(" ")) == 2]
        require(not odd, f"merges that make no token: {few(odd)}")

    def test_ids_are_those_of_the_library(self, sample: str) -> None:
        """The vocabulary, written as a tokenizer.json and cut by `tokenizers`, gives the ids of the format's own library."""
        from tokenizers import Tokenizer

        from llmfit_core.tokenizer.write import vocab_files

        vocab = _vocab(self, sample)
        want = [_ids(self, sample, text) for text in self.texts]
        with tempfile.TemporaryDirectory() as folder:
            for name, data in vocab_files(vocab).items():
                path = Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
            ours = Tokenizer.from_file(str(Path(folder, "tokenizer.json")))
            for text, ids in zip(self.texts, want, strict=True):
                found = ours.encode(text, add_special_tokens=False).ids
                require(found == list(ids), f"{text!r} is {found[:8]} by what was read, and {list(ids)[:8]} by its library")

    def test_damaged_files_are_refused(self, sample: str) -> None:
        """Files cut to half, one after the other, are an error with a code, or change nothing that matters."""
        with tempfile.TemporaryDirectory() as folder:
            for name, path in _side(self, sample).items():
                side = {n: Path(folder, n) for n in _side(self, sample)}
                for n, p in _side(self, sample).items():
                    side[n].write_bytes(p.read_bytes())
                side[name].write_bytes(path.read_bytes()[: path.stat().st_size // 2])
                try:
                    self.reader.read(side, self.config)
                except LlmfitError:
                    continue
                except Exception as error:
                    raise CheckFailed(f"{name}, cut short, ends as {type(error).__name__}: {error}") from error

    def test_a_runtime_cuts_as_the_library_does(self, sample: str) -> None:
        """A file with this vocabulary, in an installed runtime, gives the library's ids."""
        runtime, path = _in_a_runtime(self, sample)
        found = runtime.tokenize(path, list(self.texts), False)
        for text, ids in zip(self.texts, found, strict=True):
            want = list(_ids(self, sample, text))
            require(list(ids) == want, f"{text!r} is {list(ids)[:8]} in {runtime.name}, and {want[:8]} by its library")


_FOLDERS: dict[tuple[type, str], Path] = {}


def _folder(tests: TokenizerTests, sample: str) -> Path:
    key = type(tests), sample
    if key not in _FOLDERS or not _FOLDERS[key].exists():
        given = tests.samples[sample]
        if callable(given):
            folder = tests.bench().work / "tokenizers" / sample
            folder.mkdir(parents=True, exist_ok=True)
            given(folder)
            _FOLDERS[key] = folder
        else:
            _FOLDERS[key] = Path(given)
    return _FOLDERS[key]


def _side(tests: TokenizerTests, sample: str) -> SideFiles:
    return {p.name: p for p in sorted(_folder(tests, sample).iterdir()) if p.is_file()}


def _vocab(tests: TokenizerTests, sample: str) -> Vocab:
    return tests.reader.read(_side(tests, sample), tests.config)


def _ids(tests: TokenizerTests, sample: str, text: str) -> Sequence[int]:
    folder = _folder(tests, sample)
    reference = type(tests).reference
    if reference is not None:
        return list(reference(folder, text))
    if (folder / "tokenizer.json").exists():
        from tokenizers import Tokenizer

        return list(Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text, add_special_tokens=False).ids)
    if (folder / "tokenizer.model").exists():
        from sentencepiece import SentencePieceProcessor

        return list(SentencePieceProcessor(model_file=str(folder / "tokenizer.model")).encode(text))
    raise NotRun("no library is known to read these files: give `reference`")


def _in_a_runtime(tests: TokenizerTests, sample: str) -> tuple[Any, Path]:
    """A runtime that tokenizes, and a tiny Llama with this vocabulary in its format."""
    from llmfit_core.pipeline import convert
    from llmfit_core.plan import Recipe
    from llmfit_core.testing import tiny_llama
    from llmfit_core.testing.bench import Bench, Sample
    from llmfit_core.testing.exports import widest

    plain = tests.bench()
    folder = _folder(tests, sample)
    changed = Sample(
        config={**tiny_llama.CONFIG, "vocab_size": len(_vocab(tests, sample).tokens), **tests.config},
        variations={}, tokenizer=folder, saved=tiny_llama.saved,
    )  # fmt: skip
    for provided in plain.registry.runtimes():
        runtime = provided.value
        formats = [p.value for p in plain.registry.exporters() if p.value.name in runtime.formats]
        if runtime.tokenize is not None and formats and runtime.probe().available:
            bench = Bench(plain.architecture, changed)
            out = plain.work / "vocabularies" / f"{sample}{formats[0].suffix}"
            if not out.exists():
                recipe = Recipe(exporter=formats[0].name, scheme=widest(formats[0]))
                convert(bench.built().folder, recipe, out, plain.registry, verify=False, workers=1)
                bench.close()
            return runtime, out
    raise NotRun("no runtime that tokenizes is installed: pip install llmfit-llamacpp")
