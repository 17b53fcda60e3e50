"""Quantized files: what each tensor became lies within its type's error, and q8_0 computes nearly the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.e2e.scoring import by_llamacpp, by_transformers, divergence, ids_of
from tests.golden_models import gold

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from llmfit_core.events import Event

    ToGguf = Callable[..., tuple[Path, tuple[Event, ...]]]

SLOW = pytest.mark.slow(reason="the same path as a quicker scheme")

# Root mean square error relative to the tensor's own, on normally distributed weights: what the format can do, with a
# tenth to spare. A wrong block order, scale or row gives 0.3 and more.
LARGEST_ERROR = {
    "F32": 0.0, "F16": 3e-4, "BF16": 0.0, "Q8_0": 0.007, "Q6_K": 0.022, "Q5_K": 0.045, "Q5_1": 0.045, "Q5_0": 0.055,
    "Q4_K": 0.085, "Q4_1": 0.09, "Q4_0": 0.11, "IQ4_NL": 0.095, "IQ4_XS": 0.095, "Q3_K": 0.19, "Q2_K": 0.37,
}  # fmt: skip
SCHEMES = ["q8_0", "q6_k", "q5_k_m", "q4_k_m", "q4_k_s", "q3_k_m", "q2_k", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl", "iq4_xs", "f16"]


@pytest.mark.parametrize("case", ["llama", pytest.param("qwen2moe", marks=SLOW), pytest.param("phithree", marks=SLOW)])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_tensor_is_near_its_source(
    case: str, scheme: str, golden_model: Callable[[str], Path], to_gguf: ToGguf
) -> None:
    """Judged by gguf-py's own dequantizers, which share no code with ours or with ggml."""
    from gguf import GGUFReader
    from gguf.quants import dequantize

    exact = {t.name: t for t in GGUFReader(to_gguf(golden_model(case), "f32")[0]).tensors}
    seen = set()
    for tensor in GGUFReader(to_gguf(golden_model(case), scheme)[0]).tensors:
        kind = tensor.tensor_type.name
        source = np.asarray(exact[tensor.name].data, dtype=np.float64).reshape(-1)
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float64).reshape(-1)
        error = np.sqrt(((values - source) ** 2).mean()) / np.sqrt((source**2).mean())
        assert error <= LARGEST_ERROR[kind], (tensor.name, kind, error)
        seen.add(kind)
    assert len(seen) > 1, "norms stay in f32"


@pytest.mark.parametrize(
    ("case", "scheme"),
    [
        ("llama", "q8_0"),
        ("llama", "q4_k_m"),
        pytest.param("qwen2moe", "q8_0", marks=SLOW),
        pytest.param("phithree", "q8_0", marks=SLOW),
        pytest.param("qwen3", "q4_k_m", marks=SLOW),
        pytest.param("mixtral", "q8_0", marks=SLOW),
    ],
)
def test_as_far_from_the_model_as_the_peers_file(
    case: str, scheme: str, golden_model: Callable[[str], Path], to_gguf: ToGguf
) -> None:
    """llama-quantize's files were scored too: the same bytes compute the same, so the distance is the same."""
    model = golden_model(case)
    file, _ = to_gguf(model, scheme)
    ids = ids_of(model)
    found = divergence(by_transformers(model, ids), by_llamacpp(file, ids)).mean()
    wanted = gold(case)["parity"][scheme.upper()]["mean_kl"]
    # Integer kernels differ between machines and builds in the activations' rounding; experts may flip.
    assert found == pytest.approx(wanted, rel=0.3)
