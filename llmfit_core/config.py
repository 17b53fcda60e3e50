"""config.json made uniform: one spelling whatever version of transformers wrote it.

Both spellings of a fact may be present; if they contradict each other, nobody can know which one
the weights were trained with, and that is an error that names both keys.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from llmfit_core.errors import SourceError
from llmfit_core.events import Event

TEXT_KEYS = ("text_config", "llm_config", "language_config", "thinker_config", "language_model_config")
OTHER_PARTS = ("vision_config", "audio_config", "visual", "vision_tower_config", "talker_config", "speech_config")
MAX_CONFIG_BYTES = 32 << 20

_ROPE_KEYS = ("rope_scaling", "rope_parameters", "rope_theta", "rotary_emb_base", "partial_rotary_factor", "rotary_pct")


@dataclass(frozen=True, kw_only=True)
class Config:
    """A model's config.

    Attributes:
        raw: The file as it is.
        values: The text part with rope taken apart: `rope_theta`, `partial_rotary_factor` and the rest of
            rope under `rope_scaling` (empty for plain rope); `dtype` under its new name.
        architectures: Class names, most specific first.
        model_type: The text part's.
        prefix: Where the text part was found (`text_config`), empty for the top.
        left_out: Parts that are no text model (`vision_config`).
        events: What was noticed.
    """

    raw: Mapping[str, object]
    values: Mapping[str, object]
    architectures: tuple[str, ...] = ()
    model_type: str = ""
    prefix: str = ""
    left_out: tuple[str, ...] = ()
    events: tuple[Event, ...] = field(default=())


def read_json(path: Path, what: str) -> dict[str, object]:
    """A JSON object from a file of a model folder; `SourceError` names the file and what is wrong."""
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise SourceError("json-too-large", f"{path} has over 32 MiB", f"This is no {what}; fetch it again.")
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise SourceError("missing-file", f"{path} is not there", f"Fetch the {what} too.") from None
    except UnicodeDecodeError:
        raise SourceError("not-json", f"{path} is not UTF-8 text", "Fetch it again; it is damaged.") from None
    except OSError as error:
        raise SourceError("unreadable", f"{path}: {error.strerror}", "Check its permissions.") from None
    return parse_json(text, str(path))


def parse_json(text: str, label: str) -> dict[str, object]:
    """Text as a JSON object, or `SourceError` that knows git-lfs pointers and web pages by sight."""
    if text.startswith("version https://git-lfs"):
        raise SourceError("git-lfs-pointer", f"{label} is a git-lfs pointer, not the file", "Run `git lfs pull` there.")
    if text.lstrip()[:1] == "<":
        raise SourceError("html-page", f"{label} is a web page, not JSON", "Fetch the raw file; you may need to log in.")
    try:
        value = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        at = f" at line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise SourceError("not-json", f"{label} is not valid JSON{at}", "Fetch it again or mend it.") from None
    if not isinstance(value, dict):
        raise SourceError("not-json", f"{label} holds no JSON object", "Fetch it again or mend it.")
    return value


def normalise(raw: Mapping[str, object]) -> Config:
    """The uniform form of a config.json.

    Raises:
        SourceError: `contradicting-config` naming both keys.
    """
    events: list[Event] = []
    values, prefix = _text_part(raw)
    left_out = tuple(k for k in OTHER_PARTS if isinstance(raw.get(k), Mapping))
    architectures = _class_names(raw) or _class_names(values)
    if prefix and _class_names(values):
        architectures = (*_class_names(values), *[a for a in architectures if a not in _class_names(values)])
    model_type = values.get("model_type") or raw.get("model_type") or ""
    if prefix:
        events.append(
            Event(code="text-part", message=f"the text model of {prefix} is converted", severity="info", subject=prefix)
        )
        for key in ("tie_word_embeddings", "quantization_config", "torch_dtype", "dtype", "eos_token_id"):
            if key not in values and key in raw:
                values[key] = raw[key]
    events += [
        Event(code="part-left-out", message=f"{k} is left out: it is no text model", severity="info", subject=k)
        for k in left_out
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
        values.setdefault("dtype", values.pop("torch_dtype"))
        values.pop("torch_dtype", None)
    _merge_rope(values)
    return Config(
        raw=raw,
        values=values,
        architectures=architectures,
        model_type=str(model_type),
        prefix=prefix,
        left_out=left_out,
        events=tuple(events),
    )


def _class_names(values: Mapping[str, object]) -> tuple[str, ...]:
    names = values.get("architectures")
    if isinstance(names, str):
        return (names,)
    return tuple(n for n in names if isinstance(n, str)) if isinstance(names, list) else ()


def _text_part(raw: Mapping[str, object]) -> tuple[dict[str, object], str]:
    part: Mapping[str, object] = raw
    path = []
    for _ in range(4):
        inner = next((k for k in TEXT_KEYS if isinstance(part.get(k), Mapping) and part[k]), None)
        if inner is None:
            break
        path.append(inner)
        part = part[inner]  # type: ignore[assignment]
    return dict(part), ".".join(path)


def _same(values: Mapping[str, object], a: str, b: str) -> None:
    x, y = values.get(a), values.get(b)
    if x is not None and y is not None and str(x).removeprefix("torch.") != str(y).removeprefix("torch."):
        contradiction(a, x, b, y)


def contradiction(a: str, x: object, b: str, y: object) -> None:
    """Raise the error that names two config keys that cannot both be true."""
    raise SourceError(
        "contradicting-config",
        f"config.json contradicts itself: {a} is {x!r}, {b} is {y!r}",
        f"Remove the wrong one of {a} and {b}.",
    )


def _merge_rope(values: dict[str, object]) -> None:
    """Bring both spellings of rope to `rope_theta`, `partial_rotary_factor` and `rope_scaling`."""
    new = values.pop("rope_parameters", None)
    old = values.pop("rope_scaling", None)
    for key, part in (("rope_parameters", new), ("rope_scaling", old)):
        if part is not None and not isinstance(part, Mapping):
            raise SourceError("config-key-invalid", f"{key} in config.json is no object", "Correct or remove it.")
    found: dict[str, tuple[str, object]] = {}

    def put(name: str, label: str, value: object) -> None:
        if value is None:
            return
        if name in found and found[name][1] != value:
            contradiction(found[name][0], found[name][1], label, value)
        found.setdefault(name, (label, value))

    nested = isinstance(new, Mapping) and bool(new) and all(isinstance(v, Mapping) or v is None for v in new.values())
    if nested:
        # One rope for each kind of layer (Gemma 3): the architecture that knows them reads this itself.
        values["rope_by_layer_type"] = {k: dict(v) for k, v in new.items() if v}  # type: ignore[union-attr]
    for label, part in (("rope_parameters", None if nested else new), ("rope_scaling", old)):
        if not isinstance(part, Mapping):
            continue
        kinds = {k: part[k] for k in ("rope_type", "type") if part.get(k) is not None}
        if len(set(kinds.values())) > 1:
            contradiction(f"{label}.rope_type", kinds["rope_type"], f"{label}.type", kinds["type"])
        for key, value in part.items():
            name = {"type": "rope_type", "rotary_pct": "partial_rotary_factor"}.get(key, key)
            put(name, f"{label}.{key}", "longrope" if name == "rope_type" and value == "su" else value)
    if isinstance(new, Mapping) and not nested and isinstance(old, Mapping):
        a = new.get("rope_type", new.get("type", "default"))
        b = old.get("rope_type", old.get("type", "default"))
        if a != b and {a, b} != {"su", "longrope"}:
            contradiction("rope_parameters.rope_type", a, "rope_scaling.rope_type", b)
    for key, name in (
        ("rope_theta", "rope_theta"),
        ("rotary_emb_base", "rope_theta"),
        ("partial_rotary_factor", "partial_rotary_factor"),
        ("rotary_pct", "partial_rotary_factor"),
    ):
        put(name, key, values.pop(key, None))
    flat = {name: value for name, (_, value) in found.items()}
    for name in ("rope_theta", "partial_rotary_factor"):
        if name in flat:
            values[name] = flat.pop(name)
    values["rope_scaling"] = flat
