"""GGUF files made of quantized folders, in llama.cpp, against the model in transformers with the weights that they stand for.

Exact means: mean KL under 3e-6 over 24 positions, as of plain models; the noise of float32 is 3e-7. That tensors are equal bit
for bit is tested beside each decoder; here the whole model runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.scoring import by_llamacpp, by_transformers, divergence, ids_of
from tests.quantized import Rounded, awq, gptq, packed, pair, rounded

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.golden_models import GoldenModels

EXACT = 3e-6
SLOW = pytest.mark.slow(reason="the kind is covered by a quicker case; each takes seconds")
AWQ = {"bits": 4, "group_size": 32, "quant_method": "awq", "version": "gemm", "zero_point": True}
GPTQ = {"bits": 4, "group_size": 32, "desc_act": True, "sym": False, "quant_method": "gptq"}
PACKED = {
    "quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed", "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": False}}
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("section", "order", "store", "case"),
    [
        pytest.param(AWQ, False, lambda _, x: awq(x), "llama", id="awq"),
        pytest.param(GPTQ, True, lambda _, x: gptq(x), "llama", id="gptq-activation-order"),
        pytest.param(PACKED, False, lambda _, x: packed(x, symmetric=False), "llama", id="compressed-tensors"),
        pytest.param({**GPTQ, "checkpoint_format": "gptq_v2"}, True, lambda _, x: gptq(x, second=True), "qwen2", id="gptq-v2-qwen2", marks=SLOW),
        pytest.param(AWQ, False, lambda _, x: awq(x), "phi3", id="awq-phi3", marks=SLOW),
        pytest.param(PACKED, False, lambda _, x: packed(x, symmetric=False), "qwen3", id="compressed-tensors-qwen3", marks=SLOW),
    ],
)
def test_the_file_computes_what_the_quantized_weights_stand_for(
    section: dict[str, Any],
    order: bool,
    store: Callable[[str, Rounded], Any],
    case: str,
    golden_models: GoldenModels,
    to_gguf: Callable[..., Any],
    tmp_path: Path,
) -> None:
    source = golden_models.golden(case)
    made = pair(tmp_path / "made", lambda _, w: rounded(w, 4, 32, order=order), store, section, source=source)
    file, events = to_gguf(made.folder)
    assert "source-quantized" in [e.code for e in events]
    ids = ids_of(source)
    want = by_transformers(made.twin, ids)
    assert divergence(want, by_llamacpp(file, ids)).mean() < EXACT
    assert divergence(want, by_transformers(source, ids)).mean() > 1e-4  # the rounding is there to be seen
