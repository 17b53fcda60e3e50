"""Folders of sentence-transformers: what the file says, what is served, and decoders that embed."""

from __future__ import annotations

import json
import shutil
import urllib.request
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from llmfit_core.errors import StrictError, UnsupportedError
from llmfit_core.pipeline import convert, plan_conversion
from llmfit_core.plan import Recipe
from llmfit_core.pooling import pooling_files
from llmfit_core.readers.gguf import read_gguf
from llmfit_core.runtime import LaunchOptions
from tests.e2e.vectors import apart, by_llamacpp, by_transformers, some_ids

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from llmfit_core.plugins import PluginRegistry
    from tests.golden_models import GoldenModels

    ToGguf = Callable[..., tuple[Path, tuple[Any, ...]]]


def pooled(model: Path, to: Path, name: str, width: int) -> Path:
    """A copy of a model's folder with sentence-transformers' files beside it."""
    shutil.copytree(model, to)
    for place, data in pooling_files(name, width).items():
        (to / place).parent.mkdir(exist_ok=True)
        (to / place).write_bytes(data)
    return to


@pytest.mark.parametrize("name", ["cls", "mean"])
def test_the_file_pools_as_the_folder_says(
    name: str, encoder: Callable[..., Path], to_gguf: ToGguf, to_hf: Callable[..., Path], tmp_path: Path
) -> None:
    model = encoder("BertModel", "BertConfig", "wpm")
    file, _ = to_gguf(pooled(model, tmp_path / "model", name, 64))
    assert read_gguf(file).kv["bert.pooling_type"].value == {"mean": 1, "cls": 2}[name]
    ids = some_ids(model, 20)
    rows = by_transformers(model, ids)
    have = by_llamacpp(file, ids, "")
    assert have.shape == (1, 64)
    assert apart(have[0], rows.mean(0) if name == "mean" else rows[0]) < 1e-6
    back = json.loads((to_hf(file) / "1_Pooling" / "config.json").read_text(encoding="utf-8"))
    assert (back["pooling_mode_cls_token"], back["pooling_mode_mean_tokens"]) == (name == "cls", name == "mean")


def test_served_vectors_are_those_of_sentence_transformers(
    encoder: Callable[..., Path], registry: PluginRegistry, tmp_path: Path
) -> None:
    """The whole way from a text: tokens, model, pooling, length one."""
    import transformers

    from llmfit_core.launch import launch
    from llmfit_llamacpp import LLAMACPP

    model = pooled(encoder("BertModel", "BertConfig", "wpm"), tmp_path / "model", "mean", 64)
    convert(model, Recipe(exporter="gguf", scheme="f32"), tmp_path / "served.gguf", registry)
    text = "The licensee MAY copy caf\u00e9, and so on."
    ids = transformers.AutoTokenizer.from_pretrained(model)(text)["input_ids"]
    want = by_transformers(model, ids).mean(0)
    with launch(LLAMACPP.plan(tmp_path / "served.gguf", LaunchOptions(port=0, threads=2, gpu_layers=0))) as server:
        body = json.dumps({"input": text}).encode()
        request = urllib.request.Request(f"{server.url}/v1/embeddings", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            have = np.array(json.load(answer)["data"][0]["embedding"])
    assert abs(np.linalg.norm(have) - 1) < 1e-5
    assert np.abs(have - want / np.linalg.norm(want)).max() < 1e-3


def test_a_file_that_does_not_say_is_served_by_the_mean_and_told(encoder: Callable[..., Path], to_gguf: ToGguf) -> None:
    from llmfit_llamacpp import LLAMACPP

    file, _ = to_gguf(encoder("BertModel", "BertConfig", "wpm"))
    plan = LLAMACPP.plan(file, LaunchOptions(port=0))
    assert "--pooling=mean" in plan.argv
    assert [e.severity for e in plan.events if e.code == "pooling-assumed"] == ["fallback"]
    told = LLAMACPP.plan(file, LaunchOptions(port=0, pooling="cls"))
    assert "pooling-assumed" not in [e.code for e in told.events]


def test_an_encoder_generates_nothing(encoder: Callable[..., Path], to_gguf: ToGguf) -> None:
    from llmfit_llamacpp import LLAMACPP

    file, _ = to_gguf(encoder("BertModel", "BertConfig", "wpm"))
    assert LLAMACPP.score is not None
    with pytest.raises(UnsupportedError) as caught:
        LLAMACPP.score(file, [1, 2], LaunchOptions())
    assert caught.value.code == "only-embeds"


def test_a_dense_module_counts_under_strict(encoder: Callable[..., Path], registry: PluginRegistry, tmp_path: Path) -> None:
    model = pooled(encoder("BertModel", "BertConfig", "wpm"), tmp_path / "model", "mean", 64)
    modules = json.loads((model / "modules.json").read_text(encoding="utf-8"))
    modules.append({"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"})
    (model / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    planned = plan_conversion(model, Recipe(exporter="gguf", scheme="f32"), registry)
    assert "module-left-out" in [e.code for e in planned.plan.events]
    with pytest.raises(StrictError):
        plan_conversion(model, Recipe(exporter="gguf", scheme="f32", strict=True), registry)


def test_a_decoder_that_embeds(golden_models: GoldenModels, to_gguf: ToGguf, tmp_path: Path) -> None:
    """Qwen3-Embedding's make: a causal model whose last token stands for the text."""
    model = golden_models.variation("qwen3", {})
    file, _ = to_gguf(pooled(model, tmp_path / "model", "last", 128))
    assert read_gguf(file).kv["qwen3.pooling_type"].value == 3
    ids = some_ids(model, 30)
    rows = by_transformers(model, ids)
    assert apart(by_llamacpp(file, ids, "")[0], rows[-1]) < 1e-6
    assert apart(by_llamacpp(file, ids), rows) < 1e-6
