"""`convert`: the only module that knows the order of steps."""

from __future__ import annotations

import difflib
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from llmfit_core import manifest as manifests
from llmfit_core.checkpoint import is_hub_id
from llmfit_core.checks import run_check
from llmfit_core.disk import output_errors
from llmfit_core.errors import SourceError, UnsupportedError
from llmfit_core.events import Event, require_none_strict
from llmfit_core.output import Places, places, publish, refuse_existing, require_space, staging, write
from llmfit_core.plan import Artifact, Plan, Recipe
from llmfit_core.prepare import prepare

if TYPE_CHECKING:
    from llmfit_core.checkpoint import Checkpoint
    from llmfit_core.declarations import Transform
    from llmfit_core.export import Exporter, Written
    from llmfit_core.model import Model
    from llmfit_core.plan import DataCheck
    from llmfit_core.plugin_record import Provided
    from llmfit_core.plugins import PluginRegistry
    from llmfit_core.runtime import Runtime


_WIDER = {
    "f16": "Choose a wider type: bf16, or f32 for this tensor with --tensor-type.",
    "bf16": "Choose a wider type: f32, for this tensor with --tensor-type or for all.",
    "f32": "The source holds float64 values beyond float32: scale the weights down before converting.",
}


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A plan and the exporter that made it."""

    plan: Plan
    exporter: Exporter


def plan_conversion(
    source: str | Path,
    recipe: Recipe,
    registry: PluginRegistry,
    *,
    check: bool = False,
    weights: bool = False,
    on_known: Callable[[Checkpoint], None] | None = None,
) -> Planned:
    """Decide everything about a conversion. Reads no weight unless `check` is given.

    Args:
        source: A folder, a `.gguf` file or a hub id.
        recipe: What is wanted; an empty scheme means the format's usual one.
        registry: The plugins.
        check: Run the data checks, and plan by their answers; render the chat template.
        weights: Download the weights of a hub id.
        on_known: See `llmfit_core.prepare.prepare`.
    """
    provided = _exporter(recipe, registry)
    exporter = provided.value
    asked, recipe = recipe.scheme, replace(recipe, scheme=_scheme(recipe, exporter))
    prepared = prepare(source, registry, pre=recipe.pre, weights=weights, on_known=on_known)
    if not asked and exporter.usual is not None:
        recipe = replace(recipe, scheme=exporter.usual(prepared.model))
    transforms = registry.transforms(prepared.model.architecture.name, exporter.name)
    plan = exporter.plan(_transformed(prepared.model, transforms), recipe)
    forced: tuple[Event, ...] = _template(plan) if check else ()
    if check and plan.checks:
        failed = {c.name: run_check(c, plan) for c in plan.checks}
        checks = tuple(replace(c, answer=not failed[c.name]) for c in plan.checks)
        forced += tuple(_refuse(c, failed[c.name], recipe) for c in checks if c.refusal and not c.answer)
        same = next((c.answer for c in checks if c.name == "head-equals-embedding"), None)
        prepared = prepare(source, registry, pre=recipe.pre, weights=weights, same_head=same)
        plan = replace(exporter.plan(_transformed(prepared.model, transforms), recipe), checks=checks)
    used = {f"exporter {exporter.name}": provided, **{f"transform {t.value.name}": t for t in transforms}}
    plugins = prepared.plugins | {k: f"{p.plugin.distribution} {p.plugin.version}" for k, p in used.items()}
    events = tuple(dict.fromkeys((*plan.events, *forced)))
    plan = replace(plan, plugins=plugins, decoders=prepared.decoders, events=events)
    if recipe.strict:
        require_none_strict(plan.events)
    return Planned(plan=plan, exporter=exporter)


def convert(
    source: str | Path,
    recipe: Recipe,
    out: Path,
    registry: PluginRegistry,
    *,
    overwrite: bool = False,
    verify: bool = True,
    workers: int = 0,
    on_plan: Callable[[Plan], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Artifact, tuple[Event, ...]]:
    """Convert a model, and prove what can be proven cheaply.

    Args:
        source: A folder, a `.gguf` file or a hub id.
        recipe: What is wanted.
        out: A file where it ends in the format's suffix, else a folder.
        registry: The plugins.
        overwrite: Replace an earlier artifact.
        verify: Reopen the result and compare token ids in a runtime.
        workers: How many at once; 0 for as many as there are cores.
        on_plan: Told the plan before the work.
        progress: Called with bytes written and bytes in all.

    Returns:
        The artifact, and every event of plan, work and verification.

    Raises:
        LlmfitError: Nothing then stands at a final name.
    """
    from llmfit_core.version import __version__

    if is_hub_id(source):
        _plan_before_download(source, recipe, registry)
    with _Sums() as sums:
        planned = plan_conversion(source, recipe, registry, weights=True, on_known=lambda c: sums.start(c.weight_files))
        if planned.plan.checks:
            _places(planned, out, overwrite)
            planned = plan_conversion(source, recipe, registry, check=True, weights=True)
        where = _places(planned, out, overwrite)
        plan, exporter = planned.plan, planned.exporter
        require_space(plan, where)
        if on_plan is not None:
            on_plan(plan)
        losses = _Losses(plan)
        verified, proven = _prove_before(plan, exporter, registry) if verify else ({}, ())
        with staging(plan, where) as journal:
            sums.start(_read_files(plan))
            filled = write(plan, exporter, where, journal, workers=workers, judge=losses.judge, progress=progress)
            sources = sums.wait(_read_files(plan))
            events = (*plan.events, *losses.events, *proven)
            if verify:
                target = where.stage if where.whole_folder else where.staged[0]
                exporter.reopen(target, plan)
                # What was forced to hold NaNs computes none but NaNs: its opening would prove nothing.
                said, more = ({}, ()) if losses.nonfinite else _prove_after(plan, target, exporter, registry)
                verified |= {"reopened": True} | said
                events = (*events, *more)
            names = [f.relative_to(where.folder).as_posix() for f in where.files]
            entry = manifests.make_manifest(
                plan, version=__version__, sources=sources, filled=filled, names=names, events=events, verified=verified
            )
            publish(where, "." if where.whole_folder else names[0], entry)
        artifact = Artifact(format=exporter.name, scheme=plan.recipe.scheme, paths=where.files, manifest=entry)
        return artifact, (*events, *registry.notify_written(artifact, plan))


def _exporter(recipe: Recipe, registry: PluginRegistry) -> Provided[Exporter]:
    """The exporter asked for; a scheme given in its place is understood, for the remedy."""
    for other in registry.exporters():
        if not recipe.scheme and recipe.exporter in (s.name for s in other.value.schemes):
            name = f"{other.value.name}:{recipe.exporter}"
            raise UnsupportedError("unknown-exporter", f"{recipe.exporter} is a scheme and no format", f"Write {name}.")
    return registry.exporter(recipe.exporter)


def _scheme(recipe: Recipe, exporter: Exporter) -> str:
    """The scheme asked for by its own name, or the usual one."""
    names = [s.name for s in exporter.schemes]
    if not recipe.scheme:
        return names[0]
    wanted = exporter.aliases.get(recipe.scheme, recipe.scheme)
    if wanted not in names:
        near = difflib.get_close_matches(wanted, [*names, *exporter.aliases], n=2)
        remedy = f"Did you mean {' or '.join(near)}? " if near else ""
        raise UnsupportedError(
            "unknown-scheme", f"{exporter.name} has no scheme {wanted!r}", f"{remedy}There are: {', '.join(names)}."
        )
    return wanted


def _transformed(model: Model, transforms: Iterable[Provided[Transform]]) -> Model:
    for transform in transforms:
        model = transform.value.apply(model)
    return model


def _plan_before_download(source: str | Path, recipe: Recipe, registry: PluginRegistry) -> None:
    """Refuse by headers what would be refused after gigabytes; pickles, which have no header to ask for, are screened."""
    try:
        plan_conversion(source, recipe, registry)
    except UnsupportedError as error:
        if error.code != "remote-pickle":
            raise


def _refuse(check: DataCheck, tensor: str, recipe: Recipe) -> Event:
    """What the data forbid is refused, or told where it is forced."""
    message = check.refusal.format(tensor=tensor)
    if not recipe.force:
        raise UnsupportedError(f"not-{check.name}", message, "Choose another type, or give --force to do it all the same.")
    return Event(code=f"not-{check.name}", message=f"{message}; done all the same, as told", subject=tensor)


def _places(planned: Planned, out: Path, overwrite: bool) -> Places:
    """Where the artifact goes; raises where anything is in the way."""
    with output_errors(out):
        where = places(planned.plan, planned.exporter, out)
    root = planned.plan.model.checkpoint.root
    refuse_existing(where, overwrite=overwrite, sources=(*_read_files(planned.plan), *([root] if root else [])))
    manifests.read_manifest(where.folder)
    return where


class _Sums:
    """The sha256 of source files, made by one thread beside the work; what is not done at the end is given up."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(max_workers=1)
        self._jobs: dict[Path, Future[str]] = {}

    def __enter__(self) -> _Sums:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._pool.shutdown(cancel_futures=True)

    def start(self, files: Sequence[Path]) -> None:
        """Hash these too; a file is hashed once."""
        for path in files:
            if path not in self._jobs:
                self._jobs[path] = self._pool.submit(manifests.sha256_of, path, self._stop)

    def wait(self, files: Sequence[Path]) -> dict[str, str]:
        """The sums of files that were started, by file name."""
        return {p.name: self._jobs[p].result() for p in files}


