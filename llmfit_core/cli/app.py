"""The commands, put together. Plugins' own commands are added when a name is asked for that is none of ours."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

OWN = ("plugins", "inspect", "plan", "convert", "verify", "run", "serve")


def build(arguments: list[str]) -> typer.Typer:
    """The app for these arguments."""
    app = typer.Typer(
        name="llmfit",
        help="Fit a Hugging Face language model to the machine that has to run it.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_top)
    first = next((a for a in arguments if not a.startswith("-")), None)
    for name in (first,) if first in OWN else OWN:
        _add(app, name)
    if first not in OWN:
        from llmfit_core.cli.context import registry

        for event in registry().add_commands(app):
            print(f"warning: {event.message} [{event.code}]", file=sys.stderr)
    return app


def _add(app: typer.Typer, name: str | None) -> None:
    """Add one command of our own; only what is asked for is imported, since start-up is felt at every call."""
    if name == "plugins":
        from llmfit_core.cli.plugins_cmd import plugins_app

        app.add_typer(plugins_app, name=name)
    elif name == "inspect":
        from llmfit_core.cli.inspect_cmd import inspect

        app.command()(inspect)
    elif name in ("plan", "convert"):
        from llmfit_core.cli import convert_cmd

        app.command()(convert_cmd.plan if name == "plan" else convert_cmd.convert)
    elif name == "verify":
        from llmfit_core.cli.verify_cmd import verify

        app.command()(verify)
    else:
        from llmfit_core.cli import run_cmd

        app.command()(run_cmd.run if name == "run" else run_cmd.serve)


def _version(asked: bool) -> None:
    if asked:
        from llmfit_core.version import __version__

        print(f"llmfit-core {__version__}")
        raise typer.Exit


def _top(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Fit a Hugging Face language model to the machine that has to run it.

    `--debug`, anywhere, shows the traceback of an error.
    """
