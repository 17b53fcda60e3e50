"""The errors of names: one that no plugin provides, and one that several claim."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmfit_core.errors import PluginError
from llmfit_core.index import known_distributions, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from llmfit_core.plugin_record import PluginId, PluginRecord


def conflict(noun: str, name: str, who: Sequence[PluginId]) -> PluginError:
    """The error for a name that several plugins claim: who they are, and the way out."""
    distributions = sorted({w.distribution for w in who})
    cause = f"{noun} {name!r} is claimed by {' and by '.join(str(w) for w in who)}"
    if len(distributions) == 1:
        names = " or ".join(f"LLMFIT_PLUGINS=-{w.name}" for w in who)
        return PluginError(
            "plugin-conflict", cause, f"That is a fault of {distributions[0]}; leave one out by {names}."
        )
    ways = " or ".join(f"`llmfit plugins prefer {name} {d}`" for d in distributions)
    return PluginError("plugin-conflict", cause, f"Choose one with {ways}.")


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