def _read_files(plan: Plan) -> tuple[Path, ...]:
    paths: dict[str, None] = {}
    for tensor in plan.tensors:
        paths.update(dict.fromkeys(tensor.tensor.files()))
    return tuple(Path(p) for p in sorted(paths))


def _prove_before(
    plan: Plan, exporter: Exporter, registry: PluginRegistry
) -> tuple[dict[str, object], tuple[Event, ...]]:
    """The chat template, and the tokens of the planned file, or of the GGUF file that a folder is made of: no weight."""
    from llmfit_core.verify.tokens import prove_plan, prove_tokens, tokenizing_runtime

    told = tuple(e for e in _template(plan) if e not in plan.events)
    if plan.recipe.strict:
        require_none_strict(told)
    said: dict[str, object] = {}
    events: tuple[Event, ...] = ()
    gguf = plan.model.checkpoint.gguf
    if exporter.suffix:
        said, events = prove_plan(plan, tokenizing_runtime(exporter.name, registry, plan.engine))
    elif gguf is not None:
        said, events = prove_tokens(plan.model, gguf.files[0], tokenizing_runtime("gguf", registry))
    return said, (*told, *events)


def _template(plan: Plan) -> tuple[Event, ...]:
    from llmfit_core.verify.template import prove_template

    return prove_template(plan.model.vocab)


