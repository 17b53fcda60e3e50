"""Ropes by kind of layer: read by an architecture that knows kinds, one rope where all are equal, else refused."""

from __future__ import annotations

from typing import Any

import pytest

from llmfit_core.config import normalise, ropes_apart
from llmfit_core.errors import LlmfitError

KINDS = {"full_attention": "rope_theta", "sliding_attention": "rope_local_base_freq"}
FULL: dict[str, Any] = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}
SLIDING: dict[str, Any] = {"rope_type": "default", "rope_theta": 1e4}


def apart(kinds: dict[str, str] = KINDS, **config: Any) -> tuple[dict[str, Any], dict[str, str]]:
    values, types = ropes_apart(normalise(config), kinds)
    return dict(values), dict(types)


def test_each_kind_under_its_own_key() -> None:
    values, types = apart(rope_parameters={"full_attention": FULL, "sliding_attention": SLIDING})
    assert values == {
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }
    assert types == {"sliding_attention": "default"}


def test_equal_ropes_are_every_kinds() -> None:
    values, _ = apart(rope_parameters={"full_attention": SLIDING, "sliding_attention": SLIDING})
    assert (values["rope_theta"], values["rope_local_base_freq"]) == (1e4, 1e4)


def test_a_kind_alone_says_nothing_of_the_other() -> None:
    only, _ = apart(rope_parameters={"sliding_attention": SLIDING})
    assert only["rope_local_base_freq"] == 1e4
    assert "rope_theta" not in only
    only, _ = apart(rope_parameters={"full_attention": FULL, "sliding_attention": None})
    assert "rope_local_base_freq" not in only


def test_without_kinds_equal_ropes_are_one_and_others_stay() -> None:
    values, types = apart({}, rope_parameters={"full_attention": FULL, "sliding_attention": FULL})
    assert values == {"rope_theta": 1e6, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    assert types == {}
    values, _ = apart({}, rope_parameters={"full_attention": FULL, "sliding_attention": SLIDING})
    assert "rope_by_layer_type" in values


def test_flat_spellings_are_left_alone() -> None:
    values, types = apart(rope_theta=1e6, rope_local_base_freq=1e4, rope_scaling={"rope_type": "linear", "factor": 8.0})
    assert (values["rope_theta"], values["rope_local_base_freq"], types) == (1e6, 1e4, {})


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"rope_theta": 5.0}, ("rope_theta", "full_attention")),
        ({"rope_local_base_freq": 5.0}, ("rope_local_base_freq", "sliding_attention")),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, ("rope_scaling", "full_attention")),
    ],
)
def test_contradictions_name_both_keys(config: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(LlmfitError) as caught:
        apart(rope_parameters={"full_attention": FULL, "sliding_attention": SLIDING}, **config)
    assert caught.value.code == "contradicting-config"
    assert all(w in caught.value.cause for w in words)


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(LlmfitError) as caught:
        apart(rope_parameters={"full_attention": FULL, "linear_attention": SLIDING})
    assert "linear_attention" in caught.value.cause


@pytest.mark.parametrize("outer", [False, True])
def test_new_spelling_without_kinds_is_refused_where_transformers_passes_over_it(outer: bool) -> None:
    config: dict[str, Any] = {"rope_parameters": SLIDING}
    with pytest.raises(LlmfitError) as caught:
        apart(**({"text_config": config} if outer else config))
    assert "rope_theta and no kinds" in caught.value.cause
    values, _ = apart({}, **config)
    assert values["rope_theta"] == 1e4
    assert apart(rope_parameters={"rope_type": "default"})[0] == {"rope_scaling": {"rope_type": "default"}}
