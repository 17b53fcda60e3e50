"""GGUF files and configs that others wrote: keys left out, keys of a sister family, spellings of earlier versions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from llmfit_core.errors import UnsupportedError
from tests.e2e.scoring import by_llamacpp, by_transformers, divergence, ids_of
from tests.e2e.test_golden import tensors_of
from tests.expert_forms import as_one, config_of, load, save

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tests.golden_models import GoldenModels

    ToGguf = Callable[..., tuple[Path, Any]]

SLOW = pytest.mark.slow(reason="the kind of case is covered by a quicker one")
LARGE = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 64,
}


def rewritten(file: Path, out: Path, keys: Mapping[str, Any]) -> Path:
    """The file by gguf-py without any key of ours, and with `keys` (None leaves one out), relative to the graph's name."""
    from gguf import GGUFReader, GGUFValueType, GGUFWriter

    reader = GGUFReader(file)
    arch = reader.fields["general.architecture"].contents()
    wanted = {f"{arch}.{k}": v for k, v in keys.items()}
    writer = GGUFWriter(out, arch)
    for name, field in reader.fields.items():
        if name.startswith(("GGUF.", "llmfit.", "tokenizer.llmfit.")) or name == "general.architecture" or name in wanted:
            continue
        if field.types[0] == GGUFValueType.ARRAY:
            writer.add_array(name, field.contents())
        else:
            writer.add_key_value(name, field.contents(), field.types[0])
    for name, value in wanted.items():
        if isinstance(value, list):
            writer.add_array(name, value)
        elif value is not None:
            kind = {bool: GGUFValueType.BOOL, int: GGUFValueType.UINT32, float: GGUFValueType.FLOAT32}[type(value)]
            writer.add_key_value(name, value, kind)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


