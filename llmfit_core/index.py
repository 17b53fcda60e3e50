"""Which of our distributions knows a name that no installed plugin knows: generated from their own tables.

`index.json` is written by `tools/gen_index.py` from the plugins of this repository; it promises nothing
that does not exist there.
"""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


_TABLES = {
    "class": ("classes",),
    "architecture": ("architectures", "model_types"),
    "model type": ("model_types",),
    "exporter": ("exporters",),
    "decoder": ("decoders",),
    "runtime": ("runtimes",),
    "packager": ("packagers",),
}


@cache
def known_names() -> Mapping[str, Mapping[str, Sequence[str]]]:
    """The index: by table (`classes`, `model_types`, `exporters`, ...) and name, the distributions."""
    from importlib import resources

    text = resources.files("llmfit_core").joinpath("index.json").read_text(encoding="utf-8")
    return cast("Mapping[str, Mapping[str, Sequence[str]]]", json.loads(text)["names"])


def known_distributions(name: str, noun: str = "") -> list[str]:
    """Our distributions that know a name.

    Args:
        name: An exact class name or model type, or with `noun` any other name; class names that differ in
            case alone count where none is exact.
        noun: `class`, `architecture`, `exporter`, `decoder`, `runtime`, `packager`; empty for a class name or
            model type.
    """
    tables = [known_names().get(t, {}) for t in _TABLES.get(noun, ("classes", "model_types"))]
    found = {d for table in tables for d in table.get(name, ())}
    if not found:
        found = {d for table in tables for n, homes in table.items() if n.casefold() == name.casefold() for d in homes}
    return sorted(found)


def nearest(name: str, candidates: Iterable[str], count: int = 3, cutoff: float = 0.6) -> list[str]:
    """The candidates most like `name`, case ignored, best first; few or none where nothing is alike."""
    import difflib

    by_folded: dict[str, str] = {}
    for candidate in sorted(candidates):
        by_folded.setdefault(candidate.casefold(), candidate)
    return [by_folded[m] for m in difflib.get_close_matches(name.casefold(), by_folded, n=count, cutoff=cutoff)]
