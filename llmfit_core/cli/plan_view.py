"""Plans and artifacts for people and for programs."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, TextIO

from llmfit_core.manifest import bits_per_weight, type_shares
from llmfit_core.tensors import element_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from llmfit_core.events import Event, Severity
    from llmfit_core.plan import Artifact, Plan


AFTERWARDS = (
    "tokens-not-proven", "tokens-known-difference", "not-opened", "underflow", "not-finite", "observer-failed",
)  # fmt: skip
"""Events that the plan, printed before, cannot have told."""


def plan_json(plan: Plan) -> dict[str, object]:
    """The documented JSON of a plan."""
    model = plan.model
    return {
        "source": model.checkpoint.label,
        "name": model.name,
        "architecture": model.architecture.name,
        "evidence": model.ledger.evidence,
        "format": plan.recipe.exporter,
        "scheme": plan.recipe.scheme,
        "graph": plan.graph,
        "engine": plan.engine,
        "decoders": list(plan.decoders),
        "plugins": dict(plan.plugins),
        "hparams": {k: v for k, v in model.hparams.items() if isinstance(v, (int, float, str, bool))},
        "metadata": dict(plan.metadata),
        "exact_context": plan.exact_context,
        "bits_per_weight": round(bits_per_weight(plan), 4),
        "bytes": plan.size,
        "memory": {"convert_bytes": plan.memory, "weight_bytes": plan.weight_bytes},
        "weights": sum(element_count(t.shape) for t in plan.tensors),
        "types": type_shares(plan),
        "files": [{"name": f.name, "bytes": f.size, "tensors": len(f.tensors)} for f in plan.files],
        "tensors": [
            {"name": t.name, "role": t.role, "shape": list(t.shape), "type": t.type, "bytes": t.nbytes, "reason": t.reason}
            for t in plan.tensors
        ],
        "checks": [
            {"name": c.name, "question": c.question, "tensors": list(c.tensors), "answer": c.answer} for c in plan.checks
        ],
        "waived": dict(model.ledger.waived),
        "config": {
            "consumed": dict(model.ledger.consumed),
            "asserted": list(model.ledger.asserted),
            "ignored": list(model.ledger.ignored),
            "unknown": list(model.ledger.unknown),
        },
        "events": [e.as_json() for e in plan.events],
    }


def artifact_json(artifact: Artifact, events: Sequence[Event]) -> dict[str, object]:
    """The documented JSON of a finished conversion."""
    return {
        "format": artifact.format,
        "scheme": artifact.scheme,
        "paths": [str(p) for p in artifact.paths],
        "manifest": dict(artifact.manifest),
        "events": [e.as_json() for e in events],
    }


def print_plan(plan: Plan, to: TextIO, *, tensors: bool) -> None:
    """A plan in a few lines; every tensor too, where asked."""
    model = plan.model
    weights = sum(element_count(t.shape) for t in plan.tensors)

    def say(line: str = "") -> None:
        print(line, file=to)

    say(f"plan: {model.checkpoint.label}")
    say(f"  model     {model.name}: {model.architecture.hf_classes[0]} ({model.ledger.evidence}), {count(weights)} weights")
    graph = f" for {plan.engine}'s graph {plan.graph}" if plan.graph else ""
    say(f"  to        {plan.recipe.exporter}:{plan.recipe.scheme}{graph}")
    for kind, share in type_shares(plan).items():
        say(f"  {kind:<9} {share['tensors']:>6} tensor{'s' if share['tensors'] != 1 else ' '} {count(share['weights']):>10} weights {size(share['bytes']):>10}")
    said = f"{len(plan.files)} files" if len(plan.files) > 1 else plan.files[0].name
    say(f"  size      {size(plan.size)} on disk ({said}), {bits_per_weight(plan):.2f} bits per weight")
    converting = f"about {size(plan.memory)} to convert, " if plan.memory else ""
    say(f"  memory    {converting}{size(plan.weight_bytes)} to hold the weights, context not counted")
    if plan.exact_context is not None:
        say(f"  exact     up to {plan.exact_context} tokens")
    for check in plan.checks:
        about = check.tensors[0] + (f" and {len(check.tensors) - 1} more" if len(check.tensors) > 1 else "")
        answer = {None: "pending", True: "yes", False: "no"}[check.answer]
        say(f"  check     {check.question} {answer} ({about})")
    print_events(plan.events, to)
    if tensors:
        say()
        for t in plan.tensors:
            shape = "x".join(map(str, t.shape))
            say(f"  {t.name:<32} {t.type:<7} {shape:<16} {size(t.nbytes):>9}  {t.reason}".rstrip())


def size(nbytes: int) -> str:
    """Bytes for people, in decimal units."""
    return _scaled(nbytes, ("B", "kB", "MB", "GB", "TB"))


def count(number: int) -> str:
    """A number of weights for people: thousands, millions, billions."""
    return _scaled(number, ("", "K", "M", "B", "T")).strip()


def _scaled(number: float, units: tuple[str, ...]) -> str:
    for unit in units:
        if number < 999.95 or unit == units[-1]:
            return f"{number:.0f} {unit}" if unit == units[0] else f"{number:.1f} {unit}"
        number /= 1000
    raise AssertionError(units)


def print_events(events: Iterable[Event], to: TextIO) -> None:
    """Events by kind: the same code many times is one line with a count and the first message."""
    counts: Counter[tuple[Severity, str]] = Counter()
    first: dict[tuple[Severity, str], Event] = {}
    for event in events:
        key = (event.severity, event.code)
        counts[key] += 1
        first.setdefault(key, event)
    for key, event in first.items():
        more = f" (and {counts[key] - 1} more)" if counts[key] > 1 else ""
        print(f"  {event.severity:<9} {event.message} [{event.code}]{more}", file=to)


def print_artifact(artifact: Artifact, events: Sequence[Event]) -> None:
    """What was written: paths on stdout, the rest on stderr."""
    manifest = artifact.manifest
    verified = manifest["verified"]
    said = []
    if isinstance(verified, dict):
        if verified.get("reopened"):
            said.append("reopened")
        if verified.get("tokens"):
            known = f", {verified['known_differences']} known differences" if verified.get("known_differences") else ""
            said.append(f"token ids equal in {verified['runtime']} on {verified['texts']} texts{known}")
        if verified.get("opened"):
            said.append(f"opened in {verified['runtime']}")
    print(f"check: {', '.join(said) or 'none (--no-verify)'}", file=sys.stderr)
    print(f"true bits per weight: {manifest['bits_per_weight']:.2f}", file=sys.stderr)
    print_events([e for e in events if e.code in AFTERWARDS], sys.stderr)
    for path in artifact.paths:
        print(path)