def _prove_after(
    plan: Plan, target: Path, exporter: Exporter, registry: PluginRegistry
) -> tuple[dict[str, object], tuple[Event, ...]]:
    """The written file opens in a runtime, where one is installed that serves the format."""
    from llmfit_core.verify.opening import prove_opens
    from llmfit_core.verify.tokens import tokenizing_runtime

    runtime = tokenizing_runtime(exporter.name, registry, plan.engine)
    if runtime is None:
        return {}, ()
    said, events = prove_opens(runtime, target, plan.size)
    if any(e.code == "graph-forced" for e in plan.events):
        same, more = compare(plan.model, target, runtime, registry)
        said, events = said | same, (*events, *more)
    return said, events


def verify_file(
    path: Path, against: str | Path | None, registry: PluginRegistry
) -> tuple[dict[str, object], tuple[Event, ...]]:
    """What can be proven of a written file: that its runtime opens it, reads its tokens and computes its logits rightly.

    Args:
        path: A file; its first part where there are several.
        against: What it was made from; `None` for what the file says of itself.
        registry: The plugins.

    Returns:
        What was proven, and an event for what could not be.

    Raises:
        VerificationError: `tokens-differ`, `vocabulary-refused`, `does-not-open`, `not-finite`, `computes-otherwise`,
            `other-tensors`.
        UnsupportedError: `nothing-to-verify`: the file is of a kind that no proof is known for.
    """
    from llmfit_core.verify.opening import prove_opens
    from llmfit_core.verify.tokens import prove_tokens, tokenizing_runtime

    written = prepare(path, registry).model
    file = written.checkpoint.gguf
    if file is None:
        raise UnsupportedError("nothing-to-verify", f"{path} is no .gguf file", "Name the file that convert wrote.")
    model = written if against is None else prepare(against, registry).model
    name = file.kv["general.architecture"].value
    engines = {g.engine for g in written.architecture.graphs if g.name == name}
    found = (tokenizing_runtime("gguf", registry, engine) for engine in sorted(engines))
    runtime = next((r for r in found if r is not None), None)
    said, events = prove_tokens(model, file.files[0], runtime)
    if runtime is not None:
        size = sum(p.stat().st_size for p in file.files)
        for proof in (prove_opens(runtime, file.files[0], size), compare(model, file.files[0], runtime, registry)):
            said, events = said | proof[0], (*events, *proof[1])
    return said, events


