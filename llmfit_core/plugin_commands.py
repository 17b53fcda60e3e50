"""Sub-commands from plugins: added to the command line without letting one plugin break or replace another's."""

from __future__ import annotations

import functools
import traceback
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NoReturn

import typer
from typer.main import get_command_name, solve_typer_info_defaults
from typer.models import CommandInfo, TyperInfo

from llmfit_core.events import Event
from llmfit_core.plugin_errors import conflict
from llmfit_core.plugin_loading import Plugin, PluginFault, Trace, describe, stdout_to_stderr, traced

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from llmfit_core.plugin_record import PluginId

HOOK = "llmfit_commands"


@dataclass(frozen=True)
class _Command:
    name: str
    info: CommandInfo | TyperInfo
    owner: PluginId


def add_commands(
    app: typer.Typer, plugins: Sequence[Plugin], prefers: Callable[[str, PluginId], bool], trace: Trace | None
) -> tuple[list[Plugin], tuple[Event, ...]]:
    """Let each plugin fill an app of its own, and move what is sound into `app`.

    A name that several plugins take goes to the preferred one; without one it becomes a command that says so.

    Returns:
        The plugins, those that failed here stripped of all they provide; and an event for each of these.
    """
    taken = set(_names(app))
    after: list[Plugin] = []
    events: list[Event] = []
    offered: dict[str, list[_Command]] = {}
    for plugin in plugins:
        try:
            commands = _commands(plugin, taken, trace)
        except PluginFault as fault:
            after.append(plugin.failed(str(fault)))
            message = f"{plugin.record.id}: {fault}"
            events.append(Event(code="plugin-failed", message=message, severity="info", subject=plugin.record.name))
            continue
        if commands:
            provides = {**plugin.record.provides, "commands": tuple(c.name for c in commands)}
            plugin = replace(plugin, record=replace(plugin.record, provides=provides))
        after.append(plugin)
        for command in commands:
            offered.setdefault(command.name, []).append(command)
    for name, several in offered.items():
        preferred = [c for c in several if prefers(name, c.owner)] if len(several) > 1 else several
        if len(preferred) == 1:
            _add(app, preferred[0].info)
        else:
            _add_conflict(app, name, [c.owner for c in several])
    return after, tuple(events)


def _commands(plugin: Plugin, taken: set[str], trace: Trace | None) -> list[_Command]:
    found: dict[str, _Command] = {}
    for function, names in plugin.callbacks.get(HOOK, ()):
        own = typer.Typer()
        try:
            with stdout_to_stderr():
                call = functools.partial(function, *([own] if names else []))
                traced(trace, HOOK, plugin.record.id, call)
                added = _names(own)
                typer.main.get_command(own) if added else None
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if trace:
                trace(traceback.format_exc().rstrip())
            raise PluginFault(f"fails in {HOOK}: {describe(error)}") from None
        if own.registered_callback:
            raise PluginFault(f"{HOOK} sets a callback of the whole command line; it may only add commands")
        for name, info in added.items():
            if name in taken:
                raise PluginFault(f"{HOOK} adds the command {name!r}, which llmfit has itself")
            found[name] = _Command(name, info, plugin.record.id)
    return list(found.values())


def _names(app: typer.Typer) -> dict[str, CommandInfo | TyperInfo]:
    """What an app holds, by the name it is called with."""
    found: dict[str, CommandInfo | TyperInfo] = {}
    for command in app.registered_commands:
        if command.name or command.callback:
            found[command.name or get_command_name(command.callback.__name__)] = command  # type: ignore[union-attr]
    for group in app.registered_groups:
        name = solve_typer_info_defaults(group).name
        if isinstance(name, str) and name:
            found[name] = group
    return found


def _add(app: typer.Typer, info: CommandInfo | TyperInfo) -> None:
    if isinstance(info, CommandInfo):
        app.registered_commands.append(info)
    else:
        app.registered_groups.append(info)


def _add_conflict(app: typer.Typer, name: str, owners: Sequence[PluginId]) -> None:
    def refuse(arguments: list[str] = typer.Argument(None)) -> NoReturn:  # noqa: B008 (typer's way)
        raise conflict("command", name, owners)

    who = " and ".join(str(o) for o in owners)
    settings = {"ignore_unknown_options": True, "help_option_names": []}
    app.command(name, help=f"In conflict: claimed by {who}.", context_settings=settings)(refuse)
