"""From a checkpoint and an architecture's table to a `Model`: every tensor claimed, every shape agreed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from llmfit_core.architecture import Architecture, Fused, Slot, slot_roles
from llmfit_core.errors import SourceError
from llmfit_core.events import Event
from llmfit_core.hparams import ConfigLedger, read_config
from llmfit_core.model import Key, Ledger, Model
from llmfit_core.naming import Match, Patterns, first_missing, source_name, unwrap
from llmfit_core.roles import Dim, Role
from llmfit_core.transform import Affine, Slice, Stack, Transpose

if TYPE_CHECKING:
    from llmfit_core.checkpoint import Checkpoint
    from llmfit_core.tensors import Tensor, TensorRef
    from llmfit_core.tokenizer.vocab import Vocab

OTHER_PARTS_PREFIXES = (
    "visual.",
    "vision_tower.",
    "vision_model.",
    "vision_embed",
    "model.visual.",
    "model.vision",
    "audio_tower.",
    "model.audio",
    "multi_modal_projector.",
    "model.multi_modal_projector.",
    "mm_projector.",
    "talker.",
    "token2wav.",
    "embed_vision.",
    "embed_audio.",
)


def resolve(
    checkpoint: Checkpoint,
    architecture: Architecture,
    *,
    plugin: str = "",
    evidence: str = "",
    vocab: Vocab | None = None,
    name: str = "",
    same_head: bool | None = None,
) -> Model:
    """Give every tensor its meaning.

    Args:
        checkpoint: Plain tensors under Hugging Face names.
        architecture: Its table.
        plugin: Who stated the table.
        evidence: How it was recognised.
        vocab: Its tokenizer.
        name: What to call the model.
        same_head: Whether a stored head equals a tied embedding, once known.

    Raises:
        SourceError: `stray-tensor`, `missing-tensor`, `duplicate-tensor`, `shape-mismatch`, `missing-expert`.
    """
    read = read_config(checkpoint.config, architecture)
    patterns = Patterns([*architecture.tensors, *architecture.waived])
    names, events = unwrap(checkpoint.tensors, patterns)
    claims, waived = _claim(checkpoint, architecture, patterns, names)
    hparams, inferred = _complete(read, architecture, claims)
    read = replace(read, hparams=hparams)
    book = _Book(architecture, read, claims)
    tensors = book.canonical()
    tensors, head_events, same_head = _head(tensors, read.hparams, same_head)
    if not checkpoint.config.left_out:
        left = [n for n in waived if waived[n].startswith("not part of the text model")]
        if left:
            _stray(checkpoint, {n: "" for n in left})
    ledger = Ledger(
        claimed=tuple(c.ref.name for c in claims),
        waived=waived,
        consumed=read.consumed,
        asserted=read.asserted,
        ignored=read.ignored,
        unknown=read.unknown,
        evidence=evidence,
    )
    return Model(
        architecture=architecture,
        plugin=plugin,
        hparams=hparams,
        rope=read.rope,
        refs=tuple(c.ref for c in claims),
        tensors=tensors,
        checkpoint=checkpoint,
        vocab=vocab,
        name=name or architecture.name,
        ledger=ledger,
        events=(*checkpoint.events, *read.events, *events, *inferred, *head_events),
        same_head=same_head,
    )


@dataclass(frozen=True)
class _Claim:
    ref: TensorRef
    match: Match
    slot: Slot


def _claim(
    checkpoint: Checkpoint, architecture: Architecture, patterns: Patterns, names: Mapping[str, str]
) -> tuple[list[_Claim], dict[str, str]]:
    """Who claims each source tensor; strangers are an error."""
    claims, waived, strays = [], {}, {}
    for name, ref in checkpoint.tensors.items():
        plain = names[name]
        match = patterns.match(plain)
        if match is None:
            if plain.startswith(OTHER_PARTS_PREFIXES) or name.startswith(OTHER_PARTS_PREFIXES):
                waived[name] = "not part of the text model"
            else:
                strays[name] = plain
        elif match.pattern in architecture.waived:
            waived[name] = architecture.waived[match.pattern]
        else:
            slot = architecture.slot(match.pattern)
            role = "+".join(slot_roles(slot))
            annotated = replace(
                ref, name=plain, role=role, part=match.part, layer=match.layer, expert=match.expert
            )
            claims.append(_Claim(annotated, match, slot))
    if strays:
        _stray(checkpoint, strays)
    if not claims:
        raise SourceError("no-weights", f"{checkpoint.label} holds no tensor of the model", "Fetch its weights.")
    return claims, waived


def _stray(checkpoint: Checkpoint, strays: Mapping[str, str]) -> None:
    hint = "Remove it, or use a plugin whose table knows it."
    if any("lora_" in n for n in strays):
        hint = "The folder holds unmerged LoRA weights: merge them into the model first (peft: merge_and_unload)."
    elif any(n.endswith((".qweight", ".qzeros", ".g_idx", ".weight_packed", ".weight_scale_inv", "_scale")) for n in strays):
        hint = "These weights are quantized; no installed decoder recognised their kind."
    raise SourceError("stray-tensor", f"{checkpoint.label}: nobody knows the tensor {first_missing(strays)}", hint)


def _complete(
    read: ConfigLedger, architecture: Architecture, claims: Iterable[_Claim]
) -> tuple[dict[str, object], tuple[Event, ...]]:
    """Hparams that the config leaves out, told by shapes, then those the architecture derives."""
    hp = dict(read.hparams)
    events = []
    shapes = {c.ref.role: c.ref.shape for c in claims if c.ref.part == "weight" and c.ref.layer in (0, None)}
    rows = shapes.get(Role.EMBED)
    if rows is not None and len(rows) == 2:
        hp["vocab_rows"] = rows[0]
        hp.setdefault("vocab_size", rows[0])
    heads = int(hp.get("attention.head_count", 0) or 0)  # type: ignore[call-overload]
    width = int(hp.get("embedding_length", 0) or 0)  # type: ignore[call-overload]

    def note(key: str, value: int, how: str) -> None:
        events.append(
            Event(
                code="inferred-from-shapes",
                message=f"{key} is not in config.json; {how} says {value}",
                severity="info",
                subject=key,
            )
        )

    if heads and "attention.key_length" not in hp:
        q = shapes.get(Role.ATTN_Q)
        if q is not None and q[0] % heads == 0:
            hp["attention.key_length"] = q[0] // heads
            if q[0] != width:
                note("head_dim", q[0] // heads, "the query matrix")
        elif width:
            if width % heads:
                raise SourceError(
                    "config-key-invalid",
                    f"hidden_size {width} is no multiple of num_attention_heads {heads}, and head_dim is missing",
                    "Correct config.json.",
                )
            hp["attention.key_length"] = width // heads
    size = int(hp.get("attention.key_length", 0) or 0)  # type: ignore[call-overload]
    hp.setdefault("attention.value_length", size)
    if heads and size and "attention.head_count_kv" not in hp:
        k = shapes.get(Role.ATTN_K)
        count = k[0] // size if k is not None and k[0] % size == 0 and k[0] else heads
        hp["attention.head_count_kv"] = count
        if count != heads:
            note("num_key_value_heads", count, "the key matrix")
    kv = int(hp.get("attention.head_count_kv", 0) or 0)  # type: ignore[call-overload]
    if heads and kv and heads % kv:
        raise SourceError(
            "config-key-invalid",
            f"num_attention_heads {heads} is no multiple of num_key_value_heads {kv}",
            "Correct config.json.",
        )
    if architecture.hparams is not None:
        hp.update(architecture.hparams(hp))
    return hp, tuple(events)


class _Book:
    """The tensor ledger: expected against claimed, role by role."""

    def __init__(self, architecture: Architecture, read: ConfigLedger, claims: Iterable[_Claim]) -> None:
        self.architecture = architecture
        self.hp = read.hparams
        self.keys = read.keys
        self.claims: dict[tuple[Key, int | None], tuple[_Claim, str]] = {}
        for claim in claims:
            for role in slot_roles(claim.slot):
                self._enter(claim, role)

    def _enter(self, claim: _Claim, role: str) -> None:
        at = (Key(role, claim.ref.layer, claim.ref.part), claim.ref.expert)
        if at in self.claims:
            raise SourceError(
                "duplicate-tensor",
                f"tensors {self.claims[at][0].ref.name} and {claim.ref.name} are both the {role} of layer {claim.ref.layer}",
                "Remove the copy that does not belong to the model.",
            )
        self.claims[at] = (claim, role)

    def canonical(self) -> dict[Key, Tensor]:
        """Every expected tensor by meaning, in layer order; strangers and gaps are errors."""
        out: dict[Key, Tensor] = {}
        missing: dict[str, str] = {}
        used: set[tuple[Key, int | None]] = set()
        layers = int(self.hp.get("block_count", 0))  # type: ignore[call-overload]
        for layer in [None, *range(layers)]:
            kinds = self._kinds(layer)
            for role, slots in self._slots(layer is None).items():
                expected = [(p, s) for p, s in slots if not s.when or s.when in kinds]
                if expected:
                    self._take(role, layer, expected, out, missing, used)
        if missing:
            experts = any(".expert" in n for n in missing)
            raise SourceError(
                "missing-expert" if experts else "missing-tensor",
                f"the checkpoint lacks {first_missing(missing)}",
                "Fetch the missing shard, or correct the counts in config.json.",
            )
        left = {claim.ref.name: "" for at, (claim, _) in self.claims.items() if at not in used}
        if left:
            raise SourceError(
                "stray-tensor",
                f"config.json has no place for the tensor {first_missing(left)}",
                "Correct config.json (layers, experts, biases, kinds of layer), or remove the tensor.",
            )
        return out

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
                pattern = next(p for p, _ in expected if "{expert}" in p)
                count = int(self.hp.get("expert_count", 0) or 0)  # type: ignore[call-overload]
                present = [e for e in range(count) if (key, e) in self.claims]
                if len(present) < count:
                    names = [
                        source_name(pattern, layer, e) for e in range(count) if (key, e) not in self.claims
                    ]
                    missing.update(dict.fromkeys(names, ""))
                    used.update((key, e) for e in present)
                elif count:
                    used.update((key, e) for e in present)
                    parts = [self._plain(self.claims[key, e][0], role) for e in range(count)]
                    self._same_shapes(key, [self.claims[key, e][0].ref for e in range(count)])
                    out[key] = self._check(key, source_name(pattern, layer, 0), Stack(tuple(parts)))
            elif wanted:
                pattern = expected[0][0]
                missing[source_name(pattern, layer, None, part)] = ""

    def _wanted(self, part: str, expected: list[tuple[str, Slot]]) -> bool | None:
        """Must be there (`True`), must not (`False`), or may (`None`)."""
        if part == "weight":
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

    def _plain(self, claim: _Claim, role: str) -> Tensor:
        """One role's `[out, in]` matrix (or `[E, out, in]`) out of a stored tensor."""
        slot, tensor = claim.slot, claim.ref.tensor
        if slot.either_way and claim.ref.part == "weight" and len(tensor.shape) >= 2 and self._lies_transposed(claim):
            tensor = Transpose(tensor)
        if slot.transposed and claim.ref.part == "weight":
            tensor = Transpose(tensor)
        if isinstance(slot.role, Fused):
            tensor = self._cut(slot.role, role, tensor, claim)
        if slot.shift and claim.ref.part == "weight":
            tensor = Affine(tensor, shift=slot.shift)
        return tensor

    def _cut(self, fused: Fused, role: str, tensor: Tensor, claim: _Claim) -> Tensor:
        axis = fused.axis + (len(tensor.shape) - 2 if claim.ref.part == "weight" else 0)
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
        return Slice(tensor, start, start + sizes[fused.roles.index(role)], axis)

    def _lies_transposed(self, claim: _Claim) -> bool:
        """Whether a stored `[.., in, out]` must be turned; square ones follow the layer's other such tensors."""
        verdict = self._turned(claim)
        if verdict is not None:
            return verdict
        for other, _ in self.claims.values():
            if other.slot.either_way and other.ref.layer == claim.ref.layer and other.ref.part == "weight":
                verdict = self._turned(other)
                if verdict is not None:
                    return verdict
        return False

    def _turned(self, claim: _Claim) -> bool | None:
        shape = claim.ref.shape[-2:]
        dims = [self._dims(r) for r in slot_roles(claim.slot)]
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

    def _dim(self, dim: Dim) -> int:
        if isinstance(dim, tuple):
            return math.prod(self._dim(d) for d in dim)
        if isinstance(dim, int):
            return dim
        return int(self.hp.get(dim, 0) or 0)  # type: ignore[call-overload]

    def _check(self, key: Key, name: str, tensor: Tensor) -> Tensor:
        dims = self._dims(key.role)
        if not dims:
            return tensor
        wanted = dims if key.part == "weight" else ((*dims[:-2], dims[-2]) if len(dims) > 1 else dims)
        if tensor.shape != wanted:
            stated = self.architecture.shape_of(key.role) or ()
            words = {d for dim in stated for d in (dim if isinstance(dim, tuple) else (dim,)) if isinstance(d, str)}
            said = ", ".join(f"{self.keys.get(w, w)} = {self.hp.get(w)}" for w in sorted(words))
            raise SourceError(
                "shape-mismatch",
                f"{name} is {list(tensor.shape)} where config.json makes it {list(wanted)} ({said})",
                "Correct config.json, as the model's authors published it, or fetch the weights again.",
            )
        return tensor


def _head(
    tensors: dict[Key, Tensor], hp: Mapping[str, object], same_head: bool | None
) -> tuple[dict[Key, Tensor], tuple[Event, ...], bool | None]:
    """A stored head against `tie_word_embeddings`: one copy of equal ones; the file wins over the config."""
    head, embed = Key(Role.HEAD), Key(Role.EMBED)
    tied = bool(hp.get("tie_word_embeddings"))
    if head not in tensors:
        if tied or embed not in tensors:
            return tensors, (), None
        event = Event(
            code="head-missing",
            message="tie_word_embeddings is false, yet the checkpoint has no head; the embedding serves as one",
            subject="tie_word_embeddings",
        )
        return tensors, (event,), None
    if not tied:
        return tensors, (), None
    if tensors[head].shape != tensors[embed].shape or same_head is False:
        event = Event(
            code="head-differs",
            message="tie_word_embeddings is true, yet the stored head differs from the embedding; the file is followed",
            subject="lm_head",
        )
        return tensors, (event,), False
    return {k: t for k, t in tensors.items() if k != head}, (), same_head


