"""The plan of a GGUF file: graph, tensors, types, keys and bytes, all decided before a weight is read."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from llmfit_core.checks import head_check
from llmfit_core.errors import UnsupportedError
from llmfit_core.events import Event
from llmfit_core.model import Key
from llmfit_core.plan import DataCheck, OutputFile, OutputTensor, Plan
from llmfit_core.readers.ggml_types import BY_NAME
from llmfit_core.readers.gguf_values import KV
from llmfit_core.roles import Role
from llmfit_core.tensors import Given, element_count
from llmfit_core.tokenizer.to_gguf import gguf_keys
from llmfit_gguf.container import header_bytes, layout
from llmfit_gguf.ftypes import QUANTIZATION_VERSION, file_type_of, scheme_named
from llmfit_gguf.graphs import choose_graph, require_types
from llmfit_gguf.keeping import stored_blocks, told
from llmfit_gguf.layout import to_gguf
from llmfit_gguf.metadata import as_json, hparam_keys
from llmfit_gguf.mix import TensorInfo, choose_types, facts_from_metadata
from llmfit_gguf.patterns import require_quick
from llmfit_gguf.rope_keys import rope_keys
from llmfit_gguf.settings import apply_settings, with_overrides
from llmfit_gguf.splitting import part_kv, part_name, plan_split
from llmfit_gguf.stream import peak_memory
from llmfit_gguf.unsaid import ARCHITECTURE, unsaid
from llmfit_gguf.unsaid import KEY as UNSAID

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llmfit_core.architecture import Graph
    from llmfit_core.model import Model
    from llmfit_core.plan import Recipe
    from llmfit_core.tensors import Tensor
    from llmfit_gguf.ftypes import Scheme


MAX_STEM = 50
"""Characters of a model's name in a file name; four bytes each leave room for the rest of the 255 that a name has."""
TERNARY = ("tq1_0", "tq2_0")


def plan(model: Model, recipe: Recipe) -> Plan:
    """Everything about the file but the tensors' values.

    Raises:
        UnsupportedError: `graph-cannot`, `type-not-read`, `no-tokenizer`, `unknown-scheme`, `bad-override` and its like.
    """
    scheme = scheme_named(recipe.scheme)
    recipe = replace(recipe, scheme=scheme.name)
    model = with_overrides(model, recipe)
    graph, exact, bounds = choose_graph(model, recipe.graph, force=recipe.force)
    rope = rope_keys(model, graph)
    sources = _sources(model, graph, rope.factors)
    keys = _keys(model, graph, recipe, scheme.file_type, exact, rope.keys)
    wished = str(keys["general.name"].value)
    name = _safe_name(wished, model.vocab.tokens if model.vocab is not None else ())
    keys["general.name"] = KV("string", name)
    blocks = stored_blocks({n: t for n, (t, _) in sources.items()})
    infos = [
        TensorInfo(
            name=n,
            shape=t.shape,
            dtype="f32" if t.dtype == "f64" else t.dtype,
            stored=blocks[n].dtype if n in blocks else "",
        )
        for n, (t, _) in sources.items()
    ]
    facts = facts_from_metadata({k: kv.value for k, kv in keys.items() if not k.startswith("tokenizer.")})
    require_quick([pattern for pattern, _ in recipe.tensor_types], list(sources))
    choices = choose_types(scheme.name, infos, facts, recipe.tensor_types)
    require_types(graph, zip(sources, (c.type for c in choices), strict=True))
    types = {n: c.type for n, c in zip(sources, choices, strict=True)}
    kept = {n: b for n, b in blocks.items() if b.dtype == types[n]}
    tensors = [
        OutputTensor(
            name=name,
            tensor=kept.get(name, tensor),
            type=choice.type,
            nbytes=BY_NAME[choice.type].bytes_for(tensor.shape),
            role=role,
            reason=choice.event.message.removeprefix(f"{name}: ") if choice.event else "",
        )
        for (name, (tensor, role)), choice in zip(sources.items(), choices, strict=True)
    ]
    events = [*model.events, *bounds, *(c.event for c in choices if c.event)]
    if model.vocab is not None:
        events += model.vocab.events
    if rope.note:
        events.append(Event(code="rope-rewritten", message=rope.note, severity="info", subject="rope_scaling"))
    if name != wished:
        message = f"the model is called {name!r}: loaders take {wished!r} for a Phi-3, whose tokens this one lacks"
        events.append(Event(code="name-changed", message=message, severity="info", subject="general.name"))
    if not (scheme.name in TERNARY and set(model.checkpoint.quantized) == {"ternary"}):
        events += told({n: t for n, (t, _) in sources.items()}, types, kept, scheme, model.checkpoint.quantized)
    if model.checkpoint.config.left_out:
        message = (
            "the file holds the text model alone: pictures and sound need a projector file beside it, which llmfit does not "
            "make (where llama.cpp knows the model, its convert_hf_to_gguf.py --mmproj makes one from the same folder)"
        )
        events.append(Event(code="no-mmproj", message=message, severity="info"))
    events += _override_events(model, recipe)
    if scheme.rule == "source":
        keys["general.file_type"] = KV("uint32", _file_type(model, tensors))
    stem = f"{file_stem(recipe.name or model.name)}-{_label(scheme, tensors)}"
    files, split_events = _files(f"{stem}.gguf", keys, tensors, recipe)
    return Plan(
        model=model,
        recipe=recipe,
        files=files,
        graph=graph.name,
        engine=graph.engine,
        metadata=as_json(keys),
        checks=(*head_check(model), *_ternary_check(tensors)),
        events=(*events, *split_events),
        exact_context=exact,
        memory=peak_memory(sum(len(f.head) for f in files)),
    )