def compare(
    model: Model, path: Path, runtime: Runtime | None, registry: PluginRegistry
) -> tuple[dict[str, object], tuple[Event, ...]]:
    """`llmfit_core.verify.logits.prove_same` of a written file, read back by the plugins that are here."""
    from llmfit_core.verify.logits import prove_same

    plain = Recipe(exporter="hf", scheme="f32")
    return prove_same(model, path, runtime, lambda file, folder: convert(file, plain, folder, registry, verify=False))


class _Losses:
    """What types could not hold: an overflow is an error, as are NaNs of the source without `--force`; the rest is told."""

    def __init__(self, plan: Plan) -> None:
        self.strict, self.force = plan.recipe.strict, plan.recipe.force
        self.types = {t.name: t.type for t in plan.tensors}
        self.found: dict[str, Written] = {}

    def judge(self, name: str, outcome: Written) -> None:
        if outcome.overflow:
            raise UnsupportedError(
                "overflow",
                f"{name}: {_count(outcome.overflow)} too large for {self.types[name]} and would become infinite",
                _WIDER.get(self.types[name], "Give this tensor a float type with --tensor-type (bf16 or f32)."),
            )
        if outcome.nonfinite and not self.force:
            raise SourceError(
                "not-finite",
                f"{name} holds NaN or infinity in {outcome.nonfinite} of its values",
                "The checkpoint is damaged: fetch it again, or give --force to write it as it is.",
            )
        if outcome.underflow or outcome.nonfinite:
            self.found[name] = outcome
            if self.strict:
                require_none_strict(self.events)

    @property
    def nonfinite(self) -> bool:
        return any(w.nonfinite for w in self.found.values())

    @property
    def events(self) -> tuple[Event, ...]:
        out = []
        for name, w in sorted(self.found.items()):
            if w.nonfinite:
                message = f"{name} holds NaN or infinity in {w.nonfinite} of its values; written all the same, as told"
                out.append(Event(code="not-finite", message=message, subject=name))
            if w.underflow:
                message = f"{name}: {w.underflow} values are too small for their type and became zero"
                out.append(Event(code="underflow", message=message, subject=name, severity="fallback"))
        return tuple(out)


def _count(values: int) -> str:
    return "1 value is" if values == 1 else f"{values} values are"
