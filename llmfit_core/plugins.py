"""The plugin registry: what is installed, what each provides, and which one a name means.

A `PluginRegistry` is a value that its users pass on; there is none at module level. A broken plugin
stays in its list with the reason, provides nothing, and concerns only the commands that need it.
"""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from llmfit_core.errors import PluginError
from llmfit_core.events import Event
from llmfit_core.plugin_discovery import check_before_import, core_version, installed, selection
from llmfit_core.plugin_errors import conflict, missing
from llmfit_core.plugin_loading import Found, Plugin, claims, describe, load, stdout_to_stderr, traced
from llmfit_core.plugin_record import KINDS, Kind, PluginId, PluginRecord, Provided, empty_provides, normalized
from llmfit_core.preferences import preferences_path, read_preferences

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import typer

    from llmfit_core.architecture import Architecture
    from llmfit_core.declarations import Diagnosis, Packager, TokenizerReader, Transform
    from llmfit_core.decode import Decoder
    from llmfit_core.export import Exporter
    from llmfit_core.plan import Artifact, Plan
    from llmfit_core.runtime import Runtime

D = TypeVar("D")
_KINDS: Mapping[str, Kind] = {kind.plural: kind for kind in KINDS}


def load_plugins(
    env: Mapping[str, str] = os.environ,
    entry_points: Iterable[Found] | None = None,
    core: str | None = None,
) -> PluginRegistry:
    """Find, check and load every plugin, each behind its own guard.

    Args:
        env: Where `LLMFIT_PLUGINS`, `LLMFIT_TRACE` and `LLMFIT_CONFIG_DIR` are read from.
        entry_points: What to load instead of everything that is installed.
        core: The core's version that plugins have to fit, instead of the installed one.

    Returns:
        The registry. Nothing that a plugin does raises here, `KeyboardInterrupt` apart.
    """
    broken: list[PluginRecord] = []
    if entry_points is None:
        found, broken = installed()
    else:
        found = list(entry_points)
    trace = _trace if env.get("LLMFIT_TRACE", "0") not in ("", "0") else None
    chosen = selection(env)
    not_imported = check_before_import(core_version() if core is None else core, chosen)
    plugins = [Plugin(record=record) for record in broken]
    seen: dict[tuple[str, str], str] = {}
    with stdout_to_stderr():
        for item in sorted(found, key=lambda f: (f.id, f.entry_point.value)):
            key = (normalized(item.id.name), normalized(item.id.distribution))
            if key in seen:
                if seen[key] != item.entry_point.value:
                    reason = f"{item.id.distribution} has two entry points of this name; {seen[key]} is the one used"
                    record = PluginRecord(id=item.id, status="shadowed", reason=reason)
                    plugins.append(Plugin(record=replace(record, entry_point=item.entry_point.value)))
                continue
            seen[key] = item.entry_point.value
            record_only = not_imported(item)
            plugins.append(Plugin(record=record_only) if record_only else load(item, trace))
    events = list(chosen.unknown(p.record.id for p in plugins))
    return PluginRegistry(
        _without_twins(plugins), lambda: read_preferences(preferences_path(env)), events=events, trace=trace
    )


def _trace(line: str) -> None:
    print(f"llmfit trace: {line}", file=sys.stderr)


def _without_twins(plugins: Sequence[Plugin]) -> list[Plugin]:
    """Where two distributions name the very same module, as after a renaming, the first one stands for both."""
    first: dict[int, PluginId] = {}
    kept = []
    for plugin in plugins:
        if plugin.record.status == "loaded":
            owner = first.setdefault(id(plugin.target), plugin.record.id)
            if owner != plugin.record.id:
                reason = f"names the same module as {owner.distribution} {owner.version} ({owner.name})"
                record = replace(plugin.record, status="shadowed", reason=reason, provides=empty_provides())
                plugin = Plugin(record=record, target=plugin.target)
        kept.append(plugin)
    return kept


