"""The same model twice: what a runtime computes from the artifact, against what the reference computes from the source."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from llmfit_core.runtime import LaunchOptions
from llmfit_core.testing import record, with_transformers
from llmfit_core.testing.outcome import CheckFailed, NotRun, few, require

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from llmfit_core.export import Exporter
    from llmfit_core.model import Model
    from llmfit_core.plan import Plan
    from llmfit_core.plugin_record import Provided
    from llmfit_core.runtime import Runtime
    from llmfit_core.testing.bench import Bench

BOUND = 1e-5
"""Mean divergence in nats under which two computations are the same but for the rounding of float32."""
POSITIONS = 24
LONGEST = 160
"""Tokens of the longest prompt of a tiny model; a window has to be smaller to be seen."""
TEXTS = (
    "Hello world",
    "the king and the other thing in there",
    " leading and  double  spaces",
    "line one\nline two\n\n\ttabbed",
    "naïve café Ελληνικά 数字 🙂",
    "1234567890 x=1; y+=2 // don't",
    "",
)


@dataclass(frozen=True, kw_only=True)
class Scorer:
    """A runtime that computes a planned file, and which version of it."""

    runtime: Runtime
    version: str


@cache
def _probed(runtime: Runtime) -> tuple[bool, str]:
    found = runtime.probe()
    return found.available, found.version if found.available else found.reason


@cache
def _graphs(runtime: Runtime) -> frozenset[str]:
    return runtime.capabilities().graphs


def graph_exporters(bench: Bench) -> tuple[Exporter, ...]:
    """The installed exporters of formats that the architecture names a graph in.

    Raises:
        NotRun: There is none.
    """
    formats = {g.format for g in bench.architecture.graphs}
    if not formats:
        raise NotRun(f"{bench.architecture.name} names no graph")
    found = tuple(p.value for p in bench.registry.exporters() if p.value.name in formats)
    if not found:
        raise NotRun(f"no exporter for {few(sorted(formats))} is installed: pip install llmfit-gguf")
    return found


def exact_scheme(exporter: Exporter) -> str | None:
    """The scheme that holds float32 without loss, by its name or its bits."""
    return next((s.name for s in exporter.schemes if s.name == "f32" or s.bits == 32), None)


def scorer(bench: Bench, exporter: Exporter, plan: Plan) -> Scorer:
    """An installed runtime that scores this plan's graph.

    Raises:
        NotRun: There is none, and why.
    """
    why = []
    for provided in _scoring(bench, exporter.name):
        runtime = provided.value
        available, said = _probed(runtime)
        if not available:
            why.append(f"{runtime.name} is not here: {said}")
            continue
        graphs = _graphs(runtime)
        if graphs and plan.graph not in graphs:
            why.append(f"{runtime.name} {said} has no graph {plan.graph}")
            continue
        return Scorer(runtime=runtime, version=said)
    raise NotRun("; ".join(why) or f"no runtime that scores {exporter.name} is installed: pip install llmfit-llamacpp")


def _scoring(bench: Bench, format: str) -> Iterator[Provided[Runtime]]:
    return (p for p in bench.registry.runtimes() if format in p.value.formats and p.value.score is not None)


def prefixes(model: Model, plan: Plan) -> tuple[range, int]:
    """The lengths of prefixes to compare, and the context to score with.

    They go beyond every window and original context that is smaller than the context; where the plan states up to where
    the artifact is exact, they stay within.

    Raises:
        CheckFailed: A window of the tiny config is too large for any tiny prompt to leave it.
    """
    context = model.integer("context_length") or LONGEST
    windows = [model.integer(k) for k in model.hparams if k.endswith(("sliding_window", "chunk_size"))]
    reach = max([w for w in windows if 0 < w < context], default=8)
    rope = model.rope
    if rope.type == "longrope" and rope.original_context < context:
        # Which factors the graph takes depends on the context it is launched with.
        reach = max(reach, rope.original_context)
        require(reach + POSITIONS <= LONGEST, _too_large("original_max_position_embeddings", reach))
        return range(reach + 1, reach + 1 + POSITIONS), max(256, min(context, 512))
    exact = plan.exact_context
    if exact is not None:
        stop = min(exact, LONGEST)
        return range(max(1, stop - POSITIONS), stop), max(256, LONGEST)
    require(reach + POSITIONS <= LONGEST, _too_large("the window", reach))
    stop = min(reach + 1 + POSITIONS, context)
    return range(max(1, stop - POSITIONS), stop), max(256, LONGEST)


def _too_large(what: str, reach: int) -> str:
    return (
        f"{what} of this config is {reach}, which no prompt of a tiny model leaves; choose one under {LONGEST - POSITIONS}"
    )


def reference_rows(bench: Bench, case: str, ids: list[int], lengths: range) -> tuple[NDArray[Any], str]:
    """What the source computes, and by whose word.

    Raises:
        NotRun: Neither transformers nor the author's formulas are here.
    """
    import numpy as np

    built = bench.built(case)
    if bench.sample.reference is not None:
        rows = np.asarray(bench.sample.reference(built.folder, ids), dtype=np.float64)
        require(rows.ndim == 2 and len(rows) == len(ids), f"reference gave {rows.shape} for {len(ids)} tokens")
        return rows[[n - 1 for n in lengths]], "the author's formulas"
    if not with_transformers.knows(built.config):
        raise NotRun(f"transformers has no {bench.architecture.hf_classes[0]}: give `reference`")
    by_length = bench.model(case).rope.type in with_transformers.BY_LENGTH
    return built.network.log_probabilities(ids, lengths, by_length=by_length), with_transformers.version()


def compare(bench: Bench, case: str, exporter: Exporter, bound: float) -> record.Parity:
    """Convert in float32, score, compare.

    Raises:
        NotRun: No exact scheme, no runtime, no reference.
        CheckFailed: They do not compute the same.
    """
    import numpy as np

    scheme = exact_scheme(exporter)
    if scheme is None:
        raise NotRun(f"{exporter.name} has no scheme that holds float32")
    path, plan = bench.artifact(case, exporter, scheme)
    found = scorer(bench, exporter, plan)
    model = bench.model(case)
    lengths, context = prefixes(model, plan)
    ids = [int(i) for i in np.random.default_rng(bench.sample.seed).integers(0, _ordinary(bench), max(lengths))]
    ours, by = reference_rows(bench, case, ids, lengths)
    if found.runtime.score is None:
        raise NotRun(f"{found.runtime.name} does not score")
    answer = found.runtime.score(path, ids, LaunchOptions(context=context, threads=2))
    theirs = np.array([answer[n - 1] for n in lengths], dtype=np.float64)
    require(ours.shape == theirs.shape, f"{found.runtime.name} gave {theirs.shape}, the reference {ours.shape}")
    require(np.isfinite(ours).all(), "the reference computes NaNs")
    divergence = (np.exp(ours) * (ours - theirs)).sum(-1)
    clear = np.sort(ours, axis=-1)[:, -1] - np.sort(ours, axis=-1)[:, -2] > 1e-3
    same = (ours.argmax(-1) == theirs.argmax(-1)) | ~clear
    figure = record.Parity(
        architecture=bench.architecture.name,
        plugin=bench.registry.architecture(bench.architecture.name).plugin.distribution,
        hf_class=str(model.checkpoint.config.architectures[0] if model.checkpoint.config.architectures else ""),
        variation=case,
        kl=abs(float(divergence.mean())),
        max_kl=float(np.abs(divergence).max()),
        max_difference=float(np.abs(ours - theirs)[ours > np.log(1e-6)].max()),
        top1=float(same.mean()),
        positions=len(lengths),
        longest=max(lengths),
        exact_context=plan.exact_context,
        graph=plan.graph,
        runtime=found.runtime.name,
        runtime_version=found.version,
        reference=by,
    )
    record.add(figure)
    if not figure.kl < bound:
        raise CheckFailed(
            f"{found.runtime.name}'s graph {plan.graph} computes something else than {by}: mean KL {figure.kl:.2e} over "
            f"{len(lengths)} positions up to {max(lengths)} tokens, where {bound:.0e} is the bound. First suspects: rope_rows, "
            "a norm's shift, a key missing in the graph's keys, a fix that is not stated"
        )
    require(same.all(), f"{found.runtime.name} and {by} differ in the most likely token at {int((~same).sum())} positions")
    return figure


def _ordinary(bench: Bench) -> int:
    """Ids below this are tokens like any other."""
    from llmfit_core.testing.tokenizer_files import END_ID

    return END_ID if bench.sample.tokenizer is None else bench.model().integer("vocab_size")


def compare_tokens(bench: Bench, case: str, exporter: Exporter) -> int:
    """Token ids of the artifact in its runtime, against those of the source by `tokenizers`; gives how many texts.

    Raises:
        NotRun: No runtime that tokenizes; the folder has no tokenizer.json.
    """
    from tokenizers import Tokenizer

    path, plan = bench.artifact(case, exporter, exact_scheme(exporter) or exporter.schemes[0].name)
    runtime = scorer(bench, exporter, plan).runtime
    if runtime.tokenize is None:
        raise NotRun(f"{runtime.name} does not tokenize")
    files = bench.built(case).folder / "tokenizer.json"
    if not files.exists():
        raise NotRun("the tokenizer has no tokenizer.json to compare with")
    theirs = Tokenizer.from_file(str(files))
    for text, found in zip(TEXTS, runtime.tokenize(path, list(TEXTS), False), strict=True):
        want = theirs.encode(text, add_special_tokens=False).ids
        require(list(found) == want, f"{runtime.name} reads {text!r} as {list(found)[:8]}, tokenizers as {want[:8]}")
    return len(TEXTS)
