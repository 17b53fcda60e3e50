"""A GGUF file as a Hugging Face checkpoint: names, config, tokenizer and lazy plain tensors.

The architecture's table is read backwards: a graph's name finds the architecture, its keys become hparams, hparams
become config keys, roles become tensor names.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from llmfit_core.architecture import ROLES, Architecture, Fused, Graph, Reads, Slot, slot_roles
from llmfit_core.config import AMONG_ROPE, normalise
from llmfit_core.dtypes import DTYPES
from llmfit_core.errors import SourceError, UnsupportedError
from llmfit_core.events import Event
from llmfit_core.grouping import regroup
from llmfit_core.model import Key
from llmfit_core.pooling import POOLINGS
from llmfit_core.readers.ggml_types import PLAIN
from llmfit_core.roles import Role
from llmfit_core.tensors import Given, TensorRef, element_count
from llmfit_core.tokenizer.from_gguf import vocab_from_gguf
from llmfit_core.transform import Affine, Concat, Reshape, Slice, transpose
from llmfit_gguf.key_checks import check_keys, layers_apart
from llmfit_gguf.layout import from_gguf, parse
from llmfit_gguf.metadata import BARE
from llmfit_gguf.rope_back import rope_config, shortest
from llmfit_gguf.unsaid import ARCHITECTURE, head_is_copy, restored
from llmfit_gguf.values import values_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llmfit_core.checkpoint import Checkpoint
    from llmfit_core.readers.gguf import GgufFile
    from llmfit_core.tensors import Tensor

_OLDER_ROPE_KEYS = {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}
FROM_KEYS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


def is_gguf(checkpoint: Checkpoint) -> bool:
    """Whether the source is a GGUF file."""
    return checkpoint.gguf is not None


def decode(checkpoint: Checkpoint, architectures: Sequence[Architecture]) -> Checkpoint:
    """The checkpoint as Hugging Face would have it.

    Raises:
        UnsupportedError: `unknown-graph`, `cannot-dequantize`.
        SourceError: `gguf-key-missing`, `stray-tensor`, `gguf-key-type`, `scale-mismatch`.
    """
    file = checkpoint.gguf
    assert file is not None
    name = _text(file, "general.architecture")
    pooled = file.kv.get(f"{name}.pooling_type")
    architecture, graph = _find(file, name, architectures)
    hparams = _hparams(file, architecture, graph)
    values, waived = values_of(file)
    tensors = {n: t for n, t in values.items() if n not in FROM_KEYS}
    if head_is_copy(file):
        del tensors["output.weight"]
    book = _Rows(architecture, hparams)
    stated = _stated(file, architecture, graph)
    canonical, strangers = from_gguf(tensors, hparams | stated, graph, book.rows, architecture.rope_rows)
    refs, left = _to_hf(canonical, architecture, hparams)
    strangers += [f"blk.{k.layer}.{k.role}.{k.part}" if k.layer is not None else f"{k.role}.{k.part}" for k in left]
    if strangers:
        raise SourceError(
            "stray-tensor",
            f"{checkpoint.label}: the table of {architecture.name} has no place for the tensor {strangers[0]}"
            + (f" and {len(strangers) - 1} more" if len(strangers) > 1 else ""),
            "The file holds more than this architecture; a newer plugin may know it.",
        )
    vocab = vocab_from_gguf({k: kv.value for k, kv in file.kv.items()}) if "tokenizer.ggml.tokens" in file.kv else None
    raw = _config(file, architecture, graph, hparams, tied=Key(Role.HEAD) not in canonical)
    # Null where there is none: a config class has defaults of its own, beyond this vocabulary even.
    specials = vocab.specials if vocab is not None else {}
    raw |= {f"{k}_token_id": specials.get(k) for k in ("bos", "eos", "pad")}
    events = []
    quantized = sorted({t.ggml_type for t in file.tensors.values() if t.ggml_type not in PLAIN})
    if quantized:
        message = f"the source is already quantized ({', '.join(quantized)}): what that lost stays lost"
        events.append(Event(code="source-quantized", message=message, severity="info"))
    repo = file.kv.get("llmfit.source.repo")
    config = normalise(raw)
    return replace(
        checkpoint,
        repo=checkpoint.repo or (str(repo.value) if repo is not None else ""),
        config=config,
        tensors={r.name: r for r in refs},
        vocab=vocab,
        pooling=next((n for n, number in POOLINGS.items() if pooled is not None and number == pooled.value), ""),
        quantized=tuple(quantized),
        waived={**checkpoint.waived, **waived},
        events=(*checkpoint.events, *events),
    )


def _text(file: GgufFile, key: str) -> str:
    kv = file.kv.get(key)
    if kv is None or not isinstance(kv.value, str):
        raise SourceError("gguf-key-missing", f"{file.files[0]} lacks the key {key}", "The file is no language model.")
    return kv.value


def _find(file: GgufFile, name: str, architectures: Sequence[Architecture]) -> tuple[Architecture, Graph]:
    """The architecture whose graph the file names; where several share it, its own word, or whose tensors these are."""
    candidates = [(a, g) for a in architectures for g in a.graphs if g.format == "gguf" and g.name == name]
    if not candidates:
        known = sorted({g.name for a in architectures for g in a.graphs if g.format == "gguf"})
        raise UnsupportedError(
            "unknown-graph",
            f"{file.files[0]}: no installed plugin knows the GGUF architecture {name}; known: {', '.join(known)}",
            "Install the plugin that knows it: see `llmfit plugins list`.",
        )
    own = file.kv.get(ARCHITECTURE)
    candidates = [p for p in candidates if own is not None and p[0].name == own.value] or candidates
    held = {k.split(".")[2] if k.startswith("blk.") else k.split(".")[0] for k in file.tensors}

    read = {key for _, graph in candidates for key in graph.keys}
    said = {k.removeprefix(f"{name}.") for k in file.kv} & read

    def fit(pair: tuple[Architecture, Graph]) -> tuple[int, int, int, bool]:
        architecture, graph = pair
        merged = {r for name, roles in graph.merges.items() if name in held for r in roles}
        roles = {r for p in architecture.tensors for r in slot_roles(architecture.slot(p))}
        spelled = {graph.spelling.get(r, r) for r in roles}
        odd = len((held - set(FROM_KEYS) - spelled) - set(graph.merges)) + len(spelled - held - merged)
        stated = {k: file.kv[f"{name}.{k}"].value for k in graph.constants if f"{name}.{k}" in file.kv}
        against = sum(value != graph.constants[k] for k, value in stated.items())
        # A graph is named after the family it was written for.
        return -against, -odd, -len(said - set(graph.keys)), architecture.name == name

    return max(candidates, key=fit)


def _hparams(file: GgufFile, architecture: Architecture, graph: Graph) -> dict[str, Any]:
    hparams: dict[str, Any] = {}
    prefix = f"{graph.name}."
    for key, kv in file.kv.items():
        if key.startswith(prefix):
            value = kv.value
            if not isinstance(value, (int, float, str, bool)):
                value = value.tolist() if hasattr(value, "tolist") else list(value)
            hparams[key.removeprefix(prefix)] = value
    for key in graph.keys:
        if key.startswith(BARE) and key in file.kv:
            hparams[key] = file.kv[key].value
    hparams |= layers_apart(hparams, graph.by_layer)
    check_keys(file, prefix, hparams)
    heads = hparams["attention.head_count"]
    if heads:
        hparams.setdefault("attention.head_count_kv", heads)
        hparams.setdefault("attention.key_length", hparams["embedding_length"] // heads)
        hparams.setdefault("attention.value_length", hparams["attention.key_length"])
    hparams.setdefault("rope.freq_base", 10000.0)
    embed = file.tensors.get("token_embd.weight")
    if embed is not None:
        hparams["vocab_rows"] = hparams["vocab_size"] = embed.shape[0]
    hparams = {**_stated(file, architecture, graph), **hparams}
    if graph.assumes is not None:
        held = frozenset(key.role for key in map(parse, file.tensors) if key is not None)
        hparams = {**graph.assumes({**hparams, ROLES: held}), **hparams}
    for hparam, fix in graph.fixes.items():
        if hparam not in hparams and fix.values[0] is not None:
            hparams[hparam] = fix.values[0]
    if architecture.hparams is not None:
        hparams.update({k: v for k, v in architecture.hparams(_assumed(architecture) | hparams).items() if v is not None})
    return hparams


def _stated(file: GgufFile, architecture: Architecture, graph: Graph) -> dict[str, Any]:
    """The hparams that the file says in Hugging Face's words, for want of keys."""
    said, _ = restored(file, architecture, graph)
    uses = ((architecture.config[k], v) for k, v in said.items() if v is not None)
    return {use.hparam: value for use, value in uses if isinstance(use, Reads)}