def _sources(
    model: Model, graph: Graph, factors: Mapping[str, tuple[float, ...]]
) -> dict[str, tuple[Tensor, str]]:
    """By GGUF name, the source tensors and rope factors, embedding first."""
    tensors = dict(model.tensors)
    if graph.needs_head and Key(Role.HEAD) not in tensors:
        tensors[Key(Role.HEAD)] = tensors[Key(Role.EMBED)]
    out = to_gguf(tensors, model.hparams, graph, model.architecture.rope_rows)
    for role, values in factors.items():
        out[f"{role}.weight"] = (_given(values), role)
    return out


def _given(values: Sequence[float]) -> Given:
    import numpy as np

    return Given(np.asarray(values, dtype="<f4").tobytes(), (len(values),), "f32")


def _keys(
    model: Model, graph: Graph, recipe: Recipe, file_type: int, exact: int | None, rope: Mapping[str, KV]
) -> dict[str, KV]:
    vocab = model.vocab
    if vocab is None:
        raise UnsupportedError(
            "no-tokenizer",
            f"{model.checkpoint.label} has no tokenizer, and a GGUF file carries one",
            "Fetch tokenizer.json or tokenizer.model into the folder.",
        )
    keys: dict[str, KV] = {
        "general.architecture": KV("string", graph.name),
        "general.type": KV("string", "model"),
        "general.name": KV("string", recipe.name or model.name),
        "general.file_type": KV("uint32", file_type),
        "general.quantization_version": KV("uint32", QUANTIZATION_VERSION),
    }
    keys |= hparam_keys(model, graph)
    keys |= {f"{graph.name}.{k}": kv for k, kv in rope.items()}
    keys |= {k: KV(kv.type, kv.value) for k, kv in gguf_keys(vocab).items()}
    keys["llmfit.recipe"] = KV("string", f"{recipe.exporter}:{recipe.scheme}")
    if model.checkpoint.repo:
        keys["llmfit.source.repo"] = KV("string", model.checkpoint.repo)
    if model.checkpoint.revision:
        keys["llmfit.source.revision"] = KV("string", model.checkpoint.revision)
    if exact is not None:
        keys["llmfit.exact_context"] = KV("uint32", exact)
    keys[ARCHITECTURE] = KV("string", model.architecture.name)
    more = unsaid(model, graph)
    if more:
        keys[UNSAID] = KV("string", more)
    return apply_settings(keys, recipe.metadata, model, graph)


