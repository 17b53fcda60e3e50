"""The proof of logits: a runtime computes from a file what the model's own class computes in transformers.

Both sides take the *file's* weights: they are read back, so that what quantizing lost plays no part, and what is compared
is the computation alone. The config is the source's, which says what the model is.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmfit_core.errors import LlmfitError, VerificationError
from llmfit_core.events import Event
from llmfit_core.runtime import LaunchOptions
from llmfit_core.tensors import element_count
from llmfit_core.verify.reference_child import MISSING, OTHER_TENSORS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from llmfit_core.model import Model
    from llmfit_core.runtime import Runtime

    Rows = np.ndarray[Any, np.dtype[Any]]

LIMIT = 0.02
"""Mean Kullback-Leibler divergence, in nats, that is let pass: runtimes round activations to 8 bits beside quantized weights."""
APART = 0.1
"""Distance of log-probabilities relative to their spread that is let pass, for models too flat or too sure of themselves to
diverge. The same rounding makes 0.006 beside 16-bit weights and 0.03 beside 2-bit ones; SiLU for a squared ReLU makes 0.26."""
FLOOR = -40.0
"""Logarithms below are as good as this one: llama.cpp gives none below that of the smallest float32."""
TOKENS = 48
"""How many positions are compared."""
SHARE = 0.5
"""Of the memory and the disk that are free now, what the comparison may take."""
_TEXT = (
    "The library opens at nine. In 1969, three people flew 384,400 km; two of them walked there, and all came home. "
    "def area(r): return 3.14159 * r ** 2"
)
_SECONDS = 3600


def prove_same(
    model: Model, path: Path, runtime: Runtime | None, read_back: Callable[[Path, Path], object]
) -> tuple[dict[str, object], tuple[Event, ...]]:
    """Compare next-token distributions on a fixed text.

    Args:
        model: The source, as understood: what the file has to compute.
        path: The written file; its first part where there are several.
        runtime: One that can score and tokenize, if there is one.
        read_back: `(file, folder)`: writes the file's weights into a new folder, in float32 and Hugging Face's layout.

    Returns:
        What was proven, for the manifest, and an event where nothing could be compared.

    Raises:
        VerificationError: `computes-otherwise`; `other-tensors`: the file holds others than the model's class has.
    """
    if runtime is None or runtime.score is None or runtime.tokenize is None:
        return _left("no runtime for it is installed here")
    need = 4 * sum(element_count(t.shape) for t in model.tensors.values())
    short = _too_little(need)
    if short:
        return _left(short)
    try:
        ids = runtime.tokenize(path, [_TEXT], False)[0][:TOKENS]
        found = runtime.score(path, ids, LaunchOptions(context=256, warmup=False, gpu_layers=0))
    except LlmfitError as error:  # that the file does not open has been found elsewhere
        return _left(error.cause)
    wanted, why = _by_transformers(model, path, ids, read_back)
    if wanted is None:
        return _left(why)
    apart, far = divergence(wanted, found), distance(wanted, found)
    if not (apart <= LIMIT and far <= APART):
        raise VerificationError(
            "computes-otherwise",
            f"{runtime.name} does not compute the same from the file as {model.architecture.hf_classes[0]} does in "
            f"transformers: over {len(ids)} tokens {apart:.3g} nats apart, where {LIMIT} are let pass, and log-probabilities by "
            f"{far:.2g} of their spread, where {APART} is",
            "Write it for an engine that computes it (--graph), or run it in transformers (--to hf); "
            "convert --no-verify writes such a file all the same.",
        )
    return {"logits": True, "runtime": runtime.name}, ()


def divergence(wanted: Rows, found: Sequence[Sequence[float]]) -> float:
    """Mean Kullback-Leibler divergence in nats of `found` from `wanted`, both log-probabilities by position and token."""
    import numpy as np

    p = np.asarray(wanted, np.float64)
    q = np.asarray(found, np.float64)
    width = min(p.shape[1], q.shape[1])  # a runtime may leave out rows that pad the vocabulary
    return float((np.exp(p[:, :width]) * (p[:, :width] - q[:, :width])).sum(-1).mean())


def distance(wanted: Rows, found: Sequence[Sequence[float]]) -> float:
    """Root mean square of the difference of centred log-probabilities over that of the wanted ones; 0 where both are flat."""
    import numpy as np

    p, q = np.asarray(wanted, np.float64), np.asarray(found, np.float64)
    width = min(p.shape[1], q.shape[1])
    p, q = (np.maximum(x[:, :width], FLOOR) for x in (p, q))
    p, q = (x - x.mean(-1, keepdims=True) for x in (p, q))
    apart, spread = float(((p - q) ** 2).sum()), float((p**2).sum())
    return (apart / spread) ** 0.5 if spread else float(apart > 0)


def _by_transformers(
    model: Model, path: Path, ids: Sequence[int], read_back: Callable[[Path, Path], object]
) -> tuple[Rows | None, str]:
    """Log-probabilities by the model's class from the file's weights, or why there are none."""
    import numpy as np

    with tempfile.TemporaryDirectory(prefix="llmfit-") as work:
        folder, out = Path(work, "model"), Path(work, "rows.npy")
        try:
            read_back(path, folder)
        except LlmfitError as error:
            return None, f"the file cannot be read back: {error.cause}"
        config = {k: v for k, v in model.checkpoint.config.raw.items() if k not in ("quantization_config", "auto_map")}
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        job = json.dumps({"folder": str(folder), "ids": list(ids), "out": str(out)})
        command = [sys.executable, "-m", "llmfit_core.verify.reference_child"]
        try:
            done = subprocess.run(command, input=job, capture_output=True, text=True, timeout=_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return None, f"transformers took more than {_SECONDS} seconds"
        if done.returncode == MISSING:
            return None, "transformers is not installed here"
        if done.returncode == OTHER_TENSORS:
            raise VerificationError(
                "other-tensors",
                f"{path} holds other tensors than {model.architecture.hf_classes[0]} has by {model.checkpoint.label}: "
                f"{(done.stderr.strip().splitlines() or [''])[-1][:200]}",
                "It was made from another model: name that one.",
            )
        if done.returncode or not out.exists():
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            return None, f"transformers computes nothing from it: {last[:200]}"
        return np.load(out), ""


def _too_little(need: int) -> str:
    """Why the comparison would not fit; empty where it does. transformers holds the model in float32, read from a folder."""
    import psutil

    if need > psutil.virtual_memory().available * SHARE:
        return f"its {need / 1e9:.1f} GB in float32 leave too little memory here"
    if need > shutil.disk_usage(tempfile.gettempdir()).free * SHARE:
        return f"its {need / 1e9:.1f} GB in float32 leave too little disk in {tempfile.gettempdir()}"
    return ""


def _left(why: str) -> tuple[dict[str, object], tuple[Event, ...]]:
    event = Event(code="not-compared", message=f"its computation was not compared with transformers: {why}", severity="info")
    return {}, (event,)
