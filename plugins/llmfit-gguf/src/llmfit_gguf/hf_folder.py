"""Any understood model as a Hugging Face folder: safetensors shards, config, tokenizer, template."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from llmfit_core.checks import head_check
from llmfit_core.dtypes import DTYPES, FLOATS
from llmfit_core.errors import UnsupportedError
from llmfit_core.events import Event
from llmfit_core.model import Key
from llmfit_core.parts import text_config
from llmfit_core.plan import OutputFile, OutputTensor, Plan
from llmfit_core.pooling import pooling_files
from llmfit_core.readers.folder import MODULE_FILE
from llmfit_core.roles import KEPT_FLOAT32, Role
from llmfit_core.tensors import element_count
from llmfit_core.transform import Transpose
from llmfit_gguf.stream import peak_memory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llmfit_core.model import Model
    from llmfit_core.plan import Recipe
    from llmfit_core.tensors import Tensor, TensorRef

SHARD_BYTES = 5_000_000_000
"""transformers' own default limit of a shard."""
TORCH_NAMES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
CARRIED = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
)


def plan(model: Model, recipe: Recipe) -> Plan:
    """The folder: every file's bytes but for the tensors' values.

    Raises:
        UnsupportedError: `unknown-scheme`, `option-not-for-format`.
    """
    for given, option in (
        (recipe.tensor_types, "--tensor-type"),
        (recipe.metadata, "--set"),
        (recipe.rope_freq_base, "--rope-freq-base"),
        (recipe.rope_freq_scale, "--rope-freq-scale"),
        (recipe.context_length, "--context-length"),
        (recipe.graph, "--graph"),
        (recipe.pre if model.checkpoint.gguf is None else None, "--pre"),
    ):
        if given not in (None, ()):
            raise UnsupportedError("option-not-for-format", f"{option} means nothing to hf folders", "Leave it out.")
    kept = _kept(model)
    alone = bool(model.checkpoint.config.left_out)
    refs = [_upright(r, model) for r in model.refs] if alone else model.refs
    tensors = [
        _output(ref, recipe.scheme, ref.name in kept) for ref in refs if not (model.same_head and ref.role == Role.HEAD)
    ]
    files = _shards(tensors, recipe.split_max_bytes or SHARD_BYTES)
    texts = _side_files(model, recipe.scheme, recipe.name)
    files += [OutputFile(name=n, head=b, size=len(b)) for n, b in sorted(texts.items())]
    events = list(model.events)
    if alone:
        message = f"the folder holds the text model alone, as {model.architecture.hf_classes[0]}"
        events.append(Event(code="text-part-alone", message=message, severity="info", subject="config.json"))
    if model.vocab is not None:
        events += model.vocab.events
    elif not any(n in texts for n in ("tokenizer.json", "tokenizer.model")):
        events.append(Event(code="no-tokenizer", message="the source has no tokenizer; the folder gets none"))
    memory = peak_memory(sum(len(f.head) for f in files))
    checks = head_check(model)
    return Plan(model=model, recipe=recipe, files=tuple(files), checks=checks, events=tuple(events), memory=memory)


def _upright(ref: TensorRef, model: Model) -> TensorRef:
    """The tensor as the text model's own class stores it: a larger model's may hold experts `[E, in, out]`."""
    node: Tensor | None = model.tensors.get(Key(ref.role.split("+")[0], ref.layer, ref.part))
    turned = False
    while node is not None and node is not ref.tensor:
        turned ^= isinstance(node, Transpose)
        node = getattr(node, "source", None)
    return replace(ref, tensor=Transpose(ref.tensor)) if turned and len(ref.shape) == 3 else ref


def _output(ref: TensorRef, scheme: str, kept: bool) -> OutputTensor:
    kind = scheme if ref.dtype in FLOATS and not (kept and DTYPES[scheme].size < 4) else ref.dtype
    return OutputTensor(
        name=ref.name,
        tensor=ref.tensor,
        type=kind,
        nbytes=element_count(ref.shape) * DTYPES[kind].size,
        role=ref.role,
        reason="stays f32, as it is stored" if kind != scheme and ref.dtype in FLOATS else "",
    )


