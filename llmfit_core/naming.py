"""Tensor names: matching them to an architecture's patterns, and freeing them of wrappers' prefixes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from llmfit_core.errors import SourceError
from llmfit_core.events import Event

PARTS = ("weight", "bias", "scale")
_MODULES = ("_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module")
_WRAPPERS = (
    *((f"{m}.", "") for m in _MODULES),
    ("base_model.model.", ""),
    ("language_model.model.", "model."),
    ("model.language_model.model.", "model."),
    ("model.language_model.", "model."),
    ("language_model.", ""),
    ("model.text_model.", "model."),
    ("thinker.model.", "model."),
    ("thinker.", ""),
    ("model.model.", "model."),
    ("model.lm_head.", "lm_head."),
)
_INDEX = re.compile(r"\{(layer|expert)\}")


@dataclass(frozen=True)
class Match:
    """A name taken apart by a pattern."""

    pattern: str
    part: str
    layer: int | None
    expert: int | None


class Patterns:
    """An architecture's patterns, ready to match names in constant time.

    Numbers between dots become `#`; a pattern is found by that shape, and its own literal numbers, if it
    has any, are compared afterwards.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self._by_shape: dict[str, list[tuple[str, list[str]]]] = {}
        for pattern in patterns:
            pieces = pattern.split(".")
            shape = ".".join("#" if p.isdigit() or _INDEX.fullmatch(p) else p for p in pieces)
            indices = [p for p in pieces if p.isdigit() or _INDEX.fullmatch(p)]
            self._by_shape.setdefault(shape, []).append((pattern, indices))
        self._known: dict[str, Match | None] = {}
        roots = Counter(s.partition(".")[0] for s, found in self._by_shape.items() for _ in found if "#" in s)
        self.root = f"{roots.most_common(1)[0][0]}." if roots else ""
        """What most patterns of layers begin with."""

    def match(self, name: str) -> Match | None:
        """The pattern that `name` fits, bare or with `.weight`, `.bias` or `.scale` behind it."""
        if name not in self._known:  # names are asked for more than once, and there may be many thousands
            self._known[name] = self._match(name)
        return self._known[name]

    def _match(self, name: str) -> Match | None:
        stem, _, last = name.rpartition(".")
        if last in PARTS:
            found = self._find(stem, last)
            if found:
                return found
        return self._find(name, "weight")

    def _find(self, stem: str, part: str) -> Match | None:
        pieces = stem.split(".")
        numbers = [p for p in pieces if p.isdigit()]
        shape = ".".join("#" if p.isdigit() else p for p in pieces)
        for pattern, indices in self._by_shape.get(shape, ()):
            values: dict[str, int] = {}
            for want, have in zip(indices, numbers, strict=True):
                if want.isdigit():
                    if want != have:
                        break
                elif len(have) > 6 or str(int(have)) != have:
                    break
                else:
                    values[want[1:-1]] = int(have)
            else:
                return Match(pattern, part, values.get("layer"), values.get("expert"))
        return None


def unwrap(
    names: Iterable[str], patterns: Patterns, base_prefix: str = ""
) -> tuple[dict[str, str], tuple[Event, ...]]:
    """Canonical names by source name: wrappers' prefixes gone, a missing `model.` added, where that makes a match.

    Args:
        names: The source's.
        patterns: What they may match.
        base_prefix: See `llmfit_core.architecture.Architecture`.

    Raises:
        SourceError: `colliding-names` where two source names become one.
    """
    out: dict[str, str] = {}
    changes: Counter[str] = Counter()
    for name in names:
        plain, note = _unwrap_one(name, patterns, base_prefix)
        out[name] = plain
        if note:
            changes[note] += 1
    seen: dict[str, str] = {}
    for name, plain in out.items():
        if plain in seen:
            raise SourceError(
                "colliding-names",
                f"tensors {seen[plain]} and {name} are both {plain} once wrapper prefixes are removed",
                "Remove the copy that does not belong to the model.",
            )
        seen[plain] = name
    notes = "; ".join(f"{note} in {count}" for note, count in sorted(changes.items(), key=lambda c: (-c[1], c[0])))
    events = (
        (Event(code="prefix-normalised", message=f"tensor names: {notes}", severity="info", subject="tensor names"),) if notes else ()
    )
    return out, events


def _unwrap_one(name: str, patterns: Patterns, base_prefix: str = "") -> tuple[str, str]:
    if patterns.match(name):
        return name, ""
    pieces = name.split(".")
    removed = [f"{p}." for p in pieces[1:-1] if p in _MODULES]
    plain = ".".join([pieces[0], *(p for p in pieces[1:-1] if p not in _MODULES), *pieces[1:][-1:]])
    for _ in range(6):
        if patterns.match(plain):
            break
        for prefix, instead in ((base_prefix, ""), *_WRAPPERS) if base_prefix else _WRAPPERS:
            if plain.startswith(prefix):
                plain = instead + plain[len(prefix) :]
                removed.append(prefix)
                break
        else:
            break
    if patterns.match(plain):
        return plain, "prefix " + " ".join(f"'{p}'" for p in dict.fromkeys(removed)) + " removed"
    for prefix in dict.fromkeys(("model.", "transformer.", patterns.root)):
        if patterns.match(prefix + plain):
            lost = "prefix " + " ".join(f"'{p}'" for p in dict.fromkeys(removed)) + " removed and " if removed else ""
            return prefix + plain, f"{lost}prefix '{prefix}' added"
    return name, ""


def source_name(pattern: str, layer: int | None, expert: int | None, part: str = "weight") -> str:
    """The name a pattern stands for; without a part the bare one."""
    name = pattern
    if layer is not None:
        name = name.replace("{layer}", str(layer))
    if expert is not None:
        name = name.replace("{expert}", str(expert))
    return f"{name}.{part}" if part else name


def first_missing(wanted: Mapping[str, str]) -> str:
    """A readable sample of missing names: the first three and a count."""
    names = list(wanted)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
