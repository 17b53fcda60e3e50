"""Names of models saved without a head: whatever a family's layers begin with is put before them."""

from __future__ import annotations

import pytest

from llmfit_core.naming import Patterns, unwrap


@pytest.mark.parametrize("root", ["model", "transformer", "gpt_neox", "backbone", "decoder.net"])
def test_what_layers_begin_with_is_added(root: str) -> None:
    patterns = Patterns([f"{root}.embed", f"{root}.layers.{{layer}}.a", f"{root}.layers.{{layer}}.b", "ahead.layers.{layer}.a", "head"])
    first = root.partition(".")[0]
    names = [n.removeprefix(f"{first}.") for n in (f"{root}.embed.weight", f"{root}.layers.0.a.weight", f"{root}.layers.0.b.bias")]
    plain, events = unwrap([*names, "head.weight"], patterns)
    assert [plain[n] for n in names] == [f"{first}.{n}" for n in names]
    assert plain["head.weight"] == "head.weight"
    assert [e.message for e in events] == [f"tensor names: prefix '{first}.' added in 3"]


def test_nothing_is_added_that_makes_no_match() -> None:
    plain, events = unwrap(["layers.0.c.weight", "a.weight"], Patterns(["net.layers.{layer}.a", "net.b"]))
    assert plain == {"layers.0.c.weight": "layers.0.c.weight", "a.weight": "a.weight"}
    assert events == ()
