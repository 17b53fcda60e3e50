"""The keys of a GGUF file, but for the tokenizer's: the general ones, the hyper-parameters, the user's overrides."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from llmfit_core.errors import UnsupportedError
from llmfit_core.readers.gguf_values import KV

if TYPE_CHECKING:
    from llmfit_core.architecture import Graph
    from llmfit_core.model import Model
    from llmfit_core.plan import Recipe

FLOAT_KEYS = ("epsilon", "freq_base", "scale", "factor")
FREE_TEXT = (
    "general.author general.description general.organization general.version general.basename general.finetune "
    "general.license general.license.name general.license.link general.url general.doi general.uuid general.repo_url "
    "general.quantized_by general.source.url general.source.repo_url general.name tokenizer.chat_template"
).split()
STRUCTURAL = ("general.architecture", "general.alignment", "general.file_type", "general.quantization_version")
_INTEGER_RANGES = {
    "uint8": (0, 2**8), "int8": (-(2**7), 2**7), "uint16": (0, 2**16), "int16": (-(2**15), 2**15),
    "uint32": (0, 2**32), "int32": (-(2**31), 2**31), "uint64": (0, 2**64), "int64": (-(2**63), 2**63),
}


def with_overrides(model: Model, recipe: Recipe) -> Model:
    """The model with the recipe's context length and rope overrides in its hparams.

    Raises:
        UnsupportedError: `bad-override`.
    """
    hparams = dict(model.hparams)
    rope = model.rope
    if recipe.context_length is not None:
        _positive("--context-length", recipe.context_length)
        hparams["context_length"] = recipe.context_length
    if recipe.rope_freq_base is not None:
        _positive("--rope-freq-base", recipe.rope_freq_base)
        hparams["rope.freq_base"] = recipe.rope_freq_base
    if recipe.rope_freq_scale is not None:
        _positive("--rope-freq-scale", recipe.rope_freq_scale)
        if rope.type not in ("default", "linear"):
            raise UnsupportedError(
                "bad-override",
                f"--rope-freq-scale means linear rope, but this model has {rope.type} rope",
                "Leave it out, or give it to `llmfit run` for one launch.",
            )
        scale = 1.0 / recipe.rope_freq_scale
        rope = replace(rope, type="default" if scale == 1 else "linear", factor=scale)
    hparams.setdefault(
        "rope.dimension_count",
        int(model.integer("attention.key_length") * float(hparams.get("partial_rotary_factor", 1.0) or 1.0)),  # type: ignore[arg-type]
    )
    return replace(model, hparams=hparams, rope=rope)


def _positive(option: str, value: float) -> None:
    if not 0 < value < 2**32:
        raise UnsupportedError("bad-override", f"{option} is {value}, not a positive number", "Correct the option.")


def hparam_keys(model: Model, graph: Graph) -> dict[str, KV]:
    """The keys `graph` reads, in its order, with the architecture's prefix; absent hparams are left out."""
    out = {}
    for name in graph.keys:
        value = model.hparams.get(name)
        if name == "vocab_size":
            value = model.hparams.get("vocab_rows", value)
        if value is not None:
            out[f"{graph.name}.{name}"] = _typed(name, value)
    for name, value in graph.constants.items():
        out[f"{graph.name}.{name}"] = _typed(name, value)
    return out


def _typed(name: str, value: object) -> KV:
    if isinstance(value, bool):
        return KV("bool", value)
    if isinstance(value, str):
        return KV("string", value)
    if isinstance(value, (list, tuple)):
        return KV("array[bool]" if isinstance(value[0], bool) else "array[int32]", list(value))
    if isinstance(value, float) or name.endswith(FLOAT_KEYS):
        return KV("float32", float(value))  # type: ignore[arg-type]
    return KV("uint32", int(value))  # type: ignore[call-overload]


def apply_settings(keys: dict[str, KV], settings: Sequence[tuple[str, str]]) -> dict[str, KV]:
    """`--set key=value` applied, each checked against the type the key has.

    Raises:
        UnsupportedError: `unknown-key`, `bad-override`, `structural-key`.
    """
    out = dict(keys)
    for key, text in settings:
        if key in STRUCTURAL or key.startswith(("split.", "tokenizer.ggml.tokens", "tokenizer.ggml.merges")):
            raise UnsupportedError(
                "structural-key", f"--set {key}: this key describes the file itself", "It follows from the conversion."
            )
        if key in out:
            out[key] = _parse(key, out[key].type, text)
        elif key in FREE_TEXT:
            out[key] = KV("string", text)
        else:
            near = difflib.get_close_matches(key, [*out, *FREE_TEXT], n=3)
            raise UnsupportedError(
                "unknown-key",
                f"--set {key}: no loader of this file reads such a key" + (f"; nearest: {', '.join(near)}" if near else ""),
                "Correct its name; `llmfit plan ... --json` lists the keys.",
            )
    return out


def _parse(key: str, kind: str, text: str) -> KV:
    try:
        if kind == "string":
            return KV(kind, text)
        if kind == "bool":
            return KV(kind, {"true": True, "1": True, "false": False, "0": False}[text.lower()])
        if kind in ("float32", "float64"):
            number = float(text)
            if number != number or abs(number) > 3.4e38:
                raise ValueError
            return KV(kind, number)
        low, high = _INTEGER_RANGES[kind]
        if not low <= int(text) < high:
            raise ValueError
        return KV(kind, int(text))
    except (KeyError, ValueError):
        raise UnsupportedError(
            "bad-override", f"--set {key}={text}: the key holds a {kind}", f"Give a {kind}."
        ) from None


def as_json(keys: Mapping[str, KV]) -> dict[str, object]:
    """Keys as plain values; long arrays by their length."""
    return {
        key: kv.value if not kv.type.startswith("array") else f"{kv.type} of {len(kv.value)}" for key, kv in keys.items()
    }
