"""`Architecture`: everything llmfit knows of a model family, stated once, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from llmfit_core.roles import SHAPES, Dim, Link

if TYPE_CHECKING:
    from llmfit_core.rope import Rope
    from llmfit_core.tensors import Tensor

Hparams = Mapping[str, object]
"""Hyper-parameters under GGUF's key names without the architecture prefix (`attention.head_count`),
and under Hugging Face's names where GGUF has none (`hidden_act`)."""


ROLES: Final = "roles"
"""See `Graph.assumes`."""


class _Required:
    """The default of a config key that has none."""

    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED: Final = _Required()


@dataclass(frozen=True)
class Fused:
    """Several roles in one stored tensor, one after the other along `axis` of the stored shape.

    Attributes:
        roles: In stored order (`Fused(("attn_q", "attn_k", "attn_v"))`).
        axis: Of one expert's matrix, `[out, in]`: 0 joins outputs.
        groups: The hparam that counts groups of rows, where each group holds its share of every role in turn
            (`attention.head_count_kv` for a Falcon, whose heads come one after the other, each with its q, k and v).
    """

    roles: tuple[str, ...]
    axis: int = 0
    groups: str = ""


@dataclass(frozen=True)
class Slot:
    """What a stored tensor is, with the facts of its storage.

    Attributes:
        role: A role, or `Fused`.
        bias: `True`: a bias always belongs to it; `False`: never; `"optional"`: where the file has one;
            any other text: the name of an hparam that says so (`attention_bias`).
        optional: The tensor itself may be absent.
        when: Only in layers of this kind (see `Architecture.layer_kinds`); empty for all.
        transposed: Stored `[in, out]` (GPT-2's Conv1D).
        shift: What has to be added to the stored values (1.0 for Gemma's norms).
        either_way: Stored as it is or transposed; the shapes decide (fused experts on disk).
        bare: Stored under the pattern itself, with no `.weight` behind it.
        part: What a bare name is (`bias` for `experts.down_proj_bias`).
        skip: The hparam that counts rows in front which nothing reads (RoBERTa's positions begin behind its padding's);
            written as zeros on the way back.
        ones: Leading axes of length one that the stored tensor has besides.
        count: The hparam that counts what `{expert}` in the pattern numbers, where that is something else (heads).
    """

    role: str | Fused
    bias: bool | str = False
    optional: bool = False
    when: str = ""
    transposed: bool = False
    shift: float = 0.0
    either_way: bool = False
    bare: bool = False
    part: str = "weight"
    skip: str = ""
    ones: int = 0
    count: str = "expert_count"


@dataclass(frozen=True)
class Reads:
    """A config key that is consumed: its value becomes the hparam `hparam`.

    Attributes:
        hparam: The name in `Hparams`.
        default: What the model class assumes where the key is absent or null; `REQUIRED` for none;
            `None` where absence means that the hparam does not exist (or that shapes tell it).
        null_is_none: A key that is there with the value null means "none", not the default.
        kind: What the value has to be: `count`, `number` (positive), `flag`, `text`, `counts` or `texts` (lists);
            where it is empty, the default's own kind, and anything at all where there is none to tell.
    """

    hparam: str
    default: object = REQUIRED
    null_is_none: bool = False
    kind: Literal["", "count", "number", "flag", "text", "counts", "texts"] = ""


@dataclass(frozen=True)
class Asserts:
    """A config key with the only values under which this table tells the truth.

    Attributes:
        values: The accepted values; an absent key is accepted.
        why: What another value would change, for the refusal.
    """

    values: tuple[object, ...]
    why: str


@dataclass(frozen=True)
class Ignores:
    """A config key that changes nothing in inference.

    Attributes:
        why: The reason (`training only`).
    """

    why: str


Use = Reads | Asserts | Ignores


@dataclass(frozen=True, kw_only=True)
class Fix:
    """What a graph computes, whatever the config says.

    Attributes:
        values: The values of the hparam under which the graph computes this checkpoint; an absent hparam is `None`.
        why: What the graph does otherwise, for the refusal.
        unless: `(hparams) -> True` where another value makes no difference for this checkpoint.
    """

    values: tuple[object, ...]
    why: str
    unless: Callable[[Hparams], bool] | None = None


