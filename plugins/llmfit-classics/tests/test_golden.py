"""Our files against those of llama.cpp's converter and quantizer, and the logits against transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
CASES = ["gpt2", "gptneox", "falcon-kv1", "falcon-newdec", "phi", "stablelm", "stablelm-parallel", "starcoder2", "nemotron"]
LEGACIES = ["gptneox-legacy", "phi-legacy", "stablelm-legacy", "nemotron-legacy"]
# The peer converts GPT-NeoX in the spelling of transformers 4 alone.
RECORDED = [c if c != "gptneox" else "gptneox-legacy" for c in CASES]
BASE = {"value": 10000.0}
WHOLE = {"value": 64}
# Keys that the peer leaves out, since they are what the loader assumes, or gets wrong, with the right value.
ALSO: Mapping[str, Mapping[str, Any]] = {
    "gptneox-legacy": {"gptneox.rope.freq_base": BASE},
    # The peer always writes 2048.
    "falcon-kv1": {"falcon.rope.freq_base": BASE, "falcon.rope.dimension_count": WHOLE, "falcon.context_length": {"value": 512}},
    "falcon-newdec": {"falcon.rope.freq_base": BASE, "falcon.rope.dimension_count": WHOLE, "falcon.context_length": {"value": 512}},
    "phi": {"phi2.rope.freq_base": BASE},
    "stablelm": {"stablelm.rope.freq_base": BASE},
    "stablelm-parallel": {"stablelm.rope.freq_base": BASE},
    "starcoder2": {"starcoder2.rope.dimension_count": WHOLE},
}
# The loader of a LayerNorm reads no RMS epsilon, no scaling is what it assumes, and the peer takes the pad token of the
# published models for every model's.
UNREAD: Mapping[str, tuple[str, ...]] = {
    "nemotron": ("nemotron.attention.layer_norm_rms_epsilon", "nemotron.rope.scaling.type", "tokenizer.ggml.padding_token_id"),
}


def wanted_keys(case: str) -> dict[str, Any]:
    keys = {k: v for k, v in gold(case)["kv"].items() if k not in UNREAD.get(case, ())}
    # The peer writes it for some architectures and not for others.
    return keys | {"general.file_type": {"value": 0}} | dict(ALSO.get(case, {}))


@pytest.mark.parametrize("case", RECORDED)
def test_tensors_and_keys_are_the_peers(
    case: str, golden_model: Callable[[str], Path], to_gguf: Callable[..., tuple[Path, object]]
) -> None:
    wanted = gold(case)
    file, _ = to_gguf(golden_model(case), "f32")
    assert tensors_of(file) == {t["name"]: (t["type"], t["sha256"]) for t in wanted["tensors"]}
    shapes = {t["name"]: tuple(reversed(t["shape"])) for t in wanted["tensors"]}
    assert {n: t.shape for n, t in read_gguf(file).tensors.items()} == shapes
    compare_keys(case, read_gguf(file), wanted_keys(case))


@pytest.mark.parametrize("case", [c for c in RECORDED if "convert_bf16" in gold(c)])
def test_bf16_is_the_peers(
    case: str, golden_model: Callable[[str], Path], to_gguf: Callable[..., tuple[Path, object]]
) -> None:
    file, _ = to_gguf(golden_model(case), "bf16")
    assert tensors_of(file) == {n: tuple(v) for n, v in gold(case)["convert_bf16"]["tensors"].items()}


@pytest.mark.parametrize("case", RECORDED)
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


QUICKER = pytest.mark.slow(reason="a smaller model of the same make is scored in the quick run")


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=QUICKER if c in ("stablelm-parallel", "falcon-newdec", "phi") else ()) for c in CASES]
)
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
    assert tensors_of(a) == tensors_of(b)
    first, second = (
        {k: v.value for k, v in read_gguf(f).kv.items() if k != "llmfit.config" and not v.type.startswith("array")}
        for f in (a, b)
    )
    assert first == second


@pytest.mark.parametrize("case", RECORDED)
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
