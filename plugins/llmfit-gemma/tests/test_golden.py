"""Gemma's golden cases: our files against those of llama.cpp's converter and quantizer, and logits against transformers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.scoring import by_llamacpp, by_transformers, divergence, ids_of
from tests.e2e.test_golden import ON_PURPOSE, _equal, _value, tensors_of
from tests.golden_models import gold

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from llmfit_core.plugins import PluginRegistry

EXACT = 3e-6
SLOW = pytest.mark.slow(reason="a variant of a quicker case")
CASES: list[Any] = ["gemma", "gemma2", "gemma3-3layer", "gemma3", pytest.param("gemma3-legacy", marks=SLOW)]
MORE = {
    "gemma.rope.freq_base": "the peer leaves it to the loader, whatever the config says",
    "gemma2.rope.freq_base": "as in gemma",
}
# By case: keys that only we write, with their values.
REPAIRED = {"gemma3-3layer": {"gemma3.attention.sliding_window_pattern": 3}}


@pytest.mark.parametrize("case", CASES)
def test_tensors_and_keys_are_the_peers(case: str, golden_model: Any, to_gguf: Any) -> None:
    from llmfit_core.readers.gguf import read_gguf

    wanted = gold(case)
    file, _ = to_gguf(golden_model(case), "f32")
    assert tensors_of(file) == {t["name"]: (t["type"], t["sha256"]) for t in wanted["tensors"]}
    keys = read_gguf(file).kv

    def allowed(key: str) -> bool:
        spelled = {key, f"*.{key.partition('.')[2]}"}
        return bool(spelled & {*ON_PURPOSE, *MORE}) or key.startswith(("llmfit.", "tokenizer.llmfit."))

    theirs = {k: v for k, v in wanted["kv"].items() if not allowed(k)}
    assert [k for k, v in theirs.items() if k not in keys or not _equal(keys[k].type, keys[k].value, v)] == []
    ours = {k: _value(v.value) for k, v in keys.items() if k not in theirs and not allowed(k)}
    assert ours == REPAIRED.get(case, {})


@pytest.mark.parametrize(("scheme", "theirs"), [("bf16", "convert_bf16"), ("q4_k_m", "Q4_K_M")])
@pytest.mark.parametrize("case", CASES)
def test_narrow_files_are_the_peers(case: str, scheme: str, theirs: str, golden_model: Any, to_gguf: Any) -> None:
    found = gold(case)
    wanted = found.get(theirs) or found["quantize"][theirs]
    file, _ = to_gguf(golden_model(case), scheme)
    assert tensors_of(file) == {n: tuple(v) for n, v in wanted["tensors"].items()}


@pytest.mark.parametrize("case", CASES)
def test_types_of_every_scheme_are_the_peers(
    case: str, golden_model: Callable[[str], Path], registry: PluginRegistry
) -> None:
    from llmfit_core.pipeline import plan_conversion
    from llmfit_core.plan import Recipe

    known = {s.name for p in registry.exporters() if p.value.name == "gguf" for s in p.value.schemes}
    for scheme, theirs in gold(case)["quantize"].items():
        if scheme.lower() in known:
            plan = plan_conversion(golden_model(case), Recipe(exporter="gguf", scheme=scheme.lower()), registry).plan
            wanted = {n: v[0] if isinstance(v, list) else v for n, v in theirs["tensors"].items()}
            assert {t.name: t.type.upper() for t in plan.tensors} == wanted, scheme


@pytest.mark.parametrize("case", CASES)
def test_logits(case: str, golden_model: Any, to_gguf: Any) -> None:
    """Where the peer is silently wrong (layers of another pattern than one in six), we are right."""
    model = golden_model(case)
    file, events = to_gguf(model, "f32")
    assert [e.code for e in events if e.severity != "info" and e.subject != "tokenizer_config.json"] == []
    ids = ids_of(model)
    assert divergence(by_transformers(model, ids), by_llamacpp(file, ids)).mean() < EXACT
    assert (gold(case)["parity"]["f32"]["mean_kl"] > 0.1) == (case == "gemma3-3layer")


@pytest.mark.slow(reason="a variant of a quicker case")
def test_both_spellings_make_one_file(golden_model: Any, to_gguf: Any) -> None:
    from llmfit_core.readers.gguf import read_gguf

    (a, _), (b, _) = (to_gguf(golden_model(c), "bf16", name=c) for c in ("gemma3", "gemma3-legacy"))
    assert tensors_of(a) == tensors_of(b)
    first, second = ({k: _value(v.value) for k, v in read_gguf(f).kv.items() if k != "llmfit.config"} for f in (a, b))
    assert first == second


@pytest.mark.parametrize("case", ["gemma", "gemma2", "gemma3-3layer", pytest.param("gemma3", marks=SLOW)])
def test_round_trip(case: str, golden_model: Any, to_gguf: Any, to_hf: Any, same_model: Any) -> None:
    model = golden_model(case)
    file, _ = to_gguf(model, "bf16")
    back = to_hf(file)
    same_model(back, model)
    ours, theirs = (json.loads((f / "config.json").read_text(encoding="utf-8")) for f in (back, model))
    assert ours["architectures"] == theirs["architectures"]
    assert ours.get("layer_types") == theirs.get("layer_types")


@pytest.mark.parametrize("case", ["gemma", "gemma2", pytest.param("gemma3", marks=SLOW)])
def test_a_file_as_the_peer_writes_it(
    case: str, golden_model: Any, to_gguf: Any, to_hf: Any, same_model: Any, tmp_path: Path
) -> None:
    from tests.e2e.test_round_trip import as_the_peer

    model = golden_model(case)
    file, _ = to_gguf(model, "bf16")
    same_model(to_hf(as_the_peer(file, case, tmp_path / "peer.gguf")), model)
