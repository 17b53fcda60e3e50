"""Which architecture is it? Class name first, then model type, then the tensor names."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from llmfit_core.architecture import REQUIRED, Reads
from llmfit_core.errors import LlmfitError, UnsupportedError
from llmfit_core.events import Event
from llmfit_core.parts import require_same_text, uncompared
from llmfit_core.resolve import resolve

if TYPE_CHECKING:
    from llmfit_core.architecture import Architecture
    from llmfit_core.checkpoint import Checkpoint
    from llmfit_core.config import Config


def screen(config: Config, label: str, architectures: Sequence[Architecture]) -> None:
    """Refuse from the config alone what no installed plugin knows, so that no weight file is opened for nothing.

    Raises:
        UnsupportedError: As `recognise`, where no tensor name could change the verdict.
    """
    _by_config(config, label, architectures)


def recognise(
    checkpoint: Checkpoint, architectures: Sequence[Architecture]
) -> tuple[Architecture, str, tuple[Event, ...]]:
    """The one architecture that `checkpoint` is, the evidence, and what was noticed.

    A class name decides if it is known exactly; one that differs only in case decides if that is unique. Without class
    names a model type decides, if it is unique, then the tensor names.

    Raises:
        UnsupportedError: `unknown-architecture`, with the nearest names and the distribution that knows it;
            `ambiguous-architecture`.
    """
    config = checkpoint.config
    found = _by_config(config, checkpoint.label, architectures)
    if found is not None:
        return found
    typed = [a for a in architectures if config.model_type and config.model_type in a.model_types]
    fitting, evidence = _by_tensor_names(checkpoint, typed or architectures)
    if len(fitting) == 1:
        return fitting[0], evidence, (_no_class(evidence, fitting[0]),)
    if fitting:
        names = " and ".join(a.hf_classes[0] for a in fitting)
        raise UnsupportedError(
            "ambiguous-architecture",
            f"{checkpoint.label}: config.json names no class, and the tensor names fit {names} alike",
            f'Add "architectures": ["{fitting[0].hf_classes[0]}"], or whichever is true, to config.json.',
        )
    raise _unknown("", checkpoint.label, architectures)


def _by_config(
    config: Config, label: str, architectures: Sequence[Architecture]
) -> tuple[Architecture, str, tuple[Event, ...]] | None:
    """What the config's class names and model type decide, told where they contradict; `None` where they are silent."""
    whole = config.outer_classes if config.prefix else config.architectures
    require_same_text(whole, config.raw.get("model_type"), label)
    decided = _by_name(config, label, architectures)
    if decided is None:
        return None
    if config.prefix:
        known = {c for a in architectures for c in a.hf_classes}
        decided = (*decided[:2], (*decided[2], *uncompared(whole, known, config.prefix)))
    if not config.model_type:
        return decided
    found, evidence, events = decided
    others = [a for a in architectures if config.model_type in a.model_types]
    if not others or found in others:
        return decided
    return found, evidence, (*events, _other_type(config, found, others[0]))


def _by_name(
    config: Config, label: str, architectures: Sequence[Architecture]
) -> tuple[Architecture, str, tuple[Event, ...]] | None:
    """What the config's class names and model type decide; `None` where they are silent."""
    by_class = {name: a for a in architectures for name in a.hf_classes}
    where = f"{config.prefix}." if config.prefix else ""
    for names, place in ((config.architectures, f"{where}architectures"), (config.outer_classes, "architectures")):
        known = [(n, by_class[n]) for n in names if n in by_class]
        if known:
            first, found = known[0]
            other = next((n for n, a in known if a is not found), None)
            if other is not None:
                raise UnsupportedError(
                    "ambiguous-architecture",
                    f"{label}: {place} in config.json names both {first} and {other}",
                    "Leave only the class that is true.",
                )
            events = () if names[0] == first else (_passed_over(names[0], first, place),)
            return found, f"class {first}", events
        for name in names:
            alike = {a.name: (c, a) for c, a in by_class.items() if c.casefold() == name.casefold()}
            bare = next((by_class[n] for n in _with_head(name) if n in by_class), None)
            if len(alike) == 1:
                canonical, found = next(iter(alike.values()))
                return found, f"class {canonical}", (_spelling(name, found.hf_classes[0], place),)
            if bare is not None:
                return bare, f"class {name}", (_bare(name, bare.hf_classes[0], place),)
    if config.architectures:
        raise _unknown(config.architectures[0], label, architectures)
    if not config.model_type:
        return None
    typed = [a for a in architectures if config.model_type in a.model_types]
    evidence = f"{where}model_type {config.model_type}"
    if len(typed) == 1:
        return typed[0], evidence, (_no_class(evidence, typed[0]),)
    if typed:
        return None
    alike_types = {a.name: a for a in architectures for t in a.model_types if t.casefold() == config.model_type.casefold()}
    if len(alike_types) == 1:
        found = next(iter(alike_types.values()))
        spelling = _spelling(config.model_type, found.model_types[0], f"{where}model_type")
        return found, evidence, (_no_class(evidence, found), spelling)
    raise _unknown(config.model_type, label, architectures, also=config.outer_classes)


