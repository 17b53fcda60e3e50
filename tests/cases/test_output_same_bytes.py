"""The same input, options and versions give the same bytes, whatever surrounds them."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from llmfit_core.pipeline import convert
from llmfit_core.plan import Recipe
from tests.tiny import tiny

if TYPE_CHECKING:
    from llmfit_core.plugins import PluginRegistry

SIZES = {"hidden": 256, "heads": 4, "head": 64, "ffn": 512}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny("qwen2moe", tmp_path_factory.mktemp("model"), **SIZES)


def tree(folder: Path) -> dict[str, str]:
    return {
        p.relative_to(folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.rglob("*") if p.is_file()
    }


@pytest.mark.parametrize("to", ["gguf:q4_k_m", "gguf:f32", "hf:f16", "hf:bf16"])
def test_whatever_surrounds_them(model: Path, tmp_path: Path, to: str) -> None:
    results = []
    for seed, name, workers, zone in (("0", "a", "1", "UTC"), ("1", "some other name", "2", "Asia/Tokyo"), ("7", "c-7b-f16", "5", "UTC")):
        source = tmp_path / name / "deep" / name
        shutil.copytree(model, source)
        for file in source.iterdir():
            os.utime(file, (int(seed), int(seed)))
        out = tmp_path / f"out {seed}"
        subprocess.run(
            [sys.executable, "-c", "from llmfit_core.cli import main; main()", "convert", str(source), "--to", to,
             "-o", str(out), "--workers", workers, "--no-verify"],
            check=True, capture_output=True, env=os.environ | {"PYTHONHASHSEED": seed, "TZ": zone}, cwd=source.parent,
        )  # fmt: skip
        results.append(tree(out))
    assert results[0] == results[1] == results[2]
    assert "llmfit.json" in results[0]


@pytest.mark.parametrize("shards", [1, 2, 5])
def test_whatever_the_shards(registry: PluginRegistry, model: Path, tmp_path: Path, shards: int) -> None:
    source = tiny("qwen2moe", tmp_path / "model", shards=shards, **SIZES)
    for recipe in (Recipe(exporter="gguf", scheme="q4_k_m"), Recipe(exporter="gguf", scheme="bf16")):
        one, _ = convert(model, recipe, tmp_path / "a" / recipe.scheme, registry, verify=False)
        other, _ = convert(source, recipe, tmp_path / "b" / recipe.scheme, registry, verify=False)
        assert one.paths[0].read_bytes() == other.paths[0].read_bytes()


def test_no_path_leaks(registry: PluginRegistry, tmp_path: Path) -> None:
    source = tiny("llama", tmp_path / "Secret-Folder-Name")
    for recipe in (Recipe(exporter="gguf", scheme="f16"), Recipe(exporter="hf", scheme="bf16")):
        convert(source, recipe, tmp_path / recipe.exporter, registry)
        for file in (tmp_path / recipe.exporter).rglob("*"):
            assert b"Secret-Folder" not in file.read_bytes(), file
            assert os.fsencode(tmp_path) not in file.read_bytes(), file
