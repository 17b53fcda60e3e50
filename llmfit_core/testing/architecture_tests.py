"""`ArchitectureTests`: what an architecture promises, on tiny models of its author's configs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from llmfit_core.errors import LlmfitError, PluginError
from llmfit_core.plan import Recipe
from llmfit_core.testing import (
    accounting,
    defaults,
    exports,
    graph_keys,
    parity,
    vectors,
    wiring_proof,
    with_transformers,
)
from llmfit_core.testing.bench import BASE, Bench, Sample
from llmfit_core.testing.conformance import Conformance
from llmfit_core.testing.imports import check_light
from llmfit_core.testing.outcome import CheckFailed, NotRun, few, require

if TYPE_CHECKING:
    from llmfit_core.architecture import Architecture
    from llmfit_core.plugin_record import PluginId

_SETTINGS = frozenset(
    {"architecture", "config", "variations", "refused", "bounded", "told", "fixture", "tokenizer", "seed", "slow",
     "kl_bound", "reference", "saved_tensors", "optional_keys", "uncomputed"}
)  # fmt: skip


class ArchitectureTests(Conformance, kit=True):
    """Inherit, set `architecture` and `config`, and name the class `Test...`.

    The kit makes a tiny model of each config: names, shapes and config.json as transformers saves them for its class, or as
    `saved_tensors` states, or from a `fixture`; random values that depend on names and shapes alone and give peaked
    logits; a tokenizer of 273 tokens of its own.

    Attributes:
        architecture: The declaration.
        config: A tiny config.json with `architectures` and `model_type`; what it leaves out is what the class assumes.
            `vocab_size` and the ids of special tokens are the kit's where they are left out.
        variations: By name, changes to `config` (`...` takes a key away); each goes through the same tests.
        refused: By name, changes to `config` that have to be refused, with the error's code.
        bounded: By case (`base` or a variation), the tokens up to which the artifact is exact.
        told: By case, codes of the warnings and fallbacks that are right there.
        fixture: A JSON file (of the base case), or a folder of `<case>.json`, for where torch and transformers are not
            installed; see `llmfit_core.testing.fixture`.
        tokenizer: A folder whose tokenizer files are taken in place of the kit's own.
        seed: Changes all values. For a mixture whose router hangs in the balance, say.
        slow: Cases that are marked `slow`.
        kl_bound: Mean divergence that counts as the same. Above 1e-5 it has to be in `overrides`.
        optional_keys: Keys of graphs that need have no value in any case.
        uncomputed: Where no graph computes the family: the code with which every format that goes by graphs refuses it.
    """

    settings: ClassVar[frozenset[str]] = _SETTINGS
    parameters: ClassVar[tuple[str, ...]] = ("case", "refusal")

    architecture: ClassVar[Architecture]
    config: ClassVar[Mapping[str, object]] = {}
    variations: ClassVar[Mapping[str, Mapping[str, object]]] = {}
    refused: ClassVar[Mapping[str, tuple[Mapping[str, object], str]]] = {}
    bounded: ClassVar[Mapping[str, int]] = {}
    told: ClassVar[Mapping[str, Sequence[str]]] = {}
    fixture: ClassVar[str | Path | None] = None
    tokenizer: ClassVar[str | Path | None] = None
    seed: ClassVar[int] = 7
    slow: ClassVar[frozenset[str]] = frozenset()
    kl_bound: ClassVar[float] = parity.BOUND
    optional_keys: ClassVar[frozenset[str]] = frozenset()
    uncomputed: ClassVar[str] = ""
    reference: ClassVar[Any] = None
    """For a family that transformers lacks: `(folder, ids) -> log-probabilities [len(ids), vocabulary]` by its own formulas."""
    saved_tensors: ClassVar[Any] = None
    """For a family that transformers lacks: `(config) -> shape by tensor name`, as its files have them."""

    @classmethod
    def bench(cls) -> Bench:
        """The models of this class."""
        found: Bench | None = cls.__dict__.get("_bench")
        if found is None:
            found = Bench(cls.architecture, _sample(cls))
            cls._bench = found  # type: ignore[attr-defined]
        return found

    @classmethod
    def teardown_class(cls) -> None:
        """Remove what was built."""
        found = cls.__dict__.get("_bench")
        if found is not None:
            found.close()
            del cls._bench  # type: ignore[attr-defined]

    @classmethod
    def cases(cls) -> tuple[str, ...]:
        """`base` and the variations."""
        return (BASE, *cls.variations)

    @classmethod
    def values_for(cls, parameter: str) -> tuple[str, ...]:
        """Cases and refusals."""
        return tuple(cls.refused) if parameter == "refusal" else cls.cases()

    @classmethod
    def is_slow(cls, parameter: str, value: str) -> bool:
        """Cases of `slow`."""
        return parameter == "case" and value in cls.slow

    @classmethod
    def loosened(cls) -> frozenset[str]:
        """A bound above the kit's."""
        return frozenset({"kl_bound"} if cls.kl_bound > parity.BOUND else ())

    # The declaration

    def test_the_plugin_provides_it(self) -> None:
        """The architecture is found in the installed plugins under its name, and is this one."""
        plugin = _owner(self)
        require(plugin.distribution, "no distribution provides it")

    def test_the_module_imports_nothing_heavy(self) -> None:
        """Loading the plugin imports no numpy, torch or their like."""
        plugin = _owner(self)
        records = self.bench().registry.records()
        (module,) = {r.entry_point.partition(":")[0] for r in records if r.id == plugin}
        check_light(module)

    def test_the_config_is_its_own(self) -> None:
        """Class and model type of the tiny config are the declaration's."""
        classes = self.config.get("architectures")
        require(isinstance(classes, (list, tuple)) and classes, 'config needs "architectures": [CLASS]')
        require(
            classes[0] in self.architecture.hf_classes,  # type: ignore[index]
            f"{classes} is not among hf_classes {self.architecture.hf_classes}",
        )
        kind = self.config.get("model_type")
        require(kind in self.architecture.model_types, f"model_type {kind!r} is not among {self.architecture.model_types}")

    def test_the_wiring_names_real_roles(self) -> None:
        """Sources and sinks are roles that exist, and a source of the table has a sink in it."""
        wiring_proof.check_words(self.architecture)

    def test_defaults_are_those_of_the_config_class(self) -> None:
        """What config.json leaves out means what transformers takes for it, or the author's formulas; no default is stated twice."""
        defaults.check(self.bench())

    # Accounts

    def test_every_saved_tensor_is_claimed_once(self, case: str) -> None:
        """Nothing of the saved files is left over, or taken twice."""
        accounting.check_claimed(self.bench(), case)

    def test_every_pattern_is_met(self) -> None:
        """The table has no pattern that nothing in any case, those that are refused included, is saved for."""
        accounting.check_roles_are_met(self.bench(), self.cases(), tuple(_refused_case(name) for name in self.refused))

    def test_a_stray_tensor_is_an_error(self, case: str) -> None:
        """One tensor more, and the checkpoint is refused."""
        accounting.check_strays(self.bench(), case)

    def test_a_missing_tensor_is_an_error(self, case: str) -> None:
        """One tensor less, of any kind, and the checkpoint is refused."""
        accounting.check_gaps(self.bench(), case)

    def test_shapes_agree_with_hparams(self, case: str) -> None:
        """A tensor of another shape than the config says is refused, whichever and along whichever axis."""
        accounting.check_shapes(self.bench(), case)

    def test_every_config_key_is_known(self, case: str) -> None:
        """Each key of config.json is read, asserted or ignored."""
        accounting.check_keys_are_known(self.bench(), case)

    def test_it_says_the_same_each_time(self, case: str) -> None:
        """Functions of the table give the same for the same config."""
        accounting.check_says_the_same(self.bench(), case)

    def test_the_fixture_is_what_is_saved(self) -> None:
        """The fixture, where there is one, has the names and shapes that transformers saves today."""
        path = _sample(type(self)).fixture
        if path is None:
            raise NotRun("there is no fixture")
        if not with_transformers.knows(self.config):
            raise NotRun(f"transformers has no {self.config.get('architectures')}")
        from llmfit_core.testing.fixture import read_fixture

        for case in self.cases() if path.is_dir() else (BASE,):
            file = path / f"{case}.json" if path.is_dir() else path
            stated = {n: t.shape for n, t in read_fixture(file).tensors.items()} if file.exists() else {}
            saved = {n: t.shape for n, t in self.bench().built(case).tensors.items()}
            odd = sorted(n for n in {*stated, *saved} if stated.get(n) != saved.get(n))
            require(not odd, f"{file.name} is stale: {few(odd)}; write it again")

    def test_every_hparam_the_graph_reads_is_there(self) -> None:
        """What each graph reads has a value, and nothing it reads, fixes or limits is misspelt."""
        if not self.architecture.graphs:
            raise NotRun("it names no graph")
        for graph in self.architecture.graphs:
            slow_last = sorted(self.cases(), key=lambda c: c in self.slow)
            graph_keys.check(self.bench(), graph, slow_last, self.optional_keys)

    # Formats

    def test_the_wiring_can_be_followed(self, case: str) -> None:
        """Channels of sources and sinks agree, down to the stored tensors."""
        wiring_proof.check_groups(self.bench(), case)

    def test_the_wiring_is_true(self, case: str) -> None:
        """A scale that moves along the wiring changes no logit; in the base case, one with a sink forgotten does."""
        wiring_proof.check_true(self.bench(), case, forget=case == BASE)

    def test_exports_reopen(self, case: str) -> None:
        """Each installed exporter writes it and opens what it wrote."""
        exports.check_reopens(self.bench(), case)

    def test_nothing_unexpected_is_told(self, case: str) -> None:
        """No warning and no fallback but those of `told`."""
        exports.check_tells_nothing_else(self.bench(), case, tuple(self.told.get(case, ())))

    def test_bounds_are_told(self, case: str) -> None:
        """What is exact only up to a limit says so, and up to the limit of `bounded`."""
        exports.check_bounds(self.bench(), case, self.bounded.get(case))

    def test_it_comes_back(self, case: str) -> None:
        """Written and read again: the same tensors, and the same logits in transformers."""
        exports.check_reads_back(self.bench(), case)

    def test_refusals(self, refusal: str) -> None:
        """What cannot be right is refused at plan time, with the code that the author states."""
        changes, code = self.refused[refusal]
        bench = self.bench()
        for exporter in exports.exporters(bench)[:1] if self.uncomputed else parity.graph_exporters(bench):
            said = _refusal_of(bench, refusal, changes, exporter.name)
            if said != code:  # the tensors are perhaps others too
                said = _refusal_of(bench, refusal, None, exporter.name)
            require(said == code, f"{refusal} ends as {said or 'a plan'}, not as {code}")

    # Computation

    def test_the_runtime_computes_the_same(self, case: str) -> None:
        """In float32: mean divergence under 1e-5, the same most likely tokens, beyond every window; or the same vectors."""
        bench = self.bench()
        for exporter in parity.graph_exporters(bench):
            if bench.gives_vectors:
                vectors.compare(bench, case, exporter)
            else:
                parity.compare(bench, case, exporter, self.kl_bound)

    def test_token_ids_are_equal(self) -> None:
        """The artifact's tokenizer gives the ids of the source's."""
        bench = self.bench()
        for exporter in parity.graph_exporters(bench):
            parity.compare_tokens(bench, BASE, exporter)


