"""What a plugin's entry module drags in, seen in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

from llmfit_core.testing.outcome import CheckFailed, few, require

HEAVY = (
    "torch", "transformers", "numpy", "gguf", "xllamacpp", "numba", "tokenizers", "sentencepiece", "huggingface_hub",
    "libgguf", "safetensors", "scipy", "pandas", "tensorflow", "jax", "onnx", "llama_cpp", "vllm",
)  # fmt: skip


def check_light(module: str) -> float:
    """Import a module as llmfit does at each start; gives the seconds it took beyond the core.

    Args:
        module: The entry module. It is looked for where this process looks.

    Raises:
        CheckFailed: It does not import, or imports what belongs inside functions.
    """
    code = (
        "import importlib, json, sys, time\n"
        "sys.path[:] = json.loads(sys.argv[2])\n"
        "import llmfit_core\n"
        "before, start = set(sys.modules), time.perf_counter()\n"
        "importlib.import_module(sys.argv[1])\n"
        "took = time.perf_counter() - start\n"
        "print(json.dumps([took, sorted(set(sys.modules) - before)]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, module, json.dumps(sys.path)], capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode:
        raise CheckFailed(f"{module} does not import: {few(done.stderr.strip().splitlines()[-1:])}")
    took, modules = json.loads(done.stdout.splitlines()[-1])
    heavy = sorted({m.partition(".")[0] for m in modules} & set(HEAVY))
    require(not heavy, f"{module} imports {few(heavy)} when it is loaded; import it inside the functions that need it")
    return float(took)
