"""Which of an architecture's graphs computes this checkpoint: one of them, or a refusal with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmfit_core.architecture import Reads
from llmfit_core.errors import UnsupportedError
from llmfit_core.events import Event
from llmfit_core.model import Key
from llmfit_core.roles import Role
from llmfit_gguf.layout import scales_of
from llmfit_gguf.rounding import rounding

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from llmfit_core.architecture import Graph
    from llmfit_core.model import Model
    from llmfit_core.rope import Rope


MAX_LAYERS, MAX_EXPERTS = 512, 1024
"""`LLAMA_MAX_LAYERS` and `LLAMA_MAX_EXPERTS` of llama.cpp's `llama-hparams.h`."""


def choose_graph(
    model: Model, wanted: str | None = None, *, force: bool = False
) -> tuple[Graph, int | None, tuple[Event, ...]]:
    """The first graph that computes `model`, the tokens up to which it is exact (`None`: all), and the bounds.

    Args:
        model: What is to be computed.
        wanted: A graph's own name or its engine's; without it, the graphs of the architecture's first engine.
        force: Take a graph that computes something else, where it would load the file all the same.

    Raises:
        UnsupportedError: `no-graph`, `unknown-graph`, `graph-cannot`, with every graph's reason.
    """
    graphs = [g for g in model.architecture.graphs if g.format == "gguf"]
    if not graphs:
        raise UnsupportedError(
            "no-graph",
            f"no runtime is known to have a graph for {model.architecture.hf_classes[0]} in GGUF files",
            "Export to hf instead, or use a plugin version that names a graph.",
        )
    asked = _asked(graphs, wanted, model)
    reasons: list[str] = []
    for graph in asked:
        reason = obstacle(model, graph)
        if reason is None:
            exact, events = limits(model, graph)
            events = (*events, *_folded(model, graph), *_runtimes(model, graphs, graph))
            if reasons:
                message = f"written for {graph.engine}'s graph {graph.name}, which computes the same; {'; '.join(reasons)}"
                events = (*events, Event(code="other-graph", message=message, severity="info", subject=graph.name))
            return graph, exact, events
        reasons.append(f"{graph.engine}'s {graph.name}: {reason}")
    forced = next((g for g in asked if _hard_obstacle(model, g) is None), None) if force else None
    if forced is not None:
        exact, events = limits(model, forced)
        reason = obstacle(model, forced)
        told = Event(
            code="graph-forced",
            message=f"{forced.engine}'s graph {forced.name} computes something else than this model: {reason}; written all "
            "the same, as told",
            subject=forced.name,
        )
        return forced, exact, (*events, *_folded(model, forced), *_runtimes(model, graphs, forced), told)
    why = "; ".join(dict.fromkeys(reasons))
    able = dict.fromkeys(g.engine for g in graphs if g not in asked and obstacle(model, g) is None)
    forceable = any(_hard_obstacle(model, g) is None for g in asked)
    if able:
        ways = " or ".join(f"--graph {engine}" for engine in able)
        last = ", or give --force to write it for this graph all the same" if forceable else ""
        raise UnsupportedError(
            "graph-cannot",
            f"{why}",
            f"Write it for an engine that computes it ({ways}){',' if forceable else ' or'} run this checkpoint in transformers "
            f"(--to hf){last}.",
        )
    last = "; --force writes it all the same" if forceable else ""
    raise UnsupportedError(
        "graph-cannot",
        f"{why}",
        f"Run this checkpoint in transformers (--to hf), or choose a model whose config the graph computes{last}.",
    )


def _asked(graphs: Sequence[Graph], wanted: str | None, model: Model) -> list[Graph]:
    """The graphs that `wanted` names; those of the first engine where it names none."""
    if wanted is None:
        return [g for g in graphs if g.engine == graphs[0].engine]
    found = [g for g in graphs if wanted in (g.name, g.engine)]
    if not found:
        there = ", ".join(f"{g.name} ({g.engine})" for g in graphs)
        raise UnsupportedError(
            "unknown-graph",
            f"{model.architecture.hf_classes[0]} has no graph {wanted!r:.80}",
            f"There are: {there}. Give the graph's name or the engine's.",
        )
    return found


def _runtimes(model: Model, graphs: Sequence[Graph], chosen: Graph) -> tuple[Event, ...]:
    """Which engines compute this model and which do not, where it has graphs of several."""
    if len({g.engine for g in graphs}) < 2:
        return ()
    said: dict[str, str] = {}
    for graph in graphs:
        reason = obstacle(model, graph)
        if reason is not None:
            said.setdefault(graph.engine, f"{graph.engine} ({graph.name}): no, {reason}")
        elif "): yes" not in said.get(graph.engine, ""):
            said[graph.engine] = f"{graph.engine} ({graph.name}): yes"
    message = f"who computes this model: {'; '.join(said.values())}; transformers (--to hf): yes"
    return (Event(code="runtimes", message=message, severity="info", subject=chosen.name),)


def require_types(graph: Graph, types: Iterable[tuple[str, str]]) -> None:
    """Hold tensors' names and types against what the graph's engine reads.

    Raises:
        UnsupportedError: `type-not-read`.
    """
    odd = next(((name, kind) for name, kind in types if graph.types is not None and kind not in graph.types), None)
    if odd is not None:
        raise UnsupportedError(
            "type-not-read",
            f"{odd[0]} would be {odd[1]}, a type that {graph.engine} does not read",
            f"Choose a scheme of other types; {graph.engine} has tools of its own that make its own ones from f32 or bf16.",
        )


