"""From a checkpoint and an architecture's table to a `Model`: every tensor claimed, every shape agreed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from llmfit_core.architecture import Architecture, slot_roles
from llmfit_core.dtypes import DTYPES
from llmfit_core.errors import SourceError
from llmfit_core.events import Event
from llmfit_core.hparams import ConfigLedger, read_config
from llmfit_core.ledger import Book, Claim
from llmfit_core.model import Key, Ledger, Model
from llmfit_core.naming import Patterns, first_missing, unwrap
from llmfit_core.parts import part_of, says_untied, told_left_out
from llmfit_core.roles import Role
from llmfit_core.tensors import element_count

if TYPE_CHECKING:
    from llmfit_core.checkpoint import Checkpoint
    from llmfit_core.roles import Dim
    from llmfit_core.tensors import Tensor
    from llmfit_core.tokenizer.vocab import Vocab

_CORRECT = "Correct config.json, as the model's authors published it."


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
    names, events = unwrap(checkpoint.tensors, patterns, architecture.base_prefix)
    claims, waived, others = _claim(checkpoint, architecture, patterns, names, read.hparams)
    hparams, inferred = _complete(read, architecture, claims)
    read = replace(read, hparams=hparams)
    _require_frequencies(checkpoint, waived, names, hparams)
    book = Book(architecture, read, claims)
    tensors = _canonical(book, read, checkpoint, architecture)
    head_events: tuple[Event, ...] = ()
    if any(Role.HEAD in slot_roles(architecture.slot(p)) for p in architecture.tensors):
        tensors, head_events, same_head = _head(tensors, read.hparams, same_head, untied=says_untied(checkpoint.config))
    if others and not checkpoint.config.left_out:
        _stray(checkpoint, others)
    ledger = Ledger(
        claimed=tuple(c.ref.name for c in claims),
        waived={**checkpoint.waived, **waived},
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
        events=(*checkpoint.events, *read.events, *events, *_told(checkpoint, others), *inferred, *book.events, *head_events),
        same_head=same_head,
    )


def _canonical(
    book: Book, read: ConfigLedger, checkpoint: Checkpoint, architecture: Architecture
) -> dict[Key, Tensor]:
    """The expected tensors; where they do not fit what a class assumes, what config.json lacks is the cause."""
    try:
        return book.canonical()
    except SourceError as error:
        if not read.assumed:
            raise
        prefix = f"{checkpoint.config.prefix}." if checkpoint.config.prefix else ""
        missing = ", ".join(f"{prefix}{key}" for key in read.assumed)
        raise SourceError(
            "config-key-missing",
            f"config.json lacks {missing}, and what {architecture.hf_classes[0]} assumes does not fit: {error.cause}",
            f"Add {missing} to config.json, as the model's authors published it.",
        ) from error


def _claim(
    checkpoint: Checkpoint,
    architecture: Architecture,
    patterns: Patterns,
    names: Mapping[str, str],
    hp: Mapping[str, object],
) -> tuple[list[Claim], dict[str, str], dict[str, str]]:
    """Who claims each source tensor, what is not needed and why, and which parts own the rest; strangers are an error."""
    claims, waived, strays = [], {}, {}
    others: dict[str, str] = {}
    last = count_of(hp, "block_count")
    spare = {last + i: why for key, why in architecture.waived_layers.items() for i in range(min(count_of(hp, key), 64))}
    for name, ref in checkpoint.tensors.items():
        plain = names[name]
        match = patterns.match(plain)
        if match is None:
            part = part_of(name, checkpoint.config.left_out)
            if part:
                others[name] = part
                waived[name] = "not part of the text model"
            else:
                strays[name] = plain
        elif match.pattern in architecture.waived:
            waived[name] = architecture.waived[match.pattern]
        elif match.layer in spare:
            waived[name] = spare[match.layer]
        else:
            slot = architecture.slot(match.pattern)
            role = "+".join(slot_roles(slot))
            annotated = replace(
                ref,
                name=plain,
                role=role,
                part=match.part if plain.endswith(f".{match.part}") else slot.part,
                layer=match.layer,
                expert=match.expert,
            )
            claims.append(Claim(annotated, match, slot))
    if strays:
        _stray(checkpoint, strays)
    if not claims:
        raise SourceError("no-weights", f"{checkpoint.label} holds no tensor of the model", "Fetch its weights.")
    return claims, waived, others


def _told(checkpoint: Checkpoint, others: Mapping[str, str]) -> tuple[Event, ...]:
    refs = checkpoint.tensors
    return told_left_out({n: (p, element_count(refs[n].shape) * DTYPES[refs[n].dtype].size) for n, p in others.items()})


def _stray(checkpoint: Checkpoint, strays: Mapping[str, str]) -> None:
    hint = "Remove it, or use a plugin whose table knows it."
    if any("lora_" in n for n in strays):
        hint = "The folder holds unmerged LoRA weights: merge them into the model first (peft: merge_and_unload)."
    elif any(n.endswith((".qweight", ".qzeros", ".g_idx", ".weight_packed", ".weight_scale_inv", "_scale")) for n in strays):
        hint = "These weights are quantized; no installed decoder recognised their kind."
    raise SourceError("stray-tensor", f"{checkpoint.label}: nobody knows the tensor {first_missing(strays)}", hint)


def _complete(
    read: ConfigLedger, architecture: Architecture, claims: Iterable[Claim]
) -> tuple[dict[str, object], tuple[Event, ...]]:
    """Hparams that the config leaves out, told by shapes, then those the architecture derives."""
    hp = dict(read.hparams)
    events: list[Event] = []
    shapes = {c.ref.role: c.ref.shape for c in claims if c.ref.part == "weight" and c.ref.layer in (0, None)}

    def rows(role: str) -> int:
        shape = shapes.get(role, ())
        return shape[0] if len(shape) == 2 else 0

    def note(key: str, value: int, how: str) -> None:
        message = f"config.json does not say {key}; {how} says {value}"
        events.append(Event(code="inferred-from-shapes", message=message, severity="fallback", subject=key))

    hp["vocab_rows"] = rows(Role.EMBED) or hp.get("vocab_size") or rows(Role.HEAD)
    hp.setdefault("vocab_size", hp["vocab_rows"])
    heads, width = count_of(hp, "attention.head_count"), count_of(hp, "embedding_length")
    told = "attention.key_length" in _words(architecture.shape_of(Role.ATTN_Q))
    if heads and told and "attention.key_length" not in hp:
        q = rows(Role.ATTN_Q)
        if q and q % heads == 0:
            hp["attention.key_length"] = q // heads
            if q != width:
                note("head_dim", q // heads, "the query matrix")
        elif width:
            if width % heads:
                raise SourceError(
                    "config-key-invalid",
                    f"hidden_size {width} is no multiple of num_attention_heads {heads}, and head_dim is missing",
                    _CORRECT,
                )
            hp["attention.key_length"] = width // heads
    size = count_of(hp, "attention.key_length")
    hp.setdefault("attention.value_length", size)
    if heads and size and "attention.head_count_kv" not in hp:
        k = rows(Role.ATTN_K)
        hp["attention.head_count_kv"] = k // size if k and k % size == 0 else heads
        if hp["attention.head_count_kv"] != heads:
            note("num_key_value_heads", k // size, "the key matrix")
    _require_sense(hp)
    if architecture.hparams is not None:
        hp.update(architecture.hparams(hp))
    return hp, tuple(events)


def _words(dims: tuple[Dim, ...] | None) -> set[str]:
    """The hparams that a shape speaks of."""
    return {w for dim in dims or () for w in (dim if isinstance(dim, tuple) else (dim,)) if isinstance(w, str)}


def _require_sense(hp: Mapping[str, object]) -> None:
    """Counts that cannot go together, whatever the tensors are."""
    heads, kv = count_of(hp, "attention.head_count"), count_of(hp, "attention.head_count_kv")
    if heads and kv and heads % kv:
        raise SourceError(
            "config-key-invalid", f"num_attention_heads {heads} is no multiple of num_key_value_heads {kv}", _CORRECT
        )
    experts, used = count_of(hp, "expert_count"), count_of(hp, "expert_used_count")
    if experts and used > experts:
        raise SourceError(
            "config-key-invalid", f"num_experts_per_tok {used} exceeds the number of experts {experts}", _CORRECT
        )
    size, share = count_of(hp, "attention.key_length"), hp.get("partial_rotary_factor", 1.0)
    if isinstance(share, float) and size and (share > 1 or rotated(hp) % 2 or not rotated(hp)):
        raise SourceError(
            "config-key-invalid",
            f"head_dim {size} with partial_rotary_factor {share:g} rotates {rotated(hp)} dimensions, which form no pairs",
            _CORRECT,
        )


def rotated(hp: Mapping[str, object]) -> int:
    """How many dimensions of a head rope turns."""
    if count_of(hp, "rope.dimension_count"):
        return count_of(hp, "rope.dimension_count")
    share = hp.get("partial_rotary_factor")
    return int(count_of(hp, "attention.key_length") * (share if isinstance(share, float) else 1.0))


def count_of(hp: Mapping[str, object], hparam: str) -> int:
    """An hparam as a whole number, 0 where it is absent."""
    value = hp.get(hparam)
    return value if isinstance(value, int) else 0


def _require_frequencies(
    checkpoint: Checkpoint, waived: Mapping[str, str], names: Mapping[str, str], hp: Mapping[str, object]
) -> None:
    """Stored rotary frequencies are not used, yet their number tells whether the head size is true."""
    for name in waived:
        shape = checkpoint.tensors[name].shape
        if names[name].endswith("rotary_emb.inv_freq") and shape != (rotated(hp) // 2,):
            raise SourceError(
                "shape-mismatch",
                f"{name} is {list(shape)} where config.json makes it [{rotated(hp) // 2}] (half of head_dim "
                f"{count_of(hp, 'attention.key_length')}, told by num_attention_heads {count_of(hp, 'attention.head_count')})",
                _CORRECT,
            )


def _head(
    tensors: dict[Key, Tensor], hp: Mapping[str, object], same_head: bool | None, *, untied: bool
) -> tuple[dict[Key, Tensor], tuple[Event, ...], bool | None]:
    """A stored head against `tie_word_embeddings`: one copy of equal ones; the file wins over the config."""
    head, embed = Key(Role.HEAD), Key(Role.EMBED)
    tied = bool(hp.get("tie_word_embeddings"))
    if head not in tensors:
        if tied or embed not in tensors:
            return tensors, (), None
        event = Event(
            code="head-missing",
            message="tie_word_embeddings is not true, yet the checkpoint has no head; the embedding serves as one",
            subject="tie_word_embeddings",
        )
        return tensors, (event,), None
    if not tied:
        return tensors, (), None
    if tensors[head].shape != tensors[embed].shape or same_head is False:
        event = Event(
            code="head-differs",
            message="tie_word_embeddings is true, yet the stored head differs from the embedding; the file is followed",
            severity="info" if untied else "warning",
            subject="lm_head",
        )
        return tensors, (event,), False
    return {k: t for k, t in tensors.items() if k != head}, (), same_head


