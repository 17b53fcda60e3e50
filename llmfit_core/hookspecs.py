"""The whole contract between llmfit and its plugins.

A plugin is a distribution with an entry point in the group `llmfit` that names a module (or an
object) holding functions decorated with `llmfit_core.hookimpl`:

    # pyproject.toml
    [project.entry-points.llmfit]
    qwen2 = "llmfit_qwen2"

    # llmfit_qwen2.py
    from llmfit_core import Architecture, hookimpl

    @hookimpl
    def llmfit_architectures():
        yield QWEN2

Every declaring hook takes no argument, is called once when the registry is first asked, is quick,
imports nothing heavy, and returns an iterable of frozen declarations. Order never matters: things
are chosen by name, and two plugins that claim one name conflict when that name is used, not before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    import typer

    from llmfit_core.architecture import Architecture
    from llmfit_core.decode import Decoder
    from llmfit_core.export import Exporter
    from llmfit_core.plan import Artifact, Plan
    from llmfit_core.runtime import Runtime

hookspec = pluggy.HookspecMarker("llmfit")
hookimpl = pluggy.HookimplMarker("llmfit")


class Hooks:
    """The hooks, one method each."""

    @hookspec
    def llmfit_architectures(self) -> Iterable[Architecture]:
        """Declare model families: what their saved tensors mean, and what computes them elsewhere."""
        raise NotImplementedError

    @hookspec
    def llmfit_decoders(self) -> Iterable[Decoder]:
        """Declare kinds of checkpoint that can be read as plain tensors."""
        raise NotImplementedError

    @hookspec
    def llmfit_exporters(self) -> Iterable[Exporter]:
        """Declare formats that models can be written in."""
        raise NotImplementedError

    @hookspec
    def llmfit_runtimes(self) -> Iterable[Runtime]:
        """Declare programs and libraries that serve artifacts."""
        raise NotImplementedError

    @hookspec
    def llmfit_commands(self, app: typer.Typer) -> None:
        """Add sub-commands to the command line."""
        raise NotImplementedError

    @hookspec
    def llmfit_artifact_written(self, artifact: Artifact, plan: Plan) -> None:
        """Observe a finished conversion; an error here is reported and never fatal."""
        raise NotImplementedError
