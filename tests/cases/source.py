"""Running the real command line on a source, and asserting what every refusal and every success has in common."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from llmfit_core.cli.guarded import run


@dataclass(frozen=True)
class Outcome:
    """What a command did."""

    code: int
    out: str
    err: str


def command(*arguments: object) -> Outcome:
    """The command line, in this process."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = run([str(a) for a in arguments])
    return Outcome(code, out.getvalue(), err.getvalue())


def refused(folder: Path, error: str, *words: str, exit_code: int = 3, to: str = "gguf:f32", flags: tuple[str, ...] = ()) -> str:
    """`convert` refuses: one line of cause with all of `words`, one of remedy, no traceback, nothing written.

    Returns:
        The cause.
    """
    place = folder.parent / f"{folder.name}-refused"
    said = command("convert", folder, "-o", place / "model.gguf", "--to", to, "--no-verify", *flags)
    assert said.code == exit_code, f"exit {said.code}: {said.err}"
    lines = [line for line in said.err.splitlines() if line.startswith(("error:", "  fix:"))]
    assert [line[:6] for line in lines] == ["error:", "  fix:"], said.err
    assert lines[0].endswith(f"[{error}]"), lines[0]
    assert len(lines[1]) > 12
    assert "Traceback" not in said.err + said.out
    for word in words:
        assert word in lines[0], f"{word!r} is not in {lines[0]!r}"
    assert not place.exists() or not any(p.suffix == ".gguf" or p.name == "llmfit.json" for p in place.rglob("*"))
    return lines[0]


@dataclass(frozen=True)
class Converted:
    """A converted model, read back by gguf's own reader."""

    path: Path
    keys: dict[str, Any]
    tensors: dict[str, np.ndarray]
    events: list[dict[str, str]]

    def codes(self, *severities: str) -> list[str]:
        """The codes of its events of these severities; warnings and fallbacks by default."""
        return [e["code"] for e in self.events if e["severity"] in (severities or ("warning", "fallback"))]

    def message(self, code: str) -> str:
        """The first message under a code."""
        return next(e["message"] for e in self.events if e["code"] == code)


def converted(folder: Path, *flags: str, to: str = "gguf:f32", name: str = "out.gguf") -> Converted:
    """`convert --json` succeeds; the file as gguf's reader sees it."""
    from gguf import GGUFReader

    path = folder.parent / f"{folder.name}-converted" / name
    said = command("convert", folder, "-o", path, "--to", to, "--no-verify", "--json", "--overwrite", *flags)
    assert said.code == 0, said.err
    body = json.loads(said.out)
    reader = GGUFReader(path)
    keys = {k: field.contents() for k, field in reader.fields.items()}
    tensors = {t.name: np.array(t.data) for t in reader.tensors}
    return Converted(path, keys, tensors, body["artifact"]["events"])


def planned(folder: Path, *flags: str, to: str = "gguf:f32") -> dict[str, Any]:
    """`plan --json` succeeds; the plan."""
    said = command("plan", folder, "--to", to, "--json", *flags)
    assert said.code == 0, said.err
    plan: dict[str, Any] = json.loads(said.out)["plan"]
    return plan


def codes(plan: dict[str, Any], *severities: str) -> list[str]:
    """The codes of a plan's events of these severities; warnings and fallbacks by default."""
    return [e["code"] for e in plan["events"] if e["severity"] in (severities or ("warning", "fallback"))]
