"""Write `docs/reference/hooks.md` from `llmfit_core/hookspecs.py`.

Usage: python tools/gen_hooks_reference.py [--check]
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "reference" / "hooks.md"


def hooks() -> dict[str, object]:
    """The specifications by name, in the order of the source."""
    from llmfit_core.hookspecs import Hooks

    return {name: member for name, member in vars(Hooks).items() if name.startswith("llmfit_")}


def signature(hook: object) -> str:
    """The signature an implementation has, without `self`."""
    whole = inspect.signature(hook)  # type: ignore[arg-type]
    kept = [p for name, p in whole.parameters.items() if name != "self"]
    text = str(whole.replace(parameters=kept)).replace("'", "")
    return f"{hook.__name__}{text}"  # type: ignore[attr-defined]


def example(hook: object) -> str:
    """The module that the docstring's `Example` section shows."""
    doc = inspect.getdoc(hook) or ""
    block = doc.partition("Example:\n")[2]
    return inspect.cleandoc(block).removeprefix("```python\n").removesuffix("\n```")


def generate() -> str:
    """The page."""
    import llmfit_core.hookspecs

    parts = [
        "# Hooks",
        "<!-- Generated from llmfit_core/hookspecs.py by tools/gen_hooks_reference.py. -->",
        _fenced_indents(inspect.getdoc(llmfit_core.hookspecs) or ""),
    ]
    for name, hook in hooks().items():
        doc = inspect.getdoc(hook) or ""
        prose = doc.partition("Example:\n")[0].strip()
        parts += [
            f"## {name}",
            f"```python\n{signature(hook)}\n```",
            _sections(prose),
            f"A complete plugin:\n\n```python\n{example(hook)}\n```",
        ]
    return "\n\n".join(parts) + "\n"


def _fenced_indents(text: str) -> str:
    """Indented blocks as fenced ones."""
    out: list[str] = []
    for block in text.split("\n\n"):
        if block.startswith("    "):
            body = "\n".join(line[4:] for line in block.splitlines())
            if out and out[-1].startswith("```toml"):
                out[-1] = f"{out[-1][:-4]}\n\n{body}\n```"
            else:
                out.append(f"```toml\n{body}\n```")
        else:
            out.append(block)
    return "\n\n".join(out)


def _sections(prose: str) -> str:
    """Google-style sections as Markdown lists."""
    out = []
    for block in prose.split("\n\n"):
        head, _, body = block.partition("\n")
        if head in ("Args:", "Returns:"):
            lines: list[str] = []
            for line in body.splitlines():
                if line.startswith("    ") and not line.startswith("     "):
                    lines.append(f"- {line.strip()}")
                else:
                    lines.append(f"  {line.strip()}")
            out.append(f"**{head[:-1]}**\n\n" + "\n".join(lines))
        else:
            out.append(block)
    return "\n\n".join(out)


def main(arguments: list[str]) -> int:
    """Write the page, or with `--check` say whether it is up to date."""
    text = generate()
    if "--check" in arguments:
        current = TARGET.read_text(encoding="utf-8") if TARGET.exists() else ""
        if current != text:
            print("docs/reference/hooks.md is out of date; run python tools/gen_hooks_reference.py", file=sys.stderr)
        return int(current != text)
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    raise SystemExit(main(sys.argv[1:]))
