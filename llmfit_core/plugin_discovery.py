"""Which plugins are installed, which of them are wanted, and which of them fit this core: nothing is imported."""

from __future__ import annotations

import importlib.metadata
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmfit_core.events import Event
from llmfit_core.index import nearest
from llmfit_core.plugin_loading import CORE, GROUP, Found, describe
from llmfit_core.plugin_record import PluginId, PluginRecord, normalized
from llmfit_core.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_BOUND = re.compile(r"([<>]=?)\s*(\d+(?:\.\d+)*)")
_SIMPLE = re.compile(CORE + r"\s*((?:[<>]=?\s*\d+(?:\.\d+)*\s*(?:,\s*|$))+)")
_SECTION = re.compile(rf"^\s*\[\s*{GROUP}\s*\]", re.MULTILINE)


def installed() -> tuple[list[Found], list[PluginRecord]]:
    """Every entry point of the group, and records of distributions whose metadata cannot be read.

    The distributions are walked here, one by one: `importlib.metadata.entry_points()` raises as a whole
    where a single distribution, even an unrelated one, has a damaged `entry_points.txt`.
    """
    found: list[Found] = []
    broken: list[PluginRecord] = []
    seen: set[str] = set()
    for distribution in importlib.metadata.distributions():
        name = ""
        try:
            text = distribution.read_text("entry_points.txt")
            if not text or not _SECTION.search(text):
                continue
            name = distribution.metadata["Name"] or ""
            if not name:
                raise ValueError("it says no name")
            if normalized(name) in seen:
                continue
            seen.add(normalized(name))
            found += of_distribution(distribution)
        except Exception as error:
            who = PluginId(name=name or "?", distribution=name or _file_name(distribution), version="")
            broken.append(PluginRecord(id=who, status="failed", reason=f"metadata cannot be read: {describe(error)}"))
    return found, broken


def of_distribution(distribution: importlib.metadata.Distribution) -> list[Found]:
    """The group's entry points of one distribution."""
    points = distribution.entry_points.select(group=GROUP)
    requires = tuple(distribution.requires or ())
    return [
        Found(
            id=PluginId(
                name=point.name, distribution=distribution.metadata["Name"], version=distribution.version or ""
            ),
            entry_point=point,
            requires=requires,
        )
        for point in points
    ]


def _file_name(distribution: importlib.metadata.Distribution) -> str:
    return str(getattr(getattr(distribution, "_path", None), "name", "?"))


def core_version() -> str:
    """The version of the core that is running."""
    return __version__


def incompatibility(found: Found, core: str) -> str:
    """Why a plugin's own metadata rules out this core; empty where it does not."""
    for text in found.requires:
        if CORE.partition("-")[0] not in text.lower():
            continue
        simple = _simple_match(text, core)
        if simple:
            continue
        from packaging.requirements import InvalidRequirement, Requirement

        try:
            requirement = Requirement(text)
            applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        except (InvalidRequirement, ValueError):
            continue
        if normalized(requirement.name) != CORE or not applies:
            continue
        if not requirement.specifier.contains(core, prereleases=True):
            return f"needs {CORE}{requirement.specifier}, and {core} is installed"
    return ""


def _simple_match(text: str, core: str) -> bool:
    """Whether the core surely fits a requirement of the usual form, `llmfit-core>=0.1,<0.2`.

    Only release numbers and order signs are judged here; whatever else there is, `packaging` has to judge, whose
    import takes longer than all the rest of the discovery.
    """
    requirement = _SIMPLE.fullmatch(text)
    if not requirement or not re.fullmatch(r"\d+(\.\d+)*", core):
        return False
    have = _release(core)
    bounds = [(sign, _release(number)) for sign, number in _BOUND.findall(requirement[1])]
    return all(
        {">=": have >= bound, ">": have > bound, "<=": have <= bound, "<": have < bound}[sign] for sign, bound in bounds
    )


def _release(number: str) -> tuple[int, ...]:
    parts = [int(part) for part in number.split(".")]
    while parts and parts[-1] == 0:
        parts.pop()
    return tuple(parts)


@dataclass(frozen=True)
class Selection:
    """What `LLMFIT_PLUGINS` asks for.

    Attributes:
        text: The variable's value.
        only: Load nothing else; `None` for all.
        without: Do not load these.
    """

    text: str = ""
    only: frozenset[str] | None = None
    without: frozenset[str] = frozenset()

    def blocks(self, who: PluginId) -> bool:
        """Whether the plugin is left out, by its own name or its distribution's."""
        names = {normalized(who.name), normalized(who.distribution)}
        return bool(names & self.without) or (self.only is not None and not names & self.only)

    def unknown(self, found: Iterable[PluginId]) -> tuple[Event, ...]:
        """An event for each name in it that no installed plugin has."""
        names = {n for who in found for n in (normalized(who.name), normalized(who.distribution))}
        return tuple(
            Event(
                code="unknown-plugin-name",
                message=f"LLMFIT_PLUGINS names {name!r}, which is not installed"
                + "".join(f"; did you mean {n!r}?" for n in nearest(name, names, 1)),
                subject=name,
            )
            for name in sorted((self.without | (self.only or frozenset())) - names)
        )


def selection(env: Mapping[str, str]) -> Selection:
    """Read `LLMFIT_PLUGINS`: `none`; `a,b` for only these; `-c` for all but these; empty for all."""
    text = env.get("LLMFIT_PLUGINS", "").strip()
    words = [w.strip() for w in text.split(",") if w.strip()]
    if [w.lower() for w in words] == ["none"]:
        return Selection(text, only=frozenset())
    without = frozenset(normalized(w[1:]) for w in words if w.startswith("-"))
    only = frozenset(normalized(w) for w in words if not w.startswith("-"))
    return Selection(text, only=only or None, without=without)


def check_before_import(core: str, chosen: Selection) -> Callable[[Found], PluginRecord | None]:
    """A function that gives the record of a plugin that is not to be imported, or `None`."""

    def check(found: Found) -> PluginRecord | None:
        value = found.entry_point.value
        if chosen.blocks(found.id):
            reason = f"left out by LLMFIT_PLUGINS={chosen.text}"
            return PluginRecord(id=found.id, status="blocked", reason=reason, entry_point=value)
        reason = incompatibility(found, core)
        if reason:
            return PluginRecord(id=found.id, status="incompatible", reason=reason, entry_point=value)
        return None

    return check
