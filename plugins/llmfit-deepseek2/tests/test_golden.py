"""Our files against those of llama.cpp's converter and quantizer, and the logits against transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from llmfit_core.errors import UnsupportedError
from llmfit_core.readers.gguf import read_gguf
from tests.e2e.scoring import by_llamacpp, by_transformers, divergence, ids_of
from tests.e2e.test_golden import compare_keys, tensors_of
from tests.e2e.test_round_trip import as_the_peer, same_logits
from tests.golden_models import gold

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

EXACT = 3e-6
CASES = ["deepseek2-lite", "deepseek2-qlora", "deepseek2-yarn", "deepseek3", "deepseek3-yarn"]
LEGACIES = ["deepseek2-yarn-legacy", "deepseek3-legacy", "deepseek3-yarn-legacy"]
SOFTMAX, SIGMOID = ({"deepseek2.expert_gating_func": {"value": n}} for n in (1, 2))
WHOLE = {"deepseek2.attention.q_lora_rank": {"value": 0}}
TRUNK = {"deepseek2.nextn_predict_layers": {"value": 0}}
# The peer writes no gating where config.json has no scoring_func, and then the loader takes softmax; without the rank
# its loader wants one, but for models of 26 and 27 layers.
ALSO: Mapping[str, Mapping[str, Any]] = {
    "deepseek2-lite": SOFTMAX | WHOLE,
    "deepseek2-qlora": SOFTMAX,
    "deepseek2-yarn": SOFTMAX | WHOLE,
    "deepseek2-yarn-legacy": WHOLE,
    "deepseek3": SIGMOID | TRUNK,
    "deepseek3-yarn": SIGMOID | TRUNK,
    "deepseek3-legacy": TRUNK,
    "deepseek3-yarn-legacy": TRUNK,
}
# This graph's loader reads neither; both are what it takes.
UNREAD = ("deepseek2.rope.scaling.yarn_beta_fast", "deepseek2.rope.scaling.yarn_beta_slow")


@pytest.mark.parametrize("case", CASES + LEGACIES)
def test_tensors_and_keys_are_the_peers(
    case: str, golden_model: Callable[[str], Path], to_gguf: Callable[..., tuple[Path, object]]
) -> None:
    wanted = gold(case)
    file, _ = to_gguf(golden_model(case), "f32")
    assert tensors_of(file) == {t["name"]: (t["type"], t["sha256"]) for t in wanted["tensors"]}
    shapes = {t["name"]: tuple(reversed(t["shape"])) for t in wanted["tensors"]}
    assert {n: t.shape for n, t in read_gguf(file).tensors.items()} == shapes
    keys = {k: v for k, v in wanted["kv"].items() if k not in UNREAD}
    compare_keys(case, read_gguf(file), {**keys, **ALSO.get(case, {})})


@pytest.mark.slow(reason="f32 and the quantized files are the peer's too")
@pytest.mark.parametrize("case", CASES)
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


QUICK = ("deepseek3-yarn",)


@pytest.mark.parametrize(
    "case", [c if c in QUICK else pytest.param(c, marks=pytest.mark.slow(reason="a quicker case has it too")) for c in CASES]
)
def test_logits_are_those_of_transformers(
    case: str, golden_model: Callable[[str], Path], to_gguf: Callable[..., tuple[Path, object]]
) -> None:
    model = golden_model(case)
    file, _ = to_gguf(model)
    ids = ids_of(model)
    assert divergence(by_transformers(model, ids), by_llamacpp(file, ids)).mean() < EXACT


@pytest.mark.parametrize("case", ["deepseek3-yarn-legacy"])
def test_both_spellings_of_a_config_make_one_file(
    case: str, golden_model: Callable[[str], Path], to_gguf: Callable[..., tuple[Path, object]]
) -> None:
    a, _ = to_gguf(golden_model(case), "bf16", name="a")
    b, _ = to_gguf(golden_model(case.removesuffix("-legacy")), "bf16", name="b")
    assert tensors_of(a) == tensors_of(b)
    first, second = (
        {k: v.value for k, v in read_gguf(f).kv.items() if k != "llmfit.config" and not v.type.startswith("array")}
        for f in (a, b)
    )
    assert first == second


@pytest.mark.parametrize(
    "case",
    [
        pytest.param("deepseek2-lite", marks=pytest.mark.slow(reason="the other cases have it too")),
        pytest.param("deepseek2-qlora", marks=pytest.mark.slow(reason="the other cases have it too")),
        "deepseek2-yarn-legacy",
        "deepseek3-yarn-legacy",
    ],
)
def test_a_file_as_the_peer_writes_it_reads_back(
    case: str,
    golden_model: Callable[[str], Path],
    to_gguf: Callable[..., tuple[Path, object]],
    to_hf: Callable[..., Path],
    tmp_path: Path,
    same_tensors: Callable[[Path, Path], None],
) -> None:
    """Written by gguf-py with the peer's keys only: nothing of the way back may hang on keys of our own."""
    model = golden_model(case)
    file, _ = to_gguf(model, "bf16")
    back = to_hf(as_the_peer(file, case, tmp_path / "peer.gguf"))
    same_tensors(back, model)
    same_logits(back, model)


def test_a_file_whose_gating_the_peer_forgot_is_refused(
    golden_model: Callable[[str], Path],
    to_gguf: Callable[..., tuple[Path, object]],
    to_hf: Callable[..., Path],
    tmp_path: Path,
) -> None:
    """llama.cpp computes it with softmax: it is no DeepSeek-V3 any more."""
    file, _ = to_gguf(golden_model("deepseek3"), "bf16")
    with pytest.raises(UnsupportedError, match="sigmoid") as caught:
        to_hf(as_the_peer(file, "deepseek3", tmp_path / "peer.gguf"))
    assert caught.value.code == "unknown-graph"
