"""Tensors against the table: each claimed once, strangers and gaps noticed, shapes in terms of hparams."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from llmfit_core.errors import LlmfitError, SourceError
from llmfit_core.naming import Patterns
from llmfit_core.resolve import resolve
from llmfit_core.tensors import Given
from llmfit_core.testing.outcome import CheckFailed, NotRun, few, require
from llmfit_core.testing.values import match_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from llmfit_core.architecture import Architecture
    from llmfit_core.model import Model
    from llmfit_core.tensors import TensorRef
    from llmfit_core.testing.bench import Bench


def check_claimed(bench: Bench, case: str) -> None:
    """Every tensor of the saved files is claimed or waived, exactly once, and nothing else is."""
    model = bench.model(case)
    counts = Counter([*model.ledger.claimed, *model.ledger.waived])
    prefix = bench.architecture.base_prefix
    saved = {n if n in counts else n.removeprefix(prefix) for n in bench.built(case).tensors}
    twice = [n for n, count in counts.items() if count > 1]
    require(not twice, f"claimed more than once: {few(twice)}")
    require(set(counts) == saved, f"saved and not claimed, or the other way: {few(sorted(set(counts) ^ saved))}")
    require(len(model.refs) == len(model.ledger.claimed), "the model has other tensors than it claims")


def check_roles_are_met(bench: Bench, cases: tuple[str, ...], refused: tuple[str, ...] = ()) -> None:
    """Every pattern of the table names something that is saved in some case of the sample, or is an alternative.

    Configs that no graph computes are asked last: what is saved under them is in the table all the same.
    """
    architecture = bench.architecture
    patterns = Patterns(architecture.tensors)
    used: set[str] = set()
    idle: list[str] = []
    for case in (*cases, *refused):
        try:
            saved = bench.built(case).tensors
        except (CheckFailed, NotRun):
            if case in refused:
                continue
            raise
        used |= {m.pattern for m in (match_of(architecture, patterns, n) for n in saved) if m is not None}
        roles = {role for p in used for role in _roles(architecture, p)}
        idle = [p for p in architecture.tensors if p not in used and not set(_roles(architecture, p)) <= roles]
        idle = [p for p in idle if not architecture.slot(p).optional]
        if not idle:
            return
    require(not idle, f"in the table, and no case of the sample saves it or its role: {few(idle)}; add a variation that does")


def _roles(architecture: Architecture, pattern: str) -> tuple[str, ...]:
    from llmfit_core.architecture import slot_roles

    return slot_roles(architecture.slot(pattern))


def check_strays(bench: Bench, case: str) -> None:
    """A tensor that the table does not know is an error, at the top and inside a layer."""
    model = bench.model(case)
    some = next(iter(model.checkpoint.tensors.values()))
    inside = next((n for n in model.checkpoint.tensors if _in_layer(bench, n)), some.name)
    stem = inside.rpartition(".")[0]
    for name in ("llmfit_kit_stray.weight", f"{stem}_llmfit_kit_stray.weight", f"{stem}.llmfit_kit_stray"):
        ref = replace(some, name=name)
        code = _refusal(model, lambda t, n=name, r=ref: {**t, n: r})  # type: ignore[misc]
        require(code == "stray-tensor", f"a stray tensor {name} ends as {code or 'a model'}, not as stray-tensor")


def _in_layer(bench: Bench, name: str) -> bool:
    match = Patterns(bench.architecture.tensors).match(name)
    return match is not None and match.layer is not None


def check_gaps(bench: Bench, case: str) -> None:
    """Without any one of its tensors, of each pattern the last, the checkpoint is an error; optional ones apart."""
    model = bench.model(case)
    architecture = bench.architecture
    patterns = Patterns(architecture.tensors)
    last: dict[tuple[str, str], str] = {}
    for ref in model.refs:
        match = patterns.match(ref.name)
        if match is not None:
            last[match.pattern, match.part] = ref.name
    names = {plain: name for name in model.checkpoint.tensors for plain in (name, *_unwrapped(model, name))}
    for (pattern, part), name in last.items():
        slot = architecture.slot(pattern)
        if slot.optional or (part == "bias" and slot.bias == "optional"):
            continue
        stored = names[name]
        code = _refusal(model, lambda t, n=stored: {k: v for k, v in t.items() if k != n})  # type: ignore[misc]
        require(code, f"without {stored} the checkpoint still passes as whole")


def _unwrapped(model: Model, name: str) -> tuple[str, ...]:
    """A stored name as the model calls it, where it was freed of a wrapper's prefix."""
    return tuple(r.name for r in model.refs if r.name != name and r.tensor is model.checkpoint.tensors[name].tensor)


