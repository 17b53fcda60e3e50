"""Which files of a model folder form the checkpoint: decided from names and the index alone.

The same for a folder on disk and for a repository on a hub, whose weights are elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from llmfit_core.errors import SourceError
from llmfit_core.events import Event

Kind = Literal["safetensors", "torch"]
ReadIndex = Callable[[str], dict[str, Any]]

_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{1,6})-of-(?P<count>\d{1,6})\.(?P<suffix>safetensors|bin)")
_SAFETENSORS_INDEX = "model.safetensors.index.json"
_TORCH_INDEX = "pytorch_model.bin.index.json"
_AGAIN = "Download the model again, whole: `hf download REPO`."
_SHARDS = 10_000


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The weight files of a checkpoint.

    Attributes:
        kind: How they are written.
        files: Their names, in shard order; all of them exist.
        weight_map: Tensor name to file name as the index tells it; `None` without an index.
        index: The index file's name, or empty.
        missing: Shards that the names or the index promise and that are not there.
        events: What was ignored or is unusual.
    """

    kind: Kind
    files: tuple[str, ...]
    weight_map: dict[str, str] | None = None
    index: str = ""
    missing: tuple[str, ...] = ()
    events: tuple[Event, ...] = field(default=())


def select_weights(names: Iterable[str], read_index: ReadIndex, where: str) -> Selection:
    """Choose the weight files among `names`, as transformers would.

    Args:
        names: All plain file names of the folder.
        read_index: Gives the JSON object of an index file by its name.
        where: What to call the folder in errors.

    Returns:
        The files. Missing shards are listed in `missing` and not raised, since the shards that are there
        help to say what is missing.

    Raises:
        SourceError: `no-weights`, `adapter-weights`, `ambiguous-weights`, `bad-index`.
    """
    known = set(names)
    tensors = sorted(n for n in known if n.endswith(".safetensors") and "/" not in n and not _is_adapter(n))
    pickles = sorted(n for n in known if re.fullmatch(r"pytorch_model.*\.bin", n))
    chosen = (
        _safetensors(known, tensors, read_index, where)
        or _torch(known, pickles, read_index, where)
        or _odd(tensors, where)
    )
    if chosen is None:
        raise _no_weights(known, where)
    events = [*chosen.events, *_strays(chosen, tensors, pickles)]
    return Selection(
        kind=chosen.kind,
        files=chosen.files,
        weight_map=chosen.weight_map,
        index=chosen.index,
        missing=chosen.missing,
        events=tuple(events),
    )


def _safetensors(known: set[str], tensors: list[str], read_index: ReadIndex, where: str) -> Selection | None:
    if "model.safetensors" in known:
        event: tuple[Event, ...] = ()
        if _SAFETENSORS_INDEX in known:
            indexed = _indexed(known, _SAFETENSORS_INDEX, "safetensors", read_index)
            if indexed is not None:
                shards = {*indexed.files, *indexed.missing}
                if shards == {"model.safetensors"}:
                    return indexed
                event = (
                    Event(
                        code="single-file-and-index",
                        message=f"model.safetensors is used, as transformers does; {_SAFETENSORS_INDEX} and its "
                        f"{len(shards)} shards are ignored",
                        subject=_SAFETENSORS_INDEX,
                    ),
                )
        return Selection(kind="safetensors", files=("model.safetensors",), events=event)
    return _indexed(known, _SAFETENSORS_INDEX, "safetensors", read_index) or _numbered(
        tensors, "safetensors", "model", where
    )


def _torch(known: set[str], pickles: list[str], read_index: ReadIndex, where: str) -> Selection | None:
    if "pytorch_model.bin" in known:
        return Selection(kind="torch", files=("pytorch_model.bin",))
    return _indexed(known, _TORCH_INDEX, "torch", read_index) or _numbered(pickles, "torch", "pytorch_model", where)


def _indexed(known: set[str], index: str, kind: Kind, read_index: ReadIndex) -> Selection | None:
    if index not in known:
        return None
    weight_map = _weight_map(read_index(index), index, kind)
    named = sorted(set(weight_map.values()), key=_shard_order)
    return Selection(
        kind=kind,
        files=tuple(n for n in named if n in known),
        weight_map=weight_map,
        index=index,
        missing=tuple(n for n in named if n not in known),
    )


def _weight_map(raw: Mapping[str, Any], index: str, kind: Kind) -> dict[str, str]:
    weight_map = raw.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise _bad_index(index, "has no weight_map")
    suffix = ".safetensors" if kind == "safetensors" else ".bin"
    for tensor, file in weight_map.items():
        if not isinstance(file, str):
            raise _bad_index(index, f"maps tensor {tensor[:80]!r} to something that is no file name")
        if "/" in file or "\\" in file or ":" in file or not file.isprintable() or file.startswith("."):
            raise SourceError(
                "unsafe-path",
                f"{index} places tensor {tensor[:80]!r} in {file[:120]!r}, which is no plain file name",
                "Do not trust this model; ask who made it.",
            )
        if not file.endswith(suffix):
            raise _bad_index(index, f"places tensor {tensor[:80]!r} in {file[:120]!r}, which is no {suffix} file")
    return weight_map


