"""Each family's table against transformers: what it saves, what its config class assumes, what it computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from llmfit_core.architecture import REQUIRED, Reads, slot_roles
from llmfit_core.errors import UnsupportedError
from llmfit_core.naming import Patterns
from llmfit_core.prepare import prepare
from llmfit_core.wiring import scale_groups
from tests.contract.test_wiring import Subject, scales
from tests.e2e.scoring import by_llamacpp, by_transformers, divergence, ids_of, reference
from tests.expert_forms import config_of, load, one_by_one

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from llmfit_core.architecture import Architecture
    from llmfit_core.events import Event
    from llmfit_core.plugins import PluginRegistry

    Variation = Callable[..., Path]
    ToGguf = Callable[..., tuple[Path, tuple[Event, ...]]]

transformers = pytest.importorskip("transformers", reason="the judge is transformers")

EXACT = 3e-6
SLOW = pytest.mark.slow(reason="the kind of case is covered by a quicker one")
FAMILIES = ("smollm3", "olmo", "olmo2", "olmoe", "granite", "cohere", "glm4", "exaone4", "ernie")


def rope(kind: str, theta: float = 10000.0, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **more}}


YARN = {"factor": 4.0, "original_max_position_embeddings": 128}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}

TINY = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
LARGE = {**TINY, "num_hidden_layers": 64}
MIXED = {"layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 16}
ODD = {"layer_types": (["full_attention"] + ["sliding_attention"] * 6 + ["full_attention"]) * 8}

# Family, changes, and whether it is for the slow run. Each is converted, scored, and read back.
RIGHT: list[Any] = [
    pytest.param("smollm3", {"num_hidden_layers": 8, "num_key_value_heads": 1, "tie_word_embeddings": False}, id="smollm3-8", marks=SLOW),
    pytest.param("smollm3", {"head_dim": 64, **rope("yarn", **YARN)}, id="smollm3-yarn-wide-heads", marks=SLOW),
    pytest.param("smollm3", {"num_hidden_layers": 3}, id="smollm3-three-layers", marks=SLOW),
    pytest.param("smollm3", {"no_rope_layers": [1, 1, 1, 1, 1]}, id="smollm3-all-roped"),
    pytest.param("smollm3", {"no_rope_layer_interval": 9, "attention_bias": True, "mlp_bias": True}, id="smollm3-biases"),
    pytest.param("smollm3", {"no_rope_layers": [1] * 4, **rope("llama3", **LLAMA3)}, id="smollm3-llama3", marks=SLOW),
    pytest.param("smollm3", {"no_rope_layers": [1, 1, 1, 0], "use_sliding_window": True}, id="smollm3-no-size", marks=SLOW),
    pytest.param("olmo", {"clip_qkv": 1.0, "num_key_value_heads": 1}, id="olmo-clipped"),
    pytest.param("olmo", {"tie_word_embeddings": True, **rope("linear", factor=2.5)}, id="olmo-tied-linear", marks=SLOW),
    pytest.param("olmo", {"clip_qkv": 8.0, "num_key_value_heads": None, **rope("yarn", **YARN)}, id="olmo-yarn", marks=SLOW),
    pytest.param("olmo2", {"num_key_value_heads": 1, "rms_norm_eps": 1e-3}, id="olmo2-one-kv-head"),
    pytest.param("olmo2", {"tie_word_embeddings": True, **rope("yarn", 5e5, **YARN)}, id="olmo2-tied-yarn", marks=SLOW),
    pytest.param("olmoe", {"rms_norm_eps": 1e-3, "tie_word_embeddings": True}, id="olmoe-epsilon-tied"),
    pytest.param("olmoe", {"norm_topk_prob": True, "num_experts_per_tok": 4}, id="olmoe-all-used", marks=SLOW),
    pytest.param("olmoe", {"num_experts": 3, "num_experts_per_tok": 1, **rope("linear", factor=2.5)}, id="olmoe-3", marks=SLOW),
    pytest.param("granite", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1}, id="granite-biases", marks=SLOW),
    pytest.param("granite", {"head_dim": 64, **rope("llama3", **LLAMA3)}, id="granite-llama3-wide-heads"),
    pytest.param(
        "granite",
        {k: 1.0 for k in ("embedding_multiplier", "logits_scaling", "residual_multiplier", "attention_multiplier")},
        id="granite-ones",
        marks=SLOW,
    ),
    pytest.param("granite", {"tie_word_embeddings": True, **rope("yarn", **YARN, beta_fast=16.0)}, id="granite-yarn-betas", marks=SLOW),
    pytest.param("cohere", {"num_key_value_heads": 1, "logit_scale": 0.5, "layer_norm_eps": 1e-3}, id="cohere-one-kv-head", marks=SLOW),
    pytest.param("cohere", {**LARGE, "use_qk_norm": True, **rope("linear", 5e5, factor=2.5)}, id="cohere-64-normed"),
    pytest.param("cohere", rope("yarn", **YARN, attention_factor=1.3), id="cohere-yarn", marks=SLOW),
    pytest.param("glm4", {"num_key_value_heads": 4, "attention_bias": False, "tie_word_embeddings": True}, id="glm4-no-biases", marks=SLOW),
    pytest.param("glm4", {"head_dim": 64, **rope("default", partial_rotary_factor=0.25)}, id="glm4-quarter"),
    pytest.param("glm4", rope("yarn", partial_rotary_factor=1.0, **YARN), id="glm4-whole-yarn", marks=SLOW),
    pytest.param("exaone4", {"num_key_value_heads": 1, **rope("llama3", 1e6, **LLAMA3)}, id="exaone4-llama3", marks=SLOW),
    pytest.param("exaone4", {"tie_word_embeddings": True, **rope("yarn", **YARN, beta_fast=16.0)}, id="exaone4-tied", marks=SLOW),
    pytest.param("exaone4", {**LARGE, **MIXED, "sliding_window": 16, **rope("llama3", 1e6, **LLAMA3)}, id="exaone4-64"),
    pytest.param("exaone4", {**LARGE, **ODD, "sliding_window": 16}, id="exaone4-64-other-layers", marks=SLOW),
    pytest.param(
        "exaone4", {**LARGE, "sliding_window": None, "layer_types": ["full_attention"] * 64}, id="exaone4-64-no-window", marks=SLOW
    ),
    pytest.param("ernie", {"head_dim": 64, "num_key_value_heads": 1, "tie_word_embeddings": False}, id="ernie-wide-heads"),
    pytest.param("ernie", rope("yarn", **YARN), id="ernie-yarn", marks=SLOW),
    pytest.param("ernie", rope("linear", factor=2.5), id="ernie-linear", marks=SLOW),
    pytest.param("granite", rope("linear", factor=2.5), id="granite-linear", marks=SLOW),
    pytest.param("glm4", rope("yarn", partial_rotary_factor=0.5, **YARN), id="glm4-half-yarn", marks=SLOW),
    pytest.param("glm4", rope("linear", partial_rotary_factor=0.5, factor=2.5), id="glm4-half-linear", marks=SLOW),
    pytest.param("olmoe", rope("yarn", **YARN, attention_factor=1.3), id="olmoe-yarn", marks=SLOW),
    pytest.param("exaone4", {**LARGE, **MIXED, "sliding_window": 16, **rope("yarn", **YARN)}, id="exaone4-64-yarn", marks=SLOW),
]

# Family, changes, and a word of the refusal.
REFUSED: list[Any] = [
    pytest.param("smollm3", {"no_rope_layers": [1, 0, 1, 0]}, "no_rope_layers", id="smollm3-every-other"),
    pytest.param("smollm3", {"no_rope_layers": [0, 0, 0, 0]}, "no_rope_layers", id="smollm3-no-rope"),
    pytest.param("smollm3", {"no_rope_layer_interval": 2}, "no_rope_layers", id="smollm3-interval"),
    pytest.param("smollm3", {"attention_bias": True}, "bias", id="smollm3-attention-bias"),
    pytest.param("smollm3", {"mlp_bias": True}, "bias", id="smollm3-mlp-bias"),
    pytest.param("smollm3", {"hidden_act": "gelu"}, "hidden_act", id="smollm3-gelu"),
    pytest.param("smollm3", rope("llama3", **LLAMA3), "llama3", id="smollm3-llama3"),
    pytest.param("smollm3", rope("yarn", **YARN, beta_fast=16.0), "beta_fast", id="smollm3-yarn-betas"),
    pytest.param("olmo", {"attention_bias": True}, "bias on attn_output", id="olmo-biases"),
    pytest.param("olmo", {"head_dim": 64}, "width", id="olmo-wide-heads"),
    pytest.param("olmo", rope("llama3", **LLAMA3), "llama3", id="olmo-llama3"),
    pytest.param("olmo2", {"attention_bias": True}, "bias on attn_output", id="olmo2-biases"),
    pytest.param("olmo2", {"head_dim": 64}, "width", id="olmo2-wide-heads"),
    pytest.param("olmoe", {"norm_topk_prob": True}, "norm_topk_prob", id="olmoe-normalised"),
    pytest.param("olmoe", {"clip_qkv": 2.0}, "clip_qkv", id="olmoe-clipped"),
    pytest.param("olmoe", {"num_key_value_heads": 2}, "num_key_value_heads", id="olmoe-grouped"),
    pytest.param("olmoe", {"attention_bias": True}, "bias on attn_output", id="olmoe-biases"),
    pytest.param("granite", {"hidden_act": "gelu"}, "hidden_act", id="granite-gelu"),
    pytest.param("cohere", {"use_qk_norm": True}, "use_qk_norm", id="cohere-normed"),
    pytest.param("cohere", LARGE, "use_qk_norm", id="cohere-64-bare", marks=SLOW),
    pytest.param("cohere", {"tie_word_embeddings": False}, "head", id="cohere-own-head"),
    pytest.param("cohere", {"attention_bias": True}, "bias on attn_output", id="cohere-biases"),
    pytest.param("glm4", rope("llama3", partial_rotary_factor=0.5, **LLAMA3), "llama3", id="glm4-llama3"),
    pytest.param("exaone4", {"head_dim": 64}, "width", id="exaone4-wide-heads"),
    pytest.param(
        "exaone4",
        {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]},
        "layer_types",
        id="exaone4-window",
    ),
    pytest.param("exaone4", {"sliding_window": 16}, "layer_types", id="exaone4-no-rope"),
    pytest.param(
        "exaone4",
        {**LARGE, "sliding_window": 16, "layer_types": ["full_attention"] * 64},
        "layer_types",
        id="exaone4-64-no-rope",
        marks=SLOW,
    ),
    pytest.param("ernie", {"use_bias": True}, "use_bias", id="ernie-biases"),
]

# Family, changes, the event's code, and the tokens up to which it is exact.
BOUND: list[Any] = [
    pytest.param(
        "smollm3", {"use_sliding_window": True, "sliding_window": 16}, "bound-sliding-window", 16, id="smollm3-window"
    ),
    pytest.param(
        "smollm3", {**rope("dynamic", factor=4.0), "max_position_embeddings": 32}, "bound-dynamic-rope", 32, id="smollm3-dynamic"
    ),
    pytest.param(
        "exaone4", {"sliding_window": 16, "layer_types": ["sliding_attention"] * 2}, "bound-sliding-window", 16, id="exaone4-window", marks=SLOW
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


def table(registry: PluginRegistry, cls: str) -> Architecture:
    found = [p.value for p in registry.architectures() if cls in p.value.hf_classes]
    assert len(found) == 1
    return found[0]


def kl(model: Path, file: Path, positions: range = range(33, 57)) -> float:
    ids = ids_of(model)
    return float(divergence(by_transformers(model, ids, positions), by_llamacpp(file, ids, positions)).mean())


@pytest.mark.parametrize(("family", "changes"), RIGHT)
def test_computes_the_same_and_reads_back(
    family: str, changes: dict[str, Any], variation: Variation, to_gguf: ToGguf, to_hf: Callable[..., Path]
) -> None:
    model = variation(family, changes)
    file, events = to_gguf(model)
    assert [e.code for e in events if e.severity in ("bound", "fallback", "error") and e.subject != "tokenizer_config.json"] == []
    assert kl(model, file) < EXACT
    back = to_hf(file, "bf16")
    ours, theirs = one_by_one(load(back)), one_by_one(load(model))
    assert sorted(ours) == sorted(theirs)
    assert all(ours[n].equal(t) and ours[n].dtype == t.dtype for n, t in theirs.items())
    ids = ids_of(model)
    assert np.array_equal(by_transformers(back, ids), by_transformers(model, ids))
    assert config_of(back)["architectures"] == config_of(model)["architectures"]


@pytest.mark.parametrize(("family", "changes", "word"), REFUSED)
def test_what_the_graph_cannot_is_refused(
    family: str, changes: dict[str, Any], word: str, variation: Variation, to_gguf: ToGguf
) -> None:
    with pytest.raises(UnsupportedError) as caught:
        to_gguf(variation(family, changes))
    assert word in caught.value.cause


@pytest.mark.parametrize(("family", "changes", "code", "tokens"), BOUND)
def test_bounds_are_told_and_true(
    family: str, changes: dict[str, Any], code: str, tokens: int, variation: Variation, to_gguf: ToGguf
) -> None:
    model = variation(family, changes)
    file, events = to_gguf(model)
    assert [e.code for e in events if e.severity in ("bound", "fallback", "error")] == [code]
    assert kl(model, file, range(4, tokens)) < EXACT


@pytest.mark.parametrize("family", FAMILIES)
def test_the_table_holds_what_is_saved_and_assumes_what_the_class_assumes(
    family: str, registry: PluginRegistry, variation: Variation, classes: Callable[[str], tuple[str, str]]
) -> None:
    cls, config_cls = classes(family)
    architecture = table(registry, cls)
    model = variation(family)
    patterns = Patterns(architecture.tensors)
    matches = {name: patterns.match(name) for name in load(model)}
    assert [n for n, m in matches.items() if m is None] == []
    covered = {role for m in matches.values() if m for role in slot_roles(architecture.slot(m.pattern))}
    optional = {"output"}
    roles = {r for p in architecture.tensors if not architecture.slot(p).when for r in slot_roles(architecture.slot(p))}
    assert roles - covered <= optional
    config = getattr(transformers, config_cls)()
    values = config.to_dict()
    theirs = {**values, **(values.get("rope_parameters") or {})}
    for key, use in architecture.config.items():
        if isinstance(use, Reads) and use.default is not REQUIRED and use.default is not None and key in theirs:
            assert use.default == theirs[key], key
    assert config.model_type in architecture.model_types
    assert prepare(model, registry).model.ledger.unknown == ()


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
