"""The user's overrides of a GGUF file's keys, checked before they can break a loader or change what is computed."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from llmfit_core.errors import UnsupportedError
from llmfit_core.readers.gguf_values import KV
from llmfit_core.tokenizer.to_gguf import SPECIAL_KEYS

if TYPE_CHECKING:
    from llmfit_core.architecture import Graph
    from llmfit_core.model import Model
    from llmfit_core.plan import Recipe

FREE_TEXT = (
    "general.author general.description general.organization general.version general.basename general.finetune "
    "general.license general.license.name general.license.link general.url general.doi general.uuid general.repo_url "
    "general.quantized_by general.source.url general.source.repo_url general.name tokenizer.chat_template"
).split()
"""Keys that may be added, of which no loader depends."""
STRUCTURAL = frozenset(
    "general.architecture general.type general.alignment general.file_type general.quantization_version "
    "tokenizer.ggml.model tokenizer.ggml.tokens tokenizer.ggml.scores tokenizer.ggml.token_type tokenizer.ggml.merges "
    "tokenizer.ggml.precompiled_charsmap tokenizer.chat_templates".split()
)
ROPE_SCALINGS = ("none", "linear", "yarn", "longrope")
SMALLEST = 1e-30
"""A number that has to be positive is at least this, so that float32 does not make it zero."""
_INTEGER_RANGES = {
    "uint8": (0, 2**8), "int8": (-(2**7), 2**7), "uint16": (0, 2**16), "int16": (-(2**15), 2**15),
    "uint32": (0, 2**32), "int32": (-(2**31), 2**31), "uint64": (0, 2**64), "int64": (-(2**63), 2**63),
}  # fmt: skip


def with_overrides(model: Model, recipe: Recipe) -> Model:
    """The model with the recipe's context length and rope overrides in its hparams.

    Raises:
        UnsupportedError: `bad-override`.
    """
    hparams = dict(model.hparams)
    rope = model.rope
    if recipe.context_length is not None:
        _positive("--context-length", recipe.context_length, 2**31)
        hparams["context_length"] = recipe.context_length
    if "rope.freq_base" not in hparams and (recipe.rope_freq_base or recipe.rope_freq_scale):
        raise UnsupportedError(
            "bad-override",
            f"--rope-freq-base and --rope-freq-scale mean nothing to {model.architecture.name}, which has no rope",
            "Leave them out.",
        )
    if recipe.rope_freq_base is not None:
        _positive("--rope-freq-base", recipe.rope_freq_base, 1e30)
        hparams["rope.freq_base"] = recipe.rope_freq_base
    if recipe.rope_freq_scale is not None:
        _positive("--rope-freq-scale", recipe.rope_freq_scale, 1e30)
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


def _positive(option: str, value: float, limit: float) -> None:
    if not SMALLEST <= value < limit:
        raise UnsupportedError("bad-override", f"{option} is {value:g}, not a sensible number", "Correct the option.")


def apply_settings(
    keys: Mapping[str, KV], settings: Sequence[tuple[str, str]], model: Model, graph: Graph
) -> dict[str, KV]:
    """`--set key=value` applied, each checked against the key's type and against the file's tensors and tokens.

    Raises:
        UnsupportedError: `unknown-key`, `bad-override`, `structural-key`.
    """
    out = dict(keys)
    for key, text in settings:
        if key == "tokenizer.ggml.pre":
            raise UnsupportedError("structural-key", f"--set {key}: there is an option for it", "Give --pre NAME.")
        if key in STRUCTURAL | _bound(model, graph) or key.startswith(("split.", "llmfit.", "tokenizer.llmfit.")):
            raise UnsupportedError(
                "structural-key",
                f"--set {key}: this key says how the file and its tensors are made",
                "Leave it out; it follows from the conversion.",
            )
        if key in out:
            kind = out[key].type
        elif key in FREE_TEXT:
            kind = "string"
        elif key in SPECIAL_KEYS.values():
            kind = "uint32"
        else:
            near = difflib.get_close_matches(key, [*out, *FREE_TEXT, *SPECIAL_KEYS.values()], n=3)
            raise UnsupportedError(
                "unknown-key",
                f"--set {key}: no loader of this file reads such a key" + (f"; nearest: {', '.join(near)}" if near else ""),
                "Correct its name.",
            )
        out[key] = _parse(key, kind, text)
        _require_sound(key, out[key].value, model)
    return out


def _bound(model: Model, graph: Graph) -> set[str]:
    """Keys that the tensors' shapes and rows depend on."""
    names = {"block_count", "vocab_size", "rope.dimension_count", *graph.constants}
    for role in {k.role for k in model.tensors}:
        for dim in model.architecture.shape_of(role) or ():
            names.update(d for d in (dim if isinstance(dim, tuple) else (dim,)) if isinstance(d, str))
    return {f"{graph.name}.{n}" for n in names}


def _parse(key: str, kind: str, text: str) -> KV:
    try:
        if kind == "string":
            text.encode()
            return KV(kind, text)
        if kind == "bool":
            return KV(kind, {"true": True, "1": True, "false": False, "0": False}[text.lower()])
        if kind in ("float32", "float64"):
            number = float(text)
            if not abs(number) < 3.4e38:
                raise ValueError
            return KV(kind, number)
        low, high = _INTEGER_RANGES[kind]
        if not low <= int(text) < high:
            raise ValueError
        return KV(kind, int(text))
    except (KeyError, ValueError):
        raise UnsupportedError(
            "bad-override", f"--set {key}={text[:80]}: the key holds a {kind}", f"Give a {kind}."
        ) from None


def _require_sound(key: str, value: object, model: Model) -> None:
    """Refuse what a loader would stumble over, or take for something else."""
    tokens = len(model.vocab.tokens) if model.vocab is not None else 0
    problem = ""
    if key.endswith("_token_id") and not 0 <= int(value) < tokens:  # type: ignore[call-overload]
        problem = f"the vocabulary has {tokens} tokens"
    elif key.endswith((".freq_base", "epsilon", "factor", "context_length")) and not float(value) >= SMALLEST:  # type: ignore[arg-type]
        problem = "it has to be positive"
    elif key.endswith("context_length") and int(value) >= 2**31:  # type: ignore[call-overload]
        problem = "no runtime counts so far"
    elif key.endswith(".rope.scaling.type") and value not in ROPE_SCALINGS:
        problem = f"it is one of {', '.join(ROPE_SCALINGS)}"
    elif key.endswith(".expert_used_count") and not 1 <= int(value) <= model.integer("expert_count"):  # type: ignore[call-overload]
        problem = f"there are {model.integer('expert_count')} experts"
    if problem:
        raise UnsupportedError("bad-override", f"--set {key}={value}: {problem}", "Correct the value.")
