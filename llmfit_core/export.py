"""Exporters: a format, its schemes, and how a plan for it is made."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pathlib import Path

    from llmfit_core.model import Model
    from llmfit_core.plan import OutputFile, Plan, Recipe

Need = Literal["wiring", "calibration", "live model", "accelerator"]


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """A precision a format can hold.

    Attributes:
        name: In lower case (`q4_k_m`).
        summary: One line for people.
        bits: Nominal bits per weight.
    """

    name: str
    summary: str
    bits: float


@dataclass(frozen=True, kw_only=True)
class Written:
    """What became of one tensor.

    Attributes:
        overflow: Values too large for their type (for blocks: scales).
        underflow: Nonzero values that became zero.
        nonfinite: NaNs and infinities of the source that were kept.
    """

    overflow: int = 0
    underflow: int = 0
    nonfinite: int = 0


@dataclass(frozen=True, kw_only=True)
class FillOptions:
    """How to fill a file.

    Attributes:
        workers: How many at once; 0 for as many as there are cores.
        done: Indexes of tensors whose bytes are there already (a resumed run).
        on_done: Called with index and outcome as each tensor's bytes have been written.
        on_progress: Called with bytes written and bytes in all.
    """

    workers: int = 0
    done: Collection[int] = ()
    on_done: Callable[[int, Written], None] | None = None
    on_progress: Callable[[int, int], None] | None = None


@dataclass(frozen=True, kw_only=True)
class Filled:
    """What became of a file: its sha256, and the outcome of each tensor that was written."""

    sha256: str
    written: Mapping[int, Written] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Exporter:
    """Declares a format. The callables are called late and may import what they need.

    Attributes:
        name: The part before the colon of `--to` (`gguf`).
        suffix: Of the one file it writes (`.gguf`); empty for a folder.
        schemes: What it can write, the usual one first.
        aliases: Other names that people give its schemes (`q4_k` for `q4_k_m`).
        usual: `(model) -> scheme` for who asks for none; the first one where there is none.
        needs: What it cannot work without.
        plan: `(model, recipe) -> Plan`: decides everything, reads no weight; raises for what cannot be right.
        fill: `(file, path of the partial file, options) -> Filled`: writes head and tensors of one `OutputFile`.
        reopen: `(path, plan) -> None`: raises `VerificationError` unless the written file is what was planned.
    """

    name: str
    suffix: str
    schemes: tuple[Scheme, ...]
    aliases: Mapping[str, str] = field(default_factory=dict)
    usual: Callable[[Model], str] | None = None
    needs: tuple[Need, ...] = ()
    plan: Callable[[Model, Recipe], Plan]
    fill: Callable[[OutputFile, Path, FillOptions], Filled]
    reopen: Callable[[Path, Plan], None]
