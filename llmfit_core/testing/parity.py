"""The same model twice: what a runtime computes from the artifact, against what the reference computes from the source."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

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
ROUNDED = 256
"""Engines round the context that they are launched with up to multiples of this: the least original context of longrope of
which both sides can be seen."""
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
    if bench.sample.uncomputed:
        raise NotRun(f"no graph computes {bench.architecture.name}: it is refused as {bench.sample.uncomputed}")
    found = tuple(p.value for p in bench.registry.exporters() if p.value.name in formats)
    if not found:
        raise NotRun(f"no exporter for {few(sorted(formats))} is installed: pip install llmfit-gguf")
    return found


def exact_scheme(exporter: Exporter) -> str | None:
    """The scheme that holds float32 without loss, by its name or its bits."""
    return next((s.name for s in exporter.schemes if s.name == "f32" or s.bits == 32), None)


def scorer(bench: Bench, exporter: Exporter, plan: Plan, of: Literal["score", "embed"] = "score") -> Scorer:
    """An installed runtime that scores this plan's graph, or embeds.

    Raises:
        NotRun: There is none, and why.
    """
    why = []
    for provided in _able(bench, exporter.name, of):
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
    raise NotRun("; ".join(why) or f"no runtime that {of}s {exporter.name} is installed: pip install llmfit-llamacpp")


def _able(bench: Bench, format: str, of: str) -> Iterator[Provided[Runtime]]:
    return (p for p in bench.registry.runtimes() if format in p.value.formats and getattr(p.value, of) is not None)


def reach(model: Model) -> int:
    """The largest window that is smaller than the context; a few tokens where there is none.

    Raises:
        CheckFailed: It is too large for any tiny prompt to leave it.
    """
    context = model.integer("context_length") or LONGEST
    windows = [model.integer(k) for k in model.hparams if k.endswith(("sliding_window", "chunk_size"))]
    found = max([w for w in windows if 0 < w < context], default=8)
    require(found + POSITIONS <= LONGEST, _too_large("the window", found, LONGEST))
    return found


def prefixes(model: Model, plan: Plan) -> tuple[tuple[range, int], ...]:
    """The lengths of prefixes to compare, and the context to score them with; of longrope one for each side.

    They go beyond every window and original context that is smaller than the context; where the plan states up to where
    the artifact is exact, they stay within.

    Raises:
        CheckFailed: A window of the tiny config is too large for any tiny prompt to leave it.
    """
    context = model.integer("context_length") or LONGEST
    rope = model.rope
    if rope.type == "longrope" and rope.original_context < context:
        # Which factors the graph takes depends on the context it is launched with.
        original = rope.original_context
        require(original <= ROUNDED, _too_large("original_max_position_embeddings", original, ROUNDED + 1))
        start = max(reach(model), original) + 1
        beyond = range(start, min(start + POSITIONS, context)), max(ROUNDED, min(context, 2 * ROUNDED))
        stop = min(reach(model) + 1 + POSITIONS, original)
        within = range(max(1, stop - POSITIONS), stop), original
        return (beyond, within) if original == ROUNDED else (beyond,)
    exact = plan.exact_context
    if exact is not None:
        stop = min(exact, LONGEST)
        return ((range(max(1, stop - POSITIONS), stop), max(ROUNDED, LONGEST)),)
    stop = min(reach(model) + 1 + POSITIONS, context)
    return ((range(max(1, stop - POSITIONS), stop), max(ROUNDED, LONGEST)),)


def _too_large(what: str, found: int, under: int) -> str:
    return f"{what} of this config is {found}, which no prompt of a tiny model leaves; choose one under {under - POSITIONS * (under == LONGEST)}"


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
    if found.runtime.score is None:
        raise NotRun(f"{found.runtime.name} does not score")
    sides = prefixes(model, plan)
    longest = max(max(lengths) for lengths, _ in sides)
    ids = [int(i) for i in np.random.default_rng(bench.sample.seed).integers(0, ordinary(bench), longest)]
    references, answers = [], []
    for lengths, context in sides:
        rows, by = reference_rows(bench, case, ids[: max(lengths)], lengths)
        references.append(rows)
        answer = found.runtime.score(path, ids[: max(lengths)], LaunchOptions(context=context, threads=2))
        answers += [answer[n - 1] for n in lengths]
    ours, theirs = np.concatenate(references), np.array(answers, dtype=np.float64)
    require(ours.shape == theirs.shape, f"{found.runtime.name} gave {theirs.shape}, the reference {ours.shape}")
    require(np.isfinite(ours).all(), "the reference computes NaNs")
    divergence = (np.exp(ours) * (ours - theirs)).sum(-1)
    clear = np.sort(ours, axis=-1)[:, -1] - np.sort(ours, axis=-1)[:, -2] > 1e-3
    same = (ours.argmax(-1) == theirs.argmax(-1)) | ~clear
    mean = abs(float(divergence.mean()))
    figure = record.Parity(
        architecture=bench.architecture.name,
        plugin=bench.registry.architecture(bench.architecture.name).plugin.distribution,
        hf_class=str(model.checkpoint.config.architectures[0] if model.checkpoint.config.architectures else ""),
        variation=case,
        kl=mean,
        max_kl=float(np.abs(divergence).max()),
        max_difference=float(np.abs(ours - theirs)[ours > np.log(1e-6)].max()),
        of="logits",
        top1=float(same.mean()),
        positions=len(ours),
        longest=longest,
        exact_context=plan.exact_context,
        graph=plan.graph,
        runtime=found.runtime.name,
        runtime_version=found.version,
        reference=by,
    )
    record.add(figure)
    if not mean < bound:
        raise CheckFailed(
            f"{found.runtime.name}'s graph {plan.graph} computes something else than {by}: mean KL {mean:.2e} over "
            f"{len(ours)} positions up to {longest} tokens, where {bound:.0e} is the bound. First suspects: rope_rows, "
            "a norm's shift, a key missing in the graph's keys, a fix that is not stated"
        )
    require(same.all(), f"{found.runtime.name} and {by} differ in the most likely token at {int((~same).sum())} positions")
    return figure


def ordinary(bench: Bench) -> int:
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
    runtime = scorer(bench, exporter, plan, "embed" if bench.gives_vectors else "score").runtime
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
