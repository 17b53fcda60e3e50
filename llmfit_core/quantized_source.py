"""What decoders of quantized checkpoints share: the tensors of a module, their shapes, the plain checkpoint.

A decoder finds its modules by a tensor that only a quantized one has (`qweight`, `weight_packed`), takes their parts with
`Parts`, and hands the weights that it understood to `plain`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from llmfit_core.dtypes import FLOATS
from llmfit_core.errors import LlmfitError, SourceError
from llmfit_core.events import Event
from llmfit_core.foreign import unquantized
from llmfit_core.hparams import read_config
from llmfit_core.naming import Patterns, unwrap
from llmfit_core.recognise import recognise
from llmfit_core.tensors import TensorRef
from llmfit_core.transform import Cast, Transpose

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llmfit_core.architecture import Architecture, Slot
    from llmfit_core.checkpoint import Checkpoint
    from llmfit_core.tensors import Tensor

SCALE_DTYPES = frozenset({"f16", "bf16", "f32"})
_EXPERT = re.compile(r"\.experts\.\d+\.")
_DAMAGED = "The checkpoint is damaged, or its quantization config is another model's: fetch both again."


@dataclass
class Parts:
    """The tensors of a checkpoint, taken by module and part.

    Attributes:
        tensors: Of the checkpoint.
        taken: Names that were asked for and found.
    """

    tensors: Mapping[str, TensorRef]
    taken: dict[str, None] = field(default_factory=dict)

    def modules(self, part: str) -> list[str]:
        """Modules that have this part, in the checkpoint's order."""
        return [n.removesuffix(f".{part}") for n in self.tensors if n.endswith(f".{part}")]

    def find(self, module: str, part: str) -> Tensor | None:
        """A part, where there is one."""
        ref = self.tensors.get(f"{module}.{part}")
        if ref is None:
            return None
        self.taken[f"{module}.{part}"] = None
        return ref.tensor

    def need(self, module: str, part: str, because: str) -> Tensor:
        """A part that has to be there.

        Raises:
            SourceError: `missing-tensor`.
        """
        tensor = self.find(module, part)
        if tensor is None:
            raise SourceError(
                "missing-tensor",
                f"{module}.{because} is there and {module}.{part} is not",
                "Fetch the missing shard, or the checkpoint again.",
            )
        return tensor

    def refuse_orphans(self, parts: Iterable[str]) -> None:
        """No such part may be left without its module's weight.

        Raises:
            SourceError: `orphan-tensor`.
        """
        ends = tuple(f".{p}" for p in parts)
        for name in self.tensors:
            if name.endswith(ends) and name not in self.taken:
                raise SourceError(
                    "orphan-tensor",
                    f"{name} belongs to a quantized weight that is not there",
                    "Fetch the missing shard, or the checkpoint again.",
                )


def require_shape(name: str, tensor: Tensor, wanted: tuple[int, ...], dtypes: Iterable[str], because: str) -> None:
    """A part's shape and type as the rest of its module and the config have it.

    Args:
        name: The tensor's.
        tensor: It.
        wanted: Its shape.
        dtypes: The types that it may have.
        because: What the shape follows from, with the numbers.

    Raises:
        SourceError: `shape-mismatch`, `tensor-dtype`.
    """
    if tensor.shape != wanted:
        raise SourceError(
            "shape-mismatch", f"{name} has the shape {list(tensor.shape)} where {because} makes it {list(wanted)}", _DAMAGED
        )
    require_dtype(name, tensor, dtypes)


def require_dtype(name: str, tensor: Tensor, dtypes: Iterable[str]) -> None:
    """A part's type.

    Raises:
        SourceError: `tensor-dtype`.
    """
    known = sorted(dtypes)
    if tensor.dtype not in known:
        raise SourceError("tensor-dtype", f"{name} holds {tensor.dtype} where {' or '.join(known)} belongs", _DAMAGED)


