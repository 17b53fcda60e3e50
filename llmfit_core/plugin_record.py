"""What is known of a plugin: who it is, how it fares, what it provides."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, Literal, TypeVar

from llmfit_core.architecture import Architecture
from llmfit_core.declarations import Diagnosis, Packager, TokenizerReader, Transform
from llmfit_core.decode import Decoder
from llmfit_core.export import Exporter
from llmfit_core.runtime import Runtime

if TYPE_CHECKING:
    from collections.abc import Mapping

Status = Literal["loaded", "failed", "incompatible", "blocked", "shadowed"]
"""`loaded`: works. `failed`: broken, see the reason. `incompatible`: wants another core, not imported.
`blocked`: left out by `LLMFIT_PLUGINS`, not imported. `shadowed`: all it provides is taken by others."""


@dataclass(frozen=True)
class Kind:
    """A kind of declaration: the hook that declares it, and its words.

    Attributes:
        hook: The hook's name.
        plural: The key under `provides` in JSON.
        noun: For messages.
        type: The declaration's class.
    """

    hook: str
    plural: str
    noun: str
    type: type[object]


KINDS: Final = (
    Kind("llmfit_architectures", "architectures", "architecture", Architecture),
    Kind("llmfit_tokenizers", "tokenizers", "tokenizer reader", TokenizerReader),
    Kind("llmfit_decoders", "decoders", "decoder", Decoder),
    Kind("llmfit_transforms", "transforms", "transform", Transform),
    Kind("llmfit_exporters", "exporters", "exporter", Exporter),
    Kind("llmfit_runtimes", "runtimes", "runtime", Runtime),
    Kind("llmfit_packagers", "packagers", "packager", Packager),
    Kind("llmfit_diagnoses", "diagnoses", "diagnosis", Diagnosis),
)

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, kw_only=True, order=True)
class PluginId:
    """Who a plugin is.

    Attributes:
        name: Of its entry point (`qwen2`).
        distribution: That it was installed with (`llmfit-qwen2`).
        version: Of the distribution.
    """

    name: str
    distribution: str
    version: str

    def __str__(self) -> str:
        """Distribution and version, and the name where the distribution does not say it."""
        told = normalized(self.distribution) in (normalized(self.name), f"llmfit-{normalized(self.name)}")
        return f"{self.distribution} {self.version}" + ("" if told else f" (plugin {self.name})")


@dataclass(frozen=True, kw_only=True)
class Provided(Generic[T_co]):
    """A declaration and the plugin it came from."""

    value: T_co
    plugin: PluginId


@dataclass(frozen=True, kw_only=True)
class PluginRecord:
    """A plugin as `llmfit plugins list` shows it. One that failed stays in the list.

    Attributes:
        id: Who it is.
        status: See `Status`.
        reason: Why it is not simply loaded, in one line; also the conflicts of a loaded one; else empty.
        provides: Names by plural kind (`exporters`), every kind present; also `commands`.
        entry_point: What the entry point names (`llmfit_qwen2`).
        hooks: Names of the hooks it implements.
        notes: Warnings it gave while it was loaded.
        seconds: What loading it took.
    """

    id: PluginId
    status: Status
    reason: str = ""
    provides: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: empty_provides())
    entry_point: str = ""
    hooks: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def name(self) -> str:
        """The entry point's name."""
        return self.id.name

    @property
    def distribution(self) -> str:
        """The distribution's name."""
        return self.id.distribution

    @property
    def version(self) -> str:
        """The distribution's version."""
        return self.id.version

    def as_json(self) -> dict[str, object]:
        """The plugin as the documented JSON object (schema 1)."""
        return {
            "name": self.name,
            "distribution": self.distribution,
            "version": self.version,
            "status": self.status,
            "reason": self.reason,
            "provides": {plural: list(names) for plural, names in self.provides.items()},
        }


def empty_provides() -> dict[str, tuple[str, ...]]:
    """`PluginRecord.provides` of a plugin that provides nothing."""
    return {**{kind.plural: () for kind in KINDS}, "commands": ()}


def normalized(name: str) -> str:
    """A distribution's or plugin's name as it is compared: lower case, runs of `-`, `_` and `.` as one `-`."""
    return re.sub(r"[-_.]+", "-", name).strip().lower()
