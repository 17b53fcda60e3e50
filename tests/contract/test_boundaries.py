"""What may import what, for plugins that are one module (import-linter holds the packages)."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Samples are what the conformance kit imports, and no user's machine.
MODULES = sorted(
    p for p in (*ROOT.glob("plugins/*/llmfit_*.py"), *ROOT.glob("contrib/*/llmfit_*.py")) if not p.stem.endswith("_samples")
)
HEAVY = ("torch", "transformers", "numpy", "gguf", "xllamacpp", "numba", "tokenizers", "huggingface_hub", "libgguf")


@pytest.mark.parametrize("path", MODULES, ids=lambda p: p.stem)
def test_a_table_imports_the_cores_public_names_and_nothing_else_of_ours(path: Path) -> None:
    import llmfit_core

    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("llmfit"):
            assert node.module == "llmfit_core"
            assert {a.name for a in node.names} <= set(llmfit_core.__all__)
        if isinstance(node, ast.Import):
            assert not any(a.name.startswith("llmfit") for a in node.names)


def test_listing_plugins_imports_nothing_heavy() -> None:
    code = (
        "import sys; from llmfit_core.plugins import load_plugins; load_plugins().records(); "
        f"print([m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
