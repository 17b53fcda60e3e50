"""What comes of every golden case: right, right up to a bound that the plan tells, or refused before the work.

The numbers behind `exact` are measured where each architecture lives (`test_golden.py` here and in the plugins); this is
the account that no case is missing from it, and that what the plan says of each is what its architecture can hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from llmfit_core.errors import LlmfitError
from llmfit_core.pipeline import plan_conversion
from llmfit_core.plan import Recipe
from tests.golden_models import HERE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from llmfit_core.plugins import PluginRegistry

CASES = sorted(p.stem for p in (HERE / "json").glob("*.json") if not p.stem.startswith("_"))

BOUNDED: dict[str, tuple[str, ...]] = {
    "llama-dynamic": ("bound-dynamic-rope",),
    "mistral-swa": ("bound-sliding-window",),
    "phithree-swa": ("bound-sliding-window",),
    "phithree-longrope-long": ("bound-longrope",),
    "phithree-longrope-long-legacy": ("bound-longrope",),
    # Tokenizers that llama.cpp reads otherwise on texts of a kind that the event names; the model itself is exact.
    "bert": ("wordpiece-long-words", "wordpiece-marks"),
    "gptoss-plainrope": ("pretokenizer-differs",),
    "gptoss-plainrope-mxfp4": ("pretokenizer-differs",),
    "gptoss-yarntrunc": ("pretokenizer-differs",),
}
REFUSED = {
    "qwen2moe-normtopk": "norm_topk_prob",
    "bitnet-relu2": "hidden_act",
    "bitnet-relu2-packed": "hidden_act",
    "gptoss": "truncate",
    "gptoss-legacy": "truncate",
}


@pytest.mark.parametrize("case", CASES)
def test_outcome(case: str, golden_model: Callable[[str], Path], registry: PluginRegistry) -> None:
    model = golden_model(case)
    if case in REFUSED:
        with pytest.raises(LlmfitError) as caught:
            plan_conversion(model, Recipe(exporter="gguf", scheme="f32"), registry)
        assert REFUSED[case] in caught.value.cause
        assert caught.value.remedy
        return
    plan = plan_conversion(model, Recipe(exporter="gguf", scheme="f32"), registry).plan
    told = [e.code for e in plan.events if e.severity in ("bound", "fallback", "warning", "error")]
    assert tuple(told) == BOUNDED.get(case, ())


def test_the_account() -> None:
    assert len(CASES) == 80
    assert {*BOUNDED, *REFUSED} < set(CASES)
    assert len(CASES) - len(REFUSED) >= 75
