"""Special tokens: which ids begin, end and pad a text, from every file that says so.

Names come from `tokenizer_config.json` and `special_tokens_map.json`, ids from
`generation_config.json` and `config.json`, and what encoding adds from `tokenizer.json`'s
post-processor. They often disagree; the order here is transformers': the tokenizer's own files
decide, the others fill what is missing, and every id that any source calls an end ends a text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from llmfit_core.events import Event
from llmfit_core.tokenizer.pretokenizer import flatten
from llmfit_core.tokenizer.sources import integer

ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")

EOT_TEXTS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<EOT>", "_<EOT>", "[EOT]", "<end_of_utterance>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>", "<|endoftext|>", "<|end_of_text|>",
)  # fmt: skip
"""Texts that llama.cpp takes for the end of a turn, the likelier first."""

END_TEXTS = frozenset(EOT_TEXTS) | {
    "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "</s>", "<|eom_id|>", "[EOS]", "<eos>", "<turn|>",
    "<|tool_response>", "[e~[",
}  # fmt: skip
"""Texts that end a generation in llama.cpp whatever the file says of them."""

BOS_BY_CLASS = frozenset(
    {
        "LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer", "CohereTokenizer", "BarthezTokenizer", "XGLMTokenizer",
        "InternLMTokenizer", "InternLM2Tokenizer", "BaichuanTokenizer",
    }
)  # fmt: skip
"""transformers' classes that put `bos` in front unless told otherwise (without a trailing `Fast`)."""

EOS_BY_CLASS = frozenset({"T5Tokenizer", "MT5Tokenizer", "UMT5Tokenizer"})
"""transformers' classes that put `eos` behind unless told otherwise."""


@dataclass(frozen=True, kw_only=True)
class Template:
    """What a post-processor puts around a text: ids in front and behind; and between two texts."""

    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    between: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Specials:
    """The outcome of all sources; see `Vocab` for the meaning of the fields."""

    ids: Mapping[str, int]
    stops: tuple[int, ...]
    add_bos: bool
    add_eos: bool
    add_sep: bool | None
    events: tuple[Event, ...]


@dataclass
class _Found:
    ids: dict[str, int] = field(default_factory=dict)
    ends: list[int] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)


def named_tokens(*configs: Mapping[str, object]) -> dict[str, str]:
    """Texts by role from tokenizer configs, the first that names a role winning."""
    names: dict[str, str] = {}
    for config in configs:
        for role in ROLES:
            value = config.get(f"{role}_token")
            if isinstance(value, Mapping):
                value = value.get("content")
            if isinstance(value, str) and value:
                names.setdefault(role, value)
    return names


def template_of(post_processor: object, ids: Mapping[str, int]) -> Template | None:
    """What a `tokenizer.json`'s post-processor adds, `None` where it has none that adds tokens by rule."""
    found: Template | None = None
    for part in flatten(post_processor, "processors"):
        if part["type"] == "TemplateProcessing":
            found = _from_template(part, ids)
        elif part["type"] in ("RobertaProcessing", "BertProcessing"):
            cls, sep = _pair_id(part.get("cls"), ids), _pair_id(part.get("sep"), ids)
            found = Template(prefix=cls, suffix=sep, between=sep if part["type"] == "BertProcessing" else (*sep, *sep))
    return found


def _pair_id(pair: object, ids: Mapping[str, int]) -> tuple[int, ...]:
    if (
        isinstance(pair, Sequence)
        and not isinstance(pair, str)
        and pair
        and isinstance(pair[0], str)
        and pair[0] in ids
    ):
        return (ids[pair[0]],)
    return ()


def _from_template(part: Mapping[str, object], ids: Mapping[str, int]) -> Template:
    single, pair = _stretches(part, "single", ids), _stretches(part, "pair", ids)
    return Template(
        prefix=single[0], suffix=single[1] if len(single) > 1 else (), between=pair[1] if len(pair) > 2 else ()
    )


