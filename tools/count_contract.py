"""How much of the architecture plugins is table, and how much is code.

    python tools/count_contract.py

Counts physical lines, blank lines, comments and docstrings left out, of every architecture plugin's modules: `tables` are
module-level declarations (assignments), `numbers` functions that say numbers from numbers (hparams to hparams), `tensors`
functions and classes that touch tensors: what would be transforms. Decoders, which read a source and rewrite nothing for a
format, do not count, and samples for the kit neither.
"""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FORMATS_AND_RUNTIMES = {"llmfit-gguf", "llmfit-llamacpp"}
DECODERS = {"decode.py", "decoding.py", "ternary.py", "mxfp4.py"}
TOUCHING = ("Tensor", "numpy", "np.", ".rows(", "dequant", "unpack")
"""What a function names that works on tensors."""


def code_lines(source: str) -> set[int]:
    """Numbers of the lines that hold more than a comment or a docstring."""
    quiet = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in quiet:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            said = node.body[0]
            lines -= set(range(said.lineno, (said.end_lineno or said.lineno) + 1))
    return lines


def counted(path: Path) -> tuple[int, int, int]:
    """Lines of tables, of functions over numbers, and of functions over tensors in one module."""
    source = path.read_text(encoding="utf-8")
    lines = code_lines(source)
    tables = numbers = tensors = 0
    for node in ast.parse(source).body:
        own = len(lines & set(range(node.lineno, (node.end_lineno or node.lineno) + 1)))
        if isinstance(node, ast.Assign | ast.AnnAssign):
            tables += own
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            text = ast.unparse(node)
            if "hookimpl" in text:
                continue
            touches = any(word in text for word in TOUCHING)
            tensors, numbers = tensors + own * touches, numbers + own * (not touches)
    return tables, numbers, tensors


def main() -> None:
    """Print a table, one row for each distribution."""
    total = [0, 0, 0]
    print(f"{'distribution':24}{'tables':>8}{'numbers':>9}{'tensors':>9}")
    for folder in sorted((ROOT / "plugins").iterdir()):
        modules = [*folder.glob("llmfit_*.py"), *folder.glob("src/*/*.py")]
        modules = [m for m in modules if m.name not in DECODERS and "samples" not in m.name]
        if not any("Architecture(" in m.read_text(encoding="utf-8") for m in modules) or folder.name in FORMATS_AND_RUNTIMES:
            continue
        rows = [counted(m) for m in modules]
        sums = [sum(column) for column in zip(*rows, strict=True)]
        total = [a + b for a, b in zip(total, sums, strict=True)]
        print(f"{folder.name:24}{sums[0]:8}{sums[1]:9}{sums[2]:9}")
    print(f"{'all':24}{total[0]:8}{total[1]:9}{total[2]:9}")
    print(f"code in all: {(total[1] + total[2]) / sum(total):.0%}; over tensors: {total[2] / sum(total):.0%}")


if __name__ == "__main__":
    main()
