"""`llmfit run` and `llmfit serve`."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmfit_core.cli.context import registry
from llmfit_core.cli.convert_cmd import Json
from llmfit_core.cli.results import print_json
from llmfit_core.errors import LaunchError, PluginError, SourceError
from llmfit_core.pooling import is_pooled, sees_backwards_alone
from llmfit_core.runtime import LaunchOptions

if TYPE_CHECKING:
    from llmfit_core.plugins import PluginRegistry
    from llmfit_core.runtime import Runtime

ModelPath = Annotated[Path, typer.Argument(metavar="MODEL", help="An artifact: a .gguf file, or a folder that holds one.")]
RuntimeName = Annotated[str | None, typer.Option("--runtime", help="Which runtime; the first that can, otherwise.")]
ContextSize = Annotated[int | None, typer.Option("-c", "--context", min=1, help="Tokens of context.")]
Threads = Annotated[int | None, typer.Option("-t", "--threads", min=1, help="CPU threads.")]
GpuLayers = Annotated[int | None, typer.Option("-g", "--gpu-layers", min=-1, help="Layers to offload; -1 for all.")]
Mlock = Annotated[bool, typer.Option("--mlock", help="Keep the model in memory.")]
NoMmap = Annotated[bool, typer.Option("--no-mmap", help="Read the file instead of mapping it.")]
FreqBase = Annotated[float | None, typer.Option("--rope-freq-base", help="Rope base for this launch.")]
FreqScale = Annotated[float | None, typer.Option("--rope-freq-scale", help="Rope scale for this launch.")]
Pooling = Annotated[
    str,
    typer.Option("--pooling", help="How token vectors become one (mean, cls, last, none, rank); the file's way otherwise."),
]
NoWarmup = Annotated[bool, typer.Option("--no-warmup", help="Do not run an empty batch first.")]


def run(
    model: ModelPath,
    prompt: Annotated[str | None, typer.Argument(help="The prompt; read from standard input where it is left out.")] = None,
    runtime: RuntimeName = None,
    max_tokens: Annotated[int, typer.Option("-n", "--max-tokens", min=1, help="At most so many tokens.")] = 256,
    temperature: Annotated[float, typer.Option("--temperature", min=0, help="0 for the likeliest token each time.")] = 0.0,
    system: Annotated[str | None, typer.Option("--system", help="A system message.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Give the prompt as it is, without the chat template.")] = False,
    context: ContextSize = None,
    threads: Threads = None,
    gpu_layers: GpuLayers = None,
    mlock: Mlock = False,
    no_mmap: NoMmap = False,
    rope_freq_base: FreqBase = None,
    rope_freq_scale: FreqScale = None,
    no_warmup: NoWarmup = False,
    pooling: Pooling = "",
    as_json: Json = False,
) -> None:
    """Answer one prompt; print the vector of a text where the model embeds."""
    path = _artifact(model)
    chosen = _runtime(registry(), path, runtime)
    if pooling or _embeds(path):
        options = LaunchOptions(
            context=context, threads=threads, gpu_layers=gpu_layers, mlock=mlock, mmap=not no_mmap,
            rope_freq_base=rope_freq_base, rope_freq_scale=rope_freq_scale, pooling=pooling,
        )  # fmt: skip
        _embed(chosen, path, prompt if prompt is not None else sys.stdin.read(), options, as_json)
        return
    if chosen.generate is None:
        raise LaunchError("cannot-generate", f"runtime {chosen.name} only serves", "Use `llmfit serve`.")
    text = prompt if prompt is not None else sys.stdin.read()
    options = LaunchOptions(
        context=context, threads=threads, gpu_layers=gpu_layers, mlock=mlock, mmap=not no_mmap,
        rope_freq_base=rope_freq_base, rope_freq_scale=rope_freq_scale, warmup=not no_warmup,
    )  # fmt: skip
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": text})
    ask = text if raw or not _has_template(path) else messages
    plan = chosen.plan(path, options)
    for event in plan.events:
        print(f"{event.severity}: {event.message} [{event.code}]", file=sys.stderr)

    def show(piece: str) -> None:
        if not as_json:
            print(piece, end="", flush=True)

    answer = chosen.generate(path, ask, options, max_tokens, temperature, show)
    if as_json:
        body = {
            "text": answer.text,
            "prompt_tokens": answer.prompt_tokens,
            "tokens": answer.tokens,
            "seconds": round(answer.seconds, 3),
            "events": [e.as_json() for e in plan.events],
        }
        print_json({"answer": body})
    else:
        print(flush=True)
        print(f"{answer.tokens} tokens in {answer.seconds:.1f} s, starting and loading included", file=sys.stderr)


def _embed(runtime: Runtime, path: Path, text: str, options: LaunchOptions, as_json: bool) -> None:
    """Print a text's vector, or its tokens' vectors, as JSON: as computed, not brought to length one."""
    if runtime.embed is None or runtime.tokenize is None:
        raise LaunchError("cannot-embed", f"runtime {runtime.name} makes no vectors", "Use `llmfit serve`.")
    ids = runtime.tokenize(path, [text], True)[0]
    rows = runtime.embed(path, ids, options)
    if as_json:
        print_json({"embedding": {"vectors": rows, "tokens": len(ids), "pooled": len(rows) == 1}})
        return
    for row in rows:
        print(json.dumps(row))
    print(f"{len(rows)} of {len(rows[0])} numbers, from {len(ids)} tokens; not brought to length one", file=sys.stderr)


def serve(
    model: ModelPath,
    runtime: RuntimeName = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on; loopback unless told otherwise.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("-p", "--port", min=0, max=65535, help="Port; 0 for a free one.")] = 8080,
    context: ContextSize = None,
    threads: Threads = None,
    gpu_layers: GpuLayers = None,
    mlock: Mlock = False,
    no_mmap: NoMmap = False,
    rope_freq_base: FreqBase = None,
    rope_freq_scale: FreqScale = None,
    no_warmup: NoWarmup = False,
    pooling: Pooling = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be started.")] = False,
    as_json: Json = False,
) -> None:
    """Serve a model with an OpenAI-compatible API until interrupted."""
    from llmfit_core.launch import launch

    path = _artifact(model)
    chosen = _runtime(registry(), path, runtime)
    options = LaunchOptions(
        context=context, threads=threads, gpu_layers=gpu_layers, mlock=mlock, mmap=not no_mmap, host=host, port=port,
        rope_freq_base=rope_freq_base, rope_freq_scale=rope_freq_scale, warmup=not no_warmup, pooling=pooling,
    )  # fmt: skip
    plan = chosen.plan(path, options)
    body = {
        "runtime": plan.runtime,
        "argv": list(plan.argv),
        "env": dict(plan.env),
        "url": plan.url,
        "ready": plan.ready,
        "context": plan.context,
        "memory_bytes": plan.memory_bytes,
        "events": [e.as_json() for e in plan.events],
    }
    for event in plan.events:
        print(f"{event.severity}: {event.message} [{event.code}]", file=sys.stderr)
    if dry_run:
        if as_json:
            print_json({"launch": body})
        else:
            print(shlex.join(plan.argv))
        return
    try:
        with launch(plan, explain=chosen.explain(path) if chosen.explain else None) as server:
            if as_json:
                print_json({"launch": body | {"url": server.url}})
            else:
                print(server.url, flush=True)
                print(f"serving {path.name} with {plan.context} tokens of context; Ctrl-C ends it", file=sys.stderr)
            if server.wait():
                raise server.died("serving", chosen.explain(path) if chosen.explain else None)
    except KeyboardInterrupt:  # the way it is meant to end, by Ctrl-C or SIGTERM, while it loads too
        print("stopped", file=sys.stderr)


def _artifact(path: Path) -> Path:
    """The file to open: the path itself, or the one GGUF model in a folder."""
    if not path.exists():
        raise SourceError("no-such-artifact", f"{path} is not there", "Check the path, or convert a model first.")
    if path.is_dir():
        files = sorted(p for p in path.glob("*.gguf") if "-of-" not in p.name or "-00001-of-" in p.name)
        if len(files) == 1:
            return files[0]
        if (path / "config.json").exists() and not files:
            raise SourceError(
                "not-an-artifact",
                f"{path} is a Hugging Face folder, which no installed runtime serves",
                f"Convert it first: llmfit convert {path} --to gguf:q4_k_m -o model.gguf",
            )
        raise SourceError("which-artifact", f"{path} holds {len(files)} GGUF models", "Name the file.")
    return path


def _runtime(plugins: PluginRegistry, path: Path, name: str | None) -> Runtime:
    if name:
        runtime = plugins.runtime(name).value
        probe = runtime.probe()
        if not probe.available:
            raise LaunchError("runtime-not-here", f"runtime {name} is not available: {probe.reason}", "Install it.")
        return runtime
    reasons = []
    for provided in plugins.runtimes():
        if "gguf" in provided.value.formats:
            probe = provided.value.probe()
            if probe.available:
                return plugins.runtime(provided.value.name).value
            reasons.append(f"{provided.value.name}: {probe.reason}")
    raise PluginError(
        "no-runtime",
        f"nothing here runs {path.name}" + (f" ({'; '.join(reasons)})" if reasons else ": no runtime plugin is loaded"),
        "Install one: pip install llmfit-llamacpp; `llmfit plugins list` shows what failed.",
    )


def _embeds(path: Path) -> bool:
    """Whether a file is made for vectors: it says how to pool them, or that every token sees every other."""
    return is_pooled(path) or not sees_backwards_alone(path)


def _has_template(path: Path) -> bool:
    from llmfit_core.readers.gguf import read_gguf

    return "tokenizer.chat_template" in read_gguf(path).kv
