"""Formats: each writes the model and opens what it wrote; what can be read again comes back as it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llmfit_core.errors import LlmfitError
from llmfit_core.naming import Patterns
from llmfit_core.plan import Recipe
from llmfit_core.testing import with_transformers
from llmfit_core.testing.outcome import CheckFailed, NotRun, few, require
from llmfit_core.testing.parity import exact_scheme
from llmfit_core.testing.safetensor_files import read_folder
from llmfit_core.testing.values import slot_of

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from llmfit_core.architecture import Architecture
    from llmfit_core.export import Exporter
    from llmfit_core.plan import Plan
    from llmfit_core.testing.bench import Bench

BACK = "hf"
"""The exporter that writes Hugging Face's layout."""


def exporters(bench: Bench) -> tuple[Exporter, ...]:
    """Those that are installed and apply: a format in which the architecture names a graph, or one that needs none.

    Raises:
        NotRun: None is installed.
    """
    formats = {g.format for g in bench.architecture.graphs}
    found = tuple(p.value for p in bench.registry.exporters() if p.value.name in formats or p.value.name == BACK)
    found += tuple(
        p.value
        for p in bench.registry.exporters()
        if p.value not in found and not _has_graphs(bench, p.value.name) and not set(p.value.needs) - {"wiring"}
    )
    if bench.sample.uncomputed:
        found = tuple(e for e in found if e.name not in formats)
    if not found:
        raise NotRun("no exporter is installed: pip install llmfit-gguf")
    return found


def check_refused_by_graphs(bench: Bench, case: str) -> None:
    """Where no graph computes the family, each format that goes by graphs refuses it with the code that the author states."""
    from llmfit_core.pipeline import plan_conversion

    code = bench.sample.uncomputed
    for exporter in (p.value for p in bench.registry.exporters() if p.value.name in {g.format for g in bench.architecture.graphs}):
        said = ""
        try:
            plan_conversion(bench.built(case).folder, Recipe(exporter=exporter.name, scheme=""), bench.registry)
        except LlmfitError as error:
            said = error.code
        require(said == code, f"{exporter.name} ends as {said or 'a plan'}, not as {code}: no graph computes the family")


def _has_graphs(bench: Bench, format: str) -> bool:
    """Whether this format goes by graphs: some installed architecture names one in it."""
    return any(g.format == format for p in bench.registry.architectures() for g in p.value.graphs)


def widest(exporter: Exporter) -> str:
    """The scheme that loses least."""
    return exact_scheme(exporter) or max(exporter.schemes, key=lambda s: s.bits).name


def check_reopens(bench: Bench, case: str) -> None:
    """Each exporter writes the model and finds in the file what was planned."""
    if bench.sample.uncomputed:
        check_refused_by_graphs(bench, case)
    for exporter in exporters(bench):
        try:
            path, plan = bench.artifact(case, exporter, widest(exporter))
            exporter.reopen(path, plan)
        except LlmfitError as error:
            raise CheckFailed(f"{exporter.name}: {error.cause} [{error.code}]") from error
        require(plan.tensors or not exporter.suffix, f"{exporter.name} planned no tensor")


def check_tells_nothing_else(bench: Bench, case: str, expected: tuple[str, ...]) -> None:
    """Plans warn of, bound and fall back on just what the author expects of this case."""
    for exporter in exporters(bench):
        _, plan = bench.artifact(case, exporter, widest(exporter))
        told = sorted({e.code for e in plan.events if e.severity in ("warning", "fallback")})
        odd = sorted(set(told) - set(expected))
        messages = [e.message for e in plan.events if e.code in odd]
        require(not odd, f"{exporter.name} tells {few(odd)}: {few(messages, 2)}; mend the table, or expect it in `told`")


def check_bounds(bench: Bench, case: str, expected: int | None) -> None:
    """A plan that is exact only up to so many tokens says so; up to the tokens that the author expects."""
    for exporter in exporters(bench):
        _, plan = bench.artifact(case, exporter, widest(exporter))
        if plan.exact_context is not None:
            bounds = [e for e in plan.events if e.severity == "bound"]
            require(bounds, f"{exporter.name} is exact up to {plan.exact_context} tokens and no event says so")
        if expected is not None and exporter.name != BACK:
            require(
                plan.exact_context == expected,
                f"{exporter.name} is exact up to {plan.exact_context} tokens, where `bounded` says {expected}",
            )


def check_reads_back(bench: Bench, case: str) -> str:
    """What an exact format holds, written in Hugging Face's layout again, is what was saved, bit for bit.

    Where another architecture reads it (a family of its own written for the graph of another), the tensors are compared by
    their meaning.

    Raises:
        NotRun: No exporter writes Hugging Face's layout, or none a file that can be read.
    """
    done = []
    for exporter in exporters(bench):
        scheme = exact_scheme(exporter)
        if scheme is not None and (exporter.name == BACK or exporter.suffix):
            done.append(check_one_reads_back(bench, case, exporter, scheme))
    if not done:
        raise NotRun("no installed format is exact and can be read")
    return ", ".join(done)


