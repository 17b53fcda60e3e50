"""Nought is a value that was given, and a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases.source import command
from tests.tiny import tiny


@pytest.mark.parametrize("option", ["--context-length", "--rope-freq-base", "--rope-freq-scale"])
def test_nought_is_refused_and_not_overlooked(tmp_path: Path, option: str) -> None:
    said = command("plan", tiny("llama", tmp_path / "m"), "--to", "gguf:f16", option, "0")
    assert (said.code, "[bad-override]" in said.err) == (4, True)


def test_longrope_within_an_original_context_that_is_no_multiple_of_256(tmp_path: Path) -> None:
    import json

    def planned(original: int) -> dict[str, object]:
        factors = [1.0] * 8
        scaling = {"rope_type": "longrope", "short_factor": factors, "long_factor": [2.0] * 8,
                   "original_max_position_embeddings": original, "factor": 2.0}  # fmt: skip
        folder = tiny("llama", tmp_path / str(original), config={"rope_scaling": scaling, "max_position_embeddings": 2048})
        said = command("plan", folder, "--to", "gguf:f16", "--json")
        assert said.code == 0, said.err
        plan: dict[str, object] = json.loads(said.out)["plan"]
        return plan

    assert planned(512)["exact_context"] == 512
    assert planned(300)["exact_context"] == 256
    short = planned(64)
    assert short["exact_context"] is None
    assert "bound-longrope" in [e["code"] for e in short["events"]]  # type: ignore[attr-defined]