@pytest.mark.parametrize(
    ("family", "changes", "keys"),
    [
        pytest.param(
            "granite", {}, {"attention.scale": None, "embedding_scale": None, "residual_scale": None}, id="granite-no-multipliers"
        ),
        pytest.param("cohere", {}, {"logit_scale": None}, id="cohere-unscaled"),
        pytest.param("cohere", {**LARGE, "use_qk_norm": True}, {}, id="cohere-64", marks=SLOW),
        pytest.param(
            "exaone4",
            {**LARGE, "sliding_window": 16, "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 16},
            {},
            id="exaone4-64",
            marks=SLOW,
        ),
        pytest.param(
            "exaone4",
            {**LARGE, "sliding_window": 16, "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 16},
            {"attention.sliding_window_pattern": None},
            id="exaone4-64-no-pattern",
        ),
        pytest.param(
            "exaone4", {**LARGE, "layer_types": ["full_attention"] * 64, "sliding_window": None}, {}, id="exaone4-64-no-window", marks=SLOW
        ),
        pytest.param("olmo", {"clip_qkv": 1.0}, {"attention.clamp_kqv": None}, id="olmo-unclamped", marks=SLOW),
        pytest.param("smollm3", {"num_hidden_layers": 8}, {}, id="smollm3", marks=SLOW),
        pytest.param("glm4", {}, {}, id="glm4", marks=SLOW),
        pytest.param("olmo3", {}, {"attention.sliding_window_pattern": None}, id="olmo3"),
    ],
)
def test_what_a_file_leaves_out_means_what_the_loader_takes(
    family: str,
    changes: dict[str, Any],
    keys: dict[str, Any],
    variation: Callable[..., Path],
    to_gguf: ToGguf,
    to_hf: Callable[..., Path],
    tmp_path: Path,
) -> None:
    model = variation(family, changes)
    theirs = rewritten(to_gguf(model)[0], tmp_path / "theirs.gguf", keys)
    back = to_hf(theirs)
    ids = ids_of(model)
    assert divergence(by_transformers(back, ids), by_llamacpp(theirs, ids)).mean() < 3e-6
    tensors, original = load(back), load(model)
    assert sorted(tensors) == sorted(original)
    assert all(tensors[n].equal(t) for n, t in original.items())


@pytest.mark.parametrize(
    ("family", "keys", "word"),
    [
        pytest.param("olmo2", {"attention.sliding_window": 16}, "rope_theta", id="olmo3-of-another-base"),
        pytest.param("olmo", {"attention.layer_norm_epsilon": 1e-3}, "layer_norm_epsilon", id="olmo-epsilon"),
        pytest.param("granite", {"rope.scaling.finetuned": False}, "rope", id="granite-no-rope"),
        pytest.param("glm4", {"rope.dimension_sections": [8, 8, 8, 0]}, "GLM-4V", id="glm4v"),
    ],
)
def test_sister_families_under_the_same_graph_are_refused(
    family: str,
    keys: dict[str, Any],
    word: str,
    variation: Callable[..., Path],
    to_gguf: ToGguf,
    to_hf: Callable[..., Path],
    tmp_path: Path,
) -> None:
    theirs = rewritten(to_gguf(variation(family))[0], tmp_path / "theirs.gguf", keys)
    with pytest.raises(UnsupportedError) as caught:
        to_hf(theirs)
    assert word in caught.value.cause


def test_the_context_of_command_r_is_the_one_the_authors_mean(
    golden_models: GoldenModels, variation: Callable[..., Path], to_gguf: ToGguf, to_hf: Callable[..., Path], tmp_path: Path
) -> None:
    model = golden_models.copy(variation("cohere"), tmp_path / "copy", model_max_length=4096)
    file, _ = to_gguf(model)
    assert config_of(to_hf(file))["max_position_embeddings"] == 4096


@pytest.mark.slow(reason="the table's patterns for it are in the quick run of other mixtures")
def test_experts_of_olmoe_in_one_tensor_make_the_same_file(
    variation: Callable[..., Path], to_gguf: ToGguf, tmp_path: Path
) -> None:
    model = variation("olmoe")
    whole = save(model, as_one(load(model)), tmp_path / "whole")
    assert any(n.endswith("experts.gate_up_proj") for n in load(whole))
    a, b = (to_gguf(m, "bf16", name=n)[0] for m, n in ((model, "a"), (whole, "b")))
    assert tensors_of(a) == tensors_of(b)


@pytest.mark.slow(reason="64 layers")
def test_norms_of_many_heads_stay_floats(variation: Callable[..., Path], to_gguf: ToGguf) -> None:
    """Command-R's norms of q and k have two axes, and are norms all the same."""
    model = variation("cohere", {**LARGE, "use_qk_norm": True})
    for scheme in ("bf16", "q4_k_m", "q8_0"):
        file, _ = to_gguf(model, scheme)
        assert {t for n, (t, _) in tensors_of(file).items() if "norm" in n} == {"F32"}
    assert divergence(by_transformers(model, ids_of(model)), by_llamacpp(file, ids_of(model))).mean() < 0.05


@pytest.mark.slow(reason="64 layers, and the rule itself is quickly read")
@pytest.mark.parametrize("pattern", [4, "LLLG"])
def test_layers_of_exaone4_follow_from_the_pattern(
    pattern: object, golden_models: GoldenModels, variation: Callable[..., Path], to_gguf: ToGguf, tmp_path: Path
) -> None:
    kinds = (["sliding_attention"] * 3 + ["full_attention"]) * 16
    model = variation("exaone4", {**LARGE, "sliding_window": 16, "layer_types": kinds})
    copy = golden_models.copy(model, tmp_path / "copy", layer_types=..., sliding_window_pattern=pattern)
    ids = ids_of(model)
    assert divergence(by_transformers(model, ids), by_llamacpp(to_gguf(copy)[0], ids)).mean() < 3e-6


@pytest.mark.parametrize(
    ("family", "config", "word"),
    [
        ("exaone4", {"sliding_window": 16, "layer_types": ..., "sliding_window_pattern": "LLGL"}, "sliding_window_pattern"),
        ("exaone4", {"sliding_window": 16, "layer_types": ["full_attention"]}, "layer_types"),
        ("exaone4", {"sliding_window": 16, "layer_types": ["sliding_attention", "chunked_attention"]}, "chunked_attention"),
        ("exaone4", {"sliding_window": 0}, "sliding_window"),
        ("smollm3", {"sliding_window": 0, "layer_types": ["sliding_attention"] * 4}, "sliding_window"),
        ("smollm3", {"no_rope_layers": [1, 1]}, "no_rope_layers"),
        ("smollm3", {"no_rope_layers": None, "no_rope_layer_interval": 0}, "no_rope_layer_interval"),
        ("ernie", {"compression_ratio": 2.0}, "compression_ratio"),
        ("glm4", {"partial_rotary_factor": 0.5, "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.25}}, "contradicts"),
    ],
)
def test_configs_without_a_meaning_are_refused(
    family: str,
    config: dict[str, Any],
    word: str,
    golden_models: GoldenModels,
    variation: Callable[..., Path],
    to_gguf: ToGguf,
    tmp_path: Path,
) -> None:
    from llmfit_core.errors import LlmfitError

    copy = golden_models.copy(variation(family), tmp_path / "copy", **config)
    with pytest.raises(LlmfitError) as caught:
        to_gguf(copy)
    assert word in caught.value.cause