def _sample(cls: type[ArchitectureTests]) -> Sample:
    """The settings of a class as a value. Relative paths are beside the class's own file."""
    import inspect
    import sys

    module = sys.modules.get(cls.__module__)
    here = Path(getattr(module, "__file__", None) or ".").parent

    def path(value: str | Path | None) -> Path | None:
        return None if value is None else here / value

    def function(name: str) -> Any:
        found = inspect.getattr_static(cls, name)
        if isinstance(found, (staticmethod, classmethod)) or found is None:
            return getattr(cls, name)
        first = next(iter(inspect.signature(found).parameters), "")
        return found.__get__(object.__new__(cls)) if first == "self" else found

    return Sample(
        config=cls.config,
        variations={**cls.variations, **{_refused_case(name): changes for name, (changes, _) in cls.refused.items()}},
        fixture=path(cls.fixture),
        tokenizer=path(cls.tokenizer),
        saved=function("saved_tensors"),
        reference=function("reference"),
        seed=cls.seed,
        uncomputed=cls.uncomputed,
    )


def _owner(tests: ArchitectureTests) -> PluginId:
    """Who provides the architecture among the installed plugins."""
    registry, architecture = tests.bench().registry, tests.architecture
    try:
        provided = registry.architecture(architecture.name)
    except PluginError as error:
        raise CheckFailed(f"{error.cause}: install the plugin (pip install -e .). {error.remedy}") from error
    require(
        provided.value.tensors == architecture.tensors and provided.value.name == architecture.name,
        f"the architecture {architecture.name} of {provided.plugin} is another than the one under test",
    )
    return provided.plugin


def _refused_case(name: str) -> str:
    return f"refused-{name}"


def _refusal_of(bench: Bench, name: str, changes: Mapping[str, object] | None, exporter: str) -> str:
    """The code with which a config is refused: changes to config.json alone, or, with `None`, a model made of them."""
    import json
    import shutil

    from llmfit_core.pipeline import plan_conversion

    if changes is None:
        try:
            folder = bench.built(_refused_case(name)).folder
        except CheckFailed:  # the class takes no such config
            return ""
    else:
        built = bench.built(BASE)
        folder = bench.work / "refused" / name
        if not folder.exists():
            shutil.copytree(built.folder, folder)
            config = {k: v for k, v in {**built.config, **changes}.items() if v is not ...}
            (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    try:
        plan_conversion(folder, Recipe(exporter=exporter, scheme=""), bench.registry)
    except LlmfitError as error:
        return error.code
    return ""
