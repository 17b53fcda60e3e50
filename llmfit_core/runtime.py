"""Runtimes: programs and libraries that serve an artifact, and the launch they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llmfit_core.errors import LlmfitError
    from llmfit_core.events import Event


@dataclass(frozen=True, kw_only=True)
class Device:
    """Something a runtime can compute on.

    Attributes:
        name: As the runtime calls it (`CPU`, `CUDA0`).
        kind: `cpu`, `cuda`, `metal`, `vulkan`, `rocm` or `other`.
        memory_bytes: Total memory; 0 where unknown.
        free_bytes: Free memory; 0 where unknown.
    """

    name: str
    kind: str
    memory_bytes: int = 0
    free_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Whether a runtime is here.

    Attributes:
        available: It can be started on this machine.
        version: The runtime's own version; empty where it is not here.
        backends: Kinds of device its build supports (`cpu`, `cuda`, ...).
        devices: What it finds.
        reason: Why it is not available, with what to install; empty where it is.
    """

    available: bool
    version: str = ""
    backends: tuple[str, ...] = ()
    devices: tuple[Device, ...] = ()
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What a runtime's build contains.

    Attributes:
        engine: The name `Graph.engine` refers to (`llama.cpp`).
        version: The engine's version.
        graphs: Names of the graphs it holds; empty where they cannot be told.
        pretokenizers: Names of the pre-tokenizers it holds; empty where they cannot be told.
    """

    engine: str
    version: str
    graphs: frozenset[str] = frozenset()
    pretokenizers: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """How to start a model; `None` leaves a choice to the runtime.

    Attributes:
        context: Tokens of context.
        threads: CPU threads.
        gpu_layers: Layers to offload; -1 for all.
        mlock: Keep the model in memory.
        mmap: Map the file instead of reading it.
        rope_freq_base: Override of the rope base.
        rope_freq_scale: Override of the rope scale (1 / factor).
        warmup: Run an empty batch first.
        host: Address to serve on.
        port: Port to serve on; 0 for a free one.
        pooling: How token vectors become one (`mean`, `cls`, `last`, `none`, `rank`); empty for the file's way.
    """

    context: int | None = None
    threads: int | None = None
    gpu_layers: int | None = None
    mlock: bool = False
    mmap: bool = True
    rope_freq_base: float | None = None
    rope_freq_scale: float | None = None
    warmup: bool = True
    host: str = "127.0.0.1"
    port: int = 8080
    pooling: str = ""


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """A launch as a value: what would be started, before it is.

    Attributes:
        runtime: The runtime's name.
        argv: The command.
        env: Variables added to the environment.
        cwd: Where it starts, or `None` for here.
        url: Base URL of the API (`http://127.0.0.1:8080`); empty for a one-shot run.
        ready: Path under `url` that answers 200 when the model is loaded (`/health`).
        context: Tokens of context it starts with.
        memory_bytes: What it is expected to need, weights and cache.
        events: Bounds and warnings that concern this launch.
    """

    runtime: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None
    url: str = ""
    ready: str = "/health"
    context: int = 0
    memory_bytes: int = 0
    events: tuple[Event, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Generated:
    """A finished generation: its text, token counts, and seconds spent."""

    text: str
    prompt_tokens: int
    tokens: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """Declares a runtime. The callables are called late and may import what they need.

    Attributes:
        name: `llamacpp`.
        formats: Artifact formats it serves (`gguf`).
        engine: The engine whose graphs it holds, as `Graph.engine` names it; empty where it does not go by graphs.
        probe: Is it here?
        capabilities: What does its build contain?
        plan: `(model path, options) -> LaunchPlan` for serving; raises `LaunchError` or
            `UnsupportedError` for what cannot work: a model that does not fit, a graph that is not there.
        generate: `(model path, prompt or chat messages, options, max tokens, temperature, on_text) ->
            Generated`; `on_text` receives each piece as it comes. Runs the engine in a child process.
        score: `(model path, token ids, options) -> list of log-probability lists`, one per position of
            the ids, each over the whole vocabulary, for the next token. In a child process.
        embed: `(model path, token ids, options) -> vectors`: one for the text where the model or the options pool, else
            one a token; as computed, not brought to length one. In a child process.
        tokenize: `(model path, texts, add_special) -> list of id lists`. In a child process.
        explain: `(model path) -> (last lines of a launch that died) -> the error they mean, or None`.
    """

    name: str
    formats: tuple[str, ...]
    probe: Callable[[], Probe]
    capabilities: Callable[[], Capabilities]
    plan: Callable[[Path, LaunchOptions], LaunchPlan]
    generate: (
        Callable[
            [Path, str | Sequence[Mapping[str, str]], LaunchOptions, int, float, Callable[[str], None]], Generated
        ]
        | None
    ) = None
    score: Callable[[Path, Sequence[int], LaunchOptions], list[list[float]]] | None = None
    embed: Callable[[Path, Sequence[int], LaunchOptions], list[list[float]]] | None = None
    tokenize: Callable[[Path, Sequence[str], bool], list[list[int]]] | None = None
    explain: Callable[[Path], Callable[[tuple[str, ...]], LlmfitError | None]] | None = None
    engine: str = ""


