"""Between meaning and GGUF's tensors: spelling, merging, the row order of rope; and back.

Forward: a model's canonical tensors (by role, layer and part) become the tensors a graph loads. Backward: the tensors
of a GGUF file become canonical again. Each step has its inverse, so the same `Graph` serves both ways.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from llmfit_core.model import Key
from llmfit_core.resolve import rotated
from llmfit_core.roles import Role
from llmfit_core.transform import Affine, Concat, PermuteRope, Reshape, Slice, Transpose

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from llmfit_core.architecture import Graph, Hparams
    from llmfit_core.tensors import Tensor

_BLOCK = re.compile(r"blk\.(\d{1,5})\.(.+)\.(weight|bias|scale)")
_WHOLE = re.compile(r"([a-z][a-z0-9_]*(?:\.[a-z]+)?)\.(weight|bias|scale)")


def spell(key: Key, graph: Graph) -> str:
    """A tensor's name in the file (`blk.0.attn_q.weight`)."""
    role = graph.spelling.get(key.role, key.role)
    part = "" if key.role in graph.bare else f".{key.part}"
    return f"{role}{part}" if key.layer is None else f"blk.{key.layer}.{role}{part}"


def to_gguf(
    tensors: Mapping[Key, Tensor], hparams: Hparams, graph: Graph, rope_rows: str
) -> dict[str, tuple[Tensor, str]]:
    """By GGUF name, the tensor and its role, in the model's order.

    Args:
        tensors: Canonical.
        hparams: Of the model.
        graph: What is written for.
        rope_rows: `Architecture.rope_rows`: how q and k are laid out now.
    """
    merged_into = {role: (name, roles) for name, roles in graph.merges.items() for role in roles}
    turn = _turns(rope_rows, graph.rope_rows, hparams)
    tensors = _scaled(tensors, scales_of(graph, hparams))
    tensors = {k: graph.forms[k.role].there(t, hparams) if k.role in graph.forms else t for k, t in tensors.items()}
    out: dict[str, tuple[Tensor, str]] = {}
    for key, tensor in tensors.items():
        group = merged_into.get(key.role)
        if group is None or any(Key(r, key.layer, key.part) not in tensors for r in group[1]):
            out[spell(key, graph)] = (_by_head(key, turn(key, tensor), hparams, graph), key.role)
            continue
        name, roles = group
        if key.role == roles[0]:
            keys = [Key(r, key.layer, key.part) for r in roles]
            parts = tuple(turn(k, tensors[k]) for k in keys)
            out[spell(Key(name, key.layer, key.part), graph)] = (join(parts), "+".join(roles))
    return out


def from_gguf(
    tensors: Mapping[str, Tensor], hparams: Hparams, graph: Graph, rows_of: Callable[[str], int], rope_rows: str
) -> tuple[dict[Key, Tensor], list[str]]:
    """Canonical tensors of a GGUF file, and the names that are no tensor of a layer or of the whole model.

    Args:
        tensors: By GGUF name, plain.
        hparams: Of the model.
        graph: The graph the file was written for.
        rows_of: How many rows a role has, to take merged tensors apart.
        rope_rows: `Architecture.rope_rows`: how q and k shall be laid out.
    """
    unspell = {name: role for role, name in graph.spelling.items()}
    turn = _turns(graph.rope_rows, rope_rows, hparams)
    out: dict[Key, Tensor] = {}
    strangers = []
    for name, tensor in tensors.items():
        key = parse(name, graph.bare)
        if key is None:
            strangers.append(name)
            continue
        roles = graph.merges.get(key.role)
        if roles and tensor.shape[0] == sum(rows_of(r) for r in roles):
            start = 0
            for role in roles:
                stop = start + rows_of(role)
                piece = Key(role, key.layer, key.part)
                out[piece] = turn(piece, Slice(tensor, start, stop, 0))
                start = stop
        else:
            key = Key(unspell.get(key.role, key.role), key.layer, key.part)
            out[key] = turn(key, _of_heads(key, tensor, graph))
    out = {k: graph.forms[k.role].back(t, hparams) if k.role in graph.forms else t for k, t in out.items()}
    return _scaled(out, {role: 1 / factor for role, factor in scales_of(graph, hparams).items()}), strangers


def scales_of(graph: Graph, hparams: Hparams) -> Mapping[str, float]:
    """By role, the factors that have to be folded into tensors for this graph."""
    return graph.scales(hparams) if graph.scales is not None else {}


def _scaled(tensors: Mapping[Key, Tensor], factors: Mapping[str, float]) -> dict[Key, Tensor]:
    return {k: Affine(t, scale=factors[k.role]) if k.role in factors else t for k, t in tensors.items()}


def parse(name: str, bare: frozenset[str] = frozenset()) -> Key | None:
    """A GGUF tensor name taken apart, or `None` for a name of another form; `bare` roles have no part behind them."""
    layer, _, role = name.removeprefix("blk.").partition(".")
    if role in bare and name.startswith("blk.") and layer.isdecimal() and len(layer) < 6:
        return Key(role, int(layer))
    block = _BLOCK.fullmatch(name)
    if block:
        return Key(block[2], int(block[1]), block[3])
    whole = _WHOLE.fullmatch(name)
    return Key(whole[1], None, whole[2]) if whole else None


def join(parts: tuple[Tensor, ...]) -> Tensor:
    """Parts one after the other; neighbouring cuts of one source that cover it are the source again."""
    first = parts[0]
    if isinstance(first, Slice) and not first.squeeze:
        at = 0
        for part in parts:
            if not (isinstance(part, Slice) and part.source is first.source and part.axis == 0 and part.start == at):
                break
            at = part.stop
        else:
            if at == first.source.shape[0]:
                return first.source
    return Concat(parts)


def _turns(have: str, want: str, hparams: Hparams) -> Callable[[Key, Tensor], Tensor]:
    """What brings the rows of q and k from one layout of rope into the other."""

    def turn(key: Key, tensor: Tensor) -> Tensor:
        heads = {
            Role.ATTN_Q: hparams.get("attention.head_count"),
            Role.ATTN_K: hparams.get("attention.head_count_kv"),
            Role.ATTN_Q_NORM: 1,
            Role.ATTN_K_NORM: 1,
        }.get(key.role)  # type: ignore[call-overload]
        if have == want or not heads:
            return tensor
        inverse = want == "halves"
        turned = rotated(hparams)
        if isinstance(tensor, PermuteRope) and tensor == PermuteRope(tensor.source, int(heads), not inverse, turned):
            return tensor.source
        return PermuteRope(tensor, int(heads), inverse, turned)

    return turn


def _by_head(key: Key, tensor: Tensor, hparams: Hparams, graph: Graph) -> Tensor:
    """A matrix `[heads * out, in]` as `[heads, out, in]`, or with each head's matrix turned."""
    wish = graph.per_head.get(key.role)
    if wish is None or key.part != "weight":
        return tensor
    heads = int(hparams[wish.heads])  # type: ignore[call-overload]
    rows, width = tensor.shape
    apart = Reshape(tensor, (heads, rows // heads, width))
    return Transpose(apart) if wish.transposed else apart


def _of_heads(key: Key, tensor: Tensor, graph: Graph) -> Tensor:
    """The inverse of `_by_head`."""
    wish = graph.per_head.get(key.role)
    if wish is None or len(tensor.shape) != 3:
        return tensor
    apart = Transpose(tensor) if wish.transposed else tensor
    heads, rows, width = apart.shape
    return Reshape(apart, (heads * rows, width))
