"""Our files against those of llama.cpp's converter and quantizer, and the logits against transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from llmfit_core.readers.gguf import read_gguf
from tests.e2e.scoring import by_llamacpp, by_transformers, divergence, ids_of
from tests.e2e.test_golden import compare_keys, tensors_of
from tests.e2e.test_round_trip import as_the_peer, same_logits, same_tensors
from tests.golden_models import gold

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

EXACT = 3e-6
LEGACY = pytest.mark.slow(reason="the spelling of another version of transformers; the files are compared in the quick run")
TAIL = pytest.mark.slow(reason="one case is in the quick run, and variations are read back there")
CASES = [
    "smollm3",
    "olmo",
    "olmo2",
    "olmoe-mha",
    "granite",
    "cohere",
    "glm4",
    "exaone4-nosw",
    "ernie45",
]
LEGACIES = ["smollm3-legacy", "glm4-legacy"]
EVERY = [*CASES, *(pytest.param(c, marks=LEGACY) for c in LEGACIES)]
# Keys that we leave out on purpose: without it the loader scales by 1, which is none.
LEFT_OUT: Mapping[str, tuple[str, ...]] = {"cohere": ("command-r.rope.scaling.type",)}


@pytest.mark.parametrize("case", EVERY)
def test_tensors_and_keys_are_the_peers(
    case: str, golden_model: Callable[[str], Path], to_gguf: Callable[..., tuple[Path, object]]
) -> None:
    wanted = gold(case)
    file, _ = to_gguf(golden_model(case), "f32")
    assert tensors_of(file) == {t["name"]: (t["type"], t["sha256"]) for t in wanted["tensors"]}
    shapes = {t["name"]: tuple(reversed(t["shape"])) for t in wanted["tensors"]}
    assert {n: t.shape for n, t in read_gguf(file).tensors.items()} == shapes
    compare_keys(case, read_gguf(file), {k: v for k, v in wanted["kv"].items() if k not in LEFT_OUT.get(case, ())})


@pytest.mark.parametrize("case", EVERY)
def test_bf16_is_the_peers(
    case: str, golden_model: Callable[[str], Path], to_gguf: Callable[..., tuple[Path, object]]
) -> None:
    file, _ = to_gguf(golden_model(case), "bf16")
    assert tensors_of(file) == {n: tuple(v) for n, v in gold(case)["convert_bf16"]["tensors"].items()}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "scheme",
    ["q4_k_m"]
    + [pytest.param(s, marks=pytest.mark.slow(reason="further schemes")) for s in "q5_k_m q3_k_l q2_k q6_k q8_0 iq4_xs".split()],
)
def test_quantized_is_the_peers(
    case: str, scheme: str, golden_model: Callable[[str], Path], to_gguf: Callable[..., tuple[Path, object]]
) -> None:
    theirs = gold(case)["quantize"][scheme.upper()]["tensors"]
    file, _ = to_gguf(golden_model(case), scheme)
    assert tensors_of(file) == {n: tuple(v) for n, v in theirs.items()}


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_transformers(
    case: str, golden_model: Callable[[str], Path], to_gguf: Callable[..., tuple[Path, object]]
) -> None:
    model = golden_model(case)
    file, _ = to_gguf(model)
    ids = ids_of(model)
    assert divergence(by_transformers(model, ids), by_llamacpp(file, ids)).mean() < EXACT


@pytest.mark.parametrize("case", LEGACIES)
def test_both_spellings_of_a_config_make_one_file(
    case: str, golden_model: Callable[[str], Path], to_gguf: Callable[..., tuple[Path, object]]
) -> None:
    a, _ = to_gguf(golden_model(case), "bf16", name="a")
    b, _ = to_gguf(golden_model(case.removesuffix("-legacy")), "bf16", name="b")
    first, second = read_gguf(a), read_gguf(b)
    assert tensors_of(a) == tensors_of(b)
    assert [
        {k: v.value for k, v in f.kv.items() if k != "llmfit.config" and not v.type.startswith("array")} for f in (first, second)
    ].count({k: v.value for k, v in first.kv.items() if k != "llmfit.config" and not v.type.startswith("array")}) == 2


@pytest.mark.parametrize("case", [CASES[0], *(pytest.param(c, marks=TAIL) for c in CASES[1:])])
def test_a_file_as_the_peer_writes_it_reads_back(
    case: str,
    golden_model: Callable[[str], Path],
    to_gguf: Callable[..., tuple[Path, object]],
    to_hf: Callable[..., Path],
    tmp_path: Path,
) -> None:
    """Written by gguf-py with the peer's keys only: nothing of the way back may hang on keys of our own."""
    model = golden_model(case)
    file, _ = to_gguf(model, "bf16")
    back = to_hf(as_the_peer(file, case, tmp_path / "peer.gguf"))
    same_tensors(back, model)
    same_logits(back, model)
