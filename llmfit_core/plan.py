"""`Recipe` and `Plan`: what is wanted, and what will happen, before it does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llmfit_core.events import Event
    from llmfit_core.model import Model
    from llmfit_core.tensors import Tensor


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What the user asks for. The same recipe on the same input gives the same bytes.

    Attributes:
        exporter: `gguf`, `hf`.
        scheme: In lower case (`q4_k_m`).
        name: `general.name` or its like; `None` for what the source says.
        tensor_types: `(regex, type)` pairs, first match wins.
        context_length: Override of the context length in the metadata.
        rope_freq_base: Override of the rope base.
        rope_freq_scale: Override of the rope scale (1 / factor).
        metadata: `--set key=value` pairs, as text.
        pre: Override of the pre-tokenizer's name.
        graph: The graph to write for, by its own name or its engine's; `None` for the architecture's usual engine.
        split_max_bytes: Largest part file, or `None` for one file.
        strict: Fail on warnings and fallbacks.
        force: Do what is measured to be wrong all the same.
    """

    exporter: str
    scheme: str
    name: str | None = None
    tensor_types: tuple[tuple[str, str], ...] = ()
    context_length: int | None = None
    rope_freq_base: float | None = None
    rope_freq_scale: float | None = None
    metadata: tuple[tuple[str, str], ...] = ()
    pre: str | None = None
    graph: str | None = None
    split_max_bytes: int | None = None
    strict: bool = False
    force: bool = False


@dataclass(frozen=True, kw_only=True)
class OutputTensor:
    """One tensor of the artifact: a job with a known input, output and size.

    Attributes:
        name: In the artifact.
        tensor: Where its values come from; lazy.
        type: Its element type there (`q4_k`, `f32`).
        nbytes: Its size there.
        role: What it is.
        reason: Why it has another type than the scheme's own; empty where it has that.
    """

    name: str
    tensor: Tensor
    type: str
    nbytes: int
    role: str = ""
    reason: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        """Outermost axis first."""
        return self.tensor.shape


@dataclass(frozen=True, kw_only=True)
class DataCheck:
    """Something only data can decide, pending until it is run.

    Attributes:
        name: Stable (`head-equals-embedding`).
        question: For people.
        tensors: The tensors to look at.
        refusal: What a no means, where it means that this must not be done without `--force`; `{tensor}` is replaced.
            Where it is empty, the plan is made anew by the answer.
        answer: What the data said; `None` while pending.
    """

    name: str
    question: str
    tensors: tuple[str, ...]
    refusal: str = ""
    answer: bool | None = None


@dataclass(frozen=True, kw_only=True)
class OutputFile:
    """A file of the artifact: its name, its header or whole content, and its tensors in order.

    Attributes:
        name: Plain file name; the exporter's convention.
        head: The bytes before the first tensor, or the whole content where there are no tensors.
        tensors: Each with its absolute offset.
        size: The file's size.
    """

    name: str
    head: bytes
    tensors: tuple[tuple[OutputTensor, int], ...] = ()
    size: int = 0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What will happen. Made from JSON and tensor headers alone.

    Attributes:
        model: The understood source.
        recipe: What was asked.
        plugins: Distribution and version by the names they provided (`exporter gguf`).
        files: What will be written, byte for byte but for the tensors' data.
        graph: The graph's name, for formats that have one.
        engine: The engine it was read from.
        metadata: What the artifact says of itself, key by key, for people; long lists by their length.
        checks: What only data can decide.
        events: Every warning, fallback and bound.
        exact_context: Tokens up to which the artifact is exact; `None` for the whole context.
        decoders: Names of decoders applied to the source.
        memory: Bytes the conversion holds at its peak, about; zero where the exporter does not say.
    """

    model: Model
    recipe: Recipe
    plugins: Mapping[str, str] = field(default_factory=dict)
    files: tuple[OutputFile, ...] = ()
    graph: str = ""
    engine: str = ""
    metadata: Mapping[str, object] = field(default_factory=dict)
    checks: tuple[DataCheck, ...] = ()
    events: tuple[Event, ...] = ()
    exact_context: int | None = None
    decoders: tuple[str, ...] = ()
    memory: int = 0

    @property
    def tensors(self) -> tuple[OutputTensor, ...]:
        """All output tensors, in file order."""
        return tuple(t for f in self.files for t, _ in f.tensors)

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(f.size for f in self.files)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the tensors, which a runtime holds besides its context."""
        return sum(t.nbytes for t in self.tensors)


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """What was written.

    Attributes:
        format: The exporter's name.
        scheme: As asked.
        paths: The files, first to open first.
        manifest: The content of `llmfit.json`.
    """

    format: str
    scheme: str
    paths: tuple[Path, ...]
    manifest: Mapping[str, object]
