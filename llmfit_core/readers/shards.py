"""The weights of a model folder as one set of tensors, whatever files they are spread over."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmfit_core.errors import SourceError
from llmfit_core.readers.folder import read_json_object
from llmfit_core.readers.safetensors import read_safetensors
from llmfit_core.readers.selection import Selection, select_weights

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from llmfit_core.events import Event
    from llmfit_core.tensors import TensorRef

_AGAIN = "Download the model again, whole: `hf download REPO`."
_NAMED = 5
_LAYERS = 4096
_ENDS = {
    "token embedding": r"(embed_tokens|word_embeddings|tok_embeddings|embed_in|wte|\bembeddings?)\.weight$",
    "final norm": r"^((model|transformer|gpt_neox|language_model)\.)*(norm|ln_f|final_layer_?norm)\.weight$",
    "output head (which may be the embedding's copy)": r"(lm_head|embed_out|^output)\.weight$",
}


@dataclass(frozen=True, kw_only=True)
class WeightSet:
    """A checkpoint's tensors.

    Attributes:
        tensors: By name, in the order of the shards and of their headers.
        files: The weight files, in shard order.
        events: What was ignored or is unusual.
    """

    tensors: dict[str, TensorRef]
    files: tuple[Path, ...]
    events: tuple[Event, ...] = ()


def read_weights(files: Mapping[str, Path], *, layers: int | None = None) -> WeightSet:
    """The tensors of a model folder; only headers are read.

    Args:
        files: Every plain file name of the folder with its path (`llmfit_core.readers.folder.folder_files`).
        layers: How many layers the config tells of, if known: names what a missing shard would hold
            where there is no index.

    Raises:
        SourceError: `no-weights`, `missing-shard` (naming shard and tensors), `index-mismatch`,
            `duplicate-tensor`, `ambiguous-weights`, `unsafe-path`, and what the readers of the files raise.
    """
    where = str(next(iter(files.values())).parent) if files else "the folder"
    selection = select_weights(files, lambda name: read_json_object(files[name]), where)
    read = read_safetensors if selection.kind == "safetensors" else _read_torch
    per_file = {name: read(files[name]) for name in selection.files}
    return WeightSet(
        tensors=join_shards(selection, per_file, layers=layers),
        files=tuple(files[name] for name in selection.files),
        events=selection.events,
    )


def _read_torch(path: Path) -> dict[str, TensorRef]:
    from llmfit_core.readers.torch_bin import read_torch_bin

    return read_torch_bin(path)


def join_shards(
    selection: Selection, per_file: Mapping[str, dict[str, TensorRef]], *, layers: int | None = None
) -> dict[str, TensorRef]:
    """All shards' tensors in one mapping, held against the index in both directions.

    Args:
        selection: What `select_weights` chose.
        per_file: The tensors of each of its files.
        layers: See `read_weights`.

    Raises:
        SourceError: `missing-shard`, `duplicate-tensor`, `index-mismatch`.
    """
    if selection.missing:
        raise _missing(selection, per_file, layers)
    joined: dict[str, TensorRef] = {}
    origin: dict[str, str] = {}
    for file, tensors in per_file.items():
        doubled = joined.keys() & tensors.keys()
        if doubled:
            name = min(doubled)
            raise SourceError(
                "duplicate-tensor",
                f"tensor {name} is both in {origin[name]} and in {file}{_others(len(doubled))}",
                "Remove the files that do not belong to this checkpoint.",
            )
        joined.update(tensors)
        origin.update(dict.fromkeys(tensors, file))
    if selection.weight_map is not None and origin != selection.weight_map:
        raise _mismatch(selection, selection.weight_map, origin)
    if not joined:
        raise SourceError("no-weights", f"{', '.join(per_file)} holds no tensor", _AGAIN)
    return joined


def _mismatch(selection: Selection, weight_map: dict[str, str], origin: dict[str, str]) -> SourceError:
    absent = [n for n in weight_map if n not in origin]
    if absent:
        name = absent[0]
        return SourceError(
            "index-mismatch",
            f"{selection.index} places tensor {name} in {weight_map[name]}, which lacks it{_others(len(absent))}",
            _AGAIN,
        )
    extra = [n for n in origin if n not in weight_map]
    if extra:
        return SourceError(
            "index-mismatch",
            f"{origin[extra[0]]} holds tensor {extra[0]}, which {selection.index} does not name{_others(len(extra))}",
            f"{_AGAIN} If you added the tensor, add it to the index.",
        )
    moved = [n for n in origin if origin[n] != weight_map[n]]
    name = moved[0]
    return SourceError(
        "index-mismatch",
        f"{selection.index} places tensor {name} in {weight_map[name]}; it is in {origin[name]}{_others(len(moved))}",
        _AGAIN,
    )


def _missing(selection: Selection, per_file: Mapping[str, dict[str, TensorRef]], layers: int | None) -> SourceError:
    shards = ", ".join(selection.missing[:_NAMED])
    if len(selection.missing) > _NAMED:
        shards += f" and {len(selection.missing) - _NAMED} more"
    if selection.weight_map is not None:
        gone = set(selection.missing)
        lost = [name for name, file in selection.weight_map.items() if file in gone]
        told = f"it would hold {_list(lost)}"
    else:
        present = [name for tensors in per_file.values() for name in tensors]
        lost, ends = _lost_tensors(present, layers), _lost_ends(present)
        must = f"by the other shards, {_list(lost)} must be in it" if lost else ""
        may = f"the other shards hold no {' and no '.join(ends)}" if ends else ""
        told = "; ".join(t for t in (must, may) if t) or "what it holds, only an index could tell"
    verb = "is" if len(selection.missing) == 1 else "are"
    return SourceError("missing-shard", f"{shards} {verb} missing; {told}", _AGAIN)


def _lost_tensors(present: list[str], layers: int | None) -> list[str]:
    """Names that the numbering of the present ones asks for: layer 3's, when 0 to 2 and 4 are there."""
    numbers: dict[tuple[str, str], set[int]] = {}
    for name in present:
        match = re.fullmatch(r"(.*?)\.(\d{1,4})\.(.*)", name)
        if match:
            numbers.setdefault((match[1], match[3]), set()).add(int(match[2]))
    ends: dict[str, int] = {}
    for (prefix, _), found in numbers.items():
        ends[prefix] = max(ends.get(prefix, 0), max(found) + 1)
    main = max(ends, key=lambda p: ends[p], default="")
    if layers is not None and main:
        ends[main] = max(ends[main], min(layers, _LAYERS))
    common = {prefix: max(len(f) for (p, _), f in numbers.items() if p == prefix) for prefix in ends}
    # What only a few layers have (the dense first layers of a mixture) is not missing in the others.
    usual = [(prefix, rest, found) for (prefix, rest), found in numbers.items() if len(found) * 2 >= common[prefix]]
    lost: list[str] = []
    for number in range(max(ends.values(), default=0)):
        for prefix, rest, found in usual:
            if number < ends[prefix] and number not in found:
                lost.append(f"{prefix}.{number}.{rest}")
        if len(lost) > _LAYERS:
            break
    return lost


def _lost_ends(present: list[str]) -> list[str]:
    """What every model has before and after its layers, where no tensor is called as it usually is."""
    return [what for what, usual in _ENDS.items() if not any(re.search(usual, name) for name in present)]


def _list(names: list[str]) -> str:
    return ", ".join(names[:_NAMED]) + _others(len(names), _NAMED)


def _others(count: int, shown: int = 1) -> str:
    return f" and {count - shown} more" if count > shown else ""
