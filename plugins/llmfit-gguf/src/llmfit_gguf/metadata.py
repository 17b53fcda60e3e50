"""The hyper-parameters of a model as the keys that a graph's loader reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmfit_core.readers.gguf_values import KV

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llmfit_core.architecture import Graph
    from llmfit_core.model import Model

BARE = "tokenizer."
FLOAT_KEYS = ("epsilon", "freq_base", "scale", "factor")


def hparam_keys(model: Model, graph: Graph) -> dict[str, KV]:
    """The keys `graph` reads, in its order, with the architecture's prefix; absent hparams are left out."""
    out = {}
    hparams = {**model.hparams, **(graph.values(model.hparams) if graph.values is not None else {})}
    for name in graph.keys:
        value = hparams.get(name)
        if name == "vocab_size":
            value = model.hparams.get("vocab_rows", value)
        if value is not None:
            out[name if name.startswith(BARE) else f"{graph.name}.{name}"] = _typed(name, value)
    if "pooling_type" in model.hparams and "pooling_type" not in graph.constants:
        out[f"{graph.name}.pooling_type"] = _typed("pooling_type", model.hparams["pooling_type"])
    for name, value in graph.constants.items():
        out[f"{graph.name}.{name}"] = _typed(name, value)
    return out


def _typed(name: str, value: object) -> KV:
    if isinstance(value, bool):
        return KV("bool", value)
    if isinstance(value, str):
        return KV("string", value)
    if isinstance(value, (list, tuple)) and isinstance(value[0], str):
        return KV("array[string]", list(value))
    if isinstance(value, (list, tuple)):
        return KV("array[bool]" if isinstance(value[0], bool) else "array[int32]", list(value))
    if isinstance(value, float) or name.endswith(FLOAT_KEYS):
        return KV("float32", float(value))  # type: ignore[arg-type]
    return KV("uint32", int(value))  # type: ignore[call-overload]


def as_json(keys: Mapping[str, KV]) -> dict[str, object]:
    """Keys as plain values; arrays by type and length."""
    return {k: f"{v.type} of {len(v.value)}" if v.type.startswith("array") else v.value for k, v in keys.items()}
