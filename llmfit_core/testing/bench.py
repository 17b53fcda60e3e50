"""What the tests of one class work on: its tiny models and what was made of them, each built once."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmfit_core.plan import Recipe
from llmfit_core.testing.fixture import read_fixture
from llmfit_core.testing.outcome import NotRun
from llmfit_core.testing.safetensor_files import numpy_type, read_folder, write_file
from llmfit_core.testing.tokenizer_files import END_ID, VOCABULARY, write_tokenizer
from llmfit_core.testing.values import SPREAD, fill, louder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from llmfit_core.architecture import Architecture
    from llmfit_core.export import Exporter
    from llmfit_core.model import Model
    from llmfit_core.plan import Plan
    from llmfit_core.plugins import PluginRegistry
    from llmfit_core.testing.with_transformers import Network

    Reference = Callable[[Path, Sequence[int]], Any]
    Saved = Callable[[Mapping[str, object]], Mapping[str, Sequence[int]]]

BASE = "base"
PROBE_IDS = tuple(range(7, 250, 5))


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What an author gives: see `llmfit_core.testing.ArchitectureTests`."""

    config: Mapping[str, object]
    variations: Mapping[str, Mapping[str, object]]
    fixture: Path | None = None
    tokenizer: Path | None = None
    saved: Saved | None = None
    reference: Reference | None = None
    seed: int = 7
    uncomputed: str = ""


@dataclass(frozen=True, kw_only=True)
class Built:
    """A tiny model.

    Attributes:
        folder: As Hugging Face lays it out.
        origin: Where its names and shapes come from: `transformers VERSION`, the author, or the fixture's file.
        start: What is saved, with the values that training starts from.
        waived: Names that its folder may lack.
    """

    folder: Path
    origin: str
    start: Mapping[str, NDArray[Any]]
    waived: Sequence[str] = ()

    @cached_property
    def config(self) -> dict[str, object]:
        """Its config.json."""
        found: dict[str, object] = json.loads((self.folder / "config.json").read_text(encoding="utf-8"))
        return found

    @cached_property
    def tensors(self) -> dict[str, NDArray[Any]]:
        """What is saved, by an independent reader."""
        return read_folder(self.folder)

    @cached_property
    def network(self) -> Network:
        """In transformers."""
        from llmfit_core.testing.with_transformers import Network

        return Network(self.folder, waived=self.waived)