def check_shapes(bench: Bench, case: str) -> None:
    """Each stored tensor in another shape, one axis longer, is an error: its shape is stated in terms of hparams."""
    model = bench.model(case)
    patterns = Patterns(bench.architecture.tensors)
    seen: set[tuple[str, str, int]] = set()
    unseen = []
    for name, ref in model.checkpoint.tensors.items():
        plain = next((r for r in model.refs if r.tensor is ref.tensor), None)
        match = patterns.match(plain.name) if plain is not None else None
        if match is None:
            continue
        for axis in range(len(ref.shape)):
            key = match.pattern, match.part, axis
            if key in seen or _is_rows_of_vocabulary(ref, axis, model):
                continue
            seen.add(key)
            shape = tuple(n + (at == axis) for at, n in enumerate(ref.shape))
            wrong = replace(ref, tensor=Given(b"", shape, ref.dtype))
            if not _refusal(model, lambda t, n=name, w=wrong: {**t, n: w}):  # type: ignore[misc]
                unseen.append(f"{name} as {list(shape)}")
    require(not unseen, f"passes although no hparam says so: {few(unseen)}; state the role's shape in `shapes`")


def _is_rows_of_vocabulary(ref: TensorRef, axis: int, model: Model) -> bool:
    """How many rows an embedding has is told by the embedding."""
    return axis == 0 and ref.shape[0] == model.integer("vocab_rows")


def _refusal(model: Model, change: Callable[[Mapping[str, TensorRef]], Mapping[str, TensorRef]]) -> str:
    """The code of the error that the changed checkpoint is; empty where it is none."""
    checkpoint = replace(model.checkpoint, tensors=change(model.checkpoint.tensors))
    try:
        resolve(checkpoint, model.architecture, vocab=model.vocab)
    except LlmfitError as error:
        require(isinstance(error, SourceError) or error.code, "an error without a code")
        return error.code
    return ""


def check_keys_are_known(bench: Bench, case: str) -> None:
    """Every key of the saved config.json is read, asserted or ignored with a reason."""
    unknown = bench.model(case).ledger.unknown
    require(not unknown, f"nobody knows these keys of config.json: {few(unknown)}; say in `config` what each is for")


def check_says_the_same(bench: Bench, case: str) -> None:
    """Asked three times, the functions of the table say what they said, and `layer_kinds` changes nothing that it is given."""
    model = bench.model(case)
    first, kinds = dict(model.hparams), _kinds(model)
    for _ in range(3):
        again = resolve(model.checkpoint, model.architecture, vocab=model.vocab)
        odd = sorted(k for k in {*first, *again.hparams} if first.get(k) != again.hparams.get(k))
        require(not odd, f"the same config gives other values of {few(odd)} each time: `hparams` has to be a function of its argument")
        require(_kinds(model) == kinds, "`layer_kinds` says something else each time")


def _kinds(model: Model) -> list[object]:
    kinds = model.architecture.layer_kinds
    if kinds is None:
        return []
    given = MappingProxyType(model.hparams)
    try:
        return [kinds(given, layer) for layer in range(model.integer("block_count"))]
    except TypeError as error:
        raise CheckFailed(f"`layer_kinds` fails on hparams that cannot be written: {error}") from error