class PluginRegistry:
    """The plugins of one process, and what they provide.

    Lookups by name raise `PluginError` where the name is unknown, or where two plugins claim it and no
    preference decides. Listings never raise, and hold all claimants of a name in conflict.

    Args:
        plugins: In any order.
        read_preferences: Gives distributions by the name they are preferred for; called once, when several
            plugins claim one name. Its error is raised when such a name is used.
        events: What is worth telling about the loading.
        trace: Told of each hook call, or `None`.
    """

    def __init__(
        self,
        plugins: Iterable[Plugin],
        read_preferences: Callable[[], Mapping[str, str]] = dict,
        *,
        events: Iterable[Event] = (),
        trace: Callable[[str], None] | None = None,
    ) -> None:
        self._plugins = sorted(plugins, key=lambda p: p.record.id)
        self._read_preferences = read_preferences
        self._unreadable: PluginError | None = None
        self._events = tuple(events)
        self._trace = trace

    @property
    def events(self) -> tuple[Event, ...]:
        """What is worth telling: unknown names in `LLMFIT_PLUGINS`, preferences that were needed and cannot be read."""
        if self._unreadable is None:
            return self._events
        return (*self._events, Event(code=self._unreadable.code, message=self._unreadable.cause))

    @functools.cached_property
    def _preferred(self) -> Mapping[str, str]:
        try:
            return self._read_preferences()
        except PluginError as error:
            self._unreadable = error
            return {}

    def architectures(self) -> tuple[Provided[Architecture], ...]:
        """Every architecture that no preference rules out, without the classes preferences give to others."""
        provided: tuple[Provided[Architecture], ...] = self._provided("architectures")
        stated = Counter(c for p in provided for c in p.value.hf_classes)
        shared = [(c, p) for p in provided for c in p.value.hf_classes if stated[c] > 1]
        preferred = {c for c, p in shared if self._prefers(c, p.plugin)}
        kept = []
        for p in provided:
            classes = tuple(c for c in p.value.hf_classes if c not in preferred or self._prefers(c, p.plugin))
            if classes == p.value.hf_classes:
                kept.append(p)
            elif classes:
                kept.append(replace(p, value=replace(p.value, hf_classes=classes)))
        return tuple(kept)

    def architecture(self, name: str) -> Provided[Architecture]:
        """The architecture of this name."""
        return cast("Provided[Architecture]", self._one("architectures", name))

    def architecture_of_class(self, hf_class: str) -> Provided[Architecture] | None:
        """The architecture that states exactly this class name, or `None`; raises where several do."""
        found = [p for p in self.architectures() if hf_class in p.value.hf_classes]
        return self.choose("class", hf_class, found) if found else None

    def require_decided(self, names: Iterable[str]) -> None:
        """Raise `plugin-conflict` where several plugins claim a class (case ignored) or architecture among `names`.

        To be asked before a checkpoint's classes are looked up in `architectures()`.
        """
        asked = {name.casefold() for name in names}
        for (noun, name), who in self.conflicts().items():
            if noun in ("class", "architecture") and name.casefold() in asked:
                raise self._unreadable or conflict(noun, name, who)

    def decoders(self) -> tuple[Provided[Decoder], ...]:
        """Every decoder that no preference rules out."""
        return self._provided("decoders")

    def decoder(self, name: str) -> Provided[Decoder]:
        """The decoder of this name."""
        return cast("Provided[Decoder]", self._one("decoders", name))

    def exporters(self) -> tuple[Provided[Exporter], ...]:
        """Every exporter that no preference rules out."""
        return self._provided("exporters")

    def exporter(self, name: str) -> Provided[Exporter]:
        """The exporter of this name."""
        return cast("Provided[Exporter]", self._one("exporters", name))

    def runtimes(self) -> tuple[Provided[Runtime], ...]:
        """Every runtime that no preference rules out."""
        return self._provided("runtimes")

    def runtime(self, name: str) -> Provided[Runtime]:
        """The runtime of this name."""
        return cast("Provided[Runtime]", self._one("runtimes", name))

    def tokenizers(self) -> tuple[Provided[TokenizerReader], ...]:
        """Every tokenizer reader that no preference rules out."""
        return self._provided("tokenizers")

    def transforms(self, architecture: str, format: str) -> tuple[Provided[Transform], ...]:
        """The transforms of one architecture and format, by name; raises where two plugins claim one of them."""
        found: tuple[Provided[Transform], ...] = self._provided("transforms")
        mine = [p for p in found if (p.value.architecture, p.value.format) == (architecture, format)]
        names = sorted({p.value.name for p in mine})
        return tuple(self.choose("transform", n, [p for p in mine if p.value.name == n]) for n in names)

    def packagers(self) -> tuple[Provided[Packager], ...]:
        """Every packager that no preference rules out."""
        return self._provided("packagers")

    def packager(self, name: str) -> Provided[Packager]:
        """The packager of this name."""
        return cast("Provided[Packager]", self._one("packagers", name))

    def diagnoses(self) -> tuple[Provided[Diagnosis], ...]:
        """Every diagnosis that no preference rules out."""
        return self._provided("diagnoses")

    def records(self) -> tuple[PluginRecord, ...]:
        """Every plugin that is installed, sorted by name; conflicts and shadows told in `reason`."""
        conflicts = self.conflicts()
        return tuple(self._told(plugin, conflicts) for plugin in self._plugins)

    def conflicts(self) -> dict[tuple[str, str], tuple[PluginId, ...]]:
        """Claimants by `(noun, name)`, for every name that several claim and no preference decides."""
        claimants: dict[tuple[str, str], list[PluginId]] = {}
        for kind in KINDS:
            offered = self.architectures() if kind.plural == "architectures" else self._provided(kind.plural)
            for provided in offered:
                for name in claims(provided.value):
                    noun = kind.noun if name == getattr(provided.value, "name", None) else "class"
                    claimants.setdefault((noun, name), []).append(provided.plugin)
        for plugin in self._plugins:
            for name in plugin.record.provides["commands"]:
                claimants.setdefault(("command", name), []).append(plugin.record.id)
        undecided = {}
        for (noun, name), who in claimants.items():
            if len(who) > 1 and len([w for w in who if self._prefers(name, w)]) != 1:
                undecided[noun, name] = tuple(who)
        return undecided

    def claimants(self, name: str) -> tuple[PluginId, ...]:
        """Every loaded plugin that claims a name, whatever the kind and the preferences."""
        return tuple(
            plugin.record.id
            for plugin in self._plugins
            if any(name in claims(d) for declared in plugin.declarations.values() for d in declared)
            or name in plugin.record.provides["commands"]
        )

    def choose(self, noun: str, name: str, candidates: Sequence[Provided[D]]) -> Provided[D]:
        """The one of several claimants of a name that is meant.

        Args:
            noun: What the name is, for the message (`class`).
            name: The claimed name; preferences are looked up under it.
            candidates: Who claims it; at least one.

        Raises:
            PluginError: `plugin-conflict`: several, and no preference decides; `preferences-unreadable`.
        """
        if len(candidates) == 1:
            return candidates[0]
        preferred = [c for c in candidates if self._prefers(name, c.plugin)]
        if len(preferred) == 1:
            return preferred[0]
        if self._unreadable:
            raise self._unreadable
        raise conflict(noun, name, [c.plugin for c in candidates])

    def missing(self, noun: str, name: str, known: Iterable[str]) -> PluginError:
        """The error for a name that no loaded plugin provides: who would, and what to do.

        Args:
            noun: `exporter`, `architecture`, `class`, ...
            name: The name that was asked for.
            known: The names there are.
        """
        return missing(noun, name, tuple(known), self.records())

    def notify_written(self, artifact: Artifact, plan: Plan) -> tuple[Event, ...]:
        """Let every observer see a finished conversion.

        Returns:
            An `observer-failed` event for each that raised. Of severity `info`: the artifact is whole.
        """
        arguments = {"artifact": artifact, "plan": plan}
        events = []
        with stdout_to_stderr():
            for plugin in self._plugins:
                for function, names in plugin.callbacks.get("llmfit_artifact_written", ()):
                    who = plugin.record.id
                    call = functools.partial(function, *(arguments[n] for n in names))
                    try:
                        traced(self._trace, "llmfit_artifact_written", who, call)
                    except KeyboardInterrupt:
                        raise
                    except BaseException as error:
                        if self._trace:
                            self._trace(traceback.format_exc().rstrip())
                        message = f"{who} failed in llmfit_artifact_written: {describe(error)}"
                        event = Event(code="observer-failed", message=message, severity="info", subject=who.name)
                        events.append(event)
        return tuple(events)

    def add_commands(self, app: typer.Typer) -> tuple[Event, ...]:
        """Add the plugins' sub-commands to the command line, each plugin's behind its own guard.

        A plugin that raises in its hook, or that takes a name of `app`'s own, fails and loses all it provides.

        Returns:
            An event for each that failed.
        """
        from llmfit_core.plugin_commands import add_commands

        self._plugins, events = add_commands(app, self._plugins, self._prefers, self._trace)
        return events

    def _provided(self, plural: str) -> tuple[Provided[Any], ...]:
        everything = [
            Provided(value=declared, plugin=plugin.record.id)
            for plugin in self._plugins
            for declared in plugin.declarations.get(plural, ())
        ]
        claimants: dict[str, list[PluginId]] = {}
        for provided in everything:
            claimants.setdefault(provided.value.name, []).append(provided.plugin)  # type: ignore[attr-defined]
        return tuple(p for p in everything if not self._loses(p, claimants))

    def _loses(self, provided: Provided[Any], claimants: Mapping[str, Sequence[PluginId]]) -> bool:
        name = provided.value.name
        if len(claimants[name]) == 1:
            return False
        return not self._prefers(name, provided.plugin) and any(self._prefers(name, who) for who in claimants[name])

    def _prefers(self, name: str, who: PluginId) -> bool:
        return normalized(self._preferred.get(name, "")) == normalized(who.distribution)

    def _one(self, plural: str, name: str) -> Provided[Any]:
        provided: Sequence[Provided[Any]] = (
            self.architectures() if plural == "architectures" else self._provided(plural)
        )
        found = [p for p in provided if p.value.name == name]
        if not found:
            raise self.missing(_KINDS[plural].noun, name, {p.value.name for p in provided})
        return self.choose(_KINDS[plural].noun, name, found)

    def _told(self, plugin: Plugin, conflicts: Mapping[tuple[str, str], Sequence[PluginId]]) -> PluginRecord:
        record = plugin.record
        if record.status != "loaded":
            return record
        declared = [(k.plural, d) for k in KINDS for d in plugin.declarations.get(k.plural, ())]
        lost = [
            str(getattr(declaration, "name", ""))
            for plural, declaration in declared
            if all(p.plugin != record.id or p.value is not declaration for p in self._provided(plural))
        ]
        reasons = [f"preferences take {name} from {self._preferred[name]}" for name in dict.fromkeys(lost)]
        if lost and len(declared) == len(lost) and not plugin.callbacks:
            return replace(record, status="shadowed", reason="; ".join(reasons))
        for (noun, name), who in conflicts.items():
            if record.id in who:
                reasons.append(conflict(noun, name, who).cause)
        return replace(record, reason="; ".join(reasons))
