"""Configs beyond the recorded cases: the same logits in llama.cpp, and the same model on the way back; or a refusal."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from llmfit_core.errors import LlmfitError, SourceError, UnsupportedError
from llmfit_core.naming import Patterns
from llmfit_core.prepare import prepare
from tests.contract.test_wiring import Subject, scales
from tests.e2e.scoring import by_llamacpp, by_transformers, divergence, ids_of
from tests.e2e.test_golden import tensors_of
from tests.e2e.test_round_trip import same_logits
from tests.expert_forms import as_one, load, save

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from llmfit_core.plugins import PluginRegistry

    Same = Callable[[Path, Path], None]

torch = pytest.importorskip("torch", reason="the judge is transformers")
transformers = pytest.importorskip("transformers", reason="the judge is transformers")

EXACT = 3e-6
SLOW = pytest.mark.slow(reason="the kind of case is covered by a quicker one")


def yarn(**more: Any) -> dict[str, Any]:
    rope = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 32}
    return {"rope_parameters": {**rope, **more}}


VARIATIONS: list[Any] = [
    pytest.param("deepseek2", {"q_lora_rank": None, "routed_scaling_factor": 1.7, "v_head_dim": 16}, id="v2-whole-q", marks=SLOW),
    pytest.param("deepseek2", yarn(), id="v2-yarn-without-mscale", marks=SLOW),
    pytest.param("deepseek2", yarn(mscale=0.5, mscale_all_dim=0.9), id="v2-yarn-two-mscales", marks=SLOW),
    pytest.param("deepseek2", yarn(mscale_all_dim=0.7), id="v2-yarn-all-dim-alone", marks=SLOW),
    pytest.param(
        "deepseek2", yarn(mscale=1.0, mscale_all_dim=1.0, attention_factor=1.3), id="v2-yarn-attention-factor", marks=SLOW
    ),
    pytest.param("deepseek3", yarn(attention_factor=1.0), id="v3-yarn-nothing-scaled", marks=SLOW),
    pytest.param("deepseek3", yarn(mscale=0.8, mscale_all_dim=0.0), id="v3-yarn-no-all-dim", marks=SLOW),
    pytest.param("deepseek3", yarn(factor=1.0, mscale=0.7, mscale_all_dim=0.7), id="v3-yarn-factor-1", marks=SLOW),
    pytest.param("deepseek3", {"n_group": 1, "topk_group": 1, "norm_topk_prob": False}, id="v3-one-group", marks=SLOW),
    pytest.param("deepseek3", {"n_group": 2, "topk_group": 2, "q_lora_rank": None}, id="v3-all-groups", marks=SLOW),
    pytest.param("deepseek3", {"first_k_dense_replace": 0, "tie_word_embeddings": True}, id="v3-all-mixed-tied", marks=SLOW),
    pytest.param("deepseek3", {"first_k_dense_replace": 2}, id="v3-all-dense", marks=SLOW),
    pytest.param("deepseek2", {"n_group": 4, "topk_group": 4, "topk_method": "group_limited_greedy"}, id="v2-all-groups", marks=SLOW),
    pytest.param("deepseek2", {"n_group": 4, "topk_group": 1}, id="v2-greedy-with-groups", marks=SLOW),
    pytest.param("deepseek2", {"num_hidden_layers": 26, "q_lora_rank": None, "hidden_size": 64}, id="v2-lite-layers", marks=SLOW),
    pytest.param("glm4-moe-lite", {"mlp_layer_types": ["sparse", "sparse"], **yarn(mscale_all_dim=0.7)}, id="glm-all-mixed", marks=SLOW),
    pytest.param("glm4-moe-lite", {"n_group": 2, "topk_group": 1, "rms_norm_eps": 1e-6}, id="glm-groups", marks=SLOW),
    pytest.param("youtu", {"q_lora_rank": None, **yarn(mscale=0.7, mscale_all_dim=0.7)}, id="youtu-yarn-whole-q", marks=SLOW),
    pytest.param("youtu", {"tie_word_embeddings": False}, id="youtu-own-head", marks=SLOW),
]


@pytest.mark.parametrize(("family", "changes"), VARIATIONS)
def test_variations(
    family: str, changes: dict[str, Any], variation: Callable[..., Path], to_gguf: Callable[..., Any], to_hf: Callable[..., Path],
    same_tensors: Same,
) -> None:
    model = variation(family, changes)
    file, _ = to_gguf(model, "f32")
    ids = ids_of(model)
    assert divergence(by_transformers(model, ids), by_llamacpp(file, ids)).mean() < EXACT
    back = to_hf(file, "bf16")
    same_tensors(back, model)
    same_logits(back, model)


# What makes the latents is stored in few bits of its own: a factor on it is exact in float32 alone.
OTHER_EPSILONS: list[Any] = [
    pytest.param("deepseek3", {"rms_norm_eps": 1e-3}, id="v3-1e-3"),
    pytest.param("deepseek2", {"rms_norm_eps": 1e-2, "q_lora_rank": None}, id="v2-1e-2-whole-q", marks=SLOW),
    pytest.param("youtu", {"rms_norm_eps": 1e-8}, id="youtu-1e-8", marks=SLOW),
    pytest.param("glm4-moe-lite", {}, id="glm-its-own-1e-5", marks=SLOW),
]


@pytest.mark.parametrize(("family", "changes"), OTHER_EPSILONS)
def test_latents_keep_their_own_epsilon(
    family: str, changes: dict[str, Any], variation: Callable[..., Path], to_gguf: Callable[..., Any], to_hf: Callable[..., Path],
    same_tensors: Same,
) -> None:
    """The graph has one epsilon for all norms, the classes 1e-6 for those of the latents, whatever rms_norm_eps is."""
    model = variation(family, changes)
    file, events = to_gguf(model, "f32")
    assert "attn_kv_a" in {e.subject for e in events if e.code == "scale-folded"}
    ids = ids_of(model)
    assert divergence(by_transformers(model, ids), by_llamacpp(file, ids)).mean() < EXACT
    back = to_hf(file, "bf16")
    same_tensors(back, model)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(yarn(mscale=0.5, mscale_all_dim=0.9), id="two-mscales"),
        pytest.param(yarn(), id="none", marks=SLOW),
        pytest.param(yarn(mscale=0.7, mscale_all_dim=0.7), id="one", marks=SLOW),
    ],
)
def test_yarn_is_read_from_keys_alone(
    changes: dict[str, Any], variation: Callable[..., Path], to_gguf: Callable[..., Any], to_hf: Callable[..., Path], tmp_path: Path
) -> None:
    """Without llmfit's own note of the config, what llama.cpp computes by the keys is what comes back."""
    model = variation("deepseek2", changes)
    file, _ = to_gguf(model, "f32")
    raw = file.read_bytes()
    assert raw.count(b"llmfit.config") == 1
    plain = tmp_path / "plain.gguf"
    plain.write_bytes(raw.replace(b"llmfit.config", b"somebo.config"))
    back = to_hf(plain, "bf16")
    rope = json.loads((back / "config.json").read_text(encoding="utf-8"))["rope_scaling"]
    assert rope != changes["rope_parameters"]
    ids = ids_of(model)
    assert divergence(by_transformers(model, ids), by_transformers(back, ids)).mean() < 1e-9


