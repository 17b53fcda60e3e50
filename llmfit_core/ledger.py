"""The tensor ledger: what an architecture expects against what a checkpoint holds, role by role."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmfit_core.architecture import Architecture, Fused, Reads, Slot, slot_roles
from llmfit_core.dtypes import FLOATS
from llmfit_core.errors import SourceError, UnsupportedError
from llmfit_core.events import Event
from llmfit_core.grouping import ungroup
from llmfit_core.model import Key
from llmfit_core.naming import Match, first_missing, source_name
from llmfit_core.transform import Affine, Reshape, Slice, Stack, transpose

_ENOUGH = 4096

if TYPE_CHECKING:
    from llmfit_core.hparams import ConfigLedger
    from llmfit_core.roles import Dim
    from llmfit_core.tensors import Tensor, TensorRef


@dataclass(frozen=True)
class Claim:
    """A source tensor, the pattern that its name fits, and what the table says of it."""

    ref: TensorRef
    match: Match
    slot: Slot


class Book:
    """The tensor ledger: expected against claimed, role by role."""

    def __init__(self, architecture: Architecture, read: ConfigLedger, claims: Iterable[Claim]) -> None:
        self.architecture = architecture
        self.hp = read.hparams
        self.keys = read.keys
        self.claims: dict[tuple[Key, int | None], tuple[Claim, str]] = {}
        self.events: list[Event] = []
        self._first_experts: dict[Key, tuple[Key, int | None]] = {}
        claims = list(claims)
        self._patterns = {c.match.pattern for c in claims}
        for claim in claims:
            for role in slot_roles(claim.slot):
                self._enter(claim, role)

    def _enter(self, claim: Claim, role: str) -> None:
        at = (Key(role, claim.ref.layer, claim.ref.part), claim.ref.expert)
        # All experts in one tensor and one expert by itself are both the same expert.
        whole = (at[0], None)
        first = self._first_experts.setdefault(at[0], at) if at[1] is not None else self._first_experts.get(at[0])
        twin = at if at in self.claims else whole if whole in self.claims else first if at == whole else None
        if twin is not None:
            raise SourceError(
                "duplicate-tensor",
                f"tensors {self.claims[twin][0].ref.name} and {claim.ref.name} are both the {role} of layer {claim.ref.layer}",
                "Remove the copy that does not belong to the model.",
            )
        self.claims[at] = (claim, role)

    def canonical(self) -> dict[Key, Tensor]:
        """Every expected tensor by meaning, in layer order; strangers and gaps are errors."""
        out: dict[Key, Tensor] = {}
        missing: dict[str, str] = {}
        used: set[tuple[Key, int | None]] = set()
        layers = int(self.hp.get("block_count", 0))  # type: ignore[call-overload]
        held = max((k.layer for k, _ in self.claims if k.layer is not None), default=-1) + 1
        # One layer more than there are says what the next ones lack, however many the config counts.
        for layer in [None, *range(min(layers, held + 1))]:
            kinds = self._kinds(layer)
            for role, slots in self._slots(layer is None).items():
                expected = [(p, s) for p, s in slots if not s.when or s.when in kinds]
                if expected:
                    self._take(role, layer, expected, out, missing, used)
            if len(missing) > _ENOUGH:
                break
        if missing:
            experts = any(".expert" in n for n in missing)
            raise SourceError(
                "missing-expert" if experts else "missing-tensor",
                f"the checkpoint lacks {first_missing(missing)} ({self._counts(experts)}; the files hold {held} layers)",
                "Fetch the missing shard, or correct the counts in config.json.",
            )
        left = [claim.ref for at, (claim, _) in self.claims.items() if at not in used]
        if left:
            unasked = self._unasked([c for at, (c, _) in self.claims.items() if at not in used], layers)
            counts = unasked or self._counts(any(r.expert is not None for r in left))
            raise SourceError(
                "stray-tensor",
                f"config.json ({counts}) has no place for the tensor {first_missing({r.name: '' for r in left})}",
                f"Correct {unasked.split(' = ')[0]} in config.json, or remove the tensor."
                if unasked and "," not in unasked
                else "Correct config.json (layers, experts, biases, kinds of layer), or remove the tensor.",
            )
        return out

    def _unasked(self, claims: list[Claim], layers: int) -> str:
        """The config keys, with their values, that say there are no such biases; empty where other tensors are left."""
        keys = {u.hparam: k for k, u in reversed(list(self.architecture.config.items())) if isinstance(u, Reads)}
        said: dict[str, None] = {}
        for claim in claims:
            bias = claim.slot.bias if claim.ref.part == "bias" else True
            if not isinstance(bias, str) or bias not in keys or self.hp.get(bias) or (claim.ref.layer or 0) >= layers:
                return ""
            said[f"{self.keys.get(bias, keys[bias])} = {str(bool(self.hp.get(bias))).lower()}"] = None
        return ", ".join(said)

    def _counts(self, experts: bool) -> str:
        """The config's counts, for messages."""
        names = ["block_count", *(["expert_count"] if experts else [])]
        return ", ".join(f"{self.keys.get(n, n)} = {self.hp.get(n, 0)}" for n in names)

    def _kinds(self, layer: int | None) -> frozenset[str]:
        if layer is None or self.architecture.layer_kinds is None:
            return frozenset()
        return self.architecture.layer_kinds(self.hp, layer)

    def _slots(self, whole_model: bool) -> dict[str, list[tuple[str, Slot]]]:
        out: dict[str, list[tuple[str, Slot]]] = {}
        for pattern in self.architecture.tensors:
            if ("{layer}" not in pattern) == whole_model:
                slot = self.architecture.slot(pattern)
                for role in slot_roles(slot):
                    out.setdefault(role, []).append((pattern, slot))
        return out

    def _take(
        self,
        role: str,
        layer: int | None,
        expected: list[tuple[str, Slot]],
        out: dict[Key, Tensor],
        missing: dict[str, str],
        used: set[tuple[Key, int | None]],
    ) -> None:
        for part in ("weight", "bias"):
            key = Key(role, layer, part)
            wanted = self._wanted(part, expected)
            if (key, None) in self.claims:
                claim, _ = self.claims[key, None]
                if wanted is False:
                    continue
                used.add((key, None))
                out[key] = self._check(key, claim.ref.name, self._plain(claim, role))
            elif any("{expert}" in p for p, _ in expected) and part == "weight":
                pattern = self._usual([p for p, _ in expected])
                counted = next(s.count for p, s in expected if "{expert}" in p)
                count = int(self.hp.get(counted, 0) or 0)  # type: ignore[call-overload]
                present = [e for e in range(count) if (key, e) in self.claims]
                if len(present) < count:
                    names = [source_name(pattern, layer, e) for e in range(count) if (key, e) not in self.claims]
                    missing.update(dict.fromkeys(names, ""))
                    used.update((key, e) for e in present)
                elif count:
                    used.update((key, e) for e in present)
                    parts = [self._plain(self.claims[key, e][0], role) for e in range(count)]
                    self._same_shapes(key, [self.claims[key, e][0].ref for e in range(count)])
                    out[key] = self._check(key, source_name(pattern, layer, 0), Stack(tuple(parts)))
            elif wanted:
                pattern = self._usual([p for p, s in expected if not s.bare or s.part == part])
                bare = next(s.bare for p, s in expected if p == pattern)
                missing[source_name(pattern, layer, None, "" if bare else part)] = ""

    def _usual(self, patterns: list[str]) -> str:
        """Of several spellings the one that the checkpoint uses, in this role or by the words around it."""
        used = {p for p in patterns if p in self._patterns}
        folders = {p.rpartition(".")[0] for p in self._patterns}
        return next((p for p in patterns if p in used or p.rpartition(".")[0] in folders), patterns[0])

    def _wanted(self, part: str, expected: list[tuple[str, Slot]]) -> bool | None:
        """Must be there (`True`), must not (`False`), or may (`None`)."""
        if all(s.bare and s.part != part for _, s in expected):
            return False
        if part == "weight" or all(s.bare for _, s in expected):
            return None if any(s.optional for _, s in expected) else True
        bias = expected[0][1].bias
        if bias == "optional":
            return None
        if isinstance(bias, str):
            return bool(self.hp.get(bias))
        return bias

    def _same_shapes(self, key: Key, refs: list[TensorRef]) -> None:
        odd = next((r for r in refs if r.shape != refs[0].shape or r.dtype != refs[0].dtype), None)
        if odd is not None:
            raise SourceError(
                "shape-mismatch",
                f"{odd.name} is {odd.dtype} {list(odd.shape)} where its fellow experts are "
                f"{refs[0].dtype} {list(refs[0].shape)}",
                "The checkpoint is damaged; fetch it again.",
            )

    def _plain(self, claim: Claim, role: str) -> Tensor:
        """One role's `[out, in]` matrix (or `[E, out, in]`) out of a stored tensor."""
        slot, tensor = claim.slot, claim.ref.tensor
        self._require_plain(claim, role)
        skipped = int(self.hp.get(slot.skip, 0) or 0) if slot.skip and claim.ref.part == "weight" else 0  # type: ignore[call-overload]
        if skipped >= tensor.shape[0]:
            skipped = 0  # its shape is held against the config below
        if skipped:
            tensor = Slice(tensor, skipped, tensor.shape[0], 0)
        if slot.ones:
            tensor = Reshape(tensor, tensor.shape[slot.ones :])
        if slot.either_way and claim.ref.part == "weight" and len(tensor.shape) >= 2 and self._lies_transposed(claim):
            tensor = transpose(tensor)
        if slot.transposed and claim.ref.part == "weight":
            tensor = transpose(tensor)
        if isinstance(slot.role, Fused):
            tensor = self._cut(slot.role, role, tensor, claim)
        if slot.shift and claim.ref.part == "weight":
            tensor = Affine(tensor, shift=slot.shift)
        return tensor

    def _require_plain(self, claim: Claim, role: str) -> None:
        """Floats, and as many axes as the role has."""
        ref = claim.ref
        if ref.dtype not in FLOATS:
            raise UnsupportedError(
                "tensor-dtype",
                f"{ref.name} holds {ref.dtype} values where weights are floats ({', '.join(sorted(FLOATS))})",
                "If it is quantized, config.json or its plugin has to say how: no installed decoder took it. "
                "Else convert the model's 16-bit original.",
            )
        dims = self._dims(role)
        axes = len(dims) - (ref.expert is not None) if ref.part == "weight" else max(1, len(self._of_bias(role)))
        axes += claim.slot.ones
        if (dims and len(ref.shape) != axes) or any(n != 1 for n in ref.shape[: claim.slot.ones]):
            raise SourceError(
                "shape-mismatch",
                f"{ref.name} has the shape {list(ref.shape)} where a tensor of {axes} axes belongs",
                "The checkpoint is damaged or of another make; fetch it again.",
            )

    def _cut(self, fused: Fused, role: str, tensor: Tensor, claim: Claim) -> Tensor:
        axis = fused.axis + len(tensor.shape) - (2 if claim.ref.part == "weight" else 1)
        matrix_axis = fused.axis - 2 if claim.ref.part == "weight" else fused.axis - 1
        sizes = []
        for each in fused.roles:
            dims = self._dims(each)
            sizes.append(dims[matrix_axis] if claim.ref.part == "weight" else dims[-2])
        if sum(sizes) != tensor.shape[axis]:
            raise SourceError(
                "shape-mismatch",
                f"{claim.ref.name} has {tensor.shape[axis]} rows where config.json makes it "
                f"{' + '.join(map(str, sizes))} ({', '.join(fused.roles)})",
                "Correct config.json, as the model's authors published it.",
            )
        start = sum(sizes[: fused.roles.index(role)])
        size = sizes[fused.roles.index(role)]
        if not fused.groups:
            return Slice(tensor, start, start + size, axis)
        groups = int(self.hp.get(fused.groups, 0) or 0)  # type: ignore[call-overload]
        if not groups or any(s % groups for s in sizes):
            raise SourceError(
                "shape-mismatch",
                f"{claim.ref.name} cannot be taken apart into {self.keys.get(fused.groups, fused.groups)} = {groups} groups",
                "Correct config.json, as the model's authors published it.",
            )
        bias = claim.ref.part == "bias"
        return ungroup(tensor, [s // groups for s in sizes], fused.roles.index(role), groups, bias=bias)

    def _lies_transposed(self, claim: Claim) -> bool:
        """Whether a stored `[.., in, out]` must be turned; square ones follow the layer's other such tensors."""
        verdict = self._turned(claim)
        if verdict is not None:
            return verdict
        for other, _ in self.claims.values():
            if other.slot.either_way and other.ref.layer == claim.ref.layer and other.ref.part == "weight":
                verdict = self._turned(other)
                if verdict is not None:
                    return verdict
        if not any(e.code == "orientation-assumed" for e in self.events):
            self.events.append(
                Event(
                    code="orientation-assumed",
                    message=f"{claim.ref.name} {list(claim.ref.shape)} fits both ways round; taken as [.., out, in]",
                    severity="fallback",
                    subject=claim.ref.name,
                )
            )
        return False

    def _turned(self, claim: Claim) -> bool | None:
        shape = claim.ref.shape[-2:]
        dims = [self._dims(r) for r in slot_roles(claim.slot)]
        if not all(dims) or len(shape) < 2:
            return None
        out = sum(d[-2] for d in dims)
        wanted = (out, dims[0][-1])
        if shape == wanted and shape[0] != shape[1]:
            return False
        if shape == wanted[::-1] and shape[0] != shape[1]:
            return True
        return None

    def _dims(self, role: str) -> tuple[int, ...]:
        dims = self.architecture.shape_of(role)
        return () if dims is None else tuple(self._dim(d) for d in dims)

    def _of_bias(self, role: str) -> tuple[int, ...]:
        """The shape of the bias: the last axis left out, and that of a convolution `[out, 1, kernel]` with one input."""
        dims = self._dims(role)
        if len(dims) < 2:
            return dims
        stated = self.architecture.shape_of(role) or ()
        return dims[:-2] if len(dims) > 2 and stated[-2] == 1 else dims[:-1]

    def _dim(self, dim: Dim) -> int:
        if isinstance(dim, tuple):
            return math.prod(self._dim(d) for d in dim)
        if isinstance(dim, int):
            return dim
        return int(self.hp.get(dim, 0) or 0)  # type: ignore[call-overload, no-any-return]

    def _check(self, key: Key, name: str, tensor: Tensor) -> Tensor:
        dims = self._dims(key.role)
        if not dims:
            return tensor
        wanted = dims if key.part == "weight" else self._of_bias(key.role)
        if tensor.shape != wanted:
            stated = self.architecture.shape_of(key.role) or ()
            words = {d for dim in stated for d in (dim if isinstance(dim, tuple) else (dim,)) if isinstance(d, str)}
            names = {"vocab_rows": "rows of the embedding", **self.keys}
            said = ", ".join(f"{names.get(w, w)} = {self.hp.get(w)}" for w in sorted(words))
            raise SourceError(
                "shape-mismatch",
                f"{name} is {list(tensor.shape)} where config.json makes it {list(wanted)} ({said})",
                "Correct config.json, as the model's authors published it, or fetch the weights again.",
            )
        return tensor
