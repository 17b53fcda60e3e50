"""`llmfit plugins list` imports nothing heavy."""

from __future__ import annotations

import json
import os
import subprocess
import sys

HEAVY = ("numpy", "torch", "transformers", "gguf", "libgguf", "xllamacpp", "numba", "tokenizers", "huggingface_hub",
         "pydantic", "ml_dtypes", "jinja2", "httpx", "asyncio", "requests")  # fmt: skip


def test_the_registry_of_everything_installed_is_light():
    code = (
        "import json, sys; from llmfit_core.cli.plugins_cmd import list_plugins; list_plugins(True); "
        f"print(json.dumps([m for m in {HEAVY!r} if m in sys.modules]), file=sys.stderr)"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stderr.splitlines()[-1]) == []
    assert json.loads(done.stdout)["schema"] == 1