def obstacle(model: Model, graph: Graph) -> str | None:
    """Why `graph` does not compute `model`, or `None` where it does."""
    for hparam, fix in graph.fixes.items():
        value = model.hparams.get(hparam)
        if value not in fix.values and not (fix.unless is not None and fix.unless(model.hparams)):
            key = _config_key(model, hparam)
            return fix.why if key is None else f"{key} is {value!r}, but {fix.why}"
    off = rounding(model, graph)
    if off is not None and off.phase > graph.rope_rounding:
        return f"yarn has {yarn_is_custom(model.rope)}, which this graph does not read: {off}"
    return _hard_obstacle(model, graph)


def _hard_obstacle(model: Model, graph: Graph) -> str | None:
    """Why a file for `graph` could not even be written or loaded, or `None`."""
    too_many = _too_many(model) if graph.engine == "llama.cpp" else None
    if too_many is not None:
        return too_many
    kind = model.rope.type
    if kind not in graph.rope:
        return f"the rope type is {kind}, which this graph does not compute"
    if not graph.own_head and Key(Role.HEAD) in model.tensors:
        return "its head differs from the embedding, which this graph takes for the head"
    if graph.biases is not None:
        odd = next((k for k in model.tensors if k.part == "bias" and k.role not in graph.biases), None)
        if odd is not None:
            return f"layer {odd.layer} has a bias on {odd.role}, which this graph does not load"
    return None


def _folded(model: Model, graph: Graph) -> list[Event]:
    """The factors that go into tensors, for the manifest."""
    return [
        Event(
            code="scale-folded",
            message=f"{role} is multiplied by {factor:.7g}, since {graph.engine}'s graph {graph.name} scales otherwise",
            severity="info",
            subject=role,
        )
        for role, factor in scales_of(graph, model.hparams).items()
    ]


def _too_many(model: Model) -> str | None:
    """What llama.cpp's loader aborts on, whatever the graph: its arrays have these fixed lengths."""
    layers, experts = model.layers, model.integer("expert_count")
    if layers > MAX_LAYERS:
        return f"{layers} layers are more than the {MAX_LAYERS} that llama.cpp holds"
    if experts > MAX_EXPERTS:
        return f"{experts} experts are more than the {MAX_EXPERTS} that llama.cpp holds"
    return None


def limits(model: Model, graph: Graph) -> tuple[int | None, tuple[Event, ...]]:
    """Up to where the graph is exact, and the bounds as events."""
    exact: list[int] = []
    events = []
    for message in graph.bounds(model.hparams) if graph.bounds is not None else ():
        events.append(Event(code="bound-graph", message=message, severity="bound", subject=graph.name))
    context = model.integer("context_length")
    for limit in graph.limits:
        tokens = model.integer(limit.hparam)
        if 0 < tokens < context:
            exact.append(tokens)
            message = limit.message.format(tokens=tokens)
            events.append(Event(code="bound-" + limit.hparam.split(".")[-1].replace("_", "-"), message=message,
                                severity="bound", subject=_config_key(model, limit.hparam) or limit.hparam))
    rope = model.rope
    off = rounding(model, graph)
    if off is not None and off.phase <= graph.rope_rounding:
        message = (
            f"{graph.engine}'s graph {graph.name} does not read yarn's {yarn_is_custom(rope)}: {off}; long texts are continued "
            "otherwise than in transformers"
        )
        events.append(Event(code="rope-rounded", message=message, subject="rope_scaling"))
    if rope.type == "dynamic":
        exact.append(rope.original_context)
        events.append(
            Event(
                code="bound-dynamic-rope",
                message=f"dynamic rope is exact up to {rope.original_context} tokens; beyond, the graph does not stretch",
                severity="bound",
                subject="rope_scaling",
            )
        )
    if rope.type == "longrope" and (rope.original_context < context or rope.original_context % 256):
        # llama.cpp takes the short factors only where the launched context, rounded up to 256, is within the original.
        short = rope.original_context // 256 * 256
        if short:
            exact.append(short)
        within = f"exact up to {short} tokens when launched with that context; launched with more, " if short else ""
        events.append(
            Event(
                code="bound-longrope",
                message=f"longrope: {within}exact only for texts longer than {rope.original_context} tokens",
                severity="bound",
                subject="rope_scaling",
            )
        )
    return (min(exact) if exact else None), tuple(events)


def yarn_is_custom(rope: Rope) -> str:
    """What of yarn's parameters no key of llama.cpp's common loader carries; empty where nothing."""
    if rope.type != "yarn":
        return ""
    odd = []
    if rope.beta_fast != 32 or rope.beta_slow != 1:
        odd.append(f"beta_fast {rope.beta_fast:g} and beta_slow {rope.beta_slow:g}")
    if not rope.truncate:
        odd.append("truncate false")
    return " and ".join(odd)


def _config_key(model: Model, hparam: str) -> str | None:
    """The key of config.json that became `hparam`; `None` for what was derived."""
    stated = [key for key, name in model.ledger.consumed.items() if name == hparam]
    known = [k for k, use in model.architecture.config.items() if isinstance(use, Reads) and use.hparam == hparam]
    return next(iter([*stated, *known]), None)