def _safe_name(name: str, tokens: Sequence[str]) -> str:
    """A name no loader takes for a hint that this vocabulary cannot bear.

    "phi-3" in a name makes llama.cpp change attributes of the tokens below, and fail where one of them is missing.
    """
    if {"<s>", "</s>", "<unk>", "<|endoftext|>"} <= set(tokens):
        return name
    return re.sub(r"(phi)-?(3)", r"\1 \2", name, flags=re.IGNORECASE)


def file_stem(name: str) -> str:
    """A model's name as part of a file name: the last part of a repo id, odd characters as `-`."""
    last = name.rsplit("/", 1)[-1]
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in last)[:MAX_STEM].strip(".-") or "model"


def _label(scheme: Scheme, tensors: Sequence[OutputTensor]) -> str:
    """The scheme's name; with the prevailing type behind it where most weights could not have the scheme's own."""
    weights = _weights(tensors)
    if scheme.rule == "source":
        return weights.most_common(1)[0][0].upper() if weights else "SOURCE"
    fallen = sum(element_count(t.shape) for t in tensors if len(t.shape) > 1 and t.reason)
    label = scheme.name.upper()
    if weights and fallen * 2 > weights.total():
        return f"{label}-mostly-{weights.most_common(1)[0][0].upper()}"
    return label


def _weights(tensors: Sequence[OutputTensor]) -> Counter[str]:
    """How many values of matrices each type has."""
    weights = Counter[str]()
    for t in tensors:
        if len(t.shape) > 1:
            weights[t.type] += element_count(t.shape)
    return weights


def _file_type(model: Model, tensors: Sequence[OutputTensor]) -> int:
    """What the source says of itself, where it is a GGUF file taken over as it is; else what its types come to."""
    file = model.checkpoint.gguf
    said = file.kv.get("general.file_type") if file is not None else None
    if file is not None and said is not None and isinstance(said.value, int):
        if all(t.name in file.tensors and t.type == file.tensors[t.name].ggml_type for t in tensors):
            return said.value
    return file_type_of(_weights(tensors))


def _override_events(model: Model, recipe: Recipe) -> list[Event]:
    events = []
    if recipe.pre:
        events.append(
            Event(code="pre-override", message=f"the pre-tokenizer is taken to be {recipe.pre}, as told", severity="info")
        )
    for option, value in (
        ("--context-length", recipe.context_length),
        ("--rope-freq-base", recipe.rope_freq_base),
        ("--rope-freq-scale", recipe.rope_freq_scale),
    ):
        if value is not None:
            events.append(Event(code="override", message=f"{option} {value:g} instead of the model's own", severity="info"))
    events += [Event(code="override", message=f"--set {k}={v}", severity="info", subject=k) for k, v in recipe.metadata]
    return events


def _ternary_check(tensors: Sequence[OutputTensor]) -> tuple[DataCheck, ...]:
    names = tuple(t.name for t in tensors if t.type in TERNARY)
    if not names:
        return ()
    return (
        DataCheck(
            name="ternary",
            question="do these tensors hold but three values, as ternary types need?",
            tensors=names,
            refusal="{tensor} is not ternary (-s, 0 and s alone in each block of 256), so a ternary type would ruin it",
        ),
    )


def _files(
    name: str, keys: Mapping[str, KV], tensors: Sequence[OutputTensor], recipe: Recipe
) -> tuple[tuple[OutputFile, ...], tuple[Event, ...]]:
    if recipe.split_max_bytes is None:
        parts: tuple[range, ...] = (range(len(tensors)),)
        events: tuple[Event, ...] = ()
    else:
        split = plan_split([t.nbytes for t in tensors], recipe.split_max_bytes, [t.name for t in tensors])
        parts, events = split.parts, split.events
    files = []
    for index, part in enumerate(parts):
        held = [tensors[i] for i in part]
        infos, length = layout([(t.name, t.shape, t.type) for t in held])
        head = header_bytes(part_kv(keys, index, len(parts), len(tensors)), infos)
        files.append(
            OutputFile(
                name=part_name(name, index, len(parts)),
                head=head,
                tensors=tuple((t, len(head) + i.offset) for t, i in zip(held, infos, strict=True)),
                size=len(head) + length,
            )
        )
    return tuple(files), events
