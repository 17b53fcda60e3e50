"""The parity figures of this run, kept for the summary and appended to a file where one is named."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass

VARIABLE = "LLMFIT_KIT_RECORD"


@dataclass(frozen=True, kw_only=True)
class Parity:
    """How far what a runtime computes is from the reference's: probabilities, or the vectors of a model that has none.

    Attributes:
        architecture: Its name.
        plugin: The distribution that declares it.
        hf_class: The class of the checkpoint.
        variation: Which config of the sample (`base` for the plain one).
        kl: Mean divergence over positions, in nats; `None` for vectors.
        max_kl: The largest of them; `None` for vectors.
        max_difference: Of log-probabilities, where the reference gives at least a millionth; of vectors, the largest of a
            component, in terms of their root mean square.
        of: `logits` or `vectors`.
        top1: Share of positions with the same most likely token; for vectors, the smallest cosine.
        positions: How many were compared.
        longest: Tokens of the longest prefix.
        exact_context: Tokens up to which the plan says the artifact is exact; `None` for all.
        graph: The graph's name.
        runtime: Its name.
        runtime_version: Its version.
        reference: What it was compared with (`transformers 5.24.0`, or the author's formulas).
    """

    architecture: str
    plugin: str
    hf_class: str
    variation: str
    kl: float | None
    max_kl: float | None
    max_difference: float
    of: str
    top1: float
    positions: int
    longest: int
    exact_context: int | None
    graph: str
    runtime: str
    runtime_version: str
    reference: str

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.architecture} {self.hf_class} {self.variation}"

    @property
    def figure(self) -> str:
        """What was measured, in words."""
        if self.kl is None or self.max_kl is None:
            return f"vectors to within {self.max_difference:.1e}, {self.positions} tokens in {self.runtime}"
        return f"mean KL {self.kl:.1e}, largest {self.max_kl:.1e}, {self.positions} positions in {self.runtime}"

    def as_json(self) -> dict[str, object]:
        """The figure as a JSON object, with no digits that are noise."""
        found = {k: getattr(self, k) for k in ("kl", "max_kl", "max_difference")}
        short = {k: v if v is None else float(f"{v:.2g}") for k, v in found.items()}
        return {**asdict(self), **short, "top1": round(self.top1, 4)}


_FIGURES: list[Parity] = []


def figures() -> tuple[Parity, ...]:
    """Those of this process."""
    return tuple(_FIGURES)


def write_to(path: str) -> None:
    """Append the figures that follow to `path`, in this process and its children."""
    os.environ[VARIABLE] = os.path.abspath(path)


def add(figure: Parity) -> None:
    """Keep a figure, and append it to the file that `LLMFIT_KIT_RECORD` names, one JSON object a line."""
    _FIGURES.append(figure)
    path = os.environ.get(VARIABLE)
    if path:
        line = json.dumps(figure.as_json(), sort_keys=True) + "\n"
        with open(path, "ab", buffering=0) as file:  # one write: several processes may share the file
            file.write(line.encode())
