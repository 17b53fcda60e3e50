"""Who feeds whom, in terms of the tensors as they are stored: what a scale moves between.

An architecture's `wiring` speaks of roles. Here it becomes blocks of stored tensors, layer by layer and expert by expert:
divide the output channels of a group's sources by any positive numbers, multiply the input channels of all its sinks by
the same, and the model computes what it computed before. AWQ and SmoothQuant choose those numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from llmfit_core.errors import UnsupportedError
from llmfit_core.model import Key
from llmfit_core.transform import Affine, Concat, Reshape, Slice, Stack, Transpose

if TYPE_CHECKING:
    from llmfit_core.model import Model
    from llmfit_core.roles import Link
    from llmfit_core.tensors import Tensor, TensorRef

Range = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Block:
    """A rectangular part of a stored tensor.

    Attributes:
        name: The stored tensor's name, as in `Model.refs`.
        key: What the part is.
        index: From where to where along each axis of the stored tensor, outermost first.
        axis: The axis along which the channels of the group run.
        shift: What has to be added to the stored values before they are scaled, and taken off again afterwards (1.0 for
            norms stored minus one).
    """

    name: str
    key: Key
    index: tuple[Range, ...]
    axis: int
    shift: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ScaleGroup:
    """One place where a scale can move; where the source lies in several parts (each head's v), one part's.

    Attributes:
        link: The architecture's statement.
        layer: Which layer.
        expert: Which expert, for links inside an expert.
        channels: How many channels: the length of the scale.
        sources: What gets divided: the absorber's weight, and its bias where it has one.
        sinks: What gets multiplied: every consumer of those channels.
    """

    link: Link
    layer: int
    expert: int | None
    channels: int
    sources: tuple[Block, ...]
    sinks: tuple[Block, ...]


def scale_groups(model: Model) -> tuple[ScaleGroup, ...]:
    """Every group of `model`, in layer order.

    A link whose source this checkpoint does not have, or none of whose sinks, gives no group; neither does one whose
    condition does not hold (`no_gqa`, a kind of layer).

    Raises:
        UnsupportedError: `no-wiring` where the architecture states none; `unknown-condition`; `wiring-disagrees` where
            source and sinks have different numbers of channels.
    """
    if not model.architecture.wiring:
        raise UnsupportedError(
            "no-wiring",
            f"the table of {model.architecture.name} does not say which tensors feed which, and this format needs to know",
            "State `wiring` in its Architecture, or choose a format that scales nothing.",
        )
    places = {id(ref.tensor): ref for ref in model.refs}
    groups: list[ScaleGroup] = []
    for layer in range(model.layers):
        for link in model.architecture.wiring:
            if _holds(link, model, layer):
                groups += _groups(link, layer, model.tensors, places)
    return tuple(groups)


def _holds(link: Link, model: Model, layer: int) -> bool:
    if not link.when:
        return True
    if link.when == "no_gqa":
        return model.integer("attention.head_count") == model.integer("attention.head_count_kv")
    if model.architecture.layer_kinds is not None:
        return link.when in model.architecture.layer_kinds(model.hparams, layer)
    raise UnsupportedError(
        "unknown-condition",
        f"the wiring of {model.architecture.name} has the condition {link.when!r}",
        "A newer llmfit-core may know it.",
    )


def _groups(
    link: Link, layer: int, tensors: Mapping[Key, Tensor], places: Mapping[int, TensorRef]
) -> Iterator[ScaleGroup]:
    absorber = [k for k in (Key(link.source, layer), Key(link.source, layer, "bias")) if k in tensors]
    consumers = [k for k in (Key(sink, layer) for sink in link.sinks) if k in tensors]
    if not absorber or not consumers:
        return
    experts = range(tensors[absorber[0]].shape[0]) if link.per_expert else (None,)
    for expert in experts:
        sources = [b for k in absorber for b in _blocks(k, tensors[k], places, expert, outputs=True)]
        sinks = [b for k in consumers for b in _blocks(k, tensors[k], places, expert, outputs=False)]
        parted = _by_part(sources, sinks) if len(sources) > len(absorber) else [(sources, sinks)]
        for from_here, to_here in parted:
            counts = {_length(b) for b in (*from_here, *to_here)}
            if len(counts) != 1:
                raise UnsupportedError(
                    "wiring-disagrees",
                    f"layer {layer}: {link.source} and {', '.join(link.sinks)} have {sorted(counts)} channels",
                    "The wiring of this architecture does not describe this checkpoint; report it to its plugin.",
                )
            yield ScaleGroup(
                link=link, layer=layer, expert=expert, channels=counts.pop(), sources=tuple(from_here), sinks=tuple(to_here)
            )


def _by_part(sources: list[Block], sinks: list[Block]) -> Iterator[tuple[list[Block], list[Block]]]:
    """Sources that lie in several parts, each with its own share of the sinks' channels.

    Rows of one meaning may lie in groups between rows of another (each head's v behind its k): every part feeds the
    channels that come next.
    """
    parts: dict[Key, list[Block]] = {}
    for block in sources:
        parts.setdefault(block.key, []).append(block)
    at = 0
    for part in zip(*parts.values(), strict=True):
        size = _length(part[0])
        yield list(part), [_narrowed(b, at, at + size) for b in sinks]
        at += size
    if any(_length(b) != at for b in sinks):
        yield sources, sinks  # which do not agree


def _narrowed(block: Block, start: int, stop: int) -> Block:
    """The channels from `start` to `stop` of a block."""
    index = list(block.index)
    first = index[block.axis][0]
    index[block.axis] = (first + start, first + stop)
    return replace(block, index=tuple(index))


def _length(block: Block) -> int:
    start, stop = block.index[block.axis]
    return stop - start


@dataclass(frozen=True)
class _View:
    """What is looked at of a node: a range for each of its axes, and which axis of the canonical tensor each is."""

    index: tuple[Range, ...]
    axes: tuple[int | None, ...]
    shift: float = 0.0


def _blocks(
    key: Key, tensor: Tensor, places: Mapping[int, TensorRef], expert: int | None, *, outputs: bool
) -> Iterator[Block]:
    """Where the canonical tensor `key`, or one expert's part of it, lies, with its output or its input channels."""
    rank = len(tensor.shape)
    channels = rank - 1 if key.part == "bias" or rank == 1 or not outputs else rank - 2
    index = [(0, n) for n in tensor.shape]
    if expert is not None:
        index[0] = (expert, expert + 1)
    for ref, seen in _leaves(tensor, _View(index=tuple(index), axes=tuple(range(rank))), places):
        axis = seen.axes.index(channels)
        yield Block(name=ref.name, key=key, index=seen.index, axis=axis, shift=seen.shift)


def _leaves(tensor: Tensor, view: _View, places: Mapping[int, TensorRef]) -> Iterator[tuple[TensorRef, _View]]:
    """Down the tree of operations to the stored tensors."""
    ref = places.get(id(tensor))
    if ref is not None:
        yield ref, view
    elif isinstance(tensor, Transpose):
        index, axes = list(view.index), list(view.axes)
        index[-2:], axes[-2:] = index[:-3:-1], axes[:-3:-1]
        yield from _leaves(tensor.source, replace(view, index=tuple(index), axes=tuple(axes)), places)
    elif isinstance(tensor, Affine) and tensor.scale == 1:
        yield from _leaves(tensor.source, replace(view, shift=view.shift + tensor.shift), places)
    elif isinstance(tensor, Slice):
        index, axes = list(view.index), list(view.axes)
        if tensor.squeeze:
            index.insert(tensor.axis, (tensor.start, tensor.stop))
            axes.insert(tensor.axis, None)
        else:
            index[tensor.axis] = tuple(at + tensor.start for at in index[tensor.axis])  # type: ignore[assignment]
        yield from _leaves(tensor.source, replace(view, index=tuple(index), axes=tuple(axes)), places)
    elif isinstance(tensor, Stack):
        start, stop = view.index[0]
        for number in range(start, stop):
            inner = replace(view, index=view.index[1:], axes=view.axes[1:])
            yield from _leaves(tensor.parts[number], inner, places)
    elif isinstance(tensor, Reshape) and (grouped := _grouped(tensor)) is not None and view.axes[-1] == len(view.axes) - 1:
        source, starts, height = grouped
        *outer, rows, columns = view.index
        if rows != (0, tensor.shape[-2]):
            raise UnsupportedError("wiring-storage", "a part of grouped rows cannot be addressed", "Report it.")
        for start in starts:
            yield from _leaves(source, replace(view, index=(*outer, (start, start + height), columns)), places)
    elif isinstance(tensor, Concat):
        raise UnsupportedError(
            "wiring-storage", "a tensor is stored in several pieces, between which a scale cannot be moved yet", "Report it."
        )
    else:
        raise UnsupportedError(
            "wiring-storage", f"a scale cannot be moved through {type(tensor).__name__}", "Report it."
        )


def _grouped(tensor: Reshape) -> tuple[Tensor, range, int] | None:
    """What `transform.ungroup` took a matrix from: the source, where its rows begin in each group, and how many each."""
    cut = tensor.source
    apart = cut.source if isinstance(cut, Slice) and cut.axis == 1 and not cut.squeeze else None
    if not isinstance(apart, Reshape) or not isinstance(cut, Slice) or len(apart.source.shape) < 2 or len(apart.shape) != 3:
        return None
    return apart.source, range(cut.start, apart.source.shape[-2], apart.shape[1]), cut.stop - cut.start