def plain(
    checkpoint: Checkpoint,
    weights: Mapping[str, Tensor],
    parts: Parts,
    *,
    kinds: Sequence[str],
    how: str,
    events: Iterable[Event] = (),
    waived: Mapping[str, str] | None = None,
) -> Checkpoint:
    """The checkpoint with the weights in place of their parts, and a config that speaks of no quantization.

    Args:
        checkpoint: As it is stored.
        weights: By name, `....weight`.
        parts: What was taken of it; it goes.
        kinds: For `Checkpoint.quantized`: `awq-w4g128`; none where no weight was quantized.
        how: For people: `4-bit AWQ, group 128`.
        events: What else was noticed.
        waived: Names of tensors that say nothing of the weights, with the reason; they go as well.

    Raises:
        SourceError: `duplicate-tensor` where a weight is there plain as well.
    """
    tensors: dict[str, TensorRef] = {}
    for name, ref in checkpoint.tensors.items():
        module = name.rpartition(".")[0]
        weight = f"{module}.weight"
        if name in (waived or {}):
            continue
        if name in parts.taken:
            if weight in weights and weight not in tensors:
                tensors[weight] = TensorRef(name=weight, tensor=weights[weight])
        elif name in weights:
            raise SourceError(
                "duplicate-tensor",
                f"{name} is stored plain and quantized",
                "Remove the copy that does not belong to the model.",
            )
        else:
            tensors[name] = ref
    _align_experts(tensors)
    told: tuple[Event, ...] = ()
    if kinds:
        message = f"the weights are {how}: what that lost stays lost, and quantizing them again loses more"
        told = (Event(code="source-quantized", message=message, severity="info", subject=", ".join(kinds)),)
    return replace(
        checkpoint,
        config=unquantized(checkpoint.config),
        tensors=tensors,
        quantized=(*checkpoint.quantized, *kinds),
        waived={**checkpoint.waived, **(waived or {})},
        events=(*checkpoint.events, *told, *events),
    )


def _align_experts(tensors: dict[str, TensorRef]) -> None:
    """Experts that belong together get one type, float32, where some were left as they were and others decoded."""
    kin: dict[str, list[str]] = {}
    for name in tensors:
        if _EXPERT.search(name):
            kin.setdefault(_EXPERT.sub(".experts.#.", name), []).append(name)
    for names in kin.values():
        types = {tensors[n].dtype for n in names}
        if len(types) > 1 and types <= FLOATS:
            for name in names:
                tensors[name] = replace(tensors[name], tensor=Cast(tensors[name].tensor, "f32"))


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where the modules of a checkpoint belong in its architecture's table.

    Attributes:
        slots: By module name; what the table does not know is not there.
        hparams: What the config says, as the table reads it.
    """

    slots: Mapping[str, Slot]
    hparams: Mapping[str, object]

    def lies_transposed(self, module: str) -> bool:
        """Whether the plain checkpoint stores this weight `[in, out]`, as GPT-2's Conv1D does."""
        slot = self.slots.get(module)
        return slot is not None and slot.transposed

    def has_bias(self, module: str) -> bool:
        """Whether the model can have a bias there; where the table is silent, the stored one stays and is judged later."""
        slot = self.slots.get(module)
        if slot is None or slot.bias == "optional":
            return True
        return bool(self.hparams.get(slot.bias)) if isinstance(slot.bias, str) else slot.bias


def places_of(checkpoint: Checkpoint, modules: Iterable[str], architectures: Sequence[Architecture]) -> Places:
    """Look the modules up; an architecture that nobody knows is told of later, by others.

    Args:
        checkpoint: As it is stored.
        modules: Names without `.weight`.
        architectures: Those that are known.
    """
    names = dict.fromkeys(f"{m}.weight" for m in modules)
    others = {n: r for n, r in checkpoint.tensors.items() if n not in names}
    whole = {n: TensorRef(name=n, tensor=next(iter(others.values())).tensor) for n in names} if others else {}
    try:
        architecture, _, _ = recognise(replace(checkpoint, tensors={**others, **whole}), architectures)
        hparams = read_config(checkpoint.config, architecture).hparams
        patterns = Patterns(architecture.tensors)
        told, _ = unwrap(names, patterns)
    except LlmfitError:
        return Places(slots={}, hparams={})
    slots = {}
    for name, canonical in told.items():
        match = patterns.match(canonical)
        if match is not None:
            slots[name.removesuffix(".weight")] = architecture.slot(match.pattern)
    return Places(slots=slots, hparams=hparams)


def as_stored(weight: Tensor, module: str, places: Places) -> Tensor:
    """A Linear's weight `[out, in]` as the plain checkpoint would store it."""
    return Transpose(weight) if places.lies_transposed(module) else weight