@dataclass(frozen=True, kw_only=True)
class Limit:
    """A config value that the graph leaves out, yet computes exactly up to so many tokens.

    Attributes:
        hparam: The hparam whose value is the number of tokens (`attention.sliding_window`).
        message: For people; `{tokens}` is replaced.
    """

    hparam: str
    message: str


@dataclass(frozen=True, kw_only=True)
class PerHead:
    """A matrix that a graph wants as one matrix for each head, `[heads, out, in]`.

    Attributes:
        heads: The hparam that counts them.
        transposed: Each head's matrix as `[in, out]`.
    """

    heads: str
    transposed: bool = False


@dataclass(frozen=True, kw_only=True)
class Form:
    """How a graph wants a role's tensor, where that is neither merging nor cutting, and the way back.

    Attributes:
        there: `(canonical tensor, hparams) -> tensor of the file`, out of named operations.
        back: The inverse.
    """

    there: Callable[[Tensor, Hparams], Tensor]
    back: Callable[[Tensor, Hparams], Tensor]


@dataclass(frozen=True, kw_only=True)
class Graph:
    """The computation that a runtime performs under an architecture name.

    Attributes:
        format: The exporter's name (`gguf`).
        name: The name the runtime knows it by (`general.architecture`).
        engine: The engine whose sources this was read from (`llama.cpp`).
        keys: Hparams the loader reads, in the order they are written; absent hparams are left out. One whose name begins
            with `tokenizer.` is a key as it stands, without the graph's name before it.
        constants: Keys written with a fixed value, architecture-relative (`expert_gating_func`).
        fixes: By hparam, the values the graph computes.
        limits: Exact up to so many tokens.
        bounds: `(hparams) -> sentences`: what the graph leaves out that not every use of the model needs.
        rope: Rope types the graph computes exactly for this architecture.
        rope_rows: `pairs` where the graph's rope takes neighbouring rows ("norm"), `halves` ("neox").
        rope_factors: The graph loads `rope_freqs.weight` (factors per dimension).
        rope_keys: `(rope) -> keys` that its loader takes for this rope, over those of every graph of its engine; `None`
            for a key that is not to be written.
        rope_read: The inverse: `(keys of a file) -> keys` of a config's `rope_scaling`, under yarn.
        rope_rounding: Radians a token by which phases may be off where the graph rounds yarn's correction range, reads no
            betas and no factors, and the model wants otherwise: up to there it is written, with a warning.
        merges: Role groups the graph wants as one tensor, by the name it is filed under.
        spelling: Roles filed under another name than their own.
        per_head: Roles whose matrix the graph wants head by head.
        forms: Roles whose tensor the graph wants otherwise; before merging.
        bare: Roles whose tensor has no `.weight` behind its name.
        by_layer: Keys with a number for each layer, 0 in those that have none of it (`values` makes them). Read back, the
            hparam is that number, and the one of the same name with `_by_layer` behind it has each layer's.
        values: `(hparams) -> hparams` that the loader expects to differ from the model's own.
        assumes: `(keys of a file) -> hparams` that its loader takes where the file has no key for them; among the keys
            is `ROLES`, the set of names that the file's tensors have, for what those tell.
        scales: `(hparams) -> factor by role`, folded into the tensors of roles whose results the graph scales otherwise
            than the model does; taken out again on the way back.
        needs_head: The graph loads `output.weight` even where it equals the embedding.
        own_head: The graph loads a head of its own where there is one; `False`: the embedding is always the head.
        biases: Roles whose bias the graph loads; `None` for any.
        types: Element types its engine reads; `None` for all that the format's exporter writes.
    """

    format: str
    name: str
    engine: str
    keys: tuple[str, ...]
    constants: Mapping[str, object] = field(default_factory=dict)
    fixes: Mapping[str, Fix] = field(default_factory=dict)
    limits: tuple[Limit, ...] = ()
    bounds: Callable[[Hparams], tuple[str, ...]] | None = None
    rope: frozenset[str] = frozenset({"default", "linear", "yarn"})
    rope_rows: Literal["pairs", "halves"] = "halves"
    rope_factors: bool = False
    rope_keys: Callable[[Rope], Mapping[str, float | None]] | None = None
    rope_read: Callable[[Hparams], Mapping[str, object]] | None = None
    rope_rounding: float = 0.0
    merges: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    spelling: Mapping[str, str] = field(default_factory=dict)
    per_head: Mapping[str, PerHead] = field(default_factory=dict)
    forms: Mapping[str, Form] = field(default_factory=dict)
    bare: frozenset[str] = frozenset()
    by_layer: frozenset[str] = frozenset()
    values: Callable[[Hparams], Hparams] | None = None
    assumes: Callable[[Hparams], Hparams] | None = None
    scales: Callable[[Hparams], Mapping[str, float]] | None = None
    biases: frozenset[str] | None = None
    needs_head: bool = False
    own_head: bool = True
    types: frozenset[str] | None = None


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A model family: what its saved tensors mean, what its config says, who feeds whom, what computes it.

    Attributes:
        name: Unique, lower case (`qwen2`).
        hf_classes: Values of `architectures` in config.json, canonical spelling first.
        model_types: Values of `model_type`.
        tensors: By source name without `.weight` or `.bias`, with `{layer}` and `{expert}` for indices: a
            role, `Fused`, or a `Slot`. Two patterns of one role are alternatives.
        config: By config key, what it is for. `DECODER_CONFIG | {...}` is the usual start.
        wiring: Who feeds whom; an exporter that needs it refuses an empty one.
        graphs: What computes it elsewhere, in order of preference. Files are written for the first one's engine, unless
            another is asked for.
        shapes: By role, over `llmfit_core.roles.SHAPES`.
        hparams: Derives further hparams from those read: `(hparams) -> additions`.
        layer_kinds: `(hparams, layer) -> kinds` that `Slot.when` refers to.
        waived: By name pattern, tensors that are not needed, with the reason.
        named_only: Taken only where config.json names its class or model type: its tensors are called as another family's,
            which is the one to take where nothing but names speaks.
        waived_layers: By hparam, how many layers are stored behind the last that are not needed, with the reason.
        rope_rows: How the saved q and k are laid out: `halves` (transformers' usual) or `pairs`.
        rope_kinds: Where each kind of layer has a rope of its own (`layer_types`): by kind, the config key of its base.
            The one of `rope_theta` is the model's rope; of the others the base is read under that key and the type is
            the hparam `rope_type.<kind>`. Empty where all layers share one rope.
        base_prefix: What stands before every name of the base model where a checkpoint was saved with a head (`bert.`).
        rope_default: What the class takes for `rope_scaling` where a config states none; empty for plain rope.
        part_defaults: By model type, the values of keys that its own config class assumes where `config` says something
            else or nothing: read for a text part of a larger model, of which some versions of transformers save only
            what differs from its class, and for every model type but the first.
    """

    name: str
    hf_classes: tuple[str, ...]
    model_types: tuple[str, ...] = ()
    tensors: Mapping[str, str | Fused | Slot]
    config: Mapping[str, Use]
    wiring: tuple[Link, ...] = ()
    graphs: tuple[Graph, ...] = ()
    shapes: Mapping[str, tuple[Dim, ...]] = field(default_factory=dict)
    hparams: Callable[[Hparams], Hparams] | None = None
    layer_kinds: Callable[[Hparams, int], frozenset[str]] | None = None
    waived: Mapping[str, str] = field(default_factory=dict)
    named_only: bool = False
    waived_layers: Mapping[str, str] = field(default_factory=dict)
    rope_rows: Literal["pairs", "halves"] = "halves"
    rope_kinds: Mapping[str, str] = field(default_factory=dict)
    base_prefix: str = ""
    rope_default: Mapping[str, object] = field(default_factory=dict)
    part_defaults: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    def slot(self, pattern: str) -> Slot:
        """The table's entry as a `Slot`."""
        entry = self.tensors[pattern]
        return entry if isinstance(entry, Slot) else Slot(entry)

    def shape_of(self, role: str) -> tuple[Dim, ...] | None:
        """The role's shape in terms of hparams, or `None` where nothing is stated."""
        return self.shapes.get(role) or SHAPES.get(role)


def slot_roles(slot: Slot) -> tuple[str, ...]:
    """The roles a slot holds: one, or a fused tensor's several."""
    return slot.role.roles if isinstance(slot.role, Fused) else (slot.role,)
