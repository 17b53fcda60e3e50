"""What an engine is started with, and the two command lines that say so."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llmfit_llamacpp.engine import Engine, server_flags

if TYPE_CHECKING:
    from llmfit_core.runtime import LaunchOptions

ALL_LAYERS = 9999
"""More layers than any model has. Every version of llama.cpp reads that as all of them."""

PROMPT_CACHE_MIB, CHECKPOINTS = 512, 4
"""What a server keeps of earlier prompts: llama.cpp's 8 GiB and 32 states are no part of what a plan reckons with."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One start of an engine.

    Attributes:
        model: The GGUF file.
        context: Tokens of context.
        host: Where it listens.
        port: Where it listens.
        threads: CPU threads; `None` for the engine's choice.
        gpu_layers: Layers to offload; -1 for all; `None` for the engine's choice.
        mmap: Map the weights.
        mlock: Keep them in memory.
        rope_freq_base: Override; `None` for the file's.
        rope_freq_scale: Override; `None` for the file's.
        warmup: Run an empty batch first.
        exact: For comparing numbers: float32 cache, plain attention, weights as they lie in the file.
        chat: Read the file's chat template. Without, a template that does not compile does no harm.
        ui: Offer llama.cpp's page for browsers.
        alias: Name of the model in the API.
        embed: Vectors are wanted, and no text.
        pooling: Override of how token vectors become one; empty for the file's way.
    """

    model: Path
    context: int
    host: str
    port: int
    threads: int | None = None
    gpu_layers: int | None = None
    mmap: bool = True
    mlock: bool = False
    rope_freq_base: float | None = None
    rope_freq_scale: float | None = None
    warmup: bool = True
    exact: bool = False
    chat: bool = True
    ui: bool = False
    alias: str = ""
    embed: bool = False
    pooling: str = ""


def chosen(model: Path, context: int, options: LaunchOptions) -> Settings:
    """Settings as asked for; what `options` do not say is left at its default."""
    return Settings(
        model=model.absolute(),
        context=context,
        host=options.host,
        port=options.port,
        threads=options.threads,
        gpu_layers=options.gpu_layers,
        mmap=options.mmap,
        mlock=options.mlock,
        rope_freq_base=options.rope_freq_base,
        rope_freq_scale=options.rope_freq_scale,
        warmup=options.warmup,
    )


def command(engine: Engine, settings: Settings) -> tuple[str, ...]:
    """The command line that starts `engine` with `settings`."""
    worker = (sys.executable, "-P", "-m", "llmfit_llamacpp.worker")
    if engine.kind == "embedded":
        return (*worker, "serve", *_worker_flags(settings))
    return (*worker, "exec", str(engine.path), *_server_flags(settings, server_flags(engine)))


def _worker_flags(s: Settings) -> list[str]:
    argv = ["--model", str(s.model), "--context", str(s.context), "--host", s.host, "--port", str(s.port)]
    for flag, value in (
        ("--threads", s.threads),
        ("--gpu-layers", s.gpu_layers),
        ("--rope-freq-base", s.rope_freq_base),
        ("--rope-freq-scale", s.rope_freq_scale),
        ("--alias", s.alias or None),
        ("--pooling", s.pooling or None),
    ):
        if value is not None:
            argv.append(f"{flag}={value}")
    for flag, on in (
        ("--no-mmap", not s.mmap),
        ("--mlock", s.mlock),
        ("--no-warmup", not s.warmup),
        ("--exact", s.exact),
        ("--no-chat", not s.chat),
        ("--ui", s.ui),
        ("--embed", s.embed),
    ):
        if on:
            argv.append(flag)
    return argv


def _server_flags(s: Settings, known: frozenset[str]) -> list[str]:
    """llama-server's own flags; of those that came or went over time, the ones it knows."""
    argv = ["--model", str(s.model), "--ctx-size", str(s.context), "--host", s.host, "--port", str(s.port)]
    argv += ["--parallel", "1"]
    if s.threads is not None:
        argv += ["--threads", str(s.threads)]
    if s.gpu_layers is not None:
        argv += ["--n-gpu-layers", str(ALL_LAYERS if s.gpu_layers < 0 else s.gpu_layers)]
    if s.rope_freq_base is not None:
        argv += ["--rope-freq-base", repr(s.rope_freq_base)]
    if s.rope_freq_scale is not None:
        argv += ["--rope-freq-scale", repr(s.rope_freq_scale)]
    if "--load-mode" in known:
        modes = {(True, False): "mmap", (True, True): "mmap+mlock", (False, True): "mlock", (False, False): "none"}
        argv += ["--load-mode", modes[s.mmap, s.mlock]]
    else:
        argv += ["--no-mmap"] * (not s.mmap) + ["--mlock"] * s.mlock
    if not s.warmup:
        argv.append("--no-warmup")
    if s.exact:
        argv += ["--cache-type-k", "f32", "--cache-type-v", "f32", "--flash-attn", "off"]
        argv += ["--no-repack"] * ("--no-repack" in known)
    if s.chat:
        argv += ["--jinja"] * ("--jinja" in known)
    else:
        argv += ["--chat-template", "chatml"]
    if s.alias:
        argv += ["--alias", s.alias]
    if s.embed:  # a text has to be computed whole where every token sees every other
        argv += ["--embeddings", "--batch-size", str(s.context), "--ubatch-size", str(s.context)]
        argv += ["--pooling", s.pooling] if s.pooling else []
    if not s.ui:
        argv += [flag for flag in ("--no-ui", "--no-webui") if flag in known][:1]
    if "--fit" in known:
        # It would choose another context than the plan says; only layers are left to its choice.
        argv += ["--fit", "on" if s.gpu_layers is None and not s.exact else "off"]
    if "--cors-origins" in known and s.host in ("127.0.0.1", "localhost", "::1"):
        argv += ["--cors-origins", "localhost"]
    argv += ["--cache-ram", "0" if s.exact else str(PROMPT_CACHE_MIB)] if "--cache-ram" in known else []
    argv += ["--ctx-checkpoints", str(CHECKPOINTS)] if "--ctx-checkpoints" in known else []
    if "--offline" in known:
        argv.append("--offline")
    return argv
