"""Which of our distributions knows a name that no installed plugin knows: generated from their own tables.

`index.json` is written by `tools/gen_index.py` from the plugins of this repository; it promises nothing
that does not exist there.
"""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, cast

from llmfit_core.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from llmfit_core.plugin_record import PluginRecord

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


def missing(noun: str, name: str, known: Sequence[str], records: Iterable[PluginRecord]) -> PluginError:
    """The error for a name that no loaded plugin provides: who is known to, how those plugins fare, what to do."""
    cause = f"no loaded plugin provides the {noun} {name!r}"
    homes = known_distributions(name, noun)
    idle = [r for r in records if r.status not in ("loaded", "shadowed")]
    related = [r for r in idle if r.distribution in homes or _alike(name, r)]
    code = f"unknown-{noun.replace(' ', '-')}"
    if related:
        first = related[0]
        told = "; ".join(f"plugin {r.name} ({r.distribution} {r.version}) {_fate(r)}: {r.reason}" for r in related)
        return PluginError(code, f"{cause}; {told}", _way_out(first))
    failed = [r.name for r in idle if r.status == "failed"]
    note = f" (failed to load: {', '.join(failed)}; see `llmfit plugins list`)" if failed else ""
    if homes:
        return PluginError(code, cause + note, f"Install {' or '.join(homes)}, which knows it.")
    near = nearest(name, known)
    if near:
        return PluginError(code, cause + note, f"Did you mean {' or '.join(near)}?")
    there = f"There are: {', '.join(sorted(known))}." if known else "Install a plugin that provides one."
    return PluginError(code, cause + note, there)


def _alike(name: str, record: PluginRecord) -> bool:
    """Whether a plugin's own name suggests that it would have provided `name`."""
    short = "".join(filter(str.isalnum, name.casefold()))
    names = ("".join(filter(str.isalnum, n.casefold())) for n in (record.name, record.distribution))
    return any(short in n or n.removeprefix("llmfit") in short for n in names if n and short)


def _fate(record: PluginRecord) -> str:
    return {"failed": "failed to load", "incompatible": "does not fit", "blocked": "is blocked"}.get(record.status, "")


def _way_out(record: PluginRecord) -> str:
    if record.status == "blocked":
        return f"Let {record.name} in by LLMFIT_PLUGINS."
    if record.status == "incompatible":
        return f"Install versions of llmfit-core and {record.distribution} that fit each other."
    return f"Mend or reinstall {record.distribution}; `llmfit plugins info {record.name}` tells more."
