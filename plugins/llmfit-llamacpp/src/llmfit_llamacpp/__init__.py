"""llama.cpp as a runtime of llmfit: embedded (xllamacpp), or `llama-server` on PATH.

`LLMFIT_LLAMACPP=embedded` or a path to `llama-server` chooses. Everything native runs in a child process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from llmfit_core.hookspecs import hookimpl
from llmfit_core.runtime import Capabilities, Generated, LaunchOptions, LaunchPlan, Probe, Runtime

if TYPE_CHECKING:
    from llmfit_core.errors import LlmfitError

__all__ = ["LLAMACPP", "llmfit_runtimes"]


def _probe() -> Probe:
    from llmfit_llamacpp.probing import probe

    return probe()


def _capabilities() -> Capabilities:
    from llmfit_llamacpp.capabilities import capabilities

    return capabilities()


def _plan(path: Path, options: LaunchOptions) -> LaunchPlan:
    from llmfit_llamacpp.planning import plan

    return plan(path, options)


def _generate(
    path: Path,
    prompt: str | Sequence[Mapping[str, str]],
    options: LaunchOptions,
    max_tokens: int,
    temperature: float,
    on_text: Callable[[str], None],
) -> Generated:
    from llmfit_llamacpp.generation import generate

    return generate(path, prompt, options, max_tokens, temperature, on_text)


def _score(path: Path, ids: Sequence[int], options: LaunchOptions) -> list[list[float]]:
    from llmfit_llamacpp.scoring import score

    return score(path, ids, options)


def _embed(path: Path, ids: Sequence[int], options: LaunchOptions) -> list[list[float]]:
    from llmfit_llamacpp.embedding import embed

    return embed(path, ids, options)


def _tokenize(path: Path, texts: Sequence[str], add_special: bool) -> list[list[int]]:
    from llmfit_llamacpp.tokenizing import tokenize

    return tokenize(path, texts, add_special)


def _explain(path: Path) -> Callable[[tuple[str, ...]], LlmfitError | None]:
    from llmfit_llamacpp.diagnose import explain

    return explain(path)


LLAMACPP = Runtime(
    name="llamacpp",
    formats=("gguf",),
    engine="llama.cpp",
    probe=_probe,
    capabilities=_capabilities,
    plan=_plan,
    generate=_generate,
    score=_score,
    embed=_embed,
    tokenize=_tokenize,
    explain=_explain,
)


@hookimpl
def llmfit_runtimes() -> Iterable[Runtime]:
    """Declare the runtime."""
    yield LLAMACPP