def _assumed(architecture: Architecture) -> dict[str, object]:
    return {
        u.hparam: u.default
        for u in architecture.config.values()
        if isinstance(u, Reads) and isinstance(u.default, (int, float, str, bool))
    }


class _Rows:
    """How many rows a role's matrix has, by the architecture's shapes."""

    def __init__(self, architecture: Architecture, hparams: Mapping[str, Any]) -> None:
        self.architecture, self.hparams = architecture, hparams

    def rows(self, role: str) -> int:
        dims = self.architecture.shape_of(role)
        if not dims:
            return 0
        first = dims[-2] if len(dims) > 1 else dims[0]
        product = 1
        for d in first if isinstance(first, tuple) else (first,):
            product *= d if isinstance(d, int) else int(self.hparams.get(d, 0) or 0)
        return product


def _to_hf(
    canonical: Mapping[Key, Tensor], architecture: Architecture, hparams: Mapping[str, Any]
) -> tuple[list[TensorRef], list[Key]]:
    """Tensors under Hugging Face names, as that architecture stores them; and what found no place."""
    refs: list[TensorRef] = []
    left = dict(canonical)
    layers = int(hparams["block_count"])
    assumed = _assumed(architecture) | dict(hparams)
    named = Counter(r for p in architecture.tensors for r in slot_roles(architecture.slot(p)))
    for pattern in architecture.tensors:
        slot = architecture.slot(pattern)
        # Of several names of a role the one that belongs to this kind of layer.
        choose = slot.when and architecture.layer_kinds is not None and any(named[r] > 1 for r in slot_roles(slot))
        for layer in range(layers) if "{layer}" in pattern else [None]:
            if choose and layer is not None and slot.when not in architecture.layer_kinds(assumed, layer):  # type: ignore[misc]
                continue
            for part in (slot.part,) if slot.bare else ("weight", "bias"):
                keys = [Key(role, layer, part) for role in slot_roles(slot)]
                if any(k not in left for k in keys):
                    continue
                whole = [left.pop(k) for k in keys]
                name = pattern if layer is None else pattern.replace("{layer}", str(layer))
                count = whole[0].shape[0] if "{expert}" in pattern else 0
                for expert in range(count) if "{expert}" in pattern else [None]:
                    parts = [Slice(t, expert, expert + 1, 0, squeeze=True) for t in whole] if expert is not None else whole
                    full = name if expert is None else name.replace("{expert}", str(expert))
                    refs.append(
                        TensorRef(
                            name=full if slot.bare else f"{full}.{part}",
                            tensor=_stored(tuple(parts), slot, part, hparams),
                            part=part,
                            layer=layer,
                            expert=expert,
                        )
                    )
    return refs, list(left)


