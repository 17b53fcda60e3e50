"""Metadata overrides: what is set is in the file and loads; what would break a loader is refused before the work."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest

from llmfit_core.errors import UnsupportedError
from llmfit_core.pipeline import convert, plan_conversion
from llmfit_core.plan import Recipe
from tests.tiny import tiny

if TYPE_CHECKING:
    from llmfit_core.plugins import PluginRegistry


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny("llama", tmp_path_factory.mktemp("model"))


def recipe(scheme: str = "q8_0", **options: Any) -> Recipe:
    return Recipe(exporter="gguf", scheme=scheme, **options)


def keys(path: Path) -> dict[str, Any]:
    return {k: f.contents() for k, f in gguf.GGUFReader(path).fields.items()}


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("general.author", "Ada = Lovelace", "Ada = Lovelace"),
        ("general.description", "größe\n模型 🙂", "größe\n模型 🙂"),
        ("general.license", "", ""),
        ("general.name", "Another", "Another"),
        ("llama.context_length", "64", 64),
        ("llama.rope.freq_base", "5e5", 5e5),
        ("llama.attention.layer_norm_rms_epsilon", "1e-6", 1e-6),
        ("tokenizer.ggml.eos_token_id", "7", 7),
        ("tokenizer.ggml.eot_token_id", "8", 8),
        ("tokenizer.ggml.padding_token_id", "0", 0),
        ("tokenizer.ggml.add_bos_token", "false", False),
        ("tokenizer.ggml.add_bos_token", "True", True),
        ("tokenizer.ggml.add_bos_token", "0", False),
        ("tokenizer.chat_template", "{{ messages[0]['content'] }}", "{{ messages[0]['content'] }}"),
    ],
)
def test_what_may_be_set(registry: PluginRegistry, model: Path, tmp_path: Path, key: str, text: str, value: object) -> None:
    artifact, events = convert(model, recipe(metadata=((key, text),)), tmp_path / "m.gguf", registry)
    assert keys(artifact.paths[0])[key] == (pytest.approx(value) if isinstance(value, float) else value)
    assert artifact.manifest["verified"]["tokens"] is True  # type: ignore[index]
    assert [e.subject for e in events if e.code == "override"] == [key]


@pytest.mark.parametrize(
    ("key", "text", "code"),
    [
        ("general.architecture", "qwen2", "structural-key"),
        ("general.alignment", "64", "structural-key"),
        ("general.file_type", "2", "structural-key"),
        ("general.quantization_version", "3", "structural-key"),
        ("general.type", "adapter", "structural-key"),
        ("split.count", "3", "structural-key"),
        ("llmfit.recipe", "hf:f32", "structural-key"),
        ("llama.block_count", "3", "structural-key"),
        ("llama.embedding_length", "128", "structural-key"),
        ("llama.feed_forward_length", "128", "structural-key"),
        ("llama.attention.head_count", "8", "structural-key"),
        ("llama.attention.head_count_kv", "4", "structural-key"),
        ("llama.attention.key_length", "8", "structural-key"),
        ("llama.vocab_size", "9", "structural-key"),
        ("llama.rope.dimension_count", "8", "structural-key"),
        ("tokenizer.ggml.model", "gpt2", "structural-key"),
        ("tokenizer.ggml.pre", "qwen2", "structural-key"),
        ("tokenizer.ggml.tokens", "a", "structural-key"),
        ("tokenizer.ggml.token_type", "1", "structural-key"),
        ("tokenizer.ggml.eos_token_id", "999999999", "bad-override"),
        ("tokenizer.ggml.eos_token_id", "512", "bad-override"),
        ("tokenizer.ggml.eos_token_id", "-1", "bad-override"),
        ("tokenizer.ggml.eos_token_id", "2.0", "bad-override"),
        ("tokenizer.ggml.eot_token_id", "512", "bad-override"),
        ("tokenizer.ggml.eos_token_id", "4294967296", "bad-override"),
        ("tokenizer.ggml.add_bos_token", "yes please", "bad-override"),
        ("llama.context_length", "0", "bad-override"),
        ("llama.context_length", "many", "bad-override"),
        ("llama.context_length", "4000000000", "bad-override"),
        ("llama.rope.freq_base", "nan", "bad-override"),
        ("llama.rope.freq_base", "inf", "bad-override"),
        ("llama.rope.freq_base", "0", "bad-override"),
        ("llama.rope.freq_base", "1e-40", "bad-override"),
        ("llama.rope.freq_base", "-10000", "bad-override"),
        ("llama.attention.layer_norm_rms_epsilon", "0", "bad-override"),
        ("general.author", "\udcff", "bad-override"),
        ("general.autor", "Ada", "unknown-key"),
        ("llama.contextlength", "64", "unknown-key"),
        ("qwen2.context_length", "64", "unknown-key"),
        ("", "64", "unknown-key"),
    ],
)
def test_what_may_not(registry: PluginRegistry, model: Path, tmp_path: Path, key: str, text: str, code: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        convert(model, recipe(metadata=((key, text),)), tmp_path / "m.gguf", registry, verify=False)
    assert caught.value.code == code
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_key_is_told_its_neighbours(registry: PluginRegistry, model: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"nearest: .*llama\.context_length"):
        plan_conversion(model, recipe(metadata=(("llama.contextlength", "64"),)), registry)


def test_rope_and_context(registry: PluginRegistry, model: Path, tmp_path: Path) -> None:
    wanted = recipe(context_length=96, rope_freq_base=500000.0, rope_freq_scale=0.25)
    artifact, events = convert(model, wanted, tmp_path / "m.gguf", registry)
    held = keys(artifact.paths[0])
    assert held["llama.context_length"] == 96
    assert held["llama.rope.freq_base"] == 500000.0
    assert (held["llama.rope.scaling.type"], held["llama.rope.scaling.factor"]) == ("linear", 4.0)
    assert len([e for e in events if e.code == "override"]) == 3
    scale_one, _ = convert(model, recipe(rope_freq_scale=1.0), tmp_path / "n.gguf", registry, verify=False)
    assert "llama.rope.scaling.type" not in keys(scale_one.paths[0])


@pytest.mark.parametrize(
    "options",
    [
        {"context_length": 0},
        {"context_length": -5},
        {"context_length": 2**31},
        {"context_length": 2**40},
        {"rope_freq_base": 0.0},
        {"rope_freq_base": float("nan")},
        {"rope_freq_base": float("inf")},
        {"rope_freq_base": -1.0},
        {"rope_freq_base": 1e-45},
        {"rope_freq_base": 1e39},
        {"rope_freq_scale": 0.0},
        {"rope_freq_scale": float("nan")},
        {"rope_freq_scale": 1e-40},
    ],
)
def test_numbers_that_are_none(registry: PluginRegistry, model: Path, options: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError) as caught:
        plan_conversion(model, recipe(**options), registry)
    assert caught.value.code == "bad-override"


def test_a_scale_on_other_rope(registry: PluginRegistry, tmp_path: Path) -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    model = tiny("llama", tmp_path / "yarn", config={"rope_scaling": scaling})
    with pytest.raises(UnsupportedError, match="yarn"):
        plan_conversion(model, recipe(rope_freq_scale=0.5), registry)


@pytest.mark.parametrize("name", ["Phi-3-tune", "my phi3", "org/PHI-3.5"])
@pytest.mark.parametrize("as_setting", [False, True])
def test_names_that_loaders_take_for_hints(
    registry: PluginRegistry, model: Path, tmp_path: Path, name: str, as_setting: bool
) -> None:
    """llama.cpp demands `<|endoftext|>` of a model called phi-3, and dies without."""
    wanted = recipe(metadata=(("general.name", name),)) if as_setting else recipe(name=name)
    artifact, events = convert(model, wanted, tmp_path / "m.gguf", registry)
    assert artifact.manifest["verified"]["tokens"] is True  # type: ignore[index]
    assert "name-changed" in [e.code for e in events]
    assert "phi" in keys(artifact.paths[0])["general.name"].lower()


def test_options_that_mean_nothing_to_folders(registry: PluginRegistry, model: Path) -> None:
    for options in (
        {"context_length": 0}, {"context_length": 64}, {"rope_freq_base": 1.0}, {"rope_freq_scale": 0.5},
        {"metadata": (("general.author", "Ada"),)}, {"tensor_types": (("q_proj", "f32"),)},
    ):  # fmt: skip
        with pytest.raises(UnsupportedError) as caught:
            plan_conversion(model, Recipe(exporter="hf", scheme="bf16", **options), registry)  # type: ignore[arg-type]
        assert caught.value.code == "option-not-for-format"


@pytest.mark.parametrize("limit", [1, 30_000, 100_000])
def test_parts_load(registry: PluginRegistry, model: Path, tmp_path: Path, limit: int) -> None:
    whole, _ = convert(model, recipe(), tmp_path / "whole.gguf", registry, verify=False)
    artifact, _ = convert(model, recipe(split_max_bytes=limit), tmp_path / "some model.gguf", registry)
    count = len(artifact.paths)
    assert [p.name for p in artifact.paths] == [f"some model-{i + 1:05d}-of-{count:05d}.gguf" for i in range(count)]
    assert count == {1: 21, 30_000: 8, 100_000: 3}[limit] or count > 1
    assert artifact.manifest["verified"]["tokens"] is True  # type: ignore[index]
    want = {t.name: t.data for t in gguf.GGUFReader(whole.paths[0]).tensors}
    have = {t.name: t.data for p in artifact.paths for t in gguf.GGUFReader(p).tensors}
    assert want.keys() == have.keys()
    for name, data in want.items():
        np.testing.assert_array_equal(data, have[name])
    if limit > 1:
        for path in artifact.paths:
            assert sum(int(t.n_bytes) for t in gguf.GGUFReader(path).tensors) <= max(limit, 512 * 68)


def test_parts_in_a_folder_and_as_a_source(registry: PluginRegistry, model: Path, tmp_path: Path) -> None:
    artifact, _ = convert(model, recipe("f16", split_max_bytes=50_000), tmp_path / "parts", registry)
    count = len(artifact.paths)
    assert artifact.paths[0].name == f"llama-F16-00001-of-{count:05d}.gguf"
    again, _ = convert(artifact.paths[0], recipe("f16"), tmp_path / "again.gguf", registry)
    whole, _ = convert(model, recipe("f16"), tmp_path / "whole.gguf", registry)
    want = {t.name: t.data for t in gguf.GGUFReader(whole.paths[0]).tensors}
    for tensor in gguf.GGUFReader(again.paths[0]).tensors:
        np.testing.assert_array_equal(tensor.data, want.pop(tensor.name))
    assert want == {}


def test_gguf_as_a_source_says_that_quality_is_lost(registry: PluginRegistry, model: Path, tmp_path: Path) -> None:
    first, _ = convert(model, recipe("q4_0"), tmp_path / "q4.gguf", registry, verify=False)
    _, events = convert(first.paths[0], recipe("q8_0"), tmp_path / "q8.gguf", registry)
    assert "requantized" in [e.code for e in events if e.severity == "warning"]
    for scheme in ("f32", "f16", "bf16"):
        folder, _ = convert(first.paths[0], Recipe(exporter="hf", scheme=scheme), tmp_path / scheme, registry)
        assert "source-quantized" in [e["code"] for e in folder.manifest["events"]]  # type: ignore[attr-defined]
        assert folder.manifest["bits_per_weight"] == {"f32": 32, "f16": 16, "bf16": 16}[scheme]
