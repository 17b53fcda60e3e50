"""The type mixes against what llama-quantize itself chose."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llmfit_core.errors import UnsupportedError
from llmfit_gguf.ftypes import SCHEMES, scheme_named
from llmfit_gguf.mix import Choice, TensorInfo, choose_types, facts_from_metadata
from llmfit_gguf.mix_tables import MixFacts

GOLDEN = Path(__file__).parents[3] / "tests" / "golden" / "json"
MIXES: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "mixes.json").read_text(encoding="utf-8"))
GOLDEN_CASES = sorted(p.stem for p in GOLDEN.glob("[!_]*.json"))


def test_golden_cases_are_there() -> None:
    assert len(GOLDEN_CASES) > 60


@pytest.mark.parametrize("case", GOLDEN_CASES)
def test_golden_types(case: str) -> None:
    golden = json.loads((GOLDEN / f"{case}.json").read_text(encoding="utf-8"))
    if not golden.get("kv"):
        pytest.skip("the converter failed on it")
    facts = facts_from_metadata({k: v.get("value", v.get("head")) for k, v in golden["kv"].items()})
    tensors = [
        TensorInfo(name=t["name"], shape=tuple(reversed(t["shape"])), dtype=t["type"].lower())
        for t in golden["tensors"]
    ]
    for scheme, run in golden["quantize"].items():
        if run["exit"] == 0:
            assert scheme_named(scheme).file_type == run["file_type"]
            want = {name: kind.lower() for name, (kind, *_) in run["tensors"].items()}
            assert _types(tensors, choose_types(scheme, tensors, facts)) == want, scheme
    converted = golden.get("convert_bf16")
    if converted and converted["exit"] == 0:
        if all(t.dtype != "mxfp4" for t in tensors):  # the converter files a kept MXFP4 under a number of its own
            assert SCHEMES["bf16"].file_type == converted["file_type"]
        rows = converted["tensors"]
        want = (
            {r["name"]: r["type"].lower() for r in rows}
            if isinstance(rows, list)
            else {name: kind.lower() for name, (kind, *_) in rows.items()}
        )
        assert _types(tensors, choose_types("bf16", tensors, facts)) == want


def _recorded(label: str) -> tuple[list[TensorInfo], MixFacts]:
    case = MIXES["cases"][label]
    shapes = dict(case["once"])
    for layer in range(case["layers"]):
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in case["each"].items()}
    arch = case["architecture"]
    keys = {"general.architecture": arch, **{f"{arch}.{k}": v for k, v in case["keys"].items()}}
    return [TensorInfo(name=name, shape=tuple(shape)) for name, shape in shapes.items()], facts_from_metadata(keys)


def _letters(choices: list[Choice]) -> str:
    return "".join(MIXES["letters"][c.type] for c in choices)


@pytest.mark.parametrize("label", MIXES["cases"])
def test_recorded_types(label: str) -> None:
    tensors, facts = _recorded(label)
    for scheme, want in MIXES["cases"][label]["types"].items():
        chosen = choose_types(scheme, tensors, facts)
        assert _letters(chosen) == want, scheme
        backwards = choose_types(scheme, tensors[::-1], facts)[::-1]
        assert backwards == chosen, "the order given must not matter"


@pytest.mark.parametrize(("label", "scheme", "overrides", "want"), MIXES["overrides"])
def test_recorded_overrides(label: str, scheme: str, overrides: list[tuple[str, str]], want: str) -> None:
    tensors, facts = _recorded(label)
    assert _letters(choose_types(scheme, tensors, facts, overrides)) == want


def _types(tensors: list[TensorInfo], choices: list[Choice]) -> dict[str, str]:
    return {t.name: c.type for t, c in zip(tensors, choices, strict=True)}


FACTS = MixFacts(architecture="llama", n_layer=2, n_head=4, n_head_kv=4)


def _tensors(width: int = 256) -> list[TensorInfo]:
    names = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_gate", "ffn_down")
    return [
        TensorInfo(name="token_embd.weight", shape=(512, width)),
        TensorInfo(name="blk.0.attn_norm.weight", shape=(width,)),
        *(TensorInfo(name=f"blk.{i}.{n}.weight", shape=(256, width)) for i in range(2) for n in names),
    ]


def test_every_fallback_is_an_event() -> None:
    for choice, tensor in zip(choose_types("q4_k_m", _tensors(320), FACTS), _tensors(320), strict=True):
        if len(tensor.shape) == 1:
            assert choice == Choice(type="f32")
            continue
        assert choice.event is not None
        assert choice.event.code == "row-length"
        assert choice.event.severity == "fallback"
        assert choice.event.subject == tensor.name
        assert choice.type in ("q5_0", "q8_0")
    assert {c.type for c in choose_types("q4_k_m", _tensors(100), FACTS)} == {"f32", "f16", "q8_0"} - {"q8_0"}
    assert all(c.event is None for c in choose_types("q4_k_m", _tensors(), FACTS))


def test_overrides_decide_and_the_first_wins() -> None:
    tensors = _tensors()
    chosen = _types(
        tensors,
        choose_types(
            "q4_k_m", tensors, FACTS, [(r"blk\.0\.attn_v", "q8_0"), ("attn_v", "Q4_K"), ("token_embd", "f16")]
        ),
    )
    assert chosen["blk.0.attn_v.weight"] == "q8_0"
    assert chosen["blk.1.attn_v.weight"] == "q4_k"
    assert chosen["token_embd.weight"] == "f16"
    chosen = _types(tensors, choose_types("bf16", tensors, FACTS, [("ffn", "q8_0")]))
    assert chosen["blk.0.ffn_up.weight"] == "q8_0"
    assert chosen["blk.0.attn_q.weight"] == "bf16"


@pytest.mark.parametrize(
    ("overrides", "code"),
    [
        ([("no_such", "q8_0")], "override-unmatched"),
        ([("attn_norm", "q8_0")], "override-without-effect"),
        ([("attn_v", "q8_0"), (r"blk\.1\.attn_v", "q6_k")], "override-without-effect"),
        ([("attn_(", "q8_0")], "override-regex"),
        ([("attn_v", "q9")], "override-type"),
        ([("attn_v", "iq2_xs")], "override-type"),
    ],
)
def test_overrides_that_do_nothing_are_errors(overrides: list[tuple[str, str]], code: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        choose_types("q4_k_m", _tensors(), FACTS, overrides)
    assert caught.value.code == code


def test_one_override_that_equals_the_default_is_honoured() -> None:
    tensors = _tensors()
    chosen = _types(tensors, choose_types("q4_k_m", tensors, FACTS, [("attn_v", "q4_k")]))
    assert chosen["blk.1.attn_v.weight"] == "q4_k"  # the mix would have said q6_k for the last layer
    same = choose_types("q4_k_m", tensors, FACTS, [("ffn_up", "q4_k")])
    assert same == choose_types("q4_k_m", tensors, FACTS)


def test_unknown_schemes_and_layers_are_errors() -> None:
    with pytest.raises(UnsupportedError, match="unknown-scheme"):
        choose_types("q4_k_xl", _tensors(), FACTS)
    moe = MixFacts(architecture="llama", n_layer=1, n_head=4, n_head_kv=4, n_expert=8)
    with pytest.raises(UnsupportedError, match="layer-number"):
        choose_types("q4_k_m", _tensors(), moe)
    assert scheme_named("Q4_K").name == "q4_k_m"


def test_what_is_no_float_is_kept() -> None:
    kept = TensorInfo(name="blk.0.ffn_gate_tid2eid.weight", shape=(512, 8), dtype="i32")
    assert choose_types("q4_k_m", [kept], FACTS) == [Choice(type="i32")]
