"""Whether a GGUF file's own keys can be true, said in its own words, before they become a config."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from llmfit_core.errors import SourceError, UnsupportedError
from llmfit_gguf.layout import parse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llmfit_core.readers.gguf import GgufFile

_NEEDED = ("block_count", "embedding_length", "attention.head_count")
_COUNTS = (
    *_NEEDED,
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "context_length",
    "rope.dimension_count",
    "rope.scaling.original_context_length",
    "vocab_size",
)
_ABOVE = {
    "rope.freq_base": 1.0,
    "attention.layer_norm_rms_epsilon": 0.0,
    "attention.layer_norm_epsilon": 0.0,
    "rope.scaling.attn_factor": 0.0,
}
_LARGEST = 2**31 - 1
_LAYERS = 9999
_DAMAGED = "The file is damaged or of another make; fetch it again."


def layers_apart(hparams: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """Of keys with a number for each layer, the one number that is not 0, and each layer's under KEY_by_layer.

    Lists of several numbers, or of no length that fits, stay as they are.
    """
    out: dict[str, Any] = {}
    for key in keys:
        value = hparams.get(key)
        if isinstance(value, list) and len(value) == hparams.get("block_count"):
            numbers = {n for n in value if n}
            if len(numbers) <= 1:
                out[key] = next(iter(numbers), 0)
                out[f"{key}_by_layer"] = tuple(value)
    return out


def check_keys(file: GgufFile, prefix: str, hparams: Mapping[str, Any]) -> None:
    """Refuse counts, bases and epsilons that no model has, and those that contradict each other or the tensors.

    Args:
        file: For its tensors, and its name in errors.
        prefix: Of the graph's keys (`llama.`).
        hparams: The graph's keys without the prefix.

    Raises:
        SourceError: `gguf-key-missing`, `gguf-key-type` (naming file and key), `shape-mismatch`, `stray-tensor`,
            `missing-tensor`.
        UnsupportedError: `gguf-key-per-layer`.
    """
    where = file.files[0]
    for key in _NEEDED:
        if key not in hparams:
            raise SourceError("gguf-key-missing", f"{where} lacks the key {prefix}{key}", "The file is incomplete.")
    for key in (*_COUNTS, "feed_forward_length"):
        if key in hparams:
            least = int(not _is_absent(file, key, hparams))
            _count(where, prefix + key, hparams[key], least, _LAYERS if key == "block_count" else _LARGEST)
    for key, bound in _ABOVE.items():
        value = hparams.get(key, bound + 1)
        if isinstance(value, (bool, str)) or not isinstance(value, (int, float)) or not bound < value < math.inf:
            raise _wrong(where, f"{prefix}{key} is {value!r:.40}, not a finite number above {bound:g}")
    for key, value in hparams.items():
        for one in value if isinstance(value, list) else (value,):
            if isinstance(one, float) and not math.isfinite(one):
                raise _wrong(where, f"{prefix}{key} is {one}, not a finite number")
    _together(where, prefix, hparams)
    _tensors(file, prefix, hparams)


def _is_absent(file: GgufFile, key: str, hparams: Mapping[str, Any]) -> bool:
    """Whether a model may have 0 of it: no heads without attention, no width of dense layers that it has not."""
    part = {"feed_forward_length": "ffn_", "attention.head_count": "attn_", "attention.head_count_kv": "attn_"}.get(key)
    if part is None:
        return False
    if key == "feed_forward_length" and hparams.get("expert_count"):
        return True
    roles = (key.role for key in map(parse, file.tensors) if key is not None and key.layer is not None)
    return not any(role.startswith(part) and "norm" not in role for role in roles)


def _count(where: object, key: str, value: object, least: int, largest: int) -> None:
    if isinstance(value, list):
        raise UnsupportedError(
            "gguf-key-per-layer",
            f"{where}: {key} holds a number for each layer, where one for all is known here",
            "Convert the model's original, or run this file in llama.cpp as it is.",
        )
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= largest:
        raise _wrong(where, f"{key} is {value!r:.40}, not a whole number from {least} to {largest}")


def _together(where: object, prefix: str, hparams: Mapping[str, Any]) -> None:
    heads, width = hparams["attention.head_count"], hparams["embedding_length"]
    shared = hparams.get("attention.head_count_kv", heads)
    if not heads or not shared:
        return
    if heads % shared:
        raise _wrong(
            where, f"{prefix}attention.head_count is {heads}, no multiple of {prefix}attention.head_count_kv, {shared}"
        )
    if "attention.key_length" not in hparams and width % heads:
        raise _wrong(where, f"{prefix}embedding_length is {width}, no multiple of {prefix}attention.head_count, {heads}")
    length = hparams.get("attention.key_length", width // heads)
    turned = hparams.get("rope.dimension_count", 2)
    if turned % 2 or turned > max(length, 2):
        raise _wrong(where, f"{prefix}rope.dimension_count is {turned}, not an even number up to a head's {length}")


def _tensors(file: GgufFile, prefix: str, hparams: Mapping[str, Any]) -> None:
    where, width, layers = file.files[0], hparams["embedding_length"], hparams["block_count"]
    embed = file.tensors.get("token_embd.weight")
    if embed is not None and embed.shape[-1] != width:
        raise SourceError(
            "shape-mismatch",
            f"{where}: token_embd.weight has rows of {embed.shape[-1]}, where {prefix}embedding_length is {width}",
            _DAMAGED,
        )
    held = _layers(file.tensors)
    if held and max(held) >= layers:
        name = held[max(held)]
        raise SourceError("stray-tensor", f"{where}: {prefix}block_count is {layers}, which has no place for {name}", _DAMAGED)
    absent = next((n for n in range(layers) if n not in held), None)
    if absent is not None:
        raise SourceError(
            "missing-tensor",
            f"{where}: {prefix}block_count is {layers}, but there is no tensor of layer {absent} (blk.{absent}.)",
            "Fetch the file again, or the part of it that is missing.",
        )


def _layers(names: Iterable[str]) -> dict[int, str]:
    """A tensor's name by each number of layer."""
    out: dict[int, str] = {}
    for name in names:
        block, _, rest = name.partition(".")
        number = rest.partition(".")[0]
        if block == "blk" and number.isascii() and number.isdigit() and len(number) < 10:
            out.setdefault(int(number), name)
    return out


def _wrong(where: object, what: str) -> SourceError:
    return SourceError("gguf-key-type", f"{where}: {what}", _DAMAGED)
