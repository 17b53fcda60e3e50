"""`llmfit verify`: does a runtime read and compute a written file as the model it came from?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from llmfit_core.cli.context import registry
from llmfit_core.cli.results import print_json


def verify(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A .gguf file.")],
    against: Annotated[str | None, typer.Option("--against", metavar="SRC", help="What it was made from, for config and tokenizer; the file's own word where left out. Weights are not compared.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object (schema 1) instead of text.")] = False,
) -> None:
    """Compare what a runtime reads and computes from a file with the tokenizer's library and transformers."""
    from llmfit_core.cli.plan_view import print_events
    from llmfit_core.pipeline import verify_file

    said, events = verify_file(out, against, registry())
    if as_json:
        print_json({"verified": dict(said), "events": [e.as_json() for e in events]})
        return
    done = {
        "tokens": "token ids equal", "opened": "opened", "logits": "logits as the model's class computes them in transformers"
    }  # fmt: skip
    print(f"{out}: {', '.join(text for key, text in done.items() if said.get(key)) or 'nothing could be proven here'}")
    print_events(events, sys.stderr)
