"""`llmfit plugins check` and `llmfit plugins new`: the conformance kit without pytest, and a plugin to begin with."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmfit_core.cli.results import print_json
from llmfit_core.errors import PluginError, VerificationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llmfit_core.plugin_record import PluginRecord
    from llmfit_core.plugins import PluginRegistry
    from llmfit_core.testing.plugin_check import Row

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object (schema 1) instead of text.")]


def check(
    name: Annotated[str, typer.Argument(help="A plugin's or a distribution's name.")],
    write_fixture: Annotated[
        Path | None,
        typer.Option(help="Write the fixtures of its architectures into this folder: what their tests need without torch."),
    ] = None,
    write_models: Annotated[
        Path | None, typer.Option(help="Write its architectures' tiny models into this folder, to look at them.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Prove an installed plugin: what it declares, against the conformance kit.

    Tiny models come from the plugin's SAMPLES, or are made of transformers' own config class. What cannot be run here is
    told as "not run" with what is missing; it is no pass. The exit code is 9 where a check failed.
    """
    from llmfit_core.cli.context import registry
    from llmfit_core.cli.plugins_cmd import named

    plugins = registry()
    loaded = named(plugins, name)
    for plugin in loaded:
        if plugin.status not in ("loaded", "shadowed"):
            raise PluginError(
                "plugin-not-loaded",
                f"{plugin.name} ({plugin.distribution}) is {plugin.status}: {plugin.reason}",
                f"Mend that first; see `llmfit plugins info {plugin.name}`.",
            )
    if write_fixture is not None or write_models is not None:
        _write(loaded, plugins, write_fixture, write_models, as_json)
        return
    rows = [row for plugin in loaded for row in _checked(plugin, plugins)]
    _tell(name, loaded, rows, as_json)


def new(
    name: Annotated[str, typer.Argument(help="What the model family is called: letters, digits, single hyphens.")],
    directory: Annotated[Path | None, typer.Option("--directory", "-d", help="Where the folder llmfit-NAME is made.")] = None,
    as_json: AsJson = False,
) -> None:
    """Begin an architecture plugin: a table to fill in, its tests, README and pyproject, which pass as they are."""
    from llmfit_core.cli.context import registry
    from llmfit_core.testing.new_plugin import new_plugin

    records = registry().records()
    taken = {n for r in records for n in (r.name, r.distribution, *r.provides["architectures"])}
    folder, files = new_plugin(name, directory, taken)
    if as_json:
        print_json({"plugin": {"folder": str(folder), "files": [f.relative_to(folder).as_posix() for f in files]}})
        return
    print(f"{folder}: {', '.join(f.relative_to(folder).as_posix() for f in files)}")
    print(f"next: pip install -e {folder} && llmfit plugins check {name.removeprefix('llmfit-')}", file=sys.stderr)


def _checked(plugin: PluginRecord, plugins: PluginRegistry) -> tuple[Row, ...]:
    from llmfit_core.testing.plugin_check import check_plugin

    def told(row: Row) -> None:
        print(f"\r\x1b[K{row.name}: {row.check} {row.subject}"[:100], end="", file=sys.stderr, flush=True)

    shows = sys.stderr.isatty()
    try:
        return check_plugin(plugin, plugins, told if shows else None)
    finally:
        if shows:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _tell(name: str, loaded: Sequence[PluginRecord], rows: Sequence[Row], as_json: bool) -> None:
    from llmfit_core.testing.plugin_check import counts

    told = counts(rows)
    if as_json:
        who = [{"name": p.name, "distribution": p.distribution, "version": p.version} for p in loaded]
        print_json({"check": {"plugins": who, **told, "results": [r.as_json() for r in rows]}})
    elif sys.stdout.isatty():
        _print_table(rows)
    else:
        for line in summary(rows):
            print("\t".join(line).rstrip())
    if not as_json:
        print(f"{told['passed']} passed, {told['failed']} failed, {told['not_run']} not run", file=sys.stderr)
    failed = [r for r in rows if r.result == "failed"]
    if failed:
        if as_json:
            raise typer.Exit(VerificationError.exit_code)
        first = " ".join(filter(None, (failed[0].name, failed[0].check, failed[0].subject)))
        raise VerificationError(
            "plugin-check-failed",
            f"{name} failed {len(failed)} of {len(rows)} checks, the first: {first}",
            "See the rows marked failed; each says what to mend.",
        )


def summary(rows: Sequence[Row]) -> list[tuple[str, str, str, str]]:
    """Declaration, check, result, and figure or reason: one line a check where all its subjects ended alike."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((f"{row.kind} {row.name}", row.check), []).append(row)
    lines = []
    for (declaration, words), found in groups.items():
        by_end: dict[tuple[str, str], list[Row]] = {}
        for row in found:
            by_end.setdefault((row.result, row.reason), []).append(row)
        for (result, reason), alike in by_end.items():
            figures = "; ".join(f"{r.subject}: {r.figure}" for r in alike if r.figure)
            subjects = [r.subject for r in alike if r.subject]
            on = f" ({', '.join(subjects)})" if subjects and len(by_end) > 1 else f" ({len(subjects)})" if len(subjects) > 1 else ""
            lines.append((declaration, words + on, result, reason or figures))
    return lines


def _print_table(rows: Sequence[Row]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colors = {"passed": "green", "failed": "red", "not run": "yellow"}
    table = Table("declaration", "check", "result", "figure or reason", box=None, pad_edge=False)
    before = ""
    for declaration, words, result, said in summary(rows):
        shown = declaration if declaration != before else ""
        table.add_row(Text(shown), Text(words), Text(result, style=colors[result]), Text(said))
        before = declaration
    Console().print(table)


def _write(
    loaded: Sequence[PluginRecord], plugins: PluginRegistry, fixtures: Path | None, models: Path | None, as_json: bool
) -> None:
    from llmfit_core.testing.plugin_fixtures import write_fixtures, write_models

    written = []
    for plugin in loaded:
        written += [] if fixtures is None else list(write_fixtures(plugin, plugins, fixtures))
        written += [] if models is None else list(write_models(plugin, plugins, models))
    if as_json:
        print_json({"written": [str(p) for p in written]})
    for path in [] if as_json else written:
        print(f"written: {path}")
