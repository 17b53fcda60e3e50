"""What plugins declare besides architectures, decoders, exporters and runtimes.

Small frozen values, like those. Their callables are called late and may import what they need.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llmfit_core.events import Event
    from llmfit_core.model import Model
    from llmfit_core.runtime import Probe
    from llmfit_core.tokenizer.vocab import Vocab

SideFiles = Mapping[str, Path]
"""The small files beside the weights, by plain file name (`tokenizer.json`, `vocab.txt`)."""

Config = Mapping[str, object]
"""The values of config.json, text part, as normalised by llmfit (`Checkpoint.config.values`)."""


@dataclass(frozen=True, kw_only=True)
class TokenizerReader:
    """Declares tokenizer files that can be read. Asked before the core's own readers.

    Attributes:
        name: Unique (`tekken`).
        detects: `(side files, config) -> bool`: whether the folder has this kind of tokenizer; from names
            and a look at the files' beginnings alone.
        read: `(side files, config) -> Vocab`; raises `SourceError` for files that are damaged and
            `UnsupportedError` for what cannot be said in a `Vocab`.
    """

    name: str
    detects: Callable[[SideFiles, Config], bool]
    read: Callable[[SideFiles, Config], Vocab]


@dataclass(frozen=True, kw_only=True)
class Transform:
    """Declares the rewrite that one format needs of one architecture's tensors, and that no fact of the tables says.

    Look first whether a storage fact (`Fused`, `Slot.transposed`, `Slot.shift`) or a graph's `merges`,
    `spelling` or `constants` says it: then every format profits. A transform is for what remains.

    Attributes:
        name: Unique and stable; plans and manifests name it (`falcon-qkv-interleaved`).
        architecture: The name of the `Architecture` it is for.
        format: The name of the exporter it is for.
        apply: `(model) -> model`: with its tensors (or hparams) as the format wants them, most of them
            unchanged. Reads no data: it wraps tensors in the named operations of `llmfit_core.transform`.
            Several transforms of one pair run in the order of their names.
    """

    name: str
    architecture: str
    format: str
    apply: Callable[[Model], Model]


@dataclass(frozen=True, kw_only=True)
class Packaged:
    """What a packager did.

    Attributes:
        paths: Files it wrote.
        steps: What the user does next, one command or sentence each.
        events: Warnings and fallbacks.
    """

    paths: tuple[Path, ...] = ()
    steps: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Packager:
    """Declares a host that an artifact can be handed to.

    Attributes:
        name: Unique (`ollama`).
        formats: Artifact formats it takes (`gguf`).
        probe: Is the host here?
        package: `(artifact path, output folder or None for the host's own place) -> Packaged`; never
            overwrites what it did not write, raises `OutputError` instead.
    """

    name: str
    formats: tuple[str, ...]
    probe: Callable[[], Probe]
    package: Callable[[Path, Path | None], Packaged]


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Declares what an error message of some tool means.

    Attributes:
        name: Unique and stable (`lm-studio-no-runtime`).
        pattern: Regular expression, searched for in the message without regard to case.
        cause: What the message is really about, in one line; `{name}` is replaced by a named group.
        remedy: What to do, in one line; likewise.
        check: Whether the cause is present on this machine; `None` where that cannot be told.
    """

    name: str
    pattern: str
    cause: str
    remedy: str
    check: Callable[[], bool] | None = None
