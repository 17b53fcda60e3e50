"""The proof of opening: the runtime loads the written file, whole, and computes something finite from it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from llmfit_core.errors import LlmfitError, SourceError, VerificationError
from llmfit_core.events import Event
from llmfit_core.pooling import sees_backwards_alone
from llmfit_core.runtime import LaunchOptions

if TYPE_CHECKING:
    from pathlib import Path

    from llmfit_core.runtime import Runtime

SHARE = 0.5
"""Of the memory that is free now, what a model may take to be opened for a check."""


def prove_opens(runtime: Runtime, path: Path, size: int) -> tuple[dict[str, object], tuple[Event, ...]]:
    """Load a model in `runtime` and ask for two next-token distributions, or for the vector of two tokens.

    Args:
        runtime: One that can score.
        path: The written file; its first part where there are several.
        size: Bytes of the artifact, to leave alone what this machine has no memory for.

    Returns:
        What was proven, for the manifest, and an event where nothing could be.

    Raises:
        VerificationError: `does-not-open`: the runtime refuses the file; `not-finite`: it computes no numbers.
    """
    import psutil

    causal = path.suffix != ".gguf" or sees_backwards_alone(path)
    compute = runtime.score if causal else runtime.embed
    if compute is None:
        return {}, ()
    if size > psutil.virtual_memory().available * SHARE:
        return {}, (_left(f"its {size / 1e9:.1f} GB leave too little memory here"),)
    try:
        # The first token's vector is what a classifier looks at too.
        rows = compute(path, (1, 2), LaunchOptions(context=64, warmup=False, gpu_layers=0, pooling="" if causal else "cls"))
    except SourceError as error:
        if error.code == "not-finite":
            raise _no_numbers(runtime) from error
        raise VerificationError(
            "does-not-open", f"{runtime.name} refuses the written file: {error.cause}", "Report this with the model's name."
        ) from error
    except LlmfitError as error:  # the runtime here is too old, too small or broken: that says nothing of the file
        return {}, (_left(error.cause),)
    if not all(any(math.isfinite(x) for x in row) for row in rows):
        raise _no_numbers(runtime)
    return {"opened": True, "runtime": runtime.name}, ()


def _no_numbers(runtime: Runtime) -> VerificationError:
    """The weights are finite, which conversion has seen; what is computed from them is not."""
    return VerificationError(
        "not-finite",
        f"{runtime.name} computes no finite numbers from the written file, whose weights are all finite",
        "Look for weights of absurd size in the source, and fetch it again; --no-verify writes the file all the same.",
    )


def _left(why: str) -> Event:
    return Event(code="not-opened", message=f"the file was not opened in its runtime: {why}", severity="info")
