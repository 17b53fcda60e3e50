"""`ExporterTests`: what a format promises, on a tiny Llama."""

from __future__ import annotations

import hashlib
import itertools
import pickle
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from llmfit_core.errors import LlmfitError, OutputError, UnsupportedError, VerificationError
from llmfit_core.export import Exporter, FillOptions
from llmfit_core.plan import Recipe
from llmfit_core.testing import exports, parity
from llmfit_core.testing.declared import Declared
from llmfit_core.testing.outcome import CheckFailed, NotRun, few, require

if TYPE_CHECKING:
    from pathlib import Path

    from llmfit_core.plan import Plan
    from llmfit_core.testing.bench import Bench


class ExporterTests(Declared, kit=True):
    """Inherit, set `exporter`, and name the class `Test...`.

    Attributes:
        exporter: The declaration.
        refused: By name, changes to the tiny Llama's config that have to be refused, with the error's code.
        refused_schemes: By scheme, the code with which random weights are refused (ternary formats, say).
        schemes: The schemes to try; empty for all.
    """

    settings: ClassVar[frozenset[str]] = frozenset({"exporter", "refused", "refused_schemes", "schemes"})
    parameters: ClassVar[tuple[str, ...]] = ("scheme", "refusal")
    plural: ClassVar[str] = "exporters"
    setting: ClassVar[str] = "exporter"

    exporter: ClassVar[Exporter]
    refused: ClassVar[Mapping[str, tuple[Mapping[str, object], str]]] = {}
    refused_schemes: ClassVar[Mapping[str, str]] = {}
    schemes: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def values_for(cls, parameter: str) -> tuple[str, ...]:
        """Schemes and refusals."""
        return tuple(cls.refused) if parameter == "refusal" else cls.schemes or tuple(s.name for s in cls.exporter.schemes)

    @classmethod
    def model_variations(cls) -> dict[str, dict[str, object]]:
        """The configs that are refused."""
        return {name: dict(changes) for name, (changes, _) in cls.refused.items()}

    def test_names_are_well_formed(self) -> None:
        """Schemes are lower case and unique; aliases lead to schemes and hide none; the suffix begins with a dot."""
        names = [s.name for s in self.exporter.schemes]
        require(names, "it has no scheme")
        require(len(set(names)) == len(names) and names == [n.lower() for n in names], f"schemes: {few(names, 30)}")
        aliases = self.exporter.aliases
        require(set(aliases.values()) <= set(names) and not set(aliases) & set(names), f"aliases: {few(aliases, 30)}")
        require(not self.exporter.suffix or self.exporter.suffix.startswith("."), f"suffix {self.exporter.suffix!r}")
        silent = [s.name for s in self.exporter.schemes if not s.summary]
        require(not silent, f"schemes without a summary: {few(silent)}")

    def test_planning_reads_no_weight(self, scheme: str) -> None:
        """A plan is made where the weights are gone."""
        bench = self.bench()
        plan = _without_weights(bench, self.exporter, _possible(self, scheme))
        require(plan.files, "the plan has no file")
        outer = [t.name for f in plan.files for t, at in f.tensors if at < len(f.head) or at + t.nbytes > f.size]
        require(not outer, f"tensors lie outside of their file: {few(outer)}")
        for file in plan.files:
            spans = sorted((at, at + t.nbytes) for t, at in file.tensors)
            overlap = [a for a, b in itertools.pairwise(spans) if a[1] > b[0]]
            require(not overlap, f"tensors of {file.name} overlap at byte {overlap[:1]}")

    def test_each_scheme_exports_and_reopens(self, scheme: str) -> None:
        """What was written is what was planned, file by file."""
        path, plan = self.bench().artifact("base", self.exporter, _possible(self, scheme))
        self.exporter.reopen(path, plan)
        _check_sizes(path, plan)

    def test_it_comes_back(self) -> None:
        """What the exact scheme holds, read again as a source, is what was saved."""
        from llmfit_core.checkpoint import open_checkpoint

        bench, scheme = self.bench(), parity.exact_scheme(self.exporter)
        if scheme is None:
            raise NotRun("no scheme holds float32, so that nothing proves the values that it writes")
        path, _ = bench.artifact("base", self.exporter, _possible(self, scheme))
        try:
            open_checkpoint(path)
        except LlmfitError as error:
            raise NotRun(f"nothing installed reads it again, so that nothing proves the values that it writes: {error.cause}") from error
        exports.check_one_reads_back(bench, "base", self.exporter, scheme)

    def test_the_same_input_gives_the_same_bytes(self, scheme: str) -> None:
        """Whatever the folder's name and the number of workers."""
        bench = self.bench()
        path, _ = bench.artifact("base", self.exporter, _possible(self, scheme))
        other = _converted(bench, self.exporter, scheme, f"again-{scheme}", workers=2)
        require(_sums(path) == _sums(other), "two conversions of one model differ")

    def test_jobs_travel_and_resume(self, scheme: str) -> None:
        """A file's jobs survive pickling; one that was half filled ends with the same bytes, and done jobs are left alone."""
        bench = self.bench()
        _path, plan = bench.artifact("base", self.exporter, _possible(self, scheme))
        copies = pickle.loads(pickle.dumps(plan.files))
        for number, file in enumerate(copies):
            whole = bench.work / f"filled-{scheme}-{number}"
            told: list[int] = []
            filled = self.exporter.fill(file, whole, FillOptions(workers=1, on_done=lambda job, _, told=told: told.append(job)))  # type: ignore[misc]
            data = whole.read_bytes()
            require(len(data) == file.size, f"{file.name} has {len(data)} bytes where {file.size} were planned")
            require(filled.sha256 == hashlib.sha256(data).hexdigest(), f"fill says another sha256 of {file.name}")
            require(sorted(told) == list(range(len(file.tensors))), f"not every tensor of {file.name} was told once")
            if file.tensors:
                again: list[int] = []
                done = frozenset(range(len(file.tensors) // 2))
                options = FillOptions(workers=1, done=done, on_done=lambda job, _, again=again: again.append(job))  # type: ignore[misc]
                resumed = self.exporter.fill(file, whole, options)
                require(whole.read_bytes() == data and resumed.sha256 == filled.sha256, f"{file.name}, resumed, differs")
                require(not done & set(again), f"{file.name}: what was done was done again")

    def test_damage_is_noticed(self) -> None:
        """A file cut short does not reopen."""
        bench = self.bench()
        scheme = _some(self)
        path = _converted(bench, self.exporter, scheme, "damaged", workers=1)
        _, plan = bench.artifact("base", self.exporter, scheme)
        victim = path if path.is_file() else max((f for f in path.iterdir() if f.is_file()), key=lambda f: f.stat().st_size)
        data = victim.read_bytes()
        victim.write_bytes(data[: len(data) // 2])
        try:
            self.exporter.reopen(path, plan)
        except VerificationError:
            return
        except LlmfitError as error:
            raise CheckFailed(f"a damaged file is {type(error).__name__} [{error.code}], no VerificationError") from error
        raise CheckFailed(f"{victim.name} was cut to half its size, and reopens")

    def test_nothing_half_made_has_a_final_name(self) -> None:
        """A conversion that ends in the middle leaves no file under a name that a loader would open."""
        from llmfit_core.pipeline import convert

        bench = self.bench()
        scheme = _some(self)
        out = bench.work / "interrupted"
        out.mkdir(exist_ok=True)

        def interrupt(_written: int, _all: int) -> None:
            raise KeyboardInterrupt

        name = out / f"model{self.exporter.suffix}" if self.exporter.suffix else out / "model"
        recipe = Recipe(exporter=self.exporter.name, scheme=scheme)
        try:
            convert(bench.built().folder, recipe, name, bench.registry, verify=False, workers=1, progress=interrupt)
        except KeyboardInterrupt:
            require(not name.exists(), f"{name.name} is there although the work was interrupted")
            return
        raise NotRun("this format tells no progress, so that its work cannot be interrupted here")

    def test_nothing_is_overwritten(self) -> None:
        """An artifact that is there is refused and left as it is."""
        from llmfit_core.pipeline import convert

        bench = self.bench()
        path, _ = bench.artifact("base", self.exporter, _some(self))
        before = _sums(path)
        recipe = Recipe(exporter=self.exporter.name, scheme=_some(self))
        try:
            convert(bench.built().folder, recipe, path, bench.registry, verify=False, workers=1)
        except OutputError:
            require(_sums(path) == before, "the artifact was changed")
            return
        raise CheckFailed("an artifact was written over another")

    def test_refusals(self, refusal: str) -> None:
        """What cannot be right is refused at plan time, with the code that the author states."""
        from llmfit_core.prepare import prepare

        changes, code = self.refused[refusal]
        require(changes is not None, "a refusal without changes")
        bench = self.bench()
        try:
            model = prepare(bench.built(refusal).folder, bench.registry).model
            self.exporter.plan(model, Recipe(exporter=self.exporter.name, scheme=_some(self)))
        except LlmfitError as error:
            require(error.code == code, f"{refusal} ends as {error.code}, not as {code}")
            return
        raise CheckFailed(f"{refusal} ends as a plan, not as {code}")


def _some(tests: ExporterTests) -> str:
    """A scheme that random weights can be written in."""
    names = [n for n in tests.values_for("scheme") if n not in tests.refused_schemes]
    if not names:
        raise NotRun("every scheme refuses random weights")
    return names[0]


def _possible(tests: ExporterTests, scheme: str) -> str:
    """The scheme, where random weights can be written in it here; where they are rightly refused, that is proven instead."""
    from llmfit_core.pipeline import plan_conversion

    heavy = sorted(set(tests.exporter.needs) - {"wiring"})
    if heavy:
        raise NotRun(f"{tests.exporter.name} needs {few(heavy)}")
    code = tests.refused_schemes.get(scheme)
    if code is None:
        return scheme
    bench = tests.bench()
    try:
        plan_conversion(bench.built().folder, Recipe(exporter=tests.exporter.name, scheme=scheme), bench.registry, check=True)
    except UnsupportedError as error:
        require(error.code == code, f"random weights in {scheme} end as {error.code}, not as {code}")
        raise NotRun(f"random weights are refused in {scheme}, as they should be [{code}]") from error
    raise CheckFailed(f"random weights in {scheme} are planned, and not refused as {code}")


def _without_weights(bench: Bench, exporter: Exporter, scheme: str) -> Plan:
    import os

    from llmfit_core.prepare import prepare

    model = prepare(bench.built().folder, bench.registry).model
    weights = bench.built().folder / "model.safetensors"
    away = weights.with_name("away")
    os.replace(weights, away)
    try:
        return exporter.plan(model, Recipe(exporter=exporter.name, scheme=scheme))
    except LlmfitError as error:
        if error.code in ("unreadable-source", "truncated-file", "source-changed"):
            raise CheckFailed(f"the plan reads weights: {error.cause}") from error
        raise
    finally:
        os.replace(away, weights)


def _converted(bench: Bench, exporter: Exporter, scheme: str, name: str, *, workers: int) -> Path:
    from llmfit_core.pipeline import convert

    folder = bench.work / name
    out = folder / f"other{exporter.suffix}" if exporter.suffix else folder
    recipe = Recipe(exporter=exporter.name, scheme=scheme)
    artifact, _ = convert(bench.built().folder, recipe, out, bench.registry, verify=False, workers=workers)
    return artifact.paths[0] if exporter.suffix else folder


def _files(path: Path) -> dict[str, Path]:
    """The files of an artifact by name, the manifest apart; a single file under no name."""
    if path.is_file():
        return {"": path}
    found = {f.relative_to(path).as_posix(): f for f in sorted(path.rglob("*")) if f.is_file()}
    return {name: f for name, f in found.items() if name != "llmfit.json"}


def _sums(path: Path) -> dict[str, str]:
    return {name: hashlib.sha256(f.read_bytes()).hexdigest() for name, f in _files(path).items()}


def _check_sizes(path: Path, plan: Plan) -> None:
    files = _files(path)
    planned = {("" if "" in files and n == 0 else f.name): f.size for n, f in enumerate(plan.files)}
    if "" in files:
        planned = {"": plan.files[0].size}
    sizes = {name: f.stat().st_size for name, f in files.items()}
    require(sizes == planned, f"planned {planned}, written {sizes}")
    require(replace(plan) == plan, "the plan is no value")