def _with_head(name: str) -> tuple[str, ...]:
    """What transformers calls the class of a model with a head whose bare class is `name`; empty for no bare class."""
    stems = [name.removesuffix(end) for end in ("Model", "TextModel") if name.endswith(end)]
    return tuple(stem + end for stem in stems for end in ("ForCausalLM", "LMHeadModel"))


def _spelling(said: str, canonical: str, place: str) -> Event:
    return Event(code="class-spelling", message=f"{place} says {said}; taken for {canonical}", subject=place)


def _bare(said: str, canonical: str, place: str) -> Event:
    message = f"{place} says {said}, the model without its head; taken for {canonical}"
    return Event(code="class-without-head", message=message, subject=place)


def _passed_over(unknown: str, taken: str, place: str) -> Event:
    message = f"{place} names {unknown} first, which nobody here knows; {taken} is taken"
    return Event(code="class-passed-over", message=message, subject=place)


def _other_type(config: Config, found: Architecture, other: Architecture) -> Event:
    place = f"{config.prefix}.model_type" if config.prefix else "model_type"
    message = (
        f"{place} in config.json is {config.model_type}, that of {other.hf_classes[0]}, where the class is "
        f"{found.hf_classes[0]}; the class decides"
    )
    return Event(code="model-type-differs", message=message, subject=place)


def _no_class(evidence: str, found: Architecture) -> Event:
    return Event(
        code="class-missing",
        message=f"config.json names no class; by {evidence} it is {found.hf_classes[0]}",
        subject="architectures",
        severity="info",
    )


def _by_tensor_names(checkpoint: Checkpoint, candidates: Sequence[Architecture]) -> tuple[list[Architecture], str]:
    """The candidates whose tables know every tensor and miss none of their own, and by what evidence.

    Among several those win whose tables know and read most of the config's keys, and then those that assume least where
    the config is silent: without the key, a sliding window is not made up.
    """
    fitting = []
    for architecture in candidates:
        if architecture.named_only and checkpoint.config.model_type not in architecture.model_types:
            continue
        try:
            ledger = resolve(checkpoint, architecture).ledger
        except LlmfitError:
            continue
        fitting.append((len(ledger.unknown), -len(ledger.consumed), _assumed(checkpoint, architecture), architecture))
    best = min((f[:3] for f in fitting), default=None)
    winners = [f[3] for f in fitting if f[:3] == best]
    return winners, "tensor names" if len(winners) == len(fitting) else "tensor names and config keys"


def _assumed(checkpoint: Checkpoint, architecture: Architecture) -> int:
    """How many keys the config lacks for which the table would put in a value of its own."""
    uses = {k: u for k, u in architecture.config.items() if isinstance(u, Reads) and k not in checkpoint.config.values}
    return sum(bool(u.default) and u.default is not REQUIRED for u in uses.values())


def _unknown(
    name: str, label: str, architectures: Sequence[Architecture], also: Sequence[str] = ()
) -> UnsupportedError:
    """The refusal, with the nearest names and the distribution that knows it."""
    from llmfit_core.index import known_distributions

    if not name:
        return UnsupportedError(
            "unknown-architecture",
            f"{label}: config.json names neither class nor model_type, and the tensor names fit no installed plugin",
            'Add "architectures" to config.json, as the model\'s authors published it.',
        )
    known = sorted({c for a in architectures for c in a.hf_classes})
    lowered = {k.lower(): k for k in known}
    near = [lowered[n] for n in difflib.get_close_matches(name.lower(), list(lowered), n=3, cutoff=0.6)]
    nearest = f"; nearest known: {', '.join(near)}" if near else ""
    homes = [d for n in (name, *also) for d in known_distributions(n)]
    if homes:
        remedy = f"Install the plugin that knows it: pip install {homes[0]}"
    else:
        remedy = "Install a plugin for it (`llmfit plugins list` shows yours), or begin one: llmfit plugins new NAME"
    of = f" ({', '.join(also)})" if also else ""
    return UnsupportedError("unknown-architecture", f"{label}: no installed plugin knows {name}{of}{nearest}", remedy)
