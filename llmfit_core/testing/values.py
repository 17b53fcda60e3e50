"""Weights made from names and shapes alone: the same on every machine, and such that every tensor shows in the logits."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from llmfit_core.architecture import Fused
from llmfit_core.naming import Patterns
from llmfit_core.roles import Role

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from llmfit_core.architecture import Architecture, Slot
    from llmfit_core.naming import Match

    Array = NDArray[Any]

SPREAD = 3.0
"""Standard deviation of the logits: a few tokens take most of the probability, and none takes all."""


def match_of(architecture: Architecture, patterns: Patterns, name: str) -> Match | None:
    """The pattern that a stored name meets, as it is or without the prefix that a class with a head saves its base under."""
    return patterns.match(name) or patterns.match(name.removeprefix(architecture.base_prefix))


def slot_of(architecture: Architecture, patterns: Patterns, name: str) -> Slot | None:
    """The table's entry for a stored tensor, if it has one."""
    match = match_of(architecture, patterns, name)
    return None if match is None or match.pattern not in architecture.tensors else architecture.slot(match.pattern)


def fill(
    architecture: Architecture, saved: Mapping[str, Array], *, tied: bool, seed: int, embedding: float = 1.0
) -> dict[str, Array]:
    """Random values of a trained model's size for `saved`, whose own are what training starts from (norms 1, biases 0).

    Matrices keep the size of what runs through them; an embedding that is the head too is small, so that the logits
    speak of the layers and not of the last token. All values are bfloat16's, those of vectors multiples of 1/256, so that
    adding one and taking it off again loses nothing.

    Args:
        architecture: Its table, for what a name means.
        saved: Tensors by name.
        tied: There is no head besides the embedding.
        seed: Changes all values.
        embedding: What the model multiplies embeddings by.
    """
    import numpy as np

    patterns = Patterns(architecture.tensors)
    out: dict[str, Array] = {}
    for name, array in saved.items():
        if not _is_float(array):
            out[name] = array
            continue
        slot = slot_of(architecture, patterns, name)
        role = "" if slot is None or isinstance(slot.role, Fused) else slot.role
        random = np.random.default_rng(int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:8], "little"))
        noise = random.standard_normal(array.shape)
        start = array.astype(np.float64)
        if role == Role.EMBED:
            value = noise * (0.25 / embedding if tied else 1.0)
        elif role == Role.ATTN_SINKS:
            value = noise
        elif array.ndim < 2 or "norm" in name.rpartition(".")[0]:
            if array.size and np.ptp(start) and not name.endswith("bias"):
                out[name] = array  # frequencies and their like are what they are
                continue
            constant = float(start.flat[0]) if array.size and not np.ptp(start) else 0.0
            value = constant + noise * (0.15 if constant else 0.2)
            value = np.round(value * 256) / 256 + 0.0  # no noughts below zero: one added and taken off makes them plain
        elif role in (Role.POSITION_EMBED, Role.TOKEN_TYPES):
            value = noise * 0.5
        else:
            inputs = array.shape[-2 if slot is not None and slot.transposed else -1]
            value = noise * ((SPREAD if role == Role.HEAD else 1.3) / inputs**0.5)
        out[name] = rounded(value, array)
    return out


def louder(architecture: Architecture, tensors: Mapping[str, Array], factor: float) -> dict[str, Array]:
    """The tensors with logits `factor` times as large: by the head, or by the last norm where there is no head."""
    import numpy as np

    patterns = Patterns(architecture.tensors)
    slots = {name: slot_of(architecture, patterns, name) for name in tensors}
    heads = [n for n, s in slots.items() if s is not None and s.role == Role.HEAD]
    last = heads or [n for n, s in slots.items() if s is not None and s.role == Role.OUTPUT_NORM]
    out = dict(tensors)
    for name in last:
        slot, array = slots[name], tensors[name]
        shift = slot.shift if slot is not None and not name.endswith("bias") else 0.0
        value = (array.astype(np.float64) + shift) * factor - shift
        out[name] = rounded(value if heads else np.round(value * 256) / 256 + 0.0, array)
    return out


def rounded(value: Array, like: Array) -> Array:
    """As bfloat16 can hold it, in the type of `like`."""
    from llmfit_core.testing.safetensor_files import numpy_type

    return value.astype("float32").astype(numpy_type("bfloat16")).astype(like.dtype)


def _is_float(array: Array) -> bool:
    return array.dtype.kind == "f" or array.dtype.name.startswith(("bfloat", "float"))
