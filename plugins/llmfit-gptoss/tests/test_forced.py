"""A rope that the graph computes far otherwise, written all the same: as far off as the peer, who does not tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from llmfit_core.errors import UnsupportedError
from tests.e2e.scoring import by_llamacpp, by_transformers, divergence, ids_of
from tests.e2e.test_golden import tensors_of
from tests.golden_models import gold

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from llmfit_core.events import Event


def test_forced(golden_model: Callable[[str], Path], to_gguf: Callable[..., tuple[Path, tuple[Event, ...]]]) -> None:
    model = golden_model("gptoss")
    with pytest.raises(UnsupportedError) as caught:
        to_gguf(model)
    assert "--force" in caught.value.remedy
    file, events = to_gguf(model, force=True)
    assert "graph-forced" in [e.code for e in events if e.severity == "warning"]
    assert tensors_of(file) == {t["name"]: (t["type"], t["sha256"]) for t in gold("gptoss")["tensors"]}
    ids = ids_of(model)
    found = divergence(by_transformers(model, ids), by_llamacpp(file, ids)).mean()
    assert found == pytest.approx(gold("gptoss")["parity"]["f32"]["mean_kl"], rel=0.05)
