"""The child process in which llama.cpp runs, so that its aborts are findings and no crash of ours.

    python -P -m llmfit_llamacpp.worker serve --model FILE --context N --host H --port P ...
    python -P -m llmfit_llamacpp.worker exec PROGRAM ARGUMENT ...
    python -P -m llmfit_llamacpp.worker devices | try

`serve` loads a model with xllamacpp and serves its HTTP API until SIGTERM. `exec` becomes PROGRAM in a cleaned
environment. `devices` prints what the build can compute on, and `try` loads file after file whose paths come in
as a JSON list on standard input: both end by themselves.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from typing import Any

from llmfit_llamacpp.engine import clean_environment
from llmfit_llamacpp.settings import ALL_LAYERS, CHECKPOINTS, PROMPT_CACHE_MIB

KEY_VARIABLE = "LLMFIT_API_KEY"
"""Where a private engine finds the key that its one client sends."""


LIMIT_VARIABLE = "LLMFIT_MEMORY_LIMIT"
"""Bytes of data this process may have; see `engine.memory_limit`."""


def main(argv: list[str]) -> int:
    """Do what `argv` says; exit codes 0, 1 for an engine that refuses, 2 for wrong arguments."""
    _limit(os.environ.pop(LIMIT_VARIABLE, ""))
    if argv[:1] == ["exec"] and len(argv) > 1:
        return _exec(argv[1:])
    environment = clean_environment()
    key = environment.pop(KEY_VARIABLE, "")
    os.environ.clear()
    os.environ.update(environment)
    if argv == ["devices"]:
        return _devices()
    if argv == ["try"]:
        return _try(json.load(sys.stdin))
    return _serve(_arguments(argv), key)


def _limit(value: str) -> None:
    # Elsewhere the limit means something else (macOS) or is not there (Windows).
    if value.isdigit() and sys.platform == "linux":
        import resource

        limit = min(int(value), *(n for n in resource.getrlimit(resource.RLIMIT_DATA) if n >= 0), 1 << 62)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _exec(argv: list[str]) -> int:
    environment = clean_environment()
    key = environment.pop(KEY_VARIABLE, "")
    if key:
        environment["LLAMA_API_KEY"] = key
    try:
        if os.name == "posix":
            os.execve(argv[0], argv, environment)
        import subprocess

        return subprocess.run(argv, env=environment).returncode
    except OSError as error:
        print(f"error: {argv[0]}: {error.strerror}", file=sys.stderr)
        return 127


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="llmfit_llamacpp.worker", allow_abbrev=False)
    serve = parser.add_subparsers(dest="command", required=True).add_parser("serve", allow_abbrev=False)
    serve.add_argument("--model", required=True)
    serve.add_argument("--context", type=int, required=True)
    serve.add_argument("--host", required=True)
    serve.add_argument("--port", type=int, required=True)
    serve.add_argument("--threads", type=int)
    serve.add_argument("--gpu-layers", type=int)
    serve.add_argument("--rope-freq-base", type=float)
    serve.add_argument("--rope-freq-scale", type=float)
    serve.add_argument("--alias", default="")
    serve.add_argument("--pooling", default="")
    for flag in ("--no-mmap", "--mlock", "--no-warmup", "--exact", "--no-chat", "--ui", "--embed"):
        serve.add_argument(flag, action="store_true")
    return parser.parse_args(argv)


def _serve(given: argparse.Namespace, key: str) -> int:
    # Only a failed import can be told apart here; what the engine dislikes, it prints.
    try:
        import xllamacpp
    except ImportError as error:
        print(f"error: xllamacpp cannot be imported: {error}", file=sys.stderr)
        return 1
    try:
        server = xllamacpp.Server(_params(xllamacpp, given, key))
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    # llama.cpp has put its own handlers in place, which end its loop and not this process.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os._exit(0))
    print(f"listening on {server.listening_address}", flush=True)
    while True:
        time.sleep(3600)


def _params(xllamacpp: Any, given: argparse.Namespace, key: str) -> Any:
    """The parameters of xllamacpp; names that came or went between 2026.9 and 2026.10 are set where they exist."""
    params = xllamacpp.CommonParams()
    params.model.path = given.model
    params.n_ctx = given.context
    params.port = given.port
    params.n_parallel = 1
    params.warmup = not given.no_warmup
    if given.threads is not None:
        params.cpuparams.n_threads = given.threads
        params.cpuparams_batch.n_threads = given.threads
    if given.gpu_layers is not None:
        params.n_gpu_layers = ALL_LAYERS if given.gpu_layers < 0 else given.gpu_layers
    if given.rope_freq_base is not None:
        params.rope_freq_base = given.rope_freq_base
    if given.rope_freq_scale is not None:
        params.rope_freq_scale = given.rope_freq_scale
    if given.no_chat:
        params.chat_template = "chatml"
    if given.embed:  # a text has to be computed whole where every token sees every other
        params.embedding = True
        params.n_batch = params.n_ubatch = given.context
        if given.pooling:
            params.pooling_type = getattr(xllamacpp.llama_pooling_type, f"LLAMA_POOLING_TYPE_{given.pooling.upper()}")
    if given.alias:
        params.model_alias = {given.alias}
    if key:
        params.api_keys = [key]
    elif given.host in ("127.0.0.1", "localhost", "::1"):
        # Else any page open in a browser here could talk to the model.
        _set_known(params, cors_origins="localhost", cors_origins_explicit=True)
    if given.exact:
        params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    _set_known(
        params,
        hostname=given.host,
        hostnames=[given.host],
        offline=True,
        ui=given.ui,
        no_extra_bufts=given.exact,
        # It would choose another context than the plan says; only layers are left to its choice.
        fit_params=given.gpu_layers is None and not given.exact,
    )
    mode = {(False, False): "MMAP", (False, True): "MMAP_MLOCK", (True, False): "NONE", (True, True): "MLOCK"}
    name = mode[given.no_mmap, given.mlock]
    params.load_mode = getattr(xllamacpp.llama_load_mode, f"LLAMA_LOAD_MODE_{name}")
    params.cache_ram_mib = 0 if given.exact else PROMPT_CACHE_MIB
    params.n_ctx_checkpoints = CHECKPOINTS
    return params


def _set_known(params: Any, **values: object) -> None:
    for name, value in values.items():
        if hasattr(params, name):
            setattr(params, name, value)


def _devices() -> int:
    import xllamacpp

    found = [
        {
            "name": str(d["name"]),
            "description": str(d["description"]),
            "type": str(getattr(d["type"], "name", d["type"])),
            "total": int(d["memory_total"]),
            "free": int(d["memory_free"]),
        }
        for d in xllamacpp.get_device_info()
    ]
    json.dump({"devices": found, "system": str(xllamacpp.get_system_info())}, sys.stdout)
    return 0


def _try(paths: list[str]) -> int:
    """Load each file; what llama.cpp says of it goes to standard error, after a line that names the file."""
    import xllamacpp

    for path in paths:
        params = xllamacpp.CommonParams()
        params.model.path = path
        params.n_ctx = 32
        params.port = 0
        params.n_parallel = 1
        params.warmup = False
        params.verbosity = 3
        _set_known(params, fit_params=False, offline=True, ui=False)
        try:
            xllamacpp.Server(params)
        except RuntimeError:
            continue
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
