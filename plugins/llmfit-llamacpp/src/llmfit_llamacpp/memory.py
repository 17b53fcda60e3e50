"""How much memory an engine may take here, and whether a model fits in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from llmfit_core.errors import LaunchError
from llmfit_llamacpp.header import Header, buffer_bytes, cache_bytes

DEFAULT_CONTEXT = 4096
SMALLEST_CONTEXT = 512
"""Below this nobody is served; a model that fits only with less does not fit."""


@dataclass(frozen=True, kw_only=True)
class Room:
    """Memory that is free for an engine, in bytes: main memory, and that of devices with their own."""

    main: int
    devices: int = 0

    @property
    def total(self) -> int:
        """Both together."""
        return self.main + self.devices


def main_memory() -> int:
    """Bytes of main memory that can be had now, within the limit of the control group this process is in."""
    import psutil

    return min(int(psutil.virtual_memory().available), _group_room())


def total_memory() -> int:
    """Bytes of main memory this machine has."""
    import psutil

    return int(psutil.virtual_memory().total)


def need(header: Header, context: int, exact: bool = False) -> int:
    """Bytes a model takes at `context` tokens: weights, cache, buffers; see `header` for where they come from."""
    return header.weight_bytes + cache_bytes(header, context, 4 if exact else 2) + buffer_bytes(header, context, exact)


def choose_context(header: Header, room: Room, wanted: int | None, exact: bool = False) -> tuple[int, str]:
    """A context that fits, and why it is this one.

    Args:
        header: The model.
        room: Where it has to fit.
        wanted: What was asked for; `None` for the largest of 4096, the model's own and what fits.
        exact: With the float32 cache.

    Returns:
        Tokens, and one line for people.

    Raises:
        LaunchError: `does-not-fit`, with the figures.
    """
    own = header.exact_context or header.context_length
    first = wanted or min(own, DEFAULT_CONTEXT)
    if need(header, first, exact) <= room.total:
        if wanted:
            return wanted, "as asked"
        if own <= DEFAULT_CONTEXT:
            return own, "the model's own" if header.exact_context is None else "all that is exact"
        return first, f"of the model's {own}; --context takes more"
    largest = _largest(header, room, first, exact)
    if wanted is None and largest >= min(SMALLEST_CONTEXT, own):
        return largest, f"of the model's {own}: what fits in the memory that is free now"
    raise _does_not_fit(header, room, first, largest, exact)


def _largest(header: Header, room: Room, limit: int, exact: bool) -> int:
    """The longest context up to `limit`, in steps of 256, that fits; 0 where none does."""
    low, high = 0, limit // 256
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if need(header, middle * 256, exact) <= room.total else (low, middle - 1)
    return low * 256


def _does_not_fit(header: Header, room: Room, context: int, largest: int, exact: bool) -> LaunchError:
    cache = cache_bytes(header, context, 4 if exact else 2)
    where = f"{_gib(room.main)} of memory" + (f" and {_gib(room.devices)} of device memory" if room.devices else "")
    remedy = "Convert to a smaller scheme (q4_k_m, q3_k_m), or close other programs."
    if largest >= SMALLEST_CONTEXT:
        remedy = f"--context {largest} fits; or convert to a smaller scheme, or close other programs."
    return LaunchError(
        "does-not-fit",
        f"{header.path.name} needs {_gib(need(header, context, exact))} ({_gib(header.weight_bytes)} of weights, "
        f"{_gib(cache)} of cache for {context} tokens, the rest buffers); {where} is free",
        remedy,
    )


def _gib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 1 << 28 else f"{count / 2**20:.0f} MiB"


def _group_room(root: Path = Path("/sys/fs/cgroup")) -> int:
    """What the control group still allows: containers are limited where `/proc/meminfo` shows the whole machine."""
    boundless = 1 << 62
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            allowed = (root / limit).read_text(encoding="ascii").strip()
            if not allowed.isdigit() or int(allowed) >= boundless:
                continue
            taken = int((root / used).read_text(encoding="ascii"))
            stat = (root / limit).with_name("memory.stat").read_text(encoding="ascii")
        except (OSError, ValueError):
            continue
        # Cached files count as used and give way when memory is needed.
        cached = sum(int(line.split()[1]) for line in stat.splitlines() if line.split()[0] == "inactive_file")
        return max(0, int(allowed) - taken + cached)
    return boundless
