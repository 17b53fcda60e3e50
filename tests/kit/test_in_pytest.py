"""The kit under pytest, in a folder of an author's own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

TABLE = Path(__file__).parents[2] / "contrib" / "plugin-template"


def run(folder: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "-W", "error", *options, "test_it.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


def test_what_is_not_run_is_skipped_with_its_reason(tmp_path: Path) -> None:
    done = run(tmp_path, "from llmfit_core.testing import NotRun\ndef test_it():\n    raise NotRun('no torch: pip install torch')")
    assert done.returncode == 0, done.stdout
    assert "no torch: pip install torch" in done.stdout
    assert "1 skipped" in done.stdout


def test_figures_and_overrides_are_shown_and_recorded(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp", reason="the runtime that scores")
    text = (
        "from llmfit_acme import ACME\n"
        "from llmfit_acme_samples import SAMPLES\n"
        "from llmfit_core.testing import ArchitectureTests\n"
        "class TestAcme(ArchitectureTests):\n"
        "    architecture = ACME\n"
        "    sample = {**SAMPLES['architectures']['acme'], 'variations': {}}\n"
        "    overrides = {'test_the_wiring_is_true': 'shown here and proven elsewhere'}\n"
        "    def test_the_wiring_is_true(self, case):\n"
        "        assert case == 'base'\n"
    )
    done = run(tmp_path, text, "-p", "llmfit_core.testing", "--llmfit-record", "figures.jsonl", "-k", "same or wiring")
    assert done.returncode == 0, done.stdout
    assert "TestAcme overrides test_the_wiring_is_true: shown here and proven elsewhere" in done.stdout
    assert "acme AcmeForCausalLM base: mean KL" in done.stdout
    (figure,) = map(json.loads, (tmp_path / "figures.jsonl").read_text(encoding="utf-8").splitlines())
    assert figure["kl"] < 1e-5
    assert (figure["architecture"], figure["variation"], figure["reference"]) == ("acme", "base", "the author's formulas")
    assert figure["runtime_version"]


def test_a_conftest_may_name_it_after_it_was_imported(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "from llmfit_core.testing import ArchitectureTests\npytest_plugins = ['llmfit_core.testing']\n", encoding="utf-8"
    )
    done = run(tmp_path, "def test_it():\n    pass\n")
    assert done.returncode == 0, done.stdout
