"""config.json made uniform: one spelling whatever version of transformers wrote it.

Both spellings of a fact may be present; if they contradict each other, nobody can know which one
the weights were trained with, and that is an error that names both keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from llmfit_core.errors import SourceError
from llmfit_core.events import Event
from llmfit_core.parts import TEXT_KEYS, left_out

MAX_CONFIG_BYTES = 32 << 20

_ROPE_KEYS = ("rope_scaling", "rope_parameters", "rope_theta", "rotary_emb_base", "partial_rotary_factor", "rotary_pct")
AMONG_ROPE = ("mrope_section", "mrope_interleaved", "llama_4_scaling_beta")
"""Keys that stand among those of rope and are no part of its frequencies; they become keys of their own."""
_MODEL_KEYS = (
    "hidden_size num_hidden_layers num_attention_heads num_key_value_heads head_dim intermediate_size hidden_act "
    "rms_norm_eps max_position_embeddings sliding_window"
).split()
"""What outer and text part may both state of the text model; a vocabulary may differ, by tokens of the other parts."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """A model's config.

    Attributes:
        raw: The file as it is.
        values: The text part with rope taken apart: `rope_theta`, `partial_rotary_factor` and the rest of
            rope under `rope_scaling` (empty for plain rope); `dtype` under its new name.
        architectures: Class names of the text part.
        outer_classes: Class names of the whole, where the text part is only a part of it.
        model_type: The text part's.
        prefix: Where the text part was found (`text_config`), empty for the top.
        left_out: Parts that are no text model (`vision_config`, `thinker_config.audio_config`).
        events: What was noticed.
    """

    raw: Mapping[str, object]
    values: Mapping[str, object]
    architectures: tuple[str, ...] = ()
    outer_classes: tuple[str, ...] = ()
    model_type: str = ""
    prefix: str = ""
    left_out: tuple[str, ...] = ()
    events: tuple[Event, ...] = field(default=())


def normalise(raw: Mapping[str, object]) -> Config:
    """The uniform form of a config.json.

    Raises:
        SourceError: `contradicting-config` naming both keys; `config-key-invalid`.
    """
    events: list[Event] = []
    values, prefix, outer, others = _text_part(raw)
    classes = _class_names(values, prefix)
    model_type = values.get("model_type") or ("" if prefix else raw.get("model_type")) or ""
    if not isinstance(model_type, str):
        raise SourceError("config-key-invalid", f"model_type in config.json is {model_type!r}, no text", _CORRECT)
    if prefix:
        events.append(
            Event(code="text-part", message=f"the text model of {prefix} is converted", severity="info", subject=prefix)
        )
        for part in reversed(outer):
            events += _compare_outer(part, values, prefix)
            for key in ("tie_word_embeddings", "quantization_config", "torch_dtype", "dtype", "eos_token_id"):
                if part.get(key) is not None and not (key in _DTYPES and set(_DTYPES) & set(values)):
                    values.setdefault(key, part[key])
            if part.get("tie_word_embeddings") is True:  # the head may be the whole's, who then knows better
                values["tie_word_embeddings"] = True
    for part in (*outer, values):
        eye = part.get("vision_config")
        if isinstance(eye, Mapping) and isinstance(eye.get("deepstack_visual_indexes"), list):
            values.setdefault("num_deepstack_layers", len(eye["deepstack_visual_indexes"]))
    events += [
        Event(code="part-left-out", message=f"{k} is left out: it is no text model", severity="info", subject=k)
        for k in others
    ]
    if raw.get("auto_map"):
        events.append(
            Event(
                code="remote-code-ignored",
                message="config.json asks for code from the model folder (auto_map); it is never run",
                severity="info",
                subject="auto_map",
            )
        )
    _same(values, "torch_dtype", "dtype")
    if "torch_dtype" in values:
        old = values.pop("torch_dtype")
        values["dtype"] = values["dtype"] if values.get("dtype") is not None else old
    _merge_rope(values)
    return Config(
        raw=raw,
        values=values,
        architectures=classes,
        outer_classes=_class_names(raw, "") if prefix else (),
        model_type=model_type,
        prefix=prefix,
        left_out=others,
        events=tuple(events),
    )


_DTYPES = ("torch_dtype", "dtype")
_CORRECT = "Correct config.json, as the model's authors published it."


def _class_names(values: Mapping[str, object], prefix: str) -> tuple[str, ...]:
    names = values.get("architectures")
    if names is None:
        return ()
    if isinstance(names, str):
        names = [names]
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        label = f"{prefix}.architectures" if prefix else "architectures"
        raise SourceError("config-key-invalid", f"{label} in config.json is {names!r:.80}, no list of class names", _CORRECT)
    return tuple(dict.fromkeys(n.strip() for n in names if n.strip()))


def _text_part(
    raw: Mapping[str, object],
) -> tuple[dict[str, object], str, list[Mapping[str, object]], tuple[str, ...]]:
    """The text part, where it was found, what lies around it (outermost first), and the other parts."""
    part: Mapping[str, object] = raw
    path: list[str] = []
    outer: list[Mapping[str, object]] = []
    others: list[str] = []
    while True:
        inner = [k for k in TEXT_KEYS if isinstance(part.get(k), Mapping) and part[k]]
        others += left_out(part, path, nested=bool(inner))
        if not inner:
            return dict(part), ".".join(path), outer, tuple(others)
        if any(part[k] != part[inner[0]] for k in inner):
            raise SourceError(
                "contradicting-config",
                f"config.json has two text parts: {inner[0]} and {inner[1]}",
                f"Remove the wrong one of {inner[0]} and {inner[1]}.",
            )
        path.append(inner[0])
        outer.append(part)
        part = part[inner[0]]  # type: ignore[assignment]


def _compare_outer(outer: Mapping[str, object], inner: Mapping[str, object], prefix: str) -> list[Event]:
    """Hold what is said around the text part against the text part; what only the outside says is not read."""
    rope_out, rope_in = ({k: v for k, v in part.items() if k in _ROPE_KEYS and v is not None} for part in (outer, inner))
    said = {k: v for k, v in outer.items() if k in _MODEL_KEYS and v is not None}
    if rope_out:
        _merge_rope(rope_out)
        _merge_rope(rope_in)
        said |= {k: v for k, v in rope_out.items() if v}
    events = []
    for key, value in said.items():
        own = rope_in.get(key) if key in rope_in else inner.get(key)
        if own in (None, {}):
            events.append(
                Event(
                    code="outside-text-part",
                    message=f"config.json states {key} outside {prefix}, which itself does not; it is not read there",
                    subject=key,
                )
            )
        elif own != value:
            contradiction(key, value, f"{prefix}.{key}", own)
    return events


def _same(values: Mapping[str, object], a: str, b: str) -> None:
    x, y = values.get(a), values.get(b)
    if x is not None and y is not None and str(x).removeprefix("torch.") != str(y).removeprefix("torch."):
        contradiction(a, x, b, y)


def contradiction(a: str, x: object, b: str, y: object) -> None:
    """Raise the error that names two config keys that cannot both be true."""
    raise SourceError(
        "contradicting-config",
        f"config.json contradicts itself: {a} is {x!r:.200}, {b} is {y!r:.200}",
        f"Remove the wrong one of {a} and {b}.",
    )


def _merge_rope(values: dict[str, object]) -> None:
    """Bring both spellings of rope to `rope_theta`, `partial_rotary_factor` and `rope_scaling`."""
    found: dict[str, tuple[str, object]] = {}
    # Text alone is plain rope to a rope whose dimensions are shared out among several positions.
    shared = any(
        isinstance(part, Mapping) and part.get("mrope_section") for part in map(values.get, ("rope_parameters", "rope_scaling"))
    )

    def put(name: str, label: str, value: object) -> None:
        if value is None:
            return
        if isinstance(value, Mapping) or (name == "rope_type" and not isinstance(value, str)):
            raise SourceError("config-key-invalid", f"{label} in config.json is {value!r:.80}", _CORRECT)
        if name == "rope_type":
            value = "longrope" if value == "su" else "default" if value == "mrope" and shared else value
        if name in found and found[name][1] != value:
            contradiction(found[name][0], found[name][1], label, value)
        found.setdefault(name, (label, value))

    for label in ("rope_parameters", "rope_scaling"):
        part = values.pop(label, None)
        if part is None:
            continue
        if not isinstance(part, Mapping):
            raise SourceError("config-key-invalid", f"{label} in config.json is {part!r:.80}, no object", _CORRECT)
        kinds = [v for v in part.values() if v is not None]
        if kinds and all(isinstance(v, Mapping) for v in kinds):
            # One rope for each kind of layer: the same for all is one rope too; else the architecture has to know.
            values["rope_by_layer_type"] = {k: v for k, v in part.items() if v is not None}
            if any(v != kinds[0] for v in kinds):
                continue
            part = kinds[0]
        for key, value in part.items():
            put({"type": "rope_type", "rotary_pct": "partial_rotary_factor"}.get(key, key), f"{label}.{key}", value)
    for key, name in (
        ("rope_theta", "rope_theta"),
        ("rotary_emb_base", "rope_theta"),
        ("partial_rotary_factor", "partial_rotary_factor"),
        ("rotary_pct", "partial_rotary_factor"),
        *zip(AMONG_ROPE, AMONG_ROPE, strict=True),
    ):
        put(name, key, values.pop(key, None))
    if found.get("rope_type", ("", "default"))[1] != "default":
        key = "original_max_position_embeddings"
        put(key, key, values.get(key))
    flat = {name: value for name, (_, value) in found.items()}
    for name in ("rope_theta", "partial_rotary_factor", *AMONG_ROPE):
        if name in flat:
            values[name] = flat.pop(name)
    if flat.get("rope_type") == "yarn" and flat.get("short_factor") and flat.get("long_factor"):
        flat["rope_type"] = "longrope"  # as early revisions of Phi-3 called it, and transformers still takes it
    values["rope_scaling"] = flat


def ropes_apart(
    config: Config, kinds: Mapping[str, str]
) -> tuple[Mapping[str, object], Mapping[str, str]]:
    """A config's values with the ropes of kinds of layers under flat keys, and the types of those that are not the model's.

    Args:
        config: Uniform.
        kinds: `Architecture.rope_kinds`; where it is empty, ropes that differ stay as they are.

    Raises:
        SourceError: `contradicting-config` where a flat key says otherwise; `config-key-invalid` for an unknown kind, or
            for `rope_parameters` without kinds, which a class that has kinds passes over.
    """
    values = config.values
    part: object = config.raw
    for key in filter(None, config.prefix.split(".")):
        part = part[key] if isinstance(part, Mapping) else {}
    stated = part.get("rope_parameters") if isinstance(part, Mapping) else None
    if kinds and isinstance(stated, Mapping) and not isinstance(values.get("rope_by_layer_type"), Mapping):
        flat_keys = [k for k, v in stated.items() if v not in (None, "default")]
        if flat_keys:
            message = f"rope_parameters in config.json has {flat_keys[0]} and no kinds of layers ({', '.join(kinds)})"
            raise SourceError("config-key-invalid", message, _CORRECT)
    ropes = values.get("rope_by_layer_type")
    if not isinstance(ropes, Mapping):
        return values, {}
    flat = {k: v for k, v in values.items() if k != "rope_by_layer_type"}
    shared = all(r == next(iter(ropes.values())) for r in ropes.values())
    if not kinds:
        return (flat if shared else values), {}
    if shared and not any(kinds.get(k) == "rope_theta" for k in ropes):  # taken for the model's, and is another kind's
        flat = {k: v for k, v in flat.items() if k not in _ROPE_KEYS}
    types = {}
    for kind, rope in ropes.items():
        if kind not in kinds:
            message = f"rope_parameters in config.json has {kind}, which is none of {', '.join(kinds)}"
            raise SourceError("config-key-invalid", message, _CORRECT)
        own: dict[str, object] = {"rope_parameters": rope}
        _merge_rope(own)
        scaling = own["rope_scaling"]
        assert isinstance(scaling, dict)
        base = kinds[kind]
        if base == "rope_theta":
            own["rope_scaling"] = scaling or flat.get("rope_scaling") or {}
        else:
            own = {base: own.get("rope_theta")}
            types[kind] = str(scaling.get("rope_type", "default"))
        for key, value in own.items():
            if value is not None and flat.get(key) not in (None, {}, value):
                contradiction(key, flat[key], f"rope_parameters.{kind}", value)
            if value is not None:
                flat[key] = value
    return flat, types
