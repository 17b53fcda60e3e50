"""Without torch the part that goes by shapes runs from a fixture, and the rest says what it lacks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from llmfit_core.errors import SourceError
from llmfit_core.testing.bench import BASE
from llmfit_core.testing.fixture import main, read_fixture, write_fixture
from llmfit_core.testing.tiny_llama import CONFIG, bench

TEXT = """
from llmfit_core.testing import ArchitectureTests
from llmfit_llama import LLAMA
class TestLlama(ArchitectureTests):
    architecture = LLAMA
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    fixture = "llama.json"
"""


@pytest.fixture
def author(tmp_path: Path) -> Path:
    """A folder with a test and its fixture, and a torch that cannot be imported."""
    made = bench()
    built = made.built(BASE)
    write_fixture(tmp_path / "llama.json", {**built.config, **CONFIG}, built.start, built.origin)
    assert main([str(built.folder), "-o", str(tmp_path / "from-folder.json")]) == 0
    made.close()
    (tmp_path / "test_it.py").write_text(TEXT, encoding="utf-8")
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "torch.py").write_text("raise ImportError('hidden by the test')\n", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("name", ["llama.json", "from-folder.json"])
def test_the_part_that_goes_by_shapes_runs(author: Path, name: str) -> None:
    path = author / "test_it.py"
    path.write_text(TEXT.replace("llama.json", name), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "-W", "error", "-o", "addopts=", "test_it.py"]
    env = {**os.environ, "PYTHONPATH": str(author / "hidden")}
    done = subprocess.run(command, cwd=author, capture_output=True, text=True, timeout=300, check=False, env=env)
    assert done.returncode == 0, done.stdout
    for test in ("every_saved_tensor_is_claimed_once", "a_missing_tensor_is_an_error", "shapes_agree_with_hparams", "exports_reopen", "it_comes_back"):
        assert f"PASSED test_it.py::TestLlama::test_{test}[base]" in done.stdout
    assert "PASSED test_it.py::TestLlama::test_the_runtime_computes_the_same" not in done.stdout
    assert "pip install torch transformers" in done.stdout


def test_what_is_no_fixture_is_an_error(tmp_path: Path) -> None:
    for text in ("", "[]", "{}", '{"schema": 2, "config": {}, "tensors": {}}', '{"schema": 1, "config": {}, "tensors": {"a": 7}}'):
        (tmp_path / "x.json").write_text(text, encoding="utf-8")
        with pytest.raises(SourceError) as caught:
            read_fixture(tmp_path / "x.json")
        assert caught.value.code == "fixture-invalid"