def test_experts_as_one_tensor_make_the_same_file(variation: Callable[..., Path], to_gguf: Callable[..., Any], tmp_path: Path) -> None:
    model = variation("deepseek3")
    one = save(model, as_one(load(model)), tmp_path / "one")
    a, _ = to_gguf(model, "bf16", name="a")
    b, _ = to_gguf(one, "bf16", name="b")
    assert tensors_of(a) == tensors_of(b)


REFUSED: list[Any] = [
    pytest.param("deepseek2", {"n_group": 4, "topk_group": 2, "topk_method": "group_limited_greedy"}, "two best", id="best-group"),
    pytest.param("deepseek2", {"norm_topk_prob": True}, "norm_topk_prob", id="v2-normalised"),
    pytest.param("deepseek2", {"scoring_func": "sigmoid"}, "scoring_func", id="v2-sigmoid"),
    pytest.param("deepseek3", {"scoring_func": "softmax"}, "scoring_func", id="v3-softmax"),
    pytest.param("deepseek3", {"topk_method": "greedy"}, "topk_method", id="v3-greedy"),
    pytest.param("deepseek3", {"rope_interleave": False}, "rope_interleave", id="halves"),
    pytest.param("deepseek3", {"rope_interleave": None}, "rope_interleave", id="halves-by-null"),
    pytest.param("glm4-moe-lite", {"mlp_layer_types": ["dense", "loose"]}, "loose", id="glm-odd-kind"),
    pytest.param("glm4-moe-lite", {"mlp_layer_types": ["dense"]}, "mlp_layer_types", id="glm-few-kinds"),
    pytest.param("glm4-moe-lite", {"first_k_dense_replace": 2}, "first_k_dense_replace", id="glm-passed-over"),
    pytest.param("glm4-moe-lite", {"partial_rotary_factor": 0.5}, "partial_rotary_factor", id="glm-partial"),
    pytest.param("deepseek3", {"moe_layer_freq": 2}, "moe_layer_freq", id="every-other-layer"),
    pytest.param("deepseek3", {"num_key_value_heads": 2}, "num_key_value_heads", id="grouped-heads"),
    pytest.param("deepseek3", {"n_group": 3}, "n_group", id="odd-groups"),
    pytest.param("deepseek3", {"n_group": 8}, "n_group", id="groups-of-one"),
    pytest.param("deepseek3", {"topk_group": 5}, "topk_group", id="more-than-all-groups"),
    pytest.param("deepseek3", {"num_experts_per_tok": 5}, "num_experts_per_tok", id="more-than-the-groups-hold"),
    pytest.param("deepseek3", {"qk_rope_head_dim": 15}, "qk_rope_head_dim", id="no-pairs"),
    pytest.param("deepseek3", {"kv_lora_rank": 32}, "kv_a_proj_with_mqa|kv_a_layernorm", id="wrong-rank"),
    pytest.param("deepseek3", {"n_shared_experts": 1}, "shared_experts", id="wrong-shared"),
    pytest.param("deepseek3", {"hidden_act": "gelu"}, "hidden_act", id="gelu"),
    pytest.param("deepseek3", {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "linear", id="linear"),
    pytest.param("deepseek3", yarn(beta_slow=4.0), "beta_slow", id="betas"),
    pytest.param("deepseek3", yarn(factor=1.0, attention_factor=1.5), "attention_factor", id="yarn-of-nothing"),
    pytest.param("deepseek3", {"q_lora_rank": None}, "q_proj", id="no-whole-q"),
    pytest.param("deepseek3", {"first_k_dense_replace": 2}, "gate_proj|config.json", id="more-dense-layers"),
]


@pytest.mark.parametrize(("family", "changes", "words"), REFUSED)
def test_what_is_not_computed_is_refused_by_name(
    family: str, changes: dict[str, Any], words: str, variation: Callable[..., Path], to_gguf: Callable[..., Any], tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(variation(family), model)
    path = model / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")
    with pytest.raises(LlmfitError, match=words):
        to_gguf(model, "f32")


def test_dense_layers_behind_mixed_ones_are_refused(variation: Callable[..., Path], to_gguf: Callable[..., Any]) -> None:
    with pytest.raises(UnsupportedError, match="dense layers before") as caught:
        to_gguf(variation("glm4-moe-lite", {"mlp_layer_types": ["sparse", "dense"]}), "f32")
    assert caught.value.code == "graph-cannot"


def test_biases_the_graph_does_not_load_are_refused(variation: Callable[..., Path], to_gguf: Callable[..., Any]) -> None:
    for family, changes in (("deepseek3", {"attention_bias": True}), ("deepseek2", {"mlp_bias": True})):
        with pytest.raises(UnsupportedError, match="has a bias on"):
            to_gguf(variation(family, changes), "f32")


def test_a_lite_number_of_layers_with_a_latent_of_queries_is_refused(
    variation: Callable[..., Path], registry: PluginRegistry
) -> None:
    """The loader leaves the rank unread at 26 and 27 layers."""
    from dataclasses import replace

    from llmfit_gguf.graphs import obstacle

    model = prepare(variation("deepseek3"), registry).model
    table = model.architecture
    assert obstacle(model, table.graphs[0]) is None
    assert table.hparams is not None
    for layers in (26, 27):
        hparams = {**model.hparams, "block_count": layers}
        told = obstacle(replace(model, hparams=hparams | dict(table.hparams(hparams))), table.graphs[0])
        assert told is not None
        assert "lite" in told


def test_layers_that_predict_further_tokens_are_left_out(
    variation: Callable[..., Path], to_gguf: Callable[..., Any], to_hf: Callable[..., Path], registry: PluginRegistry, tmp_path: Path, same_tensors: Same
) -> None:
    source = variation("deepseek3")
    tensors = load(source)
    width, rows = tensors["lm_head.weight"].shape[1], tensors["lm_head.weight"].shape[0]
    further = {n.replace("layers.1.", "layers.2."): t.clone() for n, t in tensors.items() if "layers.1." in n}
    further |= {f"model.layers.2.{n}.weight": torch.ones(width, dtype=torch.bfloat16) for n in ("enorm", "hnorm", "shared_head.norm")}
    further["model.layers.2.eh_proj.weight"] = torch.ones(width, 2 * width, dtype=torch.bfloat16)
    for name in ("embed_tokens", "shared_head.head"):
        further[f"model.layers.2.{name}.weight"] = torch.ones(rows, width, dtype=torch.bfloat16)
    more = save(source, tensors | further, tmp_path / "more")
    path = more / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(config | {"num_nextn_predict_layers": 1}), encoding="utf-8")
    waived = prepare(more, registry).model.ledger.waived
    assert sorted(waived) == sorted(further)
    assert all("token after the next" in why for why in waived.values())
    a, _ = to_gguf(source, "bf16", name="a")
    b, _ = to_gguf(more, "bf16", name="b")
    assert tensors_of(a) == tensors_of(b)
    same_tensors(to_hf(b, "bf16"), source)
    path.write_text(json.dumps(config | {"num_nextn_predict_layers": 0}), encoding="utf-8")
    with pytest.raises(SourceError) as caught:
        prepare(more, registry)
    assert caught.value.code == "stray-tensor"


def test_a_missing_correction_is_named_as_it_is_stored(variation: Callable[..., Path], registry: PluginRegistry, tmp_path: Path) -> None:
    source = variation("deepseek3")
    name = "model.layers.1.mlp.gate.e_score_correction_bias"
    less = save(source, {n: t for n, t in load(source).items() if n != name}, tmp_path / "less")
    with pytest.raises(SourceError, match=rf"{name} \(") as caught:
        prepare(less, registry)
    assert caught.value.code == "missing-tensor"


FURTHER = ("num_nextn_predict_layers", "num_mtp_layers")
CLASSES = {
    "deepseek2": "DeepseekV2Config",
    "deepseek3": "DeepseekV3Config",
    "glm4-moe-lite": "Glm4MoeLiteConfig",
    "youtu": "YoutuConfig",
}


def test_corrections_of_the_choice_stay_float32(
    variation: Callable[..., Path], to_hf: Callable[..., Path], tmp_path: Path
) -> None:
    """And what else a 16-bit checkpoint stores in float32 on purpose; a float32 checkpoint is narrowed but for those."""
    source = variation("deepseek3")
    bias, router = "model.layers.1.mlp.gate.e_score_correction_bias", "model.layers.1.mlp.gate.weight"
    tensors = load(source)
    exact = {n: tensors[n].float() + 1e-6 * torch.arange(tensors[n].numel()).reshape(tensors[n].shape) for n in (bias, router)}
    for n in (bias, router):
        assert not exact[n].bfloat16().float().equal(exact[n])
    mixed = load(to_hf(save(source, tensors | exact, tmp_path / "mixed"), "bf16", name="a"))
    assert mixed[bias].equal(exact[bias])
    assert mixed[router].equal(exact[router])
    assert {t.dtype for n, t in mixed.items() if n not in exact} == {torch.bfloat16}
    wide = load(to_hf(save(source, {n: t.float() for n, t in (tensors | exact).items()}, tmp_path / "wide"), "bf16", name="b"))
    assert wide[bias].equal(exact[bias])
    assert {t.dtype for n, t in wide.items() if n != bias} == {torch.bfloat16}


@pytest.mark.parametrize("family", CLASSES)
def test_the_table_is_what_transformers_saves(
    family: str, variation: Callable[..., Path], registry: PluginRegistry
) -> None:
    changes = {"q_lora_rank": None} if family == "deepseek2" else {}
    model = prepare(variation(family, changes), registry).model
    assert model.ledger.unknown == ()
    assert [e for e in model.events if e.severity in ("warning", "fallback")] == []
    patterns = Patterns(model.architecture.tensors)
    assert [n for n in load(variation(family, changes)) if patterns.match(n) is None] == []


@pytest.mark.parametrize("family", CLASSES)
def test_defaults_are_those_of_the_config_class(family: str, registry: PluginRegistry) -> None:
    from llmfit_core.architecture import REQUIRED, Reads

    table = registry.architecture(family).value
    config = getattr(transformers, CLASSES[family])()
    assert config.model_type in table.model_types
    absent = set(FURTHER) - set(config.to_dict())
    for key, use in table.config.items():
        if isinstance(use, Reads) and use.default is not REQUIRED and use.default is not None and key not in ("rope_theta", *absent):
            assert use.default == getattr(config, key), key


@pytest.mark.slow(reason="the kit proves the wiring of these families too")
@pytest.mark.parametrize(
    ("family", "changes"), [("deepseek2", {"q_lora_rank": None}), ("deepseek3", {"num_hidden_layers": 1, "first_k_dense_replace": 0})]
)
def test_scales_move_unseen_and_show_when_a_sink_is_forgotten(
    family: str, changes: dict[str, Any], variation: Callable[..., Path], registry: PluginRegistry, tmp_path: Path
) -> None:
    from llmfit_core.wiring import scale_groups

    subject = Subject(variation(family, changes), "", registry, tmp_path)
    groups = scale_groups(subject.model)
    assert subject.distance(scales(groups)) < 1e-4
    sources = {g.link.source for g in groups}
    assert {"attn_norm", "attn_kv_a_norm", "attn_v_b", "ffn_norm"} <= sources
    assert sum(g.link.source == "attn_v_b" for g in groups) == 4 * subject.model.layers, "one for each head"
    assert ("attn_q_a_norm" in sources) == (family == "deepseek3")
    for group, scale in scales(g for g in groups if g.layer == 0 and g.expert in (None, 0) and g.link.source.startswith("attn")):
        for sink in group.sinks[:2]:
            assert subject.distance([(group, scale)], left_out=sink) > 1e-4, sink.name