def check_one_reads_back(bench: Bench, case: str, exporter: Exporter, scheme: str) -> str:
    """`check_reads_back` for one exporter.

    Raises:
        NotRun: No exporter writes Hugging Face's layout.
    """
    named = {p.value.name: p.value for p in bench.registry.exporters()}
    if BACK not in named:
        raise NotRun(f"no exporter {BACK} is installed: pip install llmfit-gguf")
    return _there_and_back(bench, case, exporter, scheme, named[BACK])


def _there_and_back(bench: Bench, case: str, exporter: Exporter, scheme: str, back: Exporter) -> str:
    from llmfit_core.pipeline import convert

    path, plan = bench.artifact(case, exporter, scheme)
    out = bench.work / "back" / f"{case}-{exporter.name}"
    try:
        convert(path, Recipe(exporter=back.name, scheme="f32"), out, bench.registry, verify=False, workers=1)
    except LlmfitError as error:
        raise CheckFailed(f"{exporter.name} cannot be read back: {error.cause} [{error.code}]") from error
    built = bench.built(case)
    ours, theirs = read_folder(out), built.tensors
    theirs = {n: t for n, t in theirs.items() if n not in bench.model(case).ledger.waived}
    same_class = _same_class(out, bench.architecture)
    if same_class and set(ours) == set(theirs):
        unused = _rows_of_no_text(bench, case)
        for name, tensor in theirs.items():
            rows = unused.get(name, 0)
            require(_equal(ours[name][rows:], tensor[rows:]) if rows else _equal(ours[name], tensor), f"{name} came back from {exporter.name} as something else")
    else:
        _compare_by_meaning(bench, case, out, exporter, plan)
    if exporter is not back and same_class and bench.sample.reference is None and with_transformers.is_here() and with_transformers.knows(built.config):
        _compare_logits(bench, case, out, exporter)
    return exporter.name


def _rows_of_no_text(bench: Bench, case: str) -> dict[str, int]:
    """Rows that the table skips, before the first token's position: nothing computes with them, and no graph keeps them."""
    model, patterns = bench.model(case), Patterns(bench.architecture.tensors)
    found = {}
    for ref in model.refs:
        slot = slot_of(bench.architecture, patterns, ref.name)
        if slot is not None and slot.skip:
            found[ref.name] = model.integer(slot.skip)
    return found


def _same_class(out: Path, architecture: Architecture) -> bool:
    import json

    said = json.loads((out / "config.json").read_text(encoding="utf-8")).get("architectures") or [""]
    return said[0] in architecture.hf_classes


def _equal(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Bit for bit, in the type of `b`: it came back as float32, the factors that a graph folds taken out again."""
    return a.shape == b.shape and a.astype(b.dtype).tobytes() == b.tobytes()


def _compare_by_meaning(bench: Bench, case: str, out: Path, exporter: Exporter, plan: Plan) -> None:
    import numpy as np

    from llmfit_core.prepare import prepare
    from llmfit_core.roles import Role
    from llmfit_core.tensors import read

    ours = dict(prepare(out, bench.registry).model.tensors)
    theirs = {k: t for k, t in plan.model.tensors.items() if k.role != Role.HEAD or k in ours}
    odd = sorted({f"{k.role} {k.part}" for k in set(ours) ^ set(theirs) if k.role != Role.HEAD})
    require(not odd, f"what came back from {exporter.name} has other roles: {few(odd)}")
    for key, tensor in theirs.items():
        want, have = (np.asarray(read(t), dtype=np.float32) for t in (tensor, ours[key]))
        if want.shape == have.shape and not np.array_equal(want, have):
            # Rows of q and k may lie in the other layout of rope.
            same = np.array_equal(_sorted(want), _sorted(have))
            require(same, f"{key.role} of layer {key.layer} came back from {exporter.name} as something else")
        require(want.shape == have.shape, f"{key.role} of layer {key.layer} came back as {have.shape}, not {want.shape}")


def _sorted(x: NDArray[Any]) -> NDArray[Any]:
    import numpy as np

    from llmfit_core.testing.safetensor_files import numpy_type

    flat = x.astype(numpy_type("bfloat16")).astype(np.float32).ravel()
    return np.asarray(np.sort(flat))


def _compare_logits(bench: Bench, case: str, out: Path, exporter: Exporter) -> None:
    import numpy as np

    ids = list(range(20, 52))
    lengths = range(1, 33)
    waived = bench.built(case).waived
    networks = with_transformers.Network(out, waived=waived), bench.built(case).network
    if bench.gives_vectors:
        ours, theirs = (n.vectors(ids) for n in networks)
    else:
        ours, theirs = (n.log_probabilities(ids, lengths) for n in networks)
    far = float(np.abs(ours - theirs).max())
    require(far < 1e-3, f"transformers computes something else from what came back from {exporter.name}: by {far:.1e}")
