"""Which graphs and pre-tokenizers a build of llama.cpp holds: not what a list says, but what it loads.

llama.cpp names what it does not know (`unknown model architecture: 'x'`) before it looks at anything else. So a
file of one key tells whether a graph is there, in about 2 ms a name. Candidates are the names known to us and those
that stand beside them in the build's read-only data, so that names newer than this package are found as well; a
name that is in neither is asked for when it is needed. Results are kept in the user's cache, by build.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import re
import tempfile
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from llmfit_core.errors import LaunchError
from llmfit_core.launch import free_port, last_words
from llmfit_core.readers.gguf_values import KV
from llmfit_core.runtime import Capabilities
from llmfit_llamacpp.engine import Engine, find_engine, server_version
from llmfit_llamacpp.gguf_writing import one_layer, write
from llmfit_llamacpp.names import GRAPHS, PRETOKENIZERS
from llmfit_llamacpp.probing import try_files

_SCHEMA = 1
_MARK = re.compile(r"loading model '([^']*)'")
_UNKNOWN = re.compile(r"unknown (model architecture|pre-tokenizer)")
_NAME = re.compile(rb"(?<=\0)[a-z][a-z0-9_.-]{1,39}(?=\0)")
_ANCHORS = (b"internlm2", b"starcoder2", b"nemotron_h", b"chatglm-bpe", b"deepseek-llm", b"llama-bpe", b"smaug-bpe")
_WINDOW = 6000
_MOST_FOUND = 600


def capabilities() -> Capabilities:
    """What the llama.cpp here contains.

    The sets are empty for a `llama-server` program, which takes too long to ask; `has_graph` and
    `has_pretokenizer` tell about single names there too.

    Raises:
        LaunchError: `runtime-missing`, `runtime-broken`.
    """
    engine = find_engine()
    if engine.kind == "server":
        return Capabilities(engine="llama.cpp", version=server_version(engine))
    graphs, pretokenizers = _contents(engine.stamp)
    return Capabilities(engine="llama.cpp", version=engine.version, graphs=graphs, pretokenizers=pretokenizers)


def has_graph(name: str) -> bool:
    """Whether the llama.cpp here holds the graph `name`."""
    return _has(find_engine(), "graph", name)


def has_pretokenizer(name: str) -> bool:
    """Whether the llama.cpp here knows the pre-tokenizer `name`."""
    return _has(find_engine(), "pretokenizer", name)


def _has(engine: Engine, kind: str, name: str) -> bool:
    kept = _read_cache(_cache_file(engine.stamp)) if engine.kind == "embedded" else None
    if kept is not None and name in kept[0 if kind == "graph" else 1]:
        return True
    return bool(_asked(engine.stamp, engine.kind, kind, name))


@lru_cache(maxsize=256)
def _asked(stamp: tuple[str, int, int], how: str, kind: str, name: str) -> frozenset[str]:
    known, said = _known(kind, [name], how)
    if not known and not _UNKNOWN.search(said):
        words = last_words(tuple(said.splitlines())) or "it said nothing"
        raise LaunchError("runtime-broken", f"{stamp[0]} loads nothing here: {words}", "Install llama.cpp again.")
    return known


@lru_cache(maxsize=4)
def _contents(stamp: tuple[str, int, int]) -> tuple[frozenset[str], frozenset[str]]:
    file = _cache_file(stamp)
    kept = _read_cache(file)
    if kept is not None:
        return kept
    found = _beside_known(Path(stamp[0]))
    result = (
        _known("graph", GRAPHS | found, "embedded")[0],
        _known("pretokenizer", PRETOKENIZERS | found, "embedded")[0],
    )
    _write_cache(file, result)
    return result


def _known(kind: str, names: Iterable[str], how: str) -> tuple[frozenset[str], str]:
    """Those of `names` that llama.cpp knows, by having it load one file for each; and all that it said."""
    make = _graph_file if kind == "graph" else _pretokenizer_file
    known: set[str] = set()
    everything = ""
    with tempfile.TemporaryDirectory(prefix="llmfit-") as folder:
        paths = {}
        for number, name in enumerate(sorted(names)):
            path = Path(folder) / f"{number}.gguf"
            make(path, name)
            paths[str(path)] = name
        left = list(paths)
        while left:
            said = _try_program(left) if how == "server" else try_files(left)[1]
            everything += said
            pieces = _MARK.split(said)
            reports = dict(zip(pieces[1::2], pieces[2::2], strict=True))
            known |= {paths[p] for p in left if _accepts(reports.get(p, ""))}
            # A name that makes the build abort ends the worker: go on behind it.
            last = max((left.index(p) for p in reports if p in left), default=len(left) - 1)
            left = left[last + 1 :]
    return frozenset(known), everything


def _accepts(report: str) -> bool:
    """Whether llama.cpp got past the name: it complains, or aborts, for what comes after it."""
    return ("error loading model" in report or "GGML_ASSERT" in report) and not _UNKNOWN.search(report)


def _graph_file(path: Path, name: str) -> None:
    write(path, {"general.architecture": KV("string", name)})


def _pretokenizer_file(path: Path, name: str) -> None:
    """All of a Llama but its tensors, whose absence is noticed after the vocabulary is read."""
    tokens = [*(chr(n) for n in range(33, 127)), "Ġ", "Ċ", "<|endoftext|>", "aa"]
    kv = {
        "tokenizer.ggml.model": KV("string", "gpt2"),
        "tokenizer.ggml.pre": KV("string", name),
        "tokenizer.ggml.tokens": KV("array[string]", tokens),
        "tokenizer.ggml.token_type": KV("array[int32]", [1] * len(tokens)),
        "tokenizer.ggml.merges": KV("array[string]", ["a a"]),
        "tokenizer.ggml.bos_token_id": KV("uint32", 96),
        "tokenizer.ggml.eos_token_id": KV("uint32", 96),
    }
    write(path, one_layer(kv, len(tokens))[0])


def _try_program(paths: list[str]) -> str:
    """As the worker's `try`, one start of `llama-server` for each file."""
    import subprocess

    from llmfit_llamacpp.engine import clean_environment

    engine = find_engine()
    said = []
    for path in paths:
        try:
            done = subprocess.run(
                [str(engine.path), "-m", path, "--port", str(free_port()), "--host", "127.0.0.1", "--no-warmup"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=60,
                env=clean_environment(),
            )
            text = (done.stdout + done.stderr).decode("utf-8", "replace")
        except (OSError, subprocess.TimeoutExpired) as error:
            text = str(error)
        said.append(f"loading model '{path}'\n" + _MARK.sub("", text))
    return "".join(said)


def _beside_known(library: Path) -> frozenset[str]:
    """Names that stand near known ones in the build's read-only data."""
    found: set[str] = set()
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for anchor in _ANCHORS:
            at = data.find(b"\0" + anchor + b"\0")
            if at >= 0:
                window = data[max(0, at - _WINDOW) : at + _WINDOW]
                found |= {name.decode() for name in _NAME.findall(window)}
    return frozenset(sorted(found)[:_MOST_FOUND])


def _cache_file(stamp: tuple[str, int, int]) -> Path:
    import platformdirs

    digest = hashlib.sha256(json.dumps(stamp).encode()).hexdigest()[:16]
    return Path(platformdirs.user_cache_dir("llmfit")) / f"llamacpp-{_SCHEMA}-{digest}.json"


def _read_cache(file: Path) -> tuple[frozenset[str], frozenset[str]] | None:
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        graphs, pretokenizers = kept["graphs"], kept["pretokenizers"]
        if not all(isinstance(n, str) for n in [*graphs, *pretokenizers]) or "llama" not in graphs:
            return None
        return frozenset(graphs), frozenset(pretokenizers)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write_cache(file: Path, contents: tuple[frozenset[str], frozenset[str]]) -> None:
    """Keep what was found; a cache that cannot be written costs a second next time, nothing else."""
    if "llama" not in contents[0]:
        return
    text = json.dumps({"graphs": sorted(contents[0]), "pretokenizers": sorted(contents[1])})
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=file.parent, delete=False) as temporary:
            temporary.write(text)
        os.replace(temporary.name, file)
    except OSError:
        return
