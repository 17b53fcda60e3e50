"""Write `docs/reference/cli.md` from the command line itself.

Usage: python tools/gen_cli_reference.py [--check]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "reference" / "cli.md"

INTRO = """# Commands

<!-- Generated from the command line by tools/gen_cli_reference.py. -->

Results go to standard output, everything else to standard error. Every command but the top one takes `--json`; its
output is described in [json.md](json.md), errors in [errors.md](errors.md), [exit codes](exit-codes.md) in a page of
their own. Plugins may add commands; `llmfit plugins list` shows which.

Two options go anywhere on the line: `--help`, and `--debug`, which shows the traceback of an error. `[ARGUMENT]` may be
left out."""


def generate() -> str:
    """The page."""
    import typer

    from llmfit_core.cli.app import OWN, build

    # One of our own words at a time: then no plugin is asked for its commands.
    roots = {name: typer.main.get_command(build([name])) for name in OWN}
    parts = [INTRO, *_command(roots[OWN[0]], "llmfit", with_text=False)]
    for name, root in roots.items():
        parts += _tree(root.commands[name], f"llmfit {name}")  # type: ignore[attr-defined]
    return "\n\n".join(parts) + "\n"


def _tree(command: Any, path: str) -> list[str]:
    inner = getattr(command, "commands", None)
    if inner is None:
        return _command(command, path)
    return [f"## {path}", _text(command), *(p for name, c in inner.items() for p in _command(c, f"{path} {name}", "###"))]


def _command(command: Any, path: str, heading: str = "##", *, with_text: bool = True) -> list[str]:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and p.name != "help"]
    usage = " ".join([path, *(_metavar(a) for a in arguments), *(["[OPTIONS]"] if options else [])])
    if hasattr(command, "commands"):
        usage += " COMMAND ..."
    parts = [f"{heading} {path}", *([_text(command)] if with_text else []), f"```text\n{usage}\n```"]
    if arguments:
        parts.append(_table("argument", [(f"`{_plain_metavar(a)}`", a.help, _default(a)) for a in arguments]))
    if options:
        parts.append(_table("option", [(_spelling(o), o.help, _default(o)) for o in options]))
    return parts


def _text(command: Any) -> str:
    return "\n".join(line.strip() for line in (command.help or "").strip().splitlines())


def _table(head: str, rows: list[tuple[str, str | None, str]]) -> str:
    lines = [f"| {head} | what it is | default |", "|---|---|---|"]
    return "\n".join(lines + [f"| {name} | {_cell(text)} | {default} |" for name, text, default in rows])


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


def _plain_metavar(argument: Any) -> str:
    return str(argument.metavar or argument.name).strip("{}[]").upper()


def _metavar(argument: Any) -> str:
    name = _plain_metavar(argument)
    return name if argument.required else f"[{name}]"


def _spelling(option: Any) -> str:
    names = " ".join(f"`{n}`" for n in sorted(option.opts, key=len))
    if option.is_flag:
        return names
    # Recent typer has classes of its own; older ones are click's.
    described = getattr(option, "type_descriptor", None)
    name = described.annotation.__name__.lower() if described else option.type.name
    kind = "X" if "float" in name else "N" if "int" in name else "PATH" if name == "path" else "TEXT"
    return f"{names} {option.metavar or kind}"


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    value = parameter.default
    if callable(value) or value is None or value is False or value in ("", ()):
        return ""
    return f"`{value}`"


def main(arguments: list[str]) -> int:
    """Write the page, or with `--check` say whether it is up to date."""
    text = generate()
    if "--check" in arguments:
        current = TARGET.read_text(encoding="utf-8") if TARGET.exists() else ""
        if current != text:
            print("docs/reference/cli.md is out of date; run python tools/gen_cli_reference.py", file=sys.stderr)
        return int(current != text)
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    raise SystemExit(main(sys.argv[1:]))
