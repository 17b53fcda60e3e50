"""A launch as a value: whether it can work, how much context, which command."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

from llmfit_core.errors import LaunchError, UnsupportedError
from llmfit_core.events import Event
from llmfit_core.launch import free_port, require_free_port
from llmfit_core.pooling import POOLINGS
from llmfit_core.runtime import LaunchOptions, LaunchPlan
from llmfit_llamacpp.capabilities import has_graph, has_pretokenizer
from llmfit_llamacpp.diagnose import graph_missing, pretokenizer_missing
from llmfit_llamacpp.engine import Engine, find_engine, memory_limit
from llmfit_llamacpp.header import Header, read_header
from llmfit_llamacpp.memory import Room, choose_context, main_memory, need
from llmfit_llamacpp.probing import devices
from llmfit_llamacpp.settings import chosen, command
from llmfit_llamacpp.worker import LIMIT_VARIABLE

_MOST_CONTEXT = 1 << 27
_LONGEST_NAME = 200


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A model and an engine that go together.

    Attributes:
        header: The model.
        engine: The engine.
        context: Tokens of context.
        memory_bytes: What it is expected to take.
        events: What concerns this launch.
    """

    header: Header
    engine: Engine
    context: int
    memory_bytes: int
    events: tuple[Event, ...]


def plan(path: Path, options: LaunchOptions) -> LaunchPlan:
    """How the model at `path` would be served.

    Nothing is loaded. The context is what was asked for; else the smallest of what the artifact is exact for (or
    was made for), 4096, and what fits in memory.

    Raises:
        SourceError, UnsupportedError: As `read_header`.
        UnsupportedError: `graph-missing`, `pretokenizer-missing`: this build cannot run it.
        LaunchError: `runtime-missing`, `runtime-broken`, `does-not-fit`, `port-taken`, `port-denied`, `bad-host`,
            `bad-option`.
    """
    _check(options)
    header = read_header(path)
    embeds = header.embeds or bool(options.pooling)
    ready = prepare(path, options, embed=embeds)
    port = options.port or free_port(options.host)
    require_free_port(options.host, port)
    settings = replace(
        chosen(ready.header.path, ready.context, options), port=port, ui=True, alias=_alias(ready.header)
    )
    events = list(ready.events)
    if embeds:
        # The server ranks only where it is told to.
        pooling = options.pooling or {"": "mean", "rank": "rank"}.get(header.pooling, "")
        settings = replace(settings, embed=True, pooling=pooling, ui=False, chat=False)
        if not options.pooling and not header.pooling:
            events.append(
                Event(
                    code="pooling-assumed",
                    message="the file does not say how token vectors become one: their mean is taken, as sentence-transformers "
                    "does then; --pooling chooses",
                    severity="fallback",
                    subject=f"{header.architecture}.pooling_type",
                )
            )
        asked = "/v1/rerank" if (options.pooling or header.pooling) == "rank" else "/v1/embeddings"
        events.append(Event(code="embeds", message=f"it makes vectors and no text: ask {asked}", severity="info"))
    elif not ready.header.has_template:
        events.append(
            Event(
                code="no-chat-template",
                message="it has no chat template: /v1/completions is right for it; /v1/chat/completions will use ChatML",
                severity="info",
            )
        )
    if not _loopback(options.host):
        events.append(
            Event(code="open-to-network", message=f"{options.host} lets other machines use it", severity="info")
        )
    shown = f"[{options.host}]" if ":" in options.host else options.host
    return LaunchPlan(
        runtime="llamacpp",
        argv=command(ready.engine, settings),
        env=environment(ready.engine, ready.memory_bytes),
        url=f"http://{shown}:{port}",
        ready="/health",
        context=ready.context,
        memory_bytes=ready.memory_bytes,
        events=tuple(events),
    )


