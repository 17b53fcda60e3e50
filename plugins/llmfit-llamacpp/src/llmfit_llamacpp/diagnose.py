"""From what llama.cpp printed before it gave up to an error that names file, tensor or key."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from llmfit_core.errors import LaunchError, LlmfitError, SourceError, UnsupportedError

_ANEW = "Convert the original anew; this file does not hold what its graph needs."
_NEWER = "Install a newer xllamacpp (or llama.cpp), or choose another runtime."

_Make = Callable[[str, "re.Match[str]"], LlmfitError]
_CAUSES: tuple[tuple[str, _Make], ...] = (
    (r"unknown model architecture: '([^']*)'", lambda p, m: graph_missing(p, m[1])),
    (r"unknown pre-tokenizer type: '([^']*)'", lambda p, m: pretokenizer_missing(p, m[1])),
    (
        r"missing tensor '([^']*)'|tensor '([^']*)' not found",
        lambda p, m: SourceError("missing-tensor", f"{p} lacks the tensor {m[1] or m[2]}", _ANEW),
    ),
    (
        r"tensor '([^']*)' has wrong shape; (.*)",
        lambda p, m: SourceError("tensor-shape", f"{p}: tensor {m[1]} has the wrong shape: {m[2]}", _ANEW),
    ),
    (
        r"wrong number of tensors; (.*)",
        lambda p, m: SourceError("tensor-count", f"{p} holds tensors its graph does not use: {m[1]}", _ANEW),
    ),
    (
        r"key not found in model: (\S+)",
        lambda p, m: SourceError("missing-key", f"{p} lacks the key {m[1]}", _ANEW),
    ),
    (
        r"tensor '([^']*)' has invalid data|invalid data.*tensor '([^']*)'",
        lambda p, m: SourceError("bad-tensor", f"{p}: tensor {m[1] or m[2]} holds impossible values", _ANEW),
    ),
    (
        r"(?:error loading model vocabulary|cannot find tokenizer|invalid vocab\w*)[:\s]*(.*)",
        lambda p, m: SourceError("bad-vocabulary", f"{p}: llama.cpp refuses its vocabulary: {m[1]}", _ANEW),
    ),
    (
        r"(couldn't bind|unable to bind|Address already in use)",
        lambda p, m: LaunchError(
            "port-taken", f"the port was taken while {p} was started", "Start again, or choose another with --port."
        ),
    ),
    (
        r"((?:failed|unable) to allocate.*|out of memory.*|std::bad_alloc)",
        lambda p, m: LaunchError(
            "out-of-memory", f"llama.cpp got no memory for {p}: {m[1]}", "Choose a smaller scheme or context."
        ),
    ),
    (
        r".*error loading model(?: hyperparameters)?: (.*)",
        lambda p, m: SourceError("model-refused", f"llama.cpp refuses {p}: {m[1]}", _ANEW),
    ),
    (
        r"chat_templates_init: error: (.*)",
        lambda p, m: SourceError(
            "bad-template", f"llama.cpp cannot read the chat template of {p}: {m[1]}", "Convert with another template."
        ),
    ),
    (
        r"(?:chat template|jinja|Jinja)[^:]*(?:error|failed|supported|parse)[^:]*:?\s*(.*)",
        lambda p, m: SourceError(
            "bad-template", f"llama.cpp cannot use the chat template of {p}: {m[1]}", "Convert with another template."
        ),
    ),
    (
        r"error: (xllamacpp cannot be imported: .*)",
        lambda p, m: LaunchError(
            "runtime-broken", m[1], "Install xllamacpp again: pip install --force-reinstall xllamacpp."
        ),
    ),
)


def explain(path: Path) -> Callable[[tuple[str, ...]], LlmfitError | None]:
    """For `launch`: reads the last lines of an engine that was to load `path`."""

    def read(lines: tuple[str, ...]) -> LlmfitError | None:
        complaints = [line for line in lines if not line.lstrip().startswith(("main:", "~"))]
        for pattern, make in _CAUSES:
            for line in complaints:
                match = re.search(pattern, line)
                if match:
                    return make(str(path), match)
        return None

    return read


def not_finite(path: Path) -> SourceError:
    """The model gives no probabilities but NaN."""
    return SourceError(
        "not-finite",
        f"{path} computes NaN or infinity",
        "Compare its weights with the source; a value beyond float16 wants bf16 or f32.",
    )


def graph_missing(path: str, name: str) -> UnsupportedError:
    """This build of llama.cpp holds no graph of that name."""
    return UnsupportedError(
        "graph-missing", f"{path} needs the graph {name}, which this llama.cpp does not hold", _NEWER
    )


def pretokenizer_missing(path: str, name: str) -> UnsupportedError:
    """This build of llama.cpp does not know that pre-tokenizer."""
    return UnsupportedError(
        "pretokenizer-missing", f"{path} needs the pre-tokenizer {name}, which this llama.cpp does not know", _NEWER
    )
