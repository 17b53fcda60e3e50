"""`llmfit plugins`: what is installed, how it fares, and which of several is used."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from llmfit_core.cli.context import registry
from llmfit_core.cli.plugin_kit_cmd import check, new
from llmfit_core.cli.results import print_json
from llmfit_core.errors import PluginError
from llmfit_core.index import nearest
from llmfit_core.plugin_record import PluginRecord, normalized

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llmfit_core.plugins import PluginRegistry

plugins_app = typer.Typer(help="See, choose, prove and begin plugins.", no_args_is_help=True)
plugins_app.command("check")(check)
plugins_app.command("new")(new)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object (schema 1) instead of text.")]


@plugins_app.command("list")
def list_plugins(as_json: AsJson = False) -> None:
    """List every installed plugin: name, distribution, status, what it provides, why it failed."""
    plugins = _whole_registry()
    records = plugins.records()
    _tell_events(plugins)
    if as_json:
        print_json({"plugins": [r.as_json() for r in records]})
    elif not records:
        print("No plugins are installed.")
    elif sys.stdout.isatty():
        _print_table(records)
    else:
        for record in records:
            print(
                "\t".join((record.name, _home(record), record.status, _provides(record) or "-", record.reason)).rstrip()
            )


@plugins_app.command("info")
def info(
    name: Annotated[str, typer.Argument(help="A plugin's or a distribution's name.")], as_json: AsJson = False
) -> None:
    """Tell all that is known of one plugin."""
    plugins = _whole_registry()
    records = named(plugins, name)
    _tell_events(plugins)
    if as_json:
        print_json({"plugins": [{**r.as_json(), **_details(r)} for r in records]})
        return
    for record in records:
        print(f"{record.name}  ({_home(record)}): {record.status}")
        if record.reason:
            print(f"  reason: {record.reason}")
        for kind, names in record.provides.items():
            if names:
                print(f"  {kind}: {', '.join(names)}")
        for key, value in _details(record).items():
            if value:
                print(f"  {key.replace('_', ' ')}: {', '.join(value) if isinstance(value, list) else value}")


@plugins_app.command("prefer")
def prefer(
    name: Annotated[str, typer.Argument(help="The claimed name: an architecture, class, exporter, runtime, ...")],
    distribution: Annotated[str | None, typer.Argument(help="The distribution to take it from.")] = None,
    forget: Annotated[bool, typer.Option("--forget", help="Forget the preference for this name.")] = False,
    as_json: AsJson = False,
) -> None:
    """Choose the distribution that a name is taken from, where several claim it."""
    from llmfit_core.preferences import preferences_path, write_preference

    plugins = _whole_registry()
    path = preferences_path()
    chosen = None if forget else _claimant(plugins, name, distribution)
    preferences = write_preference(path, name, chosen)
    registry.cache_clear()
    if as_json:
        print_json({"preferences": preferences, "file": str(path)})
    elif chosen:
        print(f"{name} is now taken from {chosen} ({path})")
    else:
        print(f"No distribution is preferred for {name} ({path})")


def _whole_registry() -> PluginRegistry:
    """The registry after every hook has been called, `llmfit_commands` among them, on an app that nobody runs."""
    from llmfit_core.cli.app import OWN

    plugins = registry()
    unused = typer.Typer()
    for name in OWN:
        unused.command(name)(lambda: None)
    plugins.add_commands(unused)
    return plugins


def _claimant(plugins: PluginRegistry, name: str, distribution: str | None) -> str:
    claimants = plugins.claimants(name)
    there = sorted({who.distribution for who in claimants})
    for candidate in there:
        if distribution is not None and normalized(candidate) == normalized(distribution):
            return candidate
    if not there:
        raise PluginError(
            "unknown-name", f"no loaded plugin provides anything named {name!r}", "See `llmfit plugins list` for names."
        )
    cause = f"{distribution} does not provide {name!r}" if distribution else f"no distribution was named for {name!r}"
    raise PluginError(
        "not-a-claimant", f"{cause}; {' and '.join(map(str, claimants))} do", f"Name one of: {', '.join(there)}."
    )


def named(plugins: PluginRegistry, name: str) -> list[PluginRecord]:
    """The plugins that are called so, or whose distribution is.

    Raises:
        PluginError: `unknown-plugin`.
    """
    records = plugins.records()
    wanted = normalized(name)
    found = [r for r in records if wanted in (normalized(r.name), normalized(r.distribution))]
    if not found:
        near = nearest(name, {n for r in records for n in (r.name, r.distribution)})
        remedy = f"Did you mean {' or '.join(near)}?" if near else "See `llmfit plugins list`."
        raise PluginError("unknown-plugin", f"no plugin or distribution named {name!r} is installed", remedy)
    return found


def _home(record: PluginRecord) -> str:
    return f"{record.distribution} {record.version}".rstrip()


def _provides(record: PluginRecord) -> str:
    return "; ".join(f"{kind}: {', '.join(names)}" for kind, names in record.provides.items() if names)


def _details(record: PluginRecord) -> dict[str, object]:
    return {
        "entry_point": record.entry_point,
        "hooks": list(record.hooks),
        "notes": list(record.notes),
        "seconds": record.seconds,
    }


def _print_table(records: Sequence[PluginRecord]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colors = {"loaded": "green", "failed": "red", "incompatible": "yellow", "blocked": "dim", "shadowed": "dim"}
    table = Table("plugin", "distribution", "status", "provides", box=None, pad_edge=False)
    for r in records:
        table.add_row(Text(r.name), Text(_home(r)), Text(r.status, style=colors[r.status]), Text(_provides(r)))
    console = Console()
    console.print(table)
    for r in records:
        if r.reason:
            console.print(Text(f"{r.name} ({r.distribution}): {r.reason}"), soft_wrap=True)


def _tell_events(plugins: PluginRegistry) -> None:
    for event in plugins.events:
        print(f"{event.severity}: {event.message} [{event.code}]", file=sys.stderr)
