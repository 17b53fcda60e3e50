"""`llmfit plan` and `llmfit convert`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from llmfit_core.cli.context import registry
from llmfit_core.cli.recipe import UsageError, parse_size, recipe_from
from llmfit_core.cli.results import print_json

Source = Annotated[str, typer.Argument(metavar="SRC", help="A model folder, a .gguf file, or a hub id (org/name[@revision]).")]
To = Annotated[str | None, typer.Option("--to", help="Format and scheme, like hf:bf16; without it gguf, in the usual scheme for the model (q4_k_m).")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object (schema 1) instead of text.")]
Strict = Annotated[bool, typer.Option("--strict", help="Fail on warnings and fallbacks; bounds pass.")]
Name = Annotated[str | None, typer.Option("--name", help="What the artifact calls the model.")]
Types = Annotated[list[str] | None, typer.Option("--tensor-type", metavar="REGEX=TYPE", help="Give matching tensors a type; first match wins. Repeatable.")]
RecipeFile = Annotated[Path | None, typer.Option("--recipe", help="A TOML file with the same options; the command line wins.")]
Context = Annotated[int | None, typer.Option("--context-length", help="Context length in the metadata.")]
Base = Annotated[float | None, typer.Option("--rope-freq-base", help="Rope base in the metadata.")]
Scale = Annotated[float | None, typer.Option("--rope-freq-scale", help="Rope scale (1 / factor) in the metadata.")]
Settings = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a metadata key the file has. Repeatable.")]
Pre = Annotated[str | None, typer.Option("--pre", help="The pre-tokenizer's name, where it is not recognised.")]
GraphName = Annotated[str | None, typer.Option("--graph", metavar="NAME", help="Write for this graph, or the graph of this engine, instead of the usual engine's.")]
Split = Annotated[str | None, typer.Option("--split-max-size", metavar="SIZE", help="Split into files of at most this size (2G, 500M).")]
Force = Annotated[bool, typer.Option("--force", help="Do what is measured to be wrong all the same.")]


def plan(
    source: Source,
    to: To = None,
    as_json: Json = False,
    strict: Strict = False,
    name: Name = None,
    tensor_type: Types = None,
    recipe: RecipeFile = None,
    context_length: Context = None,
    rope_freq_base: Base = None,
    rope_freq_scale: Scale = None,
    set_: Settings = None,
    pre: Pre = None,
    graph: GraphName = None,
    split_max_size: Split = None,
    force: Force = False,
    check: Annotated[bool, typer.Option("--check", help="Run the data checks too; this reads weights.")] = False,
) -> None:
    """Show what a conversion would do: tensors, types, sizes, problems. Reads no weights."""
    from llmfit_core.cli.plan_view import plan_json, print_plan
    from llmfit_core.pipeline import plan_conversion

    wanted = recipe_from(
        recipe, to, strict=strict, name=name, tensor_types=tensor_type, context_length=context_length,
        rope_freq_base=rope_freq_base, rope_freq_scale=rope_freq_scale, settings=set_, pre=pre,
        graph=graph, split_max_bytes=parse_size(split_max_size), force=force,
    )  # fmt: skip
    planned = plan_conversion(source, wanted, registry(), check=check, weights=check)
    if as_json:
        print_json({"plan": plan_json(planned.plan)})
    else:
        print_plan(planned.plan, sys.stdout, tensors=True)


def convert(
    source: Source,
    out: Annotated[str, typer.Option("-o", "--out", metavar="PATH", help="A file, where it ends in the format's suffix, else a folder.")],
    to: To = None,
    as_json: Json = False,
    strict: Strict = False,
    name: Name = None,
    tensor_type: Types = None,
    recipe: RecipeFile = None,
    context_length: Context = None,
    rope_freq_base: Base = None,
    rope_freq_scale: Scale = None,
    set_: Settings = None,
    pre: Pre = None,
    graph: GraphName = None,
    split_max_size: Split = None,
    force: Force = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an artifact that is there.")] = False,
    no_verify: Annotated[bool, typer.Option("--no-verify", help="Skip the check of the result.")] = False,
    workers: Annotated[int, typer.Option("--workers", min=0, max=256, help="How many at once; 0 for one a core.")] = 0,
) -> None:
    """Convert a model and check the result."""
    from llmfit_core.cli.plan_view import artifact_json, print_artifact, print_plan
    from llmfit_core.cli.progress import progress_bar
    from llmfit_core.pipeline import convert as run_conversion

    wanted = recipe_from(
        recipe, to, strict=strict, name=name, tensor_types=tensor_type, context_length=context_length,
        rope_freq_base=rope_freq_base, rope_freq_scale=rope_freq_scale, settings=set_, pre=pre,
        graph=graph, split_max_bytes=parse_size(split_max_size), force=force,
    )  # fmt: skip
    if not out:
        raise UsageError("bad-option", "-o '' names no place", "Give a file or a folder.")
    with progress_bar("converting") as progress:
        artifact, events = run_conversion(
            source,
            wanted,
            Path(out),
            registry(),
            overwrite=overwrite,
            verify=not no_verify,
            workers=workers,
            on_plan=lambda p: print_plan(p, sys.stderr, tensors=False),
            progress=progress,
        )
    if as_json:
        print_json({"artifact": artifact_json(artifact, events)})
    else:
        print_artifact(artifact, events)