def prepare(
    path: Path, options: LaunchOptions, least_context: int | None = None, exact: bool = False, embed: bool = False
) -> Prepared:
    """Everything about a launch that can be decided before anything is loaded.

    Args:
        path: The model.
        options: What was asked.
        least_context: Tokens this launch has to hold, where nothing was asked.
        exact: With the float32 cache.
        embed: For vectors; else a model that only embeds is refused.

    Raises:
        UnsupportedError: `only-embeds`.
    """
    _check(options)
    header = read_header(path)
    if not header.causal and not embed:
        raise UnsupportedError(
            "only-embeds",
            f"{path} makes vectors of texts and generates nothing: every token in it sees every other",
            "Use llmfit run MODEL TEXT for the vector, or llmfit serve and /v1/embeddings.",
        )
    engine = find_engine()
    if not has_graph(header.architecture):
        raise graph_missing(str(header.path), header.architecture)
    if header.pretokenizer and not has_pretokenizer(header.pretokenizer):
        raise pretokenizer_missing(str(header.path), header.pretokenizer)
    wanted = options.context or least_context
    # llama.cpp's server gives no request more than this, whatever it is started with.
    capped = min(wanted, header.context_length) if wanted else None
    context, why = choose_context(header, _room(engine, options), capped, exact)
    events = [] if wanted else [_chosen(context, why)]
    if options.context and context < options.context:
        events.append(_capped(header, options.context))
    events += _bounds(header, context)
    if options.rope_freq_base is not None or options.rope_freq_scale is not None:
        events.append(Event(code="rope-overridden", message="rope is not as the model has it", severity="info"))
    if options.mlock and _lockable() < header.weight_bytes:
        events.append(
            Event(
                code="mlock-limited",
                message=f"only {_lockable() >> 20} MiB may be locked in memory here (ulimit -l); the rest will not be",
                severity="fallback",
            )
        )
    return Prepared(
        header=header,
        engine=engine,
        context=context,
        memory_bytes=need(header, context, exact),
        events=tuple(events),
    )


def environment(engine: Engine, memory_bytes: int) -> dict[str, str]:
    """What is added to the environment of an engine that is expected to take `memory_bytes`.

    Drivers of accelerators reserve more than they use: no limit there.
    """
    limited = all(d.kind == "cpu" for d in devices(engine))
    limit = {LIMIT_VARIABLE: str(memory_limit(memory_bytes))} if limited else {}
    return {"GGML_NO_BACKTRACE": "1", **limit}


def _check(options: LaunchOptions) -> None:
    for name, value, fine in (
        ("context", options.context, options.context is None or 0 < options.context <= _MOST_CONTEXT),
        ("threads", options.threads, options.threads is None or 0 < options.threads <= 1024),
        ("gpu-layers", options.gpu_layers, options.gpu_layers is None or -1 <= options.gpu_layers < 1 << 20),
        ("port", options.port, 0 <= options.port < 1 << 16),
        ("rope-freq-base", options.rope_freq_base, _positive(options.rope_freq_base)),
        ("rope-freq-scale", options.rope_freq_scale, _positive(options.rope_freq_scale)),
        ("pooling", options.pooling, options.pooling in ("", *POOLINGS)),
        ("host", options.host, bool(options.host) and options.host.isprintable() and "/" not in options.host),
    ):
        if not fine:
            raise LaunchError("bad-option", f"--{name} {value} is out of range", "See llmfit serve --help.")


def _positive(value: float | None) -> bool:
    return value is None or (math.isfinite(value) and value > 0)


def _room(engine: Engine, options: LaunchOptions) -> Room:
    if options.gpu_layers == 0:
        return Room(main=main_memory())
    return Room(main=main_memory(), devices=sum(d.free_bytes for d in devices(engine) if d.kind != "cpu"))


def _chosen(context: int, why: str) -> Event:
    return Event(code="context-chosen", message=f"{context} tokens of context: {why}", severity="info")


def _capped(header: Header, wanted: int) -> Event:
    return Event(
        code="context-capped",
        message=f"{header.context_length} tokens of context, the model's own, and not {wanted}: llama.cpp's server gives "
        "no more; convert with a larger --context-length if the model can take it",
        severity="fallback",
        subject=f"{header.architecture}.context_length",
    )


def _bounds(header: Header, context: int) -> list[Event]:
    events = []
    if header.exact_context is not None and context > header.exact_context:
        events.append(
            Event(
                code="beyond-exact-context",
                message=f"exact up to {header.exact_context} tokens; of the {context} asked for, what comes after "
                "is computed otherwise than the model was made",
                severity="warning",
                subject="llmfit.exact_context",
            )
        )
    if header.short_context is not None and context > header.short_context:
        events.append(
            Event(
                code="longrope-long",
                message=f"with more than {header.short_context} tokens of context llama.cpp uses the long rope factors "
                f"for short texts too; the model itself takes the short ones up to {header.short_context}",
                severity="bound",
                subject="rope_factors_long.weight",
            )
        )
    return events


def _lockable() -> int:
    try:
        import resource
    except ImportError:
        return 1 << 62
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return 1 << 62 if limit == resource.RLIM_INFINITY else limit


def _alias(header: Header) -> str:
    """The model's name in the API: its own, not the folder it happens to lie in."""
    kv = header.file.kv.get("general.name")
    name = str(kv.value) if kv is not None and kv.type == "string" else header.path.stem
    # llama-server reads an alias as a list.
    return "".join(c for c in name if c.isprintable() and c != ",")[:_LONGEST_NAME].strip()


def _loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")