def _stretches(part: Mapping[str, object], name: str, ids: Mapping[str, int]) -> list[tuple[int, ...]]:
    """The ids before, between and behind the texts of a template."""
    items = part.get(name)
    tokens = part.get("special_tokens")
    tokens = tokens if isinstance(tokens, Mapping) else {}
    out: list[tuple[int, ...]] = []
    into: list[int] = []
    for item in items if isinstance(items, list) else []:
        if not isinstance(item, Mapping):
            continue
        if "Sequence" in item:
            out.append(tuple(into))
            into = []
        special = item.get("SpecialToken")
        token = special.get("id") if isinstance(special, Mapping) else None
        if isinstance(token, str):
            entry = tokens.get(token)
            listed = entry.get("ids") if isinstance(entry, Mapping) else None
            given = [i for i in map(integer, listed if isinstance(listed, list) else []) if i is not None]
            into.extend(given or ([ids[token]] if token in ids else []))
    return [*out, tuple(into)]


def gather(
    *,
    tokens: Sequence[str],
    ids: Mapping[str, int],
    names: Mapping[str, str],
    defaults: Mapping[str, int],
    tokenizer_config: Mapping[str, object],
    generation: Mapping[str, object],
    config: Mapping[str, object],
    default_class: str = "",
    template: Template | None = None,
    has_post_processor: bool = False,
) -> Specials:
    """Unite all sources.

    Args:
        tokens: Texts by id.
        ids: Ids by text.
        names: Texts by role, from `named_tokens`.
        defaults: Ids by role that the vocabulary's own file gives (`tokenizer.model`), the weakest source.
        tokenizer_config: For `add_bos_token`, `add_eos_token` and `tokenizer_class`.
        generation: `generation_config.json`.
        config: `config.json`.
        default_class: The tokenizer class to assume where `tokenizer_config.json` names none.
        template: From `template_of`.
        has_post_processor: Whether `tokenizer.json` has any post-processor.
    """
    found = _Found()
    for role in ROLES:
        name = names.get(role)
        if name is None:
            continue
        if name in ids:
            found.ids[role] = ids[name]
        else:
            found.events.append(
                Event(
                    code="special-token-missing",
                    message=f"{role}_token {ascii(name)[:60]} is no token of the vocabulary; left out",
                    severity="info" if role in ("pad", "unk", "mask") else "warning",
                    subject="tokenizer_config.json",
                )
            )
    if "eos" in found.ids:
        found.ends.append(found.ids["eos"])
    for where, source in (("config.json", config), ("generation_config.json", generation)):
        for role in ROLES:
            for token in _valid(source.get(f"{role}_token_id"), role, where, len(tokens), found):
                found.ids.setdefault(role, token)
                if role == "eos":
                    found.ends.append(token)
    for role, token in defaults.items():
        if 0 <= token < len(tokens):
            found.ids.setdefault(role, token)
            if role == "eos" and not found.ends:
                found.ends.append(token)
    add_bos, add_eos = _additions(found, tokens, tokenizer_config, default_class, template, has_post_processor)
    if "eos" in found.ids:
        found.ends.insert(0, found.ids["eos"])
    cls, sep = found.ids.pop("cls", None), found.ids.get("sep")
    if cls is not None:
        found.ids.setdefault("bos", cls)
    if sep is not None and "eos" not in found.ids:
        found.ids["eos"] = sep
        found.ends.append(sep)
    stops = tuple(dict.fromkeys(found.ends))
    _assign_ends(found, stops, tokens)
    if not stops:
        found.events.append(
            Event(
                code="no-eos",
                message="no file says which token ends a text; generation ends only at its limit",
                subject="eos_token",
            )
        )
    order = ("bos", "eos", "eot", "eom", "unk", "sep", "pad", "mask")
    return Specials(
        ids={r: found.ids[r] for r in order if r in found.ids},
        stops=stops,
        add_bos=add_bos and "bos" in found.ids,
        add_eos=add_eos and "eos" in found.ids,
        add_sep=_separated(found.ids, add_eos, template),
        events=tuple(found.events),
    )


def _separated(ids: Mapping[str, int], add_eos: bool, template: Template | None) -> bool | None:
    """Whether `sep` stands between two texts, besides an `eos` that each has behind it."""
    if template is None or "sep" not in ids:
        return None
    end = (ids["eos"],) if add_eos and "eos" in ids else ()
    return {end: False, (*end, ids["sep"]): True}.get(template.between) if template.between else None