class Bench:
    """Builds and keeps the models of a sample, in a folder that goes when the process or the class ends."""

    def __init__(self, architecture: Architecture, sample: Sample) -> None:
        self.architecture, self.sample = architecture, sample
        self._built: dict[str, Built | Exception] = {}
        self._made: dict[tuple[str, str, str], tuple[Path, Plan]] = {}
        self._models: dict[str, Model] = {}

    @cached_property
    def work(self) -> Path:
        """A folder of its own."""
        folder = Path(tempfile.mkdtemp(prefix="llmfit-kit-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return folder

    @cached_property
    def registry(self) -> PluginRegistry:
        """The installed plugins."""
        from llmfit_core.plugins import load_plugins

        return load_plugins()

    @property
    def gives_vectors(self) -> bool:
        """What its graphs compute is a vector for each token: every token sees every other, and none is foretold."""
        return any(g.constants.get("attention.causal") is False for g in self.architecture.graphs)

    @property
    def ranks(self) -> bool:
        """Its graphs make scores of the vectors, for which no text is embedded."""
        return self.gives_vectors and any("classifier.output_labels" in g.keys for g in self.architecture.graphs)

    def close(self) -> None:
        """Remove what was built."""
        if "work" in vars(self):
            shutil.rmtree(self.work, ignore_errors=True)

    def config(self, case: str) -> dict[str, object]:
        """The config of a case, completed by what the kit's tokenizer says; `...` takes a key away."""
        own = {**self.sample.config, **(self.sample.variations[case] if case != BASE else {})}
        own = {k: v for k, v in own.items() if v is not ...}
        if self.sample.tokenizer is not None:
            return own
        ends = {"bos_token_id": END_ID, "eos_token_id": END_ID, "pad_token_id": None}
        return {"vocab_size": VOCABULARY, **ends, **own}

    def built(self, case: str = BASE) -> Built:
        """The tiny model of a case.

        Raises:
            NotRun: It takes torch, transformers or a fixture that are not here.
            CheckFailed: The config makes no model.
        """
        if case not in self._built:
            try:
                self._built[case] = self._build(case)
            except Exception as error:  # of the author's code too: the next test is told the same
                self._built[case] = error
        found = self._built[case]
        if isinstance(found, Exception):
            raise found
        return found

    def model(self, case: str = BASE) -> Model:
        """The tiny model as the core understands it."""
        from llmfit_core.prepare import prepare

        if case not in self._models:
            self._models[case] = prepare(self.built(case).folder, self.registry).model
        return self._models[case]

    def artifact(self, case: str, exporter: Exporter, scheme: str) -> tuple[Path, Plan]:
        """A case in a format, and the plan by which it was written. Nothing is verified yet."""
        from llmfit_core.pipeline import convert

        key = case, exporter.name, scheme
        if key not in self._made:
            folder = self.work / "made" / "-".join(key)
            out = folder / f"model{exporter.suffix}" if exporter.suffix else folder
            plans: list[Plan] = []
            recipe = Recipe(exporter=exporter.name, scheme=scheme)
            artifact, _ = convert(
                self.built(case).folder, recipe, out, self.registry, verify=False, workers=1, on_plan=plans.append
            )
            self._made[key] = (artifact.paths[0] if exporter.suffix else folder), plans[0]
        return self._made[key]

    def _build(self, case: str) -> Built:
        from llmfit_core.testing import with_transformers

        config = self.config(case)
        folder = self.work / "models" / case
        folder.mkdir(parents=True)
        if self.sample.saved is not None:
            shapes = self.sample.saved(config)
            origin, start = "the author's saved_tensors", _started(shapes)
            _write_config(folder, {"dtype": "bfloat16", **config})
        elif with_transformers.is_here() and with_transformers.knows(config):
            with_transformers.save_start(config, folder)
            origin, start = with_transformers.version(), read_folder(folder)
        else:
            origin, start = self._from_fixture(case, folder)
        for path in folder.glob("*.safetensors*"):
            path.unlink()
        self._add_tokenizer(folder)
        tied = not _has_head(self.architecture, start)
        self._write(folder, fill(self.architecture, start, tied=tied, seed=self.sample.seed))
        self._calibrate(folder, start, tied)
        waived = tuple(self.architecture.waived) if self.gives_vectors else ()
        return Built(folder=folder, origin=origin, start=start, waived=waived)

    def _from_fixture(self, case: str, folder: Path) -> tuple[str, dict[str, NDArray[Any]]]:
        from llmfit_core.testing import with_transformers

        path = self.sample.fixture
        if path is not None and path.is_dir():
            path = path / f"{case}.json"
        elif case != BASE:
            path = None
        if path is None or not path.exists():
            if with_transformers.is_here():
                raise NotRun(
                    f"transformers has no {self.sample.config.get('architectures')}: give `saved_tensors` or a `fixture`"
                )
            raise NotRun(f"{with_transformers.MISSING}, or give a `fixture` for the part that goes by shapes")
        fixture = read_fixture(path)
        _write_config(folder, fixture.config)
        return path.name, fixture.arrays()

    def _add_tokenizer(self, folder: Path) -> None:
        if self.sample.tokenizer is None:
            write_tokenizer(folder)
            return
        for path in sorted(self.sample.tokenizer.iterdir()):
            if path.is_file():
                shutil.copyfile(path, folder / path.name)

    def _write(self, folder: Path, tensors: Mapping[str, NDArray[Any]]) -> None:
        write_file(folder / "model.safetensors", tensors)

    def _calibrate(self, folder: Path, start: Mapping[str, NDArray[Any]], tied: bool) -> None:
        """Give the logits their spread, by whatever can compute them here; by nothing where nothing can."""
        from llmfit_core.testing import with_transformers

        if self.gives_vectors:
            return  # their size is the last norm's
        tensors = read_folder(folder)
        if self.sample.reference is not None:
            rows = self.sample.reference(folder, list(PROBE_IDS))
        elif self.sample.saved is None and with_transformers.is_here() and with_transformers.knows(self.config(BASE)):
            network = with_transformers.Network(folder)
            factor = network.embedding_factor(PROBE_IDS) if tied else 1.0
            if abs(factor - 1) > 0.05:
                tensors = fill(self.architecture, start, tied=tied, seed=self.sample.seed, embedding=factor)
                self._write(folder, tensors)
                network = with_transformers.Network(folder)
            rows = network.log_probabilities(PROBE_IDS, range(1, len(PROBE_IDS) + 1))
        else:
            return
        spread = float(rows.std())
        if spread > 0:
            self._write(folder, louder(self.architecture, tensors, SPREAD / spread))


def _has_head(architecture: Architecture, tensors: Mapping[str, object]) -> bool:
    from llmfit_core.naming import Patterns
    from llmfit_core.roles import Role
    from llmfit_core.testing.values import slot_of

    patterns = Patterns(architecture.tensors)
    slots = (slot_of(architecture, patterns, name) for name in tensors)
    return any(s is not None and s.role == Role.HEAD for s in slots)


def _started(shapes: Mapping[str, Sequence[int]]) -> dict[str, NDArray[Any]]:
    """Stated shapes as training starts from them: ones for the weights of norms, zeros for the rest."""
    import numpy as np

    dtype = numpy_type("bfloat16")
    return {
        name: np.full(tuple(shape), float(len(shape) == 1 and not name.endswith("bias"))).astype(dtype)
        for name, shape in shapes.items()
    }


def _write_config(folder: Path, config: Mapping[str, object]) -> None:
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
