"""The commands, put together. Plugins' own commands are added when a name is asked for that is none of ours."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from llmfit_core.cli.context import registry
from llmfit_core.cli.convert_cmd import convert, plan
from llmfit_core.cli.inspect_cmd import inspect
from llmfit_core.cli.plugins_cmd import plugins_app
from llmfit_core.cli.run_cmd import run, serve

OWN = ("plugins", "inspect", "plan", "convert", "run", "serve")


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
    app.add_typer(plugins_app, name="plugins")
    app.command()(inspect)
    app.command()(plan)
    app.command()(convert)
    app.command()(run)
    app.command()(serve)
    first = next((a for a in arguments if not a.startswith("-")), None)
    if first not in OWN:
        for event in registry().add_commands(app):
            print(f"warning: {event.message} [{event.code}]", file=sys.stderr)
    return app


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
