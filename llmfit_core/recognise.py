"""Which architecture is it? Class name first, then model type, then the tensor names."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from llmfit_core.errors import UnsupportedError
from llmfit_core.events import Event
from llmfit_core.naming import Patterns, unwrap

if TYPE_CHECKING:
    from llmfit_core.architecture import Architecture
    from llmfit_core.checkpoint import Checkpoint


def recognise(
    checkpoint: Checkpoint, architectures: Sequence[Architecture]
) -> tuple[Architecture, str, tuple[Event, ...]]:
    """The one architecture that `checkpoint` is, the evidence, and what was noticed.

    A class name decides if it is known exactly; one that differs only in case decides if that is unique. Without class
    names a model type decides, if it is unique, then the tensor names.

    Raises:
        UnsupportedError: `unknown-architecture`, with the nearest names and the distribution that knows it.
    """
    config = checkpoint.config
    by_class = {name: a for a in architectures for name in a.hf_classes}
    for name in config.architectures:
        if name in by_class:
            return by_class[name], f"class {name}", ()
    for name in config.architectures:
        alike = {a.name: (known, a) for known, a in by_class.items() if known.lower() == name.lower()}
        if len(alike) == 1:
            known, found = next(iter(alike.values()))
            event = Event(
                code="class-spelling",
                message=f"architectures says {name}; taken for {found.hf_classes[0]}",
                subject="architectures",
            )
            return found, f"class {known}", (event,)
    if config.architectures:
        _refuse(config.architectures[0], checkpoint, architectures)
    typed = [a for a in architectures if config.model_type and config.model_type in a.model_types]
    if len(typed) == 1:
        return typed[0], f"model_type {config.model_type}", (_no_class(f"model_type {config.model_type}", typed[0]),)
    if config.model_type and not typed:
        _refuse(config.model_type, checkpoint, architectures)
    found_by_names = _by_tensor_names(checkpoint, typed or architectures)
    if found_by_names is not None:
        return found_by_names, "tensor names", (_no_class("the tensor names", found_by_names),)
    _refuse(config.model_type or "no class name at all", checkpoint, architectures)
    raise AssertionError  # _refuse always raises


def _no_class(evidence: str, found: Architecture) -> Event:
    return Event(
        code="class-missing",
        message=f"config.json names no class; {evidence} says {found.hf_classes[0]}",
        subject="architectures",
        severity="info",
    )


def _by_tensor_names(checkpoint: Checkpoint, candidates: Sequence[Architecture]) -> Architecture | None:
    """The one candidate whose table knows every tensor and misses none of its own; ties decide nothing."""
    fitting = []
    for architecture in candidates:
        patterns = Patterns(list(architecture.tensors) + list(architecture.waived))
        names, _ = unwrap(checkpoint.tensors, patterns)
        matches = [patterns.match(n) for n in names.values()]
        if not matches or not all(matches):
            continue
        used = {m.pattern for m in matches if m}
        biased = {m.pattern for m in matches if m and m.part == "bias"}
        required = {
            p for p in architecture.tensors if not architecture.slot(p).optional and not architecture.slot(p).when
        }
        wanted_bias = {p for p in architecture.tensors if architecture.slot(p).bias is True}
        forbidden = {p for p in biased if architecture.slot(p).bias is False}
        missing = {p for p in required - used if not _has_alternative(architecture, p, used)}
        if not missing and not forbidden and wanted_bias & used <= biased:
            fitting.append((len(used), architecture))
    if not fitting:
        return None
    best = max(count for count, _ in fitting)
    winners = [a for count, a in fitting if count == best]
    return winners[0] if len(winners) == 1 else None


def _has_alternative(architecture: Architecture, pattern: str, used: set[str]) -> bool:
    from llmfit_core.architecture import slot_roles

    roles = set(slot_roles(architecture.slot(pattern)))
    return any(p != pattern and roles & set(slot_roles(architecture.slot(p))) for p in used)


def _refuse(name: str, checkpoint: Checkpoint, architectures: Sequence[Architecture]) -> None:
    from llmfit_core.index import known_distributions

    known = sorted({c for a in architectures for c in a.hf_classes})
    lowered = {k.lower(): k for k in known}
    near = [lowered[n] for n in difflib.get_close_matches(name.lower(), list(lowered), n=3, cutoff=0.6)]
    nearest = f"; nearest known: {', '.join(near)}" if near else ""
    homes = known_distributions(name)
    if homes:
        remedy = f"Install the plugin that knows it: pip install {homes[0]}"
    else:
        remedy = "Install or write a plugin for it: see contrib/plugin-template and `llmfit plugins list`."
    raise UnsupportedError("unknown-architecture", f"{checkpoint.label}: no installed plugin knows {name}{nearest}", remedy)
