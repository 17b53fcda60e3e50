"""From a GGUF file's rope keys and factor tensors to a config's `rope_theta` and `rope_scaling`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llmfit_core.errors import LlmfitError, UnsupportedError
from llmfit_core.readers.gguf import GgufFile, tensor_of
from llmfit_core.rope import Rope, llama3_factors, read_rope, yarn_mscale
from llmfit_core.tensors import read
from llmfit_gguf.rope_keys import keys_of, with_own_keys
from llmfit_gguf.rounding import as_computed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llmfit_core.architecture import Graph


def rope_config(
    file: GgufFile, graph: Graph, hparams: Mapping[str, Any], stated: Mapping[str, Any]
) -> dict[str, object]:
    """The config keys that give transformers the rope of this file.

    `stated`, what the file says of its rope in Hugging Face's words, is taken where its keys and factors are just what
    that would become. Else a `rope_freqs` tensor is taken for llama3 scaling where it is exactly that; any other set of
    factors is longrope with the same factors on both sides.

    Raises:
        UnsupportedError: `unknown-rope-type`.
    """
    base = shortest(float(hparams["rope.freq_base"]))
    out: dict[str, object] = {"rope_theta": base}
    dims = int(hparams.get("rope.dimension_count", hparams["attention.key_length"]))
    if dims != hparams["attention.key_length"]:
        out["partial_rotary_factor"] = dims / hparams["attention.key_length"]
    kind = hparams.get("rope.scaling.type", "linear" if "rope.scaling.factor" in hparams else "none")
    factor = float(hparams.get("rope.scaling.factor", 1.0))
    attention = float(hparams.get("rope.scaling.attn_factor", 1.0))
    original = int(hparams.get("rope.scaling.original_context_length", hparams.get("context_length", 0)))
    if kind not in ("none", "linear", "yarn", "longrope"):
        raise UnsupportedError(
            "unknown-rope-type", f"{graph.name}.rope.scaling.type is {kind}", "A newer llmfit-gguf may know it."
        )
    frequencies = _factors(file, "rope_freqs.weight")
    if stated and _agrees(file, graph, hparams, stated, dims):
        out["rope_scaling"] = dict(stated)
    elif frequencies:
        scaling = _llama3(frequencies, float(hparams["rope.freq_base"]), dims) if attention == 1 else None
        out["rope_scaling"] = scaling or _longrope(frequencies, frequencies, attention, original)
    elif kind == "longrope" or "rope_factors_long.weight" in file.tensors:  # some writers leave the type out
        long, short = _factors(file, "rope_factors_long.weight"), _factors(file, "rope_factors_short.weight")
        out["rope_scaling"] = _longrope(long, short, attention, original)
        out["original_max_position_embeddings"] = original
    elif kind == "yarn":
        scaling = {"rope_type": "yarn", "factor": shortest(factor), "original_max_position_embeddings": original}
        if graph.rope_read is not None:
            scaling |= graph.rope_read(hparams)
        elif attention != 1:
            scaling["attention_factor"] = attention * yarn_mscale(factor)
        out["rope_scaling"] = scaling
    elif kind == "linear" and factor != 1:
        out["rope_scaling"] = {"rope_type": "linear", "factor": shortest(factor)}
    return out


def _agrees(
    file: GgufFile, graph: Graph, hparams: Mapping[str, Any], stated: Mapping[str, Any], dims: int
) -> bool:
    """Whether this rope would be written as the keys and factors that the file has."""
    import numpy as np

    context = int(hparams.get("context_length", 0))
    try:
        rope, _ = read_rope(stated, context=context)
        wanted = keys_of(as_computed(rope, graph), float(hparams["rope.freq_base"]), dims)
        keys = with_own_keys(wanted.keys, rope, graph)
        own = graph.rope_keys(rope) if graph.rope_keys is not None else {}
    except LlmfitError:
        return False
    for key in ("rope.scaling.type", "rope.scaling.factor", "rope.scaling.attn_factor", *own):
        have, want = hparams.get(key), keys[key].value if key in keys else None
        if isinstance(have, float) and isinstance(want, float):
            if not np.isclose(have, want, rtol=1e-6, atol=0):
                return False
        elif have != want:
            return False
    names = [n for n in file.tensors if n.startswith("rope_f")]
    if sorted(names) != sorted(f"{role}.weight" for role in wanted.factors):
        return False
    for role, values in wanted.factors.items():
        have = _factors(file, f"{role}.weight")
        if len(have) != len(values) or not np.allclose(have, values, rtol=1e-6, atol=0):
            return False
    return True


def _longrope(long: list[float], short: list[float], attention: float, original: int) -> dict[str, object]:
    return {
        "rope_type": "longrope",
        "long_factor": long,
        "short_factor": short,
        "attention_factor": shortest(attention),
        "original_max_position_embeddings": original,
    }


def _factors(file: GgufFile, name: str) -> list[float]:
    tensor = file.tensors.get(name)
    if tensor is None:
        return []
    return [shortest(x) for x in read(tensor_of(tensor)).reshape(-1).tolist()]


def _llama3(factors: list[float], base: float, dims: int) -> dict[str, object] | None:
    """llama3's parameters, where one of the usual original contexts gives these factors, to float32's last places."""
    import numpy as np

    factor = max(factors)
    for exponent in range(5, 18):
        rope = Rope(type="llama3", factor=factor, original_context=1 << exponent)
        if np.allclose(llama3_factors(rope, base, dims), factors, rtol=1e-6, atol=0):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 1 << exponent,
            }
    return None


def shortest(value: float) -> float:
    """The shortest decimal that means the same float32."""
    import numpy as np

    return float(str(np.float32(value)))
