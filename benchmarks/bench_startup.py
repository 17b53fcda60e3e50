"""How long llmfit takes before it works: whole processes, files in the page cache.

    python benchmarks/bench_startup.py

`plugins list`; then `plan` and `inspect` of a model of Llama 3 70B's shape in 8 shards and of a mixture of experts
with 18,867 tensors in 16 shards (Qwen3-30B-A3B's shape), both with whole tokenizers (128 k and 152 k tokens) and
headers without weights behind them: 141 GB and 61 GB of nothing, which could not be read in the time.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from measuring import alternate, llmfit, machine, measure, print_table, summary

HERE = Path(__file__).parent
SMALL = ("half-headers", "70b", "moe")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure start-up.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="where to make the folders (20 MB of room)")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="llmfit-bench-", dir=given.folder))
    try:
        argvs = {"python -c pass": [sys.executable, "-c", "pass"], "plugins list": llmfit("plugins", "list")}
        for shape in SMALL:
            subprocess.run([sys.executable, str(HERE / "synthetic.py"), shape, str(folder / shape)], check=True)
            argvs[f"plan {shape}"] = llmfit("plan", str(folder / shape), "--to", "gguf:q4_k_m")
            argvs[f"inspect {shape}"] = llmfit("inspect", str(folder / shape))
        for argv in argvs.values():
            measure(argv)  # byte code and page cache
        tasks = {name: partial(measure, argv) for name, argv in argvs.items()}
        runs = alternate(tasks, given.rounds)
    finally:
        shutil.rmtree(folder)
    figures = {name: summary(r) for name, r in runs.items()}
    print(json.dumps(machine()))
    head = ["command", "least s", "median s", "CPU s", "peak MB"]
    print_table(head, [[n, f["wall_min"], f["wall_median"], f["cpu_median"], f["peak_mb"]] for n, f in figures.items()])
    if given.json:
        given.json.write_text(json.dumps({"machine": machine(), "figures": figures}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