def _stored(parts: tuple[Tensor, ...], slot: Slot, part: str, hparams: Mapping[str, Any]) -> Tensor:
    skipped = int(hparams.get(slot.skip) or 0) if slot.skip and part == "weight" else 0
    if skipped:
        parts = tuple(Concat((_zeros((skipped, *p.shape[1:]), p.dtype), p), 0) for p in parts)
    if slot.shift and part == "weight":
        parts = tuple(Affine(p, shift=-slot.shift) for p in parts)
    if not isinstance(slot.role, Fused) or len(parts) == 1:
        tensor = parts[0]
    elif slot.role.groups:
        tensor = regroup(parts, int(hparams[slot.role.groups]), bias=part == "bias")
    else:
        tensor = Concat(parts, slot.role.axis + len(parts[0].shape) - (2 if part == "weight" else 1))
    if slot.transposed and part == "weight":
        return transpose(tensor)
    return Reshape(tensor, (1,) * slot.ones + tensor.shape) if slot.ones else tensor


def _zeros(shape: tuple[int, ...], dtype: str) -> Tensor:
    return Given(bytes(element_count(shape) * DTYPES[dtype].size), shape, dtype)


def _config(
    file: GgufFile, architecture: Architecture, graph: Graph, hparams: Mapping[str, Any], *, tied: bool
) -> dict[str, object]:
    """A config.json from hparams: the architecture's own keys, and what a graph fixes."""
    out: dict[str, object] = {
        "architectures": [architecture.hf_classes[0]],
        "model_type": architecture.model_types[0] if architecture.model_types else architecture.name,
        "dtype": "bfloat16",
    }
    uses = {use.hparam for use in architecture.config.values() if isinstance(use, Reads)}
    taken: set[str] = set()
    for key, use in architecture.config.items():
        if not isinstance(use, Reads) or use.hparam in taken:
            continue
        value = hparams.get(use.hparam)
        if value is None and use.null_is_none:
            out[key] = None
        elif value is not None and use.hparam not in ("rope.freq_base", "partial_rotary_factor"):
            out[key] = _short(value)
            taken.add(use.hparam)
    for key, use in architecture.config.items():
        if isinstance(use, Reads) and use.hparam == "partial_rotary_factor" and use.default not in (None, 1.0):
            out[key] = 1.0  # unless the file says less: the class would assume a part
    out["tie_word_embeddings"] = tied
    for pattern in architecture.tensors:
        bias = architecture.slot(pattern).bias
        if isinstance(bias, str) and bias != "optional":
            has = any(f".{r}.bias" in n for r in slot_roles(architecture.slot(pattern)) for n in file.tensors)
            config_key = next((k for k, u in architecture.config.items() if isinstance(u, Reads) and u.hparam == bias), bias)
            out[config_key] = bool(out.get(config_key)) or has
    stated, rope = restored(file, architecture, graph)
    out |= stated
    if "rope.freq_base" not in uses:
        return out
    out |= rope_config(file, graph, hparams, rope)
    if architecture.rope_default:
        out.setdefault("rope_scaling", {"rope_type": "default"})  # else the class would take its own
    if "partial_rotary_factor" not in uses:  # heads whose turned part is told otherwise
        out.pop("partial_rotary_factor", None)
    among = {k: out.pop(k) for k in AMONG_ROPE if k in out}
    if among:
        out["rope_scaling"] = {"rope_type": "default", **(out.get("rope_scaling") or {}), **among}  # type: ignore[dict-item]
    for key, older in _OLDER_ROPE_KEYS.items():
        if older in architecture.config and key in out:
            out[older] = out.pop(key)
    return out


def _short(value: object) -> object:
    return shortest(value) if isinstance(value, float) else value