def _valid(value: object, role: str, where: str, size: int, found: _Found) -> list[int]:
    out: list[int] = []
    for item in value if isinstance(value, list) else [value]:
        token = integer(item)
        if token is not None and 0 <= token < size:
            out.append(token)
        elif item is not None and not (token == -1):
            found.events.append(
                Event(
                    code="special-token-range",
                    message=f"{where}: {role}_token_id {ascii(item)[:40]} is no id of the {size} tokens; left out",
                    severity="warning" if role in ("bos", "eos") else "info",
                    subject=f"{role}_token_id",
                )
            )
    return out


def _additions(
    found: _Found,
    tokens: Sequence[str],
    config: Mapping[str, object],
    default_class: str,
    template: Template | None,
    has_post_processor: bool,
) -> tuple[bool, bool]:
    """Whether encoding adds `bos` and `eos`; the post-processor decides where there is one."""
    asked = {r: v if isinstance(v := config.get(f"add_{r}_token"), bool) else None for r in ("bos", "eos")}
    kind = str(config.get("tokenizer_class") or default_class).removesuffix("Fast")
    by_class = kind in BOS_BY_CLASS
    if template is None:
        if has_post_processor and not by_class:
            asked = {r: _refuse_addition(found, r, v) for r, v in asked.items()}
        bos, eos = asked["bos"], asked["eos"]
        return by_class if bos is None else bos, kind in EOS_BY_CLASS if eos is None else eos
    added: dict[str, bool] = {}
    for role, given, place in (("bos", template.prefix, "in front"), ("eos", template.suffix, "behind")):
        given = tuple(t for t in given if 0 <= t < len(tokens))
        added[role] = len(given) == 1
        if len(given) > 1:
            found.events.append(
                Event(
                    code="post-processor",
                    message=f"encoding puts {len(given)} tokens {place} ({', '.join(tokens[t] for t in given[:4])}); llama.cpp adds "
                    "one at most, so none is added: put them into the prompt",
                    subject="tokenizer.json",
                )
            )
        elif given and found.ids.get(role) != given[0]:
            if role in found.ids:
                found.events.append(
                    Event(
                        code="special-tokens-disagree",
                        message=f"{role}_token is {tokens[found.ids[role]]}, but encoding puts {tokens[given[0]]} {place}; the latter is taken",
                        subject="tokenizer.json",
                    )
                )
            found.ids[role] = given[0]
        if asked[role] is not None and asked[role] != added[role] and len(given) < 2:
            found.events.append(
                Event(
                    code="special-tokens-disagree",
                    message=f"tokenizer_config.json says add_{role}_token {str(asked[role]).lower()}, tokenizer.json's post-processor "
                    f"{'adds it' if added[role] else 'does not add it'}; the latter is taken",
                    severity="info",
                    subject=f"add_{role}_token",
                )
            )
    return added["bos"], added["eos"]


def _refuse_addition(found: _Found, role: str, asked: bool | None) -> bool | None:
    if asked:
        found.events.append(
            Event(
                code="special-tokens-disagree",
                message=f"tokenizer_config.json says add_{role}_token true, tokenizer.json's post-processor does not add it; the latter is taken",
                severity="info",
                subject=f"add_{role}_token",
            )
        )
        return False
    return asked


def _assign_ends(found: _Found, stops: Sequence[int], tokens: Sequence[str]) -> None:
    """Give the stops beside `eos` to `eot` and `eom`, those first that llama.cpp would not know by their text."""
    eos = found.ids.get("eos")
    rest = [s for s in stops if s != eos]
    named = sorted((s for s in rest if tokens[s] in EOT_TEXTS), key=lambda s: EOT_TEXTS.index(tokens[s]))
    unknown = [s for s in rest if tokens[s] not in END_TEXTS]
    queue = unknown if len(unknown) > 1 or not named else [named[0], *unknown]
    queue = queue or rest[:1]
    for role, token in zip(("eot", "eom"), queue, strict=False):
        found.ids.setdefault(role, token)
    carried = {eos, *found.ids.values()}
    lost = [s for s in unknown if s not in carried]
    if lost:
        found.events.append(
            Event(
                code="stops-not-carried",
                message=f"GGUF has room for eos, eot and eom: {', '.join(ascii(tokens[s]) for s in lost[:4])} ends a text too and has to "
                "be given to the runtime as a stop",
                subject="eos_token_id",
            )
        )
