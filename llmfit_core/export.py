"""Exporters: a format, its schemes, and how a plan for it is made."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pathlib import Path

    from llmfit_core.model import Model
    from llmfit_core.plan import Plan, Recipe

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
class Exporter:
    """Declares a format. The callables are called late and may import what they need.

    Attributes:
        name: The part before the colon of `--to` (`gguf`).
        suffix: Of the one file it writes (`.gguf`); empty for a folder.
        schemes: What it can write, the usual one first.
        needs: What it cannot work without.
        plan: `(model, recipe) -> Plan`: decides everything, reads no weight; raises for what cannot be right.
        fill: `(plan, index of the file, path of the partial file, workers, done jobs, on_done) -> None`: writes
            the tensors of one file at their offsets. `on_done(job index, notes)` is called as each is whole.
        reopen: `(path) -> None`: raises `VerificationError` unless the written file opens and is complete.
    """

    name: str
    suffix: str
    schemes: tuple[Scheme, ...]
    needs: tuple[Need, ...] = ()
    plan: Callable[[Model, Recipe], Plan]
    fill: Callable[[Plan, int, Path, int, Iterable[int], Callable[[int, str], None]], None]
    reopen: Callable[[Path], None]