def _numbered(names: list[str], kind: Kind, usual: str, where: str) -> Selection | None:
    """Shards that only their names tell of: `model-00001-of-00003.safetensors`."""
    groups: dict[tuple[str, int, int], dict[int, str]] = {}
    for name in names:
        match = _SHARD.fullmatch(name)
        if match:
            digits = len(match["count"])
            groups.setdefault((match["stem"], int(match["count"]), digits), {})[int(match["number"])] = name
    if not groups:
        return None
    if len(groups) > 1:
        groups = {k: v for k, v in groups.items() if k[0] == usual} or groups
    if len(groups) > 1:
        raise SourceError(
            "ambiguous-weights",
            f"{where} holds several sets of shards and no index: "
            + ", ".join(sorted(f"{stem}-*-of-{count}" for stem, count, _ in groups)),
            "Leave only the set that is meant, or add its index file.",
        )
    (stem, count, digits), found = next(iter(groups.items()))
    suffix = ".safetensors" if kind == "safetensors" else ".bin"
    # Some writers count from nought.
    first = 0 if 0 in found else 1
    wanted = range(first, first + count)
    if count == 0 or count > _SHARDS or any(number not in wanted for number in found):
        raise SourceError(
            "bad-shard-name",
            f"{where} holds {sorted(found.values())[-1]}, whose number does not fit its count",
            _AGAIN,
        )
    missing = [f"{stem}-{n:0{digits}d}-of-{count:0{digits}d}{suffix}" for n in wanted if n not in found]
    event = Event(
        code="no-index",
        message=f"there is no index file; the {count} shards were found by their names",
        severity="info",
    )
    return Selection(
        kind=kind,
        files=tuple(found[n] for n in sorted(found)),
        missing=tuple(missing),
        events=(event,),
    )


def _odd(tensors: list[str], where: str) -> Selection | None:
    """One safetensors file under a name of its own."""
    if not tensors:
        return None
    if len(tensors) > 1:
        raise SourceError(
            "ambiguous-weights",
            f"{where} holds {len(tensors)} safetensors files and neither model.safetensors nor an index: "
            + _some(tensors),
            "Name the one that is meant model.safetensors, or add the index file.",
        )
    event = Event(
        code="odd-weight-name",
        message=f"{tensors[0]} is taken for the weights, since it is the only safetensors file",
        severity="info",
        subject=tensors[0],
    )
    return Selection(kind="safetensors", files=(tensors[0],), events=(event,))


def _strays(chosen: Selection, tensors: list[str], pickles: list[str]) -> list[Event]:
    used = {*chosen.files, *chosen.missing}
    events = []
    if chosen.kind == "safetensors" and pickles:
        events.append(
            Event(
                code="both-formats",
                message=f"the safetensors files are used; {_some(pickles)} ignored",
                severity="info",
                subject=pickles[0],
            )
        )
    stray = [n for n in (tensors if chosen.kind == "safetensors" else [*tensors, *pickles]) if n not in used]
    stems = {m["stem"] for n in used if (m := _SHARD.fullmatch(n))}
    # A shard that the index does not know may hold weights that the index forgot.
    shards = [n for n in stray if (m := _SHARD.fullmatch(n)) and m["stem"] in stems]
    others = [n for n in stray if n not in shards]
    if shards:
        events.append(
            Event(
                code="stray-shards",
                message=f"ignored, since the index does not name them: {_some(shards)}",
                subject=shards[0],
            )
        )
    if others:
        events.append(
            Event(
                code="stray-weights",
                message=f"ignored beside {chosen.files[0] if chosen.files else chosen.index}: {_some(others)}",
                severity="info",
                subject=others[0],
            )
        )
    return events


def _no_weights(known: set[str], where: str) -> SourceError:
    adapters = sorted(n for n in known if _is_adapter(n))
    if adapters:
        return SourceError(
            "adapter-weights",
            f"{where} holds only an adapter's weights ({_some(adapters)}), not a model's",
            "Merge the adapter into its base model first (`merge_and_unload` in peft) and give the merged folder.",
        )
    ggufs = sorted(n for n in known if n.endswith(".gguf"))
    if ggufs:
        return SourceError(
            "no-weights", f"{where} holds no safetensors but GGUF files: {_some(ggufs)}", "Give the .gguf file itself."
        )
    foreign = sorted(n for n in known if re.search(r"\.(pth?|h5|msgpack|onnx|npz|ckpt|ot|mlmodel|tflite)$", n))
    has = f"; {_some(foreign)} cannot be read" if foreign else ""
    return SourceError(
        "no-weights",
        f"{where} holds no weights: neither *.safetensors nor pytorch_model*.bin{has}",
        "Save the model as safetensors with the tool that wrote it." if foreign else _AGAIN,
    )


def _is_adapter(name: str) -> bool:
    return re.fullmatch(r"adapter_(model|weights)?.*\.(safetensors|bin)", name) is not None


def _shard_order(name: str) -> tuple[str, int, str]:
    match = _SHARD.fullmatch(name)
    return (match["stem"], int(match["number"]), name) if match else (name, 0, name)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more


def _bad_index(index: str, what: str) -> SourceError:
    return SourceError("bad-index", f"{index} {what}", _AGAIN)
