"""What the kit leaves open of these families: refusals of large models, roles that no scale reaches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from llmfit_core.errors import UnsupportedError
from llmfit_core.wiring import scale_groups
from tests.contract.test_wiring import Subject, scales
from tests.e2e.scoring import reference

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from llmfit_core.events import Event
    from llmfit_core.plugins import PluginRegistry

    Variation = Callable[..., Path]
    ToGguf = Callable[..., tuple[Path, tuple[Event, ...]]]

transformers = pytest.importorskip("transformers", reason="the judge is transformers")

SLOW = pytest.mark.slow(reason="the kind of case is covered by a quicker one")


def rope(kind: str, theta: float = 10000.0, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **more}}


YARN = {"factor": 4.0, "original_max_position_embeddings": 128}

TINY = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
LARGE = {**TINY, "num_hidden_layers": 64}
# Family, changes, and a word of the refusal: what only large models show, or other sizes than the kit's.
REFUSED: list[Any] = [
    pytest.param("smollm3", rope("yarn", **YARN, beta_fast=2.0), "beta_fast", id="smollm3-yarn-betas"),
    pytest.param("cohere", LARGE, "use_qk_norm", id="cohere-64-bare", marks=SLOW),
    pytest.param(
        "exaone4",
        {**LARGE, "sliding_window": 16, "layer_types": ["full_attention"] * 64},
        "layer_types",
        id="exaone4-64-no-rope",
        marks=SLOW,
    ),
]

# Family, changes, and roles whose matrices no scale can reach.
WIRED: list[Any] = [
    pytest.param("smollm3", {}, {"attn_output"}, id="smollm3"),
    pytest.param("smollm3", {"num_key_value_heads": 4, "num_hidden_layers": 1}, set(), id="smollm3-mha", marks=SLOW),
    pytest.param(
        "olmo", {"clip_qkv": 1.0}, {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up"}, id="olmo"
    ),
    pytest.param("olmo2", {}, {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up"}, id="olmo2", marks=SLOW),
    pytest.param("olmo2", {"num_key_value_heads": 4}, {"attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up"}, id="olmo2-mha"),
    pytest.param("olmoe", {"num_hidden_layers": 1}, set(), id="olmoe"),
    pytest.param("granite", {}, {"attn_output"}, id="granite", marks=SLOW),
    pytest.param("cohere", {}, {"attn_output"}, id="cohere"),
    pytest.param("cohere", {"num_key_value_heads": 4, "num_hidden_layers": 1}, set(), id="cohere-mha", marks=SLOW),
    pytest.param("glm4", {}, {"attn_output"}, id="glm4"),
    pytest.param("glm4", {"num_key_value_heads": 4, "num_hidden_layers": 1}, set(), id="glm4-mha", marks=SLOW),
    pytest.param(
        "exaone4", {"num_key_value_heads": 4}, {"attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up"}, id="exaone4-mha"
    ),
    pytest.param("ernie", {}, {"attn_output"}, id="ernie", marks=SLOW),
]


@pytest.fixture(autouse=True)
def forget_models() -> Iterator[None]:
    """Folders of finished tests are gone; their models go too."""
    yield
    reference.cache_clear()


@pytest.mark.parametrize(("family", "changes", "word"), REFUSED)
def test_what_the_graph_cannot_is_refused(
    family: str, changes: dict[str, Any], word: str, variation: Variation, to_gguf: ToGguf
) -> None:
    with pytest.raises(UnsupportedError) as caught:
        to_gguf(variation(family, changes))
    assert word in caught.value.cause


@SLOW
@pytest.mark.parametrize(("family", "changes", "unreached"), WIRED)
def test_the_wiring_is_true(
    family: str, changes: dict[str, Any], unreached: set[str], variation: Variation, registry: PluginRegistry, tmp_path: Path
) -> None:
    subject = Subject(variation(family, changes), "", registry, tmp_path)
    groups = scale_groups(subject.model)
    assert subject.distance(scales(groups)) < 1e-4
    for group, scale in scales(g for g in groups if g.layer == 0):
        for sink in group.sinks:
            assert subject.distance([(group, scale)], left_out=sink) > 1e-3, (group.link.source, sink.name)
    read = {b.name for g in groups for b in g.sinks}
    missed = {ref.role for ref in subject.model.refs if ref.layer is not None and len(ref.shape) > 1 and ref.name not in read}
    assert missed == unreached
