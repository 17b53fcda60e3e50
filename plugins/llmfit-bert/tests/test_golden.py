"""Our file of the golden case against those of llama.cpp's converter and quantizer, its vectors against transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from safetensors.torch import load_file

from llmfit_core.readers.gguf import read_gguf
from tests.e2e.test_golden import compare_keys, tensors_of
from tests.e2e.vectors import same_vectors
from tests.golden_models import gold

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    ToGguf = Callable[..., tuple[Path, object]]

GOLD = gold("bert")
FURTHER = [s for s in GOLD["quantize"] if s not in ("Q4_K_M", "TQ2_0")]
SCHEMES = ["Q4_K_M", *(pytest.param(s, marks=pytest.mark.slow(reason="further schemes")) for s in FURTHER)]


def test_tensors_and_keys_are_the_peers(golden_model: Callable[[str], Path], to_gguf: ToGguf) -> None:
    file, _ = to_gguf(golden_model("bert"), "f32")
    assert tensors_of(file) == {t["name"]: (t["type"], t["sha256"]) for t in GOLD["tensors"]}
    compare_keys("bert", read_gguf(file), GOLD["kv"])


def test_bf16_is_the_peers(golden_model: Callable[[str], Path], to_gguf: ToGguf) -> None:
    file, _ = to_gguf(golden_model("bert"), "bf16")
    assert tensors_of(file) == {n: tuple(v) for n, v in GOLD["convert_bf16"]["tensors"].items()}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_quantized_is_the_peers(scheme: str, golden_model: Callable[[str], Path], to_gguf: ToGguf) -> None:
    file, _ = to_gguf(golden_model("bert"), scheme.lower())
    assert tensors_of(file) == {n: tuple(v) for n, v in GOLD["quantize"][scheme]["tensors"].items()}


def test_vectors_are_those_of_transformers(golden_model: Callable[[str], Path], to_gguf: ToGguf) -> None:
    file, _ = to_gguf(golden_model("bert"))
    same_vectors(golden_model("bert"), file, lengths=(1, 56, 400), poolings=("mean", "cls", "last"))


def test_the_way_back(golden_model: Callable[[str], Path], to_gguf: ToGguf, to_hf: Callable[..., Path]) -> None:
    model = golden_model("bert")
    file, _ = to_gguf(model, "bf16")
    ours, theirs = (load_file(p / "model.safetensors") for p in (to_hf(file), model))
    assert sorted(ours) == sorted(n for n in theirs if not n.startswith("pooler."))
    assert all(ours[n].equal(theirs[n]) for n in ours)
