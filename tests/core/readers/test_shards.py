"""Which files form a checkpoint, and whether they fit together."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import save_file

from llmfit_core.errors import SourceError
from llmfit_core.readers.folder import folder_files
from llmfit_core.readers.shards import read_weights
from llmfit_core.tensors import read

if TYPE_CHECKING:
    from pathlib import Path

LAYERS = 4


def model() -> dict[str, torch.Tensor]:
    tensors = {"model.embed_tokens.weight": torch.randn(8, 4), "lm_head.weight": torch.randn(8, 4)}
    for layer in range(LAYERS):
        for part in ("self_attn.q_proj", "self_attn.k_proj", "mlp.up_proj"):
            tensors[f"model.layers.{layer}.{part}.weight"] = torch.randn(4, 4)
    return tensors


def shard_of(name: str) -> int:
    """Embedding and layer 0 first, two middle layers second, the rest third."""
    if ".layers." not in name:
        return 1 if "embed" in name else 3
    return {0: 1, 1: 2, 2: 2, 3: 3}[int(name.split(".")[2])]


def save_shards(folder: Path, *, index: bool = True, suffix: str = "safetensors") -> dict[str, torch.Tensor]:
    tensors = model()
    stem = "model" if suffix == "safetensors" else "pytorch_model"
    weight_map = {}
    for number in (1, 2, 3):
        file = f"{stem}-{number:05d}-of-00003.{suffix}"
        part = {n: t for n, t in tensors.items() if shard_of(n) == number}
        weight_map.update(dict.fromkeys(part, file))
        if suffix == "safetensors":
            save_file(part, str(folder / file))
        else:
            torch.save(part, folder / file)
    if index:
        (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return tensors


def load(folder: Path, **options: int):
    return read_weights(folder_files(folder), **options)


def refusal(folder: Path, **options: int) -> SourceError:
    with pytest.raises(SourceError) as caught:
        load(folder, **options)
    assert "\n" not in caught.value.cause
    assert caught.value.remedy
    return caught.value


def same(weights, tensors) -> bool:
    return set(weights.tensors) == set(tensors) and all(
        (torch.from_numpy(read(ref.tensor).copy()) == tensors[name]).all() for name, ref in weights.tensors.items()
    )


def codes(weights) -> set[str]:
    return {e.code for e in weights.events}


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_shards_join(tmp_path, index, suffix):
    tensors = save_shards(tmp_path, index=index, suffix=suffix)
    weights = load(tmp_path)
    assert same(weights, tensors)
    assert [int(p.name.split("-")[1]) for p in weights.files] == [1, 2, 3]
    assert codes(weights) == (set() if index else {"no-index"})


def test_single_file(tmp_path):
    tensors = model()
    save_file(tensors, str(tmp_path / "model.safetensors"))
    weights = load(tmp_path)
    assert same(weights, tensors)
    assert weights.events == ()


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_missing_shard_with_index_names_shard_and_tensors(tmp_path, suffix):
    save_shards(tmp_path, suffix=suffix)
    stem = "model" if suffix == "safetensors" else "pytorch_model"
    (tmp_path / f"{stem}-00002-of-00003.{suffix}").unlink()
    error = refusal(tmp_path)
    assert error.code == "missing-shard"
    assert f"{stem}-00002-of-00003.{suffix}" in error.cause
    assert "model.layers.1.self_attn.q_proj.weight" in error.cause
    assert "1 more" in error.cause


def test_missing_middle_shard_without_index_names_shard_and_tensors(tmp_path):
    save_shards(tmp_path, index=False)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    error = refusal(tmp_path)
    assert error.code == "missing-shard"
    assert "model-00002-of-00003.safetensors" in error.cause
    assert "model.layers.1.self_attn.q_proj.weight" in error.cause


def test_missing_last_shard_without_index_is_named_by_the_layer_count(tmp_path):
    save_shards(tmp_path, index=False)
    (tmp_path / "model-00003-of-00003.safetensors").unlink()
    assert "no final norm" in refusal(tmp_path).cause
    assert "model.layers.3.mlp.up_proj.weight" in refusal(tmp_path, layers=LAYERS).cause


@pytest.mark.parametrize(("number", "absent"), [(1, "token embedding"), (3, "final norm")])
def test_a_missing_shard_without_index_names_what_stands_around_the_layers(tmp_path, number, absent):
    """Two layers, cut in their midst: once 'what it holds, only an index could tell'."""
    layers = [f"model.layers.{i}.{r}.weight" for i in range(2) for r in ("self_attn.q_proj", "mlp.up_proj")]
    shards = [["model.embed_tokens.weight", layers[0]], layers[1:3], [layers[3], "model.norm.weight", "lm_head.weight"]]
    for i, names in enumerate(shards, 1):
        if i != number:
            one = {n: torch.ones(2, 2) for n in names}
            save_file(one, str(tmp_path / f"model-{i:05d}-of-00003.safetensors"))
    cause = refusal(tmp_path, layers=2).cause
    assert f"no {absent}" in cause
    assert next(n for n in shards[number - 1] if "layers" in n) in cause


def test_index_names_a_tensor_its_shard_lacks(tmp_path):
    save_shards(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["model.norm.weight"] = "model-00001-of-00003.safetensors"
    index.write_text(json.dumps(content))
    error = refusal(tmp_path)
    assert error.code == "index-mismatch"
    assert "model.norm.weight" in error.cause
    assert "model-00001-of-00003.safetensors" in error.cause


def test_shard_holds_a_tensor_the_index_does_not_name(tmp_path):
    save_shards(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    del content["weight_map"]["model.layers.1.mlp.up_proj.weight"]
    index.write_text(json.dumps(content))
    error = refusal(tmp_path)
    assert error.code == "index-mismatch"
    assert "model.layers.1.mlp.up_proj.weight" in error.cause


def test_index_places_a_tensor_in_the_wrong_shard(tmp_path):
    save_shards(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["model.layers.1.mlp.up_proj.weight"] = "model-00001-of-00003.safetensors"
    index.write_text(json.dumps(content))
    assert refusal(tmp_path).code == "index-mismatch"


def test_a_tensor_in_two_shards(tmp_path):
    save_shards(tmp_path, index=False)
    save_file(
        {"model.layers.1.mlp.up_proj.weight": torch.ones(4, 4)}, str(tmp_path / "model-00003-of-00003.safetensors")
    )
    error = refusal(tmp_path)
    assert error.code == "duplicate-tensor"
    assert "model.layers.1.mlp.up_proj.weight" in error.cause
    assert "00002-of-00003" in error.cause
    assert "00003-of-00003" in error.cause


@pytest.mark.parametrize(
    "file",
    [
        "../../x.safetensors",
        "/etc/x.safetensors",
        "a/b.safetensors",
        "..\\x.safetensors",
        "C:x.safetensors",
        "x\0.safetensors",
        ".x.safetensors",
    ],
)
def test_index_cannot_lead_out_of_the_folder(tmp_path, file):
    folder = tmp_path / "model" / "here"
    folder.mkdir(parents=True)
    save_file({"a": torch.ones(2)}, str(tmp_path / "x.safetensors"))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": file}}))
    error = refusal(folder)
    assert error.code == "unsafe-path"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b'{"weight_map": []}',
        b'{"weight_map": {}}',
        b'{"weight_map": {"a": 3}}',
        b'{"weight_map": {"a": "a.exe"}}',
        b'{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}',
        b'{"weight_map": ' + b'{"a":' * 100_000,
        b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n",
        b"\xff\xfe{}",
        b"<html>",
    ],
)
def test_bad_index(tmp_path, content):
    save_shards(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_bytes(content)
    assert refusal(tmp_path).code in ("bad-json", "bad-index", "git-lfs-pointer", "html-page", "empty-file")


def test_both_formats(tmp_path):
    save_shards(tmp_path)
    save_shards(tmp_path, suffix="bin")
    weights = load(tmp_path)
    assert all(p.suffix == ".safetensors" for p in weights.files)
    assert codes(weights) == {"both-formats"}


def test_strays_are_named_and_ignored(tmp_path):
    tensors = model()
    save_file(tensors, str(tmp_path / "model.safetensors"))
    save_file({"tok_embeddings.weight": torch.ones(2)}, str(tmp_path / "consolidated.safetensors"))
    weights = load(tmp_path)
    assert same(weights, tensors)
    (event,) = weights.events
    assert event.severity == "info"
    assert "consolidated.safetensors" in event.message


def test_a_shard_the_index_does_not_know_is_a_warning(tmp_path):
    save_shards(tmp_path)
    save_file({"x": torch.ones(2)}, str(tmp_path / "model-00004-of-00004.safetensors"))
    (event,) = load(tmp_path).events
    assert event.severity == "warning"
    assert "model-00004-of-00004" in event.message


def test_single_file_and_an_index_of_other_shards(tmp_path):
    save_shards(tmp_path)
    tensors = model()
    save_file(tensors, str(tmp_path / "model.safetensors"))
    weights = load(tmp_path)
    assert same(weights, tensors)
    assert "single-file-and-index" in codes(weights)


def test_single_file_is_held_against_its_index(tmp_path):
    save_file({"a": torch.ones(2)}, str(tmp_path / "model.safetensors"))
    index = {"weight_map": {"a": "model.safetensors", "b": "model.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert refusal(tmp_path).code == "index-mismatch"


def test_odd_name_alone(tmp_path):
    save_file(model(), str(tmp_path / "my-model.safetensors"))
    weights = load(tmp_path)
    assert codes(weights) == {"odd-weight-name"}
    save_file(model(), str(tmp_path / "other.safetensors"))
    error = refusal(tmp_path)
    assert error.code == "ambiguous-weights"
    assert "other.safetensors" in error.cause


def test_two_sets_of_shards(tmp_path):
    save_shards(tmp_path, index=False)
    save_file({"z": torch.ones(2)}, str(tmp_path / "model-00001-of-00002.safetensors"))
    assert refusal(tmp_path).code == "ambiguous-weights"


@pytest.mark.parametrize(
    ("files", "code", "says"),
    [
        ([], "no-weights", "no weights"),
        (["config.json", "tokenizer.json"], "no-weights", "no weights"),
        (["config.json", "consolidated.00.pth"], "no-weights", "consolidated.00.pth"),
        (["config.json", "tf_model.h5"], "no-weights", "tf_model.h5"),
        (["model-q4_k_m.gguf"], "no-weights", "model-q4_k_m.gguf"),
        (["config.json", "training_args.bin", "optimizer.bin"], "no-weights", "no weights"),
        (["adapter_config.json", "adapter_model.safetensors"], "adapter-weights", "adapter"),
        (["adapter_model.bin"], "adapter-weights", "adapter"),
    ],
)
def test_no_weights(tmp_path, files, code, says):
    for name in files:
        (tmp_path / name).write_bytes(b"{}")
    error = refusal(tmp_path)
    assert error.code == code
    assert says in error.cause


def test_empty_weights(tmp_path):
    save_file({}, str(tmp_path / "model.safetensors"))
    assert refusal(tmp_path).code == "no-weights"


def test_hub_cache_snapshot(tmp_path):
    blobs = tmp_path / "models--org--name" / "blobs"
    snapshot = tmp_path / "models--org--name" / "snapshots" / ("a" * 40)
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    tensors = model()
    save_file(tensors, str(blobs / "deadbeef"))
    (snapshot / "model.safetensors").symlink_to("../../blobs/deadbeef")
    weights = load(snapshot)
    assert same(weights, tensors)
    assert weights.files[0].name == "model.safetensors"
    assert weights.tensors["lm_head.weight"].tensor.files()[0].endswith("model.safetensors")
    (blobs / "deadbeef").unlink()
    error = refusal(snapshot)
    assert error.code == "dangling-link"
    assert "model.safetensors" in error.cause
    assert "../../blobs/deadbeef" in error.cause


def test_weight_sets_can_be_pickled(tmp_path):
    save_shards(tmp_path)
    weights = load(tmp_path)
    assert pickle.loads(pickle.dumps(weights)) == weights
