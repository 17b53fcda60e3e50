"""What a config says and no key of a graph can: carried in a GGUF file, so that it reads back as the model it was.

A sliding window that the graph does not know, `dynamic` rope, the parameters behind a tensor of rope factors. No loader
reads this key; it only serves the way back to Hugging Face's layout.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from llmfit_core.architecture import Architecture, Graph, Reads
from llmfit_core.model import Key
from llmfit_core.roles import Role

if TYPE_CHECKING:
    from llmfit_core.model import Model
    from llmfit_core.readers.gguf import GgufFile

KEY = "llmfit.config"
MAX_LENGTH = 1 << 20
ARCHITECTURE = "llmfit.architecture"
_TOLD_BY_TENSORS = ("tie_word_embeddings", "vocab_size")
_ROPE_TYPES = ("dynamic", "llama3", "yarn")


def unsaid(model: Model, graph: Graph) -> str:
    """The config keys that the architecture reads and `graph` has no key for, as JSON; empty for none."""
    values = model.checkpoint.config.values
    out: dict[str, Any] = {
        key: values[key] for key in _keys(model.architecture, graph) if values.get(key) is not None
    }
    if graph.needs_head and Key(Role.HEAD) not in model.tensors:
        out["tie_word_embeddings"] = True
    if model.rope.type in _ROPE_TYPES:
        out["rope_scaling"] = values.get("rope_scaling") or dict(model.architecture.rope_default)
    text = json.dumps(out, sort_keys=True, ensure_ascii=True)
    return text if out and len(text) <= MAX_LENGTH else ""


def head_is_copy(file: GgufFile) -> bool:
    """Whether the file's head is a copy of its embedding, made for a graph that wants one, and stored alike."""
    head, embed = file.tensors.get("output.weight"), file.tensors.get("token_embd.weight")
    return (
        head is not None
        and embed is not None
        and (head.ggml_type, head.shape) == (embed.ggml_type, embed.shape)
        and _said(file).get("tie_word_embeddings") is True
    )


def _said(file: GgufFile) -> dict[str, Any]:
    kv = file.kv.get(KEY)
    if kv is None or not isinstance(kv.value, str) or len(kv.value) > MAX_LENGTH:
        return {}
    try:
        said = json.loads(kv.value)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def restored(file: GgufFile, architecture: Architecture, graph: Graph) -> tuple[dict[str, Any], dict[str, Any]]:
    """Config keys and rope from a file's own `llmfit.config`; both empty where it has none that is whole."""
    said = _said(file)
    rope = said.get("rope_scaling")
    known = _keys(architecture, graph)
    return {k: v for k, v in said.items() if k in known}, rope if isinstance(rope, dict) else {}


def _keys(architecture: Architecture, graph: Graph) -> list[str]:
    written = {*graph.keys, "rope.freq_base", "partial_rotary_factor"}
    return [
        key
        for key, use in architecture.config.items()
        if isinstance(use, Reads) and use.hparam not in written and key not in _TOLD_BY_TENSORS
    ]
