"""Rope in every spelling, with everything it may lack or have too much of (cases 24 to 27)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.cases.source import codes, converted, planned, refused
from tests.tiny import DROP, tiny

if TYPE_CHECKING:
    from pathlib import Path

YARN = {"factor": 4.0, "original_max_position_embeddings": 32}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
LONG = {"short_factor": [1.0 + i / 10 for i in range(8)], "long_factor": [2.0 + i for i in range(8)]}


def spelled(path: Path, kind: str, keys: dict[str, Any], spelling: str, family: str = "llama", **more: Any) -> Path:
    """A model with this rope: `old` (type), `newer` (rope_type), `five` (rope_parameters)."""
    changes: dict[str, Any]
    if spelling == "five":
        changes = {"rope_theta": DROP, "rope_scaling": DROP, "rope_parameters": {"rope_theta": 10000.0, "rope_type": kind} | keys}
    else:
        changes = {"rope_scaling": {"type" if spelling == "old" else "rope_type": kind} | keys}
    return tiny(family, path, config=changes | more)


SPELLINGS = pytest.mark.parametrize("spelling", ["old", "newer", "five"])


@SPELLINGS
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral"])
def test_yarn_without_its_original_context_says_the_rule(tmp_path: Path, spelling: str, family: str) -> None:
    folder = spelled(tmp_path / "m", "yarn", {"factor": 4.0}, spelling, family)
    found = converted(folder)
    assert found.codes() == ["rope-original-context-assumed"]
    assert "128" in found.message("rope-original-context-assumed")
    name = found.keys["general.architecture"]
    assert found.keys[f"{name}.rope.scaling.original_context_length"] == 128
    assert found.keys[f"{name}.rope.scaling.factor"] == 4
    refused(folder, "strict", "original_max_position_embeddings", exit_code=8, flags=("--strict",))


@SPELLINGS
def test_yarn_without_its_factor_says_the_rule(tmp_path: Path, spelling: str) -> None:
    folder = spelled(tmp_path / "m", "yarn", {"original_max_position_embeddings": 32}, spelling)
    found = converted(folder)
    assert found.codes() == ["rope-factor-assumed"]
    assert found.keys["llama.rope.scaling.factor"] == 4


@SPELLINGS
def test_yarn_with_all_its_keys_is_exact(tmp_path: Path, spelling: str) -> None:
    found = converted(spelled(tmp_path / "m", "yarn", YARN, spelling), "--strict")
    assert found.keys["llama.rope.scaling.type"] == "yarn"
    assert found.keys["llama.rope.scaling.original_context_length"] == 32
    outer = spelled(tmp_path / "n", "yarn", {"factor": 4.0}, spelling, original_max_position_embeddings=32)
    assert converted(outer, "--strict").path.read_bytes() == found.path.read_bytes()


@SPELLINGS
@pytest.mark.parametrize("family", ["phi3", "llama"])
def test_longrope_in_every_spelling(tmp_path: Path, spelling: str, family: str) -> None:
    first: bytes | None = None
    for kind in ("longrope", "su") if spelling != "five" else ("longrope",):
        folder = spelled(tmp_path / kind, kind, LONG, spelling, family, original_max_position_embeddings=32)
        found = converted(folder, "--strict")
        assert np.allclose(found.tensors["rope_factors_long.weight"], LONG["long_factor"])
        assert np.allclose(found.tensors["rope_factors_short.weight"], LONG["short_factor"])
        want = math.sqrt(1 + math.log(4) / math.log(32))
        assert found.keys[f"{family}.rope.scaling.attn_factor"] == pytest.approx(want)
        assert found.keys[f"{family}.rope.scaling.original_context_length"] == 32
        assert found.codes("bound") == ["bound-longrope"]
        first = first or found.path.read_bytes()
        assert first == found.path.read_bytes()
    inner = LONG | {"original_max_position_embeddings": 32}
    folder = spelled(tmp_path / "inner", "longrope", inner, spelling, family, original_max_position_embeddings=DROP)
    assert converted(folder).path.read_bytes() == first


def test_phi3_has_an_original_context_of_its_own(tmp_path: Path) -> None:
    """Phi3Config takes 4096 where the file is silent."""
    folder = spelled(tmp_path / "m", "longrope", LONG, "old", "phi3", original_max_position_embeddings=DROP, max_position_embeddings=8192)
    found = converted(folder, "--strict")
    assert found.keys["phi3.rope.scaling.original_context_length"] == 4096
    assert found.keys["phi3.rope.scaling.attn_factor"] == pytest.approx(math.sqrt(1 + math.log(2) / math.log(4096)))


@pytest.mark.parametrize(
    ("keys", "error", "word"),
    [
        ({"short_factor": [1.0] * 8}, "rope-key-missing", "long_factor"),
        ({"long_factor": [1.0] * 8}, "rope-key-missing", "short_factor"),
        (LONG | {"long_factor": []}, "rope-key-missing", "long_factor"),
        (LONG | {"long_factor": [1.0] * 7}, "rope-key-invalid", "long_factor"),
        (LONG | {"short_factor": [1.0] * 16}, "rope-key-invalid", "short_factor"),
        (LONG | {"long_factor": [0.0] * 8}, "rope-key-invalid", "long_factor"),
        (LONG | {"long_factor": ["1"] * 8}, "rope-key-invalid", "long_factor"),
        (LONG | {"long_factor": 4.0}, "rope-key-missing", "long_factor"),
        (LONG | {"attention_factor": -1}, "rope-key-invalid", "attention_factor"),
    ],
)
@SPELLINGS
def test_a_longrope_that_lacks_something(tmp_path: Path, keys: dict[str, Any], error: str, word: str, spelling: str) -> None:
    folder = spelled(tmp_path / "m", "longrope", keys, spelling, "phi3", original_max_position_embeddings=32)
    refused(folder, error, word)


@SPELLINGS
@pytest.mark.parametrize("gone", list(LLAMA3))
@pytest.mark.parametrize("value", [DROP, None])
def test_a_llama3_that_lacks_a_key_is_an_error(tmp_path: Path, spelling: str, gone: str, value: object) -> None:
    keys = {k: v for k, v in LLAMA3.items() if k != gone} | ({gone: None} if value is None else {})
    refused(spelled(tmp_path / "m", "llama3", keys, spelling), "rope-key-missing", gone, "llama3")


@pytest.mark.parametrize("changes", [{"low_freq_factor": 4.0}, {"low_freq_factor": 8.0}, {"high_freq_factor": "4"}, {"factor": 0}, {"factor": True}])
def test_a_llama3_without_sense(tmp_path: Path, changes: dict[str, Any]) -> None:
    refused(spelled(tmp_path / "m", "llama3", LLAMA3 | changes, "newer"), "rope-key-invalid")


def test_llama3_in_a_graph_without_factors(tmp_path: Path) -> None:
    refused(spelled(tmp_path / "m", "llama3", LLAMA3, "newer", "qwen3"), "graph-cannot", "llama3", exit_code=4)


def test_llama3_in_a_qwen2_goes_to_the_graph_that_has_factors(tmp_path: Path) -> None:
    found = converted(spelled(tmp_path / "m", "llama3", LLAMA3, "newer", "qwen2"), "--strict")
    assert found.keys["general.architecture"] == "llama"
    assert found.tensors["rope_freqs.weight"].shape == (8,)


@SPELLINGS
@pytest.mark.parametrize("kind", ["mrope", "ntk", "YARN", "proportional", "", "default "])
def test_an_unknown_rope_type_is_an_error(tmp_path: Path, spelling: str, kind: str) -> None:
    refused(spelled(tmp_path / "m", kind, {"factor": 2.0}, spelling), "unknown-rope-type", kind, exit_code=4)


@pytest.mark.parametrize("kind", [5, ["yarn"], {"a": 1}, True])
@pytest.mark.parametrize("place", ["rope_scaling", "rope_parameters"])
def test_a_rope_type_of_another_kind(tmp_path: Path, kind: object, place: str) -> None:
    folder = tiny("llama", tmp_path / "m", config={place: {"rope_type": kind, "factor": 2.0}})
    refused(folder, "config-key-invalid", f"{place}.rope_type")


@SPELLINGS
@pytest.mark.parametrize("family", ["llama", "qwen2", "mistral", "qwen3moe"])
def test_dynamic_is_exact_up_to_a_bound(tmp_path: Path, spelling: str, family: str) -> None:
    folder = spelled(tmp_path / "m", "dynamic", {"factor": 2.0}, spelling, family)
    found = converted(folder, "--strict")
    assert found.codes("bound") == ["bound-dynamic-rope"]
    assert "128" in found.message("bound-dynamic-rope")
    assert planned(folder)["exact_context"] == 128
    assert not any("rope.scaling" in k for k in found.keys if "original" not in k)


@SPELLINGS
def test_default_says_nothing(tmp_path: Path, spelling: str) -> None:
    plain = converted(tiny("llama", tmp_path / "a"), "--strict")
    found = converted(spelled(tmp_path / "b", "default", {}, spelling), "--strict")
    assert found.events == plain.events
    assert found.path.read_bytes() == plain.path.read_bytes()


@pytest.mark.parametrize("keys", [{"factor": 2.0}, {"factor": 2.0, "original_max_position_embeddings": 32}, {"rope_typ": "yarn"}])
def test_a_rope_without_its_type_is_an_error(tmp_path: Path, keys: dict[str, Any]) -> None:
    for place in ("rope_scaling", "rope_parameters"):
        refused(tiny("llama", tmp_path / place, config={place: keys}), "rope-key-missing", "rope_type")


@pytest.mark.parametrize(
    ("kind", "keys", "code"),
    [
        ("linear", {"factor": 2.0, "beta_fast": 32}, "rope-key-unread"),
        ("default", {"factor": 2.0}, "rope-key-unread"),
        ("linear", {"factor": 2.0, "wobble": 3}, "unknown-config-key"),
        ("yarn", YARN | {"attn_factor": 1.0}, "unknown-config-key"),
        ("default", {"mrope_section": [2, 2, 4]}, "unknown-config-key"),
        ("llama3", LLAMA3 | {"attention_factor": 1.0}, "rope-key-unread"),
    ],
)
@SPELLINGS
def test_a_rope_key_that_is_not_read_is_said(tmp_path: Path, kind: str, keys: dict[str, Any], code: str, spelling: str) -> None:
    plan = planned(spelled(tmp_path / "m", kind, keys, spelling))
    assert codes(plan) == [code]


@pytest.mark.parametrize("kind", ["linear", "dynamic", "llama3", "default"])
def test_factor_lists_belong_to_longrope(tmp_path: Path, kind: str) -> None:
    refused(spelled(tmp_path / "m", kind, LLAMA3 | LONG, "old"), "rope-key-invalid", "short_factor", "longrope")


@pytest.mark.parametrize("kind", ["linear", "dynamic", "yarn", "llama3"])
@pytest.mark.parametrize("value", [0, -2.0, "2", [2], True, float("nan"), float("inf"), 10**400])
def test_a_factor_of_another_kind(tmp_path: Path, kind: str, value: object) -> None:
    refused(spelled(tmp_path / "m", kind, LLAMA3 | {"factor": value}, "newer"), "rope-key-invalid", "factor")


@pytest.mark.parametrize("kind", ["linear", "dynamic"])
def test_a_missing_factor(tmp_path: Path, kind: str) -> None:
    refused(spelled(tmp_path / "m", kind, {}, "newer"), "rope-key-missing", "factor")


@pytest.mark.parametrize("value", [0, 1, -5, 32.5, "32", [32], True, 1 << 40])
@pytest.mark.parametrize("outer", [True, False])
def test_an_original_context_of_another_kind(tmp_path: Path, value: object, outer: bool) -> None:
    keys = {"factor": 4.0} | ({} if outer else {"original_max_position_embeddings": value})
    more = {"original_max_position_embeddings": value} if outer else {}
    refused(spelled(tmp_path / "m", "yarn", keys, "newer", **more), "rope-key-invalid", "original_max_position_embeddings")


@pytest.mark.parametrize("changes", [{"beta_fast": 0}, {"beta_slow": "1"}, {"truncate": "no"}, {"mscale": [1], "mscale_all_dim": 1.0}])
def test_yarns_further_keys_of_another_kind(tmp_path: Path, changes: dict[str, Any]) -> None:
    refused(spelled(tmp_path / "m", "yarn", YARN | changes, "newer"), "rope-key-invalid", next(iter(changes)))


def test_yarn_with_betas_of_its_own(tmp_path: Path) -> None:
    """Exact where the graph loads factors; refused where it does not."""
    keys = YARN | {"beta_fast": 16.0, "beta_slow": 2.0}
    found = converted(spelled(tmp_path / "a", "yarn", keys, "newer"), "--strict")
    assert found.keys["llama.rope.scaling.type"] == "none"
    assert found.tensors["rope_freqs.weight"].shape == (8,)
    refused(spelled(tmp_path / "b", "yarn", keys, "newer", "qwen3"), "graph-cannot", "beta_fast", exit_code=4)


@pytest.mark.parametrize(("family", "changes"), [("mistral", {"sliding_window": 64}), ("phi3", {"sliding_window": 64}), ("qwen2", {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1}), ("qwen3", {"use_sliding_window": True, "sliding_window": 64, "layer_types": ["full_attention", "sliding_attention"]}), ("mixtral", {"sliding_window": 64})])
def test_a_sliding_window_is_a_bound_and_no_refusal(tmp_path: Path, family: str, changes: dict[str, Any]) -> None:
    plan = planned(tiny(family, tmp_path / "m", config=changes), "--strict")
    assert codes(plan, "bound") == ["bound-sliding-window"]
    assert plan["exact_context"] == 64


@pytest.mark.parametrize(("family", "changes"), [("mistral", {"sliding_window": 4096}), ("mistral", {"sliding_window": DROP}), ("qwen2", {"use_sliding_window": False, "sliding_window": 64}), ("qwen2", {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 28}), ("qwen2", {"use_sliding_window": True, "sliding_window": None}), ("qwen3", {"sliding_window": None, "layer_types": ["full_attention"] * 2})])
def test_a_window_that_nothing_reaches_says_nothing(tmp_path: Path, family: str, changes: dict[str, Any]) -> None:
    plan = planned(tiny(family, tmp_path / "m", config=changes), "--strict")
    assert codes(plan, "bound") == []
    assert plan["exact_context"] is None
