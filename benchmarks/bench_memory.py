"""Whether peak memory follows the model: conversions of a model, of one four times as large, and of one huge tensor.

    python benchmarks/bench_memory.py [--shapes half,half-x4,one-tensor]

Peaks are VmHWM: everything resident, mapped pages of the source included. `one-tensor` is a model whose embedding
alone takes 8.6 GB; its file is a hole, its conversion is not (8.6 GB of room are needed).
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from measuring import llmfit, machine, measure, print_table, summary
from synthetic import SHAPES, tensors

HERE = Path(__file__).parent


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure peak memory.")
    parser.add_argument("--shapes", default="half,half-x4,one-tensor")
    parser.add_argument("--schemes", default="bf16,q8_0,q4_k_m", help="one-tensor is converted to the first two only")
    parser.add_argument("--workers", default="2")
    parser.add_argument("--folder", type=Path, help="where to make models and outputs (9 GB at a time)")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    given = parser.parse_args()
    rows = []
    for shape in given.shapes.split(","):
        schemes = given.schemes.split(",")
        folder = Path(tempfile.mkdtemp(prefix="llmfit-bench-", dir=given.folder))
        try:
            source, out = folder / "model", folder / "out.gguf"
            subprocess.run([sys.executable, str(HERE / "synthetic.py"), shape, str(source)], check=True)
            for scheme in schemes[:2] if shape == "one-tensor" else schemes:
                to = [
                    "--to",
                    f"gguf:{scheme}",
                    "--no-verify",
                    "--workers",
                    given.workers,
                    "-o",
                    str(out),
                    "--overwrite",
                ]
                run = summary([measure(llmfit("convert", str(source), *to))])
                largest, total = _sizes(shape)
                rows.append({"shape": shape, "scheme": scheme, "source_gb": total, "largest_tensor_gb": largest, **run})
                print(f"{shape} {scheme}: {run['peak_mb']} MB", file=sys.stderr)
        finally:
            shutil.rmtree(folder)
    print(json.dumps(machine()))
    head = ["model", "to", "source GB", "largest tensor GB", "seconds", "peak MB"]
    keys = ("shape", "scheme", "source_gb", "largest_tensor_gb", "wall_min", "peak_mb")
    print_table(head, [[row[k] for k in keys] for row in rows])
    if given.json:
        given.json.write_text(json.dumps({"machine": machine(), "figures": rows}, indent=1) + "\n", encoding="utf-8")


def _sizes(shape: str) -> tuple[float, float]:
    """GB of the largest tensor and of all."""
    sizes = []
    for _, dims in tensors(SHAPES[shape]):
        size = 2
        for axis in dims:
            size *= axis
        sizes.append(size / 1e9)
    return round(max(sizes), 2), round(sum(sizes), 2)


if __name__ == "__main__":
    main()
