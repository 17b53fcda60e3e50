"""Each table against transformers: what it saves, what it assumes, and who feeds whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from llmfit_core.architecture import REQUIRED, Reads, slot_roles
from llmfit_core.naming import Patterns
from llmfit_core.prepare import prepare
from llmfit_core.wiring import scale_groups
from tests.expert_forms import load

if TYPE_CHECKING:
    from pathlib import Path

    from llmfit_core.architecture import Architecture
    from llmfit_core.plugins import PluginRegistry

transformers = pytest.importorskip("transformers", reason="the judge is transformers")
EVERY = ("gemma", "gemma2", "gemma3")


def table(registry: PluginRegistry, name: str) -> Architecture:
    return next(p.value for p in registry.architectures() if name in p.value.hf_classes)


@pytest.mark.parametrize("family", EVERY)
def test_the_table_holds_what_is_saved_and_nothing_else(
    family: str, registry: PluginRegistry, variation: Any, classes: Any
) -> None:
    architecture = table(registry, classes(family)[0])
    patterns = Patterns(architecture.tensors)
    matches = {name: patterns.match(name) for name in load(variation(family))}
    assert [n for n, m in matches.items() if m is None] == []
    used = {m.pattern for m in matches.values() if m}
    assert {*architecture.tensors} - used == {"lm_head"}
    assert all(slot_roles(architecture.slot(p)) for p in used)


@pytest.mark.parametrize("family", EVERY)
def test_defaults_types_and_keys_are_those_of_the_config_class(
    family: str, registry: PluginRegistry, variation: Any, classes: Any
) -> None:
    architecture = table(registry, classes(family)[0])
    config = getattr(transformers, classes(family)[1])()
    for key, use in architecture.config.items():
        if isinstance(use, Reads) and use.default not in (REQUIRED, None) and hasattr(config, key):
            assert use.default == getattr(config, key), key
    assert config.model_type in architecture.model_types
    assert prepare(variation(family), registry).model.ledger.unknown == ()
    ropes = config.rope_parameters
    bases = {key: ropes[kind]["rope_theta"] for kind, key in architecture.rope_kinds.items()}
    for key, base in (bases or {"rope_theta": ropes["rope_theta"]}).items():
        use = architecture.config[key]
        assert isinstance(use, Reads)
        assert use.default == base


@pytest.mark.parametrize("family", EVERY)
def test_a_scale_moves_unseen_along_every_link_and_a_forgotten_sink_shows(
    family: str, registry: PluginRegistry, variation: Any, tmp_path: Path
) -> None:
    from tests.contract.test_wiring import Subject, scales

    class Local(Subject):
        pass

    subject = Local(variation(family, {"num_hidden_layers": 2, "num_key_value_heads": 4}), "", registry, tmp_path)
    groups = scale_groups(subject.model)
    assert {g.link.source for g in groups} == {"attn_norm", "attn_v", "ffn_norm", "ffn_up"}
    assert subject.distance(scales(groups)) < 1e-4
    for group, scale in scales(g for g in groups if g.layer == 0):
        for sink in group.sinks:
            assert subject.distance([(group, scale)], left_out=sink) > 1e-3, sink.name
