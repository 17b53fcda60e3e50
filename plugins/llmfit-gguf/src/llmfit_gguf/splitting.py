"""One model in several files, as llama-gguf-split makes them.

`NAME-00001-of-00003.gguf` and so on; the first carries all keys, every one says which it is (`split.no`, from zero), how
many there are and how many tensors all hold together.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmfit_core.errors import UnsupportedError
from llmfit_core.events import Event
from llmfit_core.readers.gguf_values import KV
from llmfit_gguf.container import padded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_PARTS = 4096
"""More parts than this are refused, as our own reader does."""
_UNITS = {"": 1, "K": 1000, "M": 1000**2, "G": 1000**3}


@dataclass(frozen=True, kw_only=True)
class Split:
    """Which tensors go into which file.

    Attributes:
        parts: Indexes of tensors, file by file, all of them in order.
        events: `split-oversize` for each tensor that alone exceeds the limit.
    """

    parts: tuple[range, ...]
    events: tuple[Event, ...] = ()


def parse_size(text: str) -> int:
    """Bytes from `2G`, `500M`, `100K` or a plain number; decimal units, as llama-gguf-split counts.

    Raises:
        UnsupportedError: `split-size`: not such a text, or zero.
    """
    match = re.fullmatch(r"([0-9]{1,18})([KMG]?)B?", text.strip().upper())
    if match is None or int(match[1]) == 0:
        raise UnsupportedError("split-size", f"{text!r} is no size", "Write it like 2G or 500M.")
    return int(match[1]) * _UNITS[match[2]]


def plan_split(sizes: Sequence[int], limit: int, names: Sequence[str] | None = None) -> Split:
    """Fill file after file with tensors in order until the next would exceed the limit.

    Args:
        sizes: Bytes of each tensor; headers are not counted.
        limit: Bytes of tensors per file.
        names: For the events.

    Raises:
        UnsupportedError: `split-count`: more than `MAX_PARTS` files.
    """
    parts: list[range] = []
    events: list[Event] = []
    first = used = 0
    for i, size in enumerate(map(padded, sizes)):
        if i > first and used + size > limit:
            parts.append(range(first, i))
            first, used = i, 0
        used += size
        if size > limit:
            name = names[i] if names else f"tensor {i}"
            events.append(
                Event(
                    code="split-oversize",
                    message=f"{name} alone has {size} bytes, more than the {limit} asked for; it gets a larger file",
                    subject=name,
                )
            )
    parts.append(range(first, len(sizes)))
    if len(parts) > MAX_PARTS:
        raise UnsupportedError(
            "split-count", f"files of at most {limit} bytes would be {len(parts)}", "Choose a larger --split-max-size."
        )
    return Split(parts=tuple(parts), events=tuple(events))


def part_name(name: str, index: int, count: int) -> str:
    """The name of part `index` (from zero); the plain name where there is only one."""
    if count == 1:
        return name
    return f"{name.removesuffix('.gguf')}-{index + 1:05d}-of-{count:05d}.gguf"


def part_kv(kv: Mapping[str, KV], index: int, count: int, tensors: int) -> dict[str, KV]:
    """The keys of part `index`: all of them and the split's in the first, only the split's in the others."""
    if count == 1:
        return dict(kv)
    split = {
        "split.no": KV("uint16", index),
        "split.count": KV("uint16", count),
        "split.tensors.count": KV("int32", tensors),
    }
    return {**kv, **split} if index == 0 else split
