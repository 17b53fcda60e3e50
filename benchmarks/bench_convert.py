"""Conversion of a 0.55 B bf16 model, whole processes side by side with llama.cpp's converter and quantizer.

    python benchmarks/bench_convert.py [--peer-converter convert_hf_to_gguf.py] [--llama-quantize llama-quantize]

Ours reads the checkpoint and writes the final file in one process, hashes source and result, and syncs the result to
disk before it is renamed. The peer's converter writes bf16; its quantizer makes Q4_K_M of that file on as many threads
as ours has. The peer hashes nothing and syncs nothing. Both find the source in the page cache and write to one disk.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from measuring import Run, alternate, llmfit, machine, measure, print_table, summary, warm

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent


def main() -> None:
    """Measure and print."""
    given = _arguments()
    folder = Path(tempfile.mkdtemp(prefix="llmfit-bench-", dir=given.folder))
    try:
        source = given.model or _model(folder, given.shape)
        results = _compare(given, source, folder)
    finally:
        shutil.rmtree(folder)
    _print(results)
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure conversions.")
    parser.add_argument("--peer-converter", type=Path, help="llama.cpp's convert_hf_to_gguf.py")
    parser.add_argument("--peer-python", default=sys.executable, help="a Python with torch and transformers")
    parser.add_argument("--llama-quantize", type=Path, help="llama.cpp's llama-quantize")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shape", default="half", help="a name of synthetic.SHAPES")
    parser.add_argument("--model", type=Path, help="a folder to convert instead of a synthetic model")
    parser.add_argument("--schemes", default="bf16,q4_k_m")
    parser.add_argument(
        "--folder", type=Path, help="where to make models and outputs (4 GB); the usual temporary place else"
    )
    parser.add_argument("--json", type=Path, help="write the figures there too")
    return parser.parse_args()


def _model(folder: Path, shape: str) -> Path:
    """In a process of its own, so that this one stays small."""
    subprocess.run([sys.executable, str(HERE / "synthetic.py"), shape, str(folder / "model")], check=True)
    return folder / "model"


def _compare(given: argparse.Namespace, source: Path, folder: Path) -> dict[str, object]:
    schemes = given.schemes.split(",")
    tasks: dict[str, Callable[[], Run]] = {}
    bf16, threads = folder / "peer-bf16.gguf", str(given.threads)

    def fresh(path: Path, *argv: str) -> Run:
        path.unlink(missing_ok=True)
        return measure(argv)

    for scheme in schemes:
        out = folder / f"ours-{scheme}.gguf"
        argv = llmfit(
            "convert", str(source), "--to", f"gguf:{scheme}", "--no-verify", "--workers", threads, "-o", str(out)
        )
        tasks[f"llmfit {scheme}"] = partial(fresh, out, *argv)
    if given.peer_converter:
        argv = [given.peer_python, str(given.peer_converter), str(source), "--outtype", "bf16", "--outfile", str(bf16)]
        tasks["converter bf16"] = partial(fresh, bf16, *argv)
        if given.llama_quantize:
            for scheme in schemes:
                if scheme in ("bf16", "f16", "f32"):
                    continue
                out = folder / f"peer-{scheme}.gguf"
                argv = [str(given.llama_quantize), str(bf16), str(out), scheme.upper(), threads]
                tasks[f"quantize {scheme}"] = partial(fresh, out, *argv)
    warm(source)
    runs = alternate(tasks, given.rounds, lambda line: print(line, file=sys.stderr))
    results: dict[str, object] = {"machine": machine(), "threads": given.threads, "shape": given.shape}
    results["figures"] = {name: summary(r) for name, r in runs.items()}
    results["ratios"] = _ratios(runs, schemes)
    return results


def _ratios(runs: dict[str, list[Run]], schemes: list[str]) -> dict[str, dict[str, float]]:
    """How many times as long the peer takes, by least time, by median time and by CPU time."""
    out: dict[str, dict[str, float]] = {}
    for scheme in schemes:
        steps = ["converter bf16"] if scheme == "bf16" else ["converter bf16", f"quantize {scheme}"]
        if any(step not in runs for step in steps):
            continue
        ours, peer = summary(runs[f"llmfit {scheme}"]), [summary(runs[step]) for step in steps]
        keys = {"least": "wall_min", "median": "wall_median", "cpu": "cpu_median"}
        out[scheme] = {name: round(sum(p[key] for p in peer) / ours[key], 2) for name, key in keys.items()}
    return out


def _print(results: dict[str, object]) -> None:
    figures: dict[str, dict[str, float]] = results["figures"]  # type: ignore[assignment]
    ratios: dict[str, dict[str, float]] = results["ratios"]  # type: ignore[assignment]
    print(json.dumps(results["machine"]))
    head = ["process", "least s", "median s", "CPU s", "peak MB"]
    print_table(head, [[n, f["wall_min"], f["wall_median"], f["cpu_median"], f["peak_mb"]] for n, f in figures.items()])
    if ratios:
        print()
        print_table(
            ["peer / llmfit", "least", "median", "CPU"],
            [[n, r["least"], r["median"], r["cpu"]] for n, r in ratios.items()],
        )


if __name__ == "__main__":
    main()