def _kept(model: Model) -> frozenset[str]:
    """What stays float32 in a 16-bit folder.

    Corrections of the choice of experts always; and what a 16-bit checkpoint itself stores in float32, which its authors
    meant. A GGUF file has norms and routers in float32 whatever they were.
    """
    wide = [r for r in model.refs if r.dtype == "f32"]
    narrow = sum(element_count(r.shape) for r in model.refs if r.dtype in ("bf16", "f16"))
    meant = model.checkpoint.gguf is None and narrow > sum(element_count(r.shape) for r in wide)
    return frozenset(r.name for r in wide if meant or set(r.role.split("+")) & KEPT_FLOAT32)


def _shards(tensors: Sequence[OutputTensor], limit: int) -> list[OutputFile]:
    groups: list[list[OutputTensor]] = [[]]
    used = 0
    for tensor in tensors:
        if groups[-1] and used + tensor.nbytes > limit:
            groups.append([])
            used = 0
        groups[-1].append(tensor)
        used += tensor.nbytes
    count = len(groups)
    names = ["model.safetensors"] if count == 1 else [f"model-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)]
    files = [_shard(n, g) for n, g in zip(names, groups, strict=True)]
    if count > 1:
        index = {
            "metadata": {"total_size": sum(t.nbytes for t in tensors)},
            "weight_map": {t.name: n for n, g in zip(names, groups, strict=True) for t in g},
        }
        head = _json(index)
        files.append(OutputFile(name="model.safetensors.index.json", head=head, size=len(head)))
    return files


def _shard(name: str, tensors: Sequence[OutputTensor]) -> OutputFile:
    """A safetensors file: eight bytes of header length, JSON padded with spaces to eight, then the tensors."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for t in tensors:
        entries[t.name] = {
            "dtype": DTYPES[t.type].safetensors,
            "shape": list(t.shape),
            "data_offsets": [offset, offset + t.nbytes],
        }
        offset += t.nbytes
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    placed = []
    at = len(head)
    for t in tensors:
        placed.append((t, at))
        at += t.nbytes
    return OutputFile(name=name, head=head, tensors=tuple(placed), size=at)


def _side_files(model: Model, scheme: str, name: str | None) -> dict[str, bytes]:
    """Config and tokenizer: the source's own files, or files rebuilt from what a GGUF file says."""
    checkpoint = model.checkpoint
    raw = text_config(checkpoint.config, model.architecture) if checkpoint.config.left_out else checkpoint.config.raw
    config = {k: v for k, v in raw.items() if k not in ("quantization_config", "torch_dtype", "dtype")}
    config["torch_dtype" if "torch_dtype" in raw else "dtype"] = TORCH_NAMES[scheme]
    if model.same_head is False:
        # The folder has a head of its own, and a loader that believes the config would not read it.
        config["tie_word_embeddings"] = False
    if name is not None:
        config["_name_or_path"] = name
    elif checkpoint.gguf is not None:
        config["_name_or_path"] = model.name
    out = {"config.json": _json(config)}
    carried = [
        n
        for n in checkpoint.side
        if n in CARRIED or n.startswith("additional_chat_templates/") or MODULE_FILE.fullmatch(n)
    ]
    for name in carried:
        out[name] = checkpoint.side[name].read_bytes()
    if checkpoint.gguf is not None and model.vocab is not None:
        from llmfit_core.tokenizer.write import vocab_files

        out |= vocab_files(model.vocab)
        out |= pooling_files(checkpoint.pooling, model.integer("embedding_length"))
        out["generation_config.json"] = _json(_generation(model))
    return out


def _generation(model: Model) -> dict[str, object]:
    vocab = model.vocab
    assert vocab is not None
    out: dict[str, object] = {"_from_model_config": True}
    for key in ("bos", "pad"):
        if key in vocab.specials:
            out[f"{key}_token_id"] = vocab.specials[key]
    if vocab.stops:
        out["eos_token_id"] = list(vocab.stops) if len(vocab.stops) > 1 else vocab.stops[0]
    return out


def _json(value: Mapping[str, object]) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
