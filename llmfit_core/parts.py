"""Models of several parts: where the text model is told and stored, and what beside it is none.

All of it is data. A class of several parts that nobody here has compared is converted too, where its text part is of a
known type and every tensor is the text model's or plainly another part's; that is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from llmfit_core.errors import UnsupportedError
from llmfit_core.events import Event

if TYPE_CHECKING:
    from llmfit_core.architecture import Architecture
    from llmfit_core.config import Config

TEXT_KEYS = ("text_config", "llm_config", "language_config", "thinker_config", "language_model_config")
"""Under these keys a config tells of its text part, or of a whole that has one."""

OTHER_PARTS = (
    "vision_config",
    "audio_config",
    "visual",
    "vision_tower_config",
    "talker_config",
    "speech_config",
    "code2wav_config",
    "token2wav_config",
    "img_processor",
)
"""Under these keys a config tells of parts that are no text model."""

_NO_PARTS = ("quantization_config", "compression_config", "generation_config")
_AROUND = ("model", "thinker", "base_model", "module", "_orig_mod")
_HEADS = frozenset(
    "visual multi_modal_projector mm_projector talker token2wav code2wav embed_vision embed_audio image_newline connector "
    "mlp1 aligner resampler vpm apm tts img_processor".split()
)
_BEGINNINGS = ("vision_", "visual_", "audio_", "speech_", "image_")

COMPARED = frozenset(
    """
    LlavaForConditionalGeneration LlavaNextForConditionalGeneration LlavaOnevisionForConditionalGeneration
    Mistral3ForConditionalGeneration Gemma3ForConditionalGeneration Qwen2VLForConditionalGeneration
    Qwen2_5_VLForConditionalGeneration Qwen3VLForConditionalGeneration Qwen3VLMoeForConditionalGeneration
    InternVLForConditionalGeneration InternVLChatModel Idefics3ForConditionalGeneration SmolVLMForConditionalGeneration
    Qwen2AudioForConditionalGeneration VoxtralForConditionalGeneration Qwen2_5OmniModel
    Qwen2_5OmniForConditionalGeneration Qwen2_5OmniThinkerForConditionalGeneration Qwen3OmniMoeForConditionalGeneration
    Qwen3OmniMoeThinkerForConditionalGeneration LightOnOcrForConditionalGeneration LightOnOCRForConditionalGeneration
    GraniteSpeechForConditionalGeneration Qwen3_5ForConditionalGeneration
    Qwen3_5MoeForConditionalGeneration
    """.split()
)
"""Classes of several parts whose text part, given text alone, computes what its own class would."""

_PREFIX = "its prompt attends to itself in both directions, which no graph of its text model does"
DIFFERENT: Mapping[str, str] = {
    "PaliGemmaForConditionalGeneration": _PREFIX,
    "paligemma": _PREFIX,
}
"""By class or model type, why the text part alone is not what the whole computes of a text."""


def left_out(part: Mapping[str, object], path: Iterable[str], *, nested: bool) -> list[str]:
    """The keys of `part` that tell of no text model; around a nested text part every other `.._config` does."""
    found = [k for k in OTHER_PARTS if isinstance(part.get(k), Mapping)]
    if nested:
        own = (*TEXT_KEYS, *_NO_PARTS, *found)
        found += [k for k, v in part.items() if k.endswith("_config") and k not in own and isinstance(v, Mapping)]
    return [".".join([*path, k]) for k in found]


def part_of(name: str, parts: Iterable[str]) -> str:
    """Which part other than the text model a tensor belongs to (`vision_tower`); empty where none is known.

    Args:
        name: Of the tensor, in the source.
        parts: `Config.left_out`: a part `encoder_config` owns what is stored under `encoder` or `encoder_..`.
    """
    head = next((p for p in name.split(".") if p not in _AROUND), "")
    stems = [k.rpartition(".")[2].removesuffix("_config") for k in parts]
    if head in _HEADS or head.startswith(_BEGINNINGS) or any(head == s or head.startswith(f"{s}_") for s in stems):
        return head
    return ""


def require_same_text(classes: Iterable[str], model_type: object, label: str) -> None:
    """Refuse a whole whose text part by itself is another model.

    Raises:
        UnsupportedError: `text-part-differs`.
    """
    for name in (*classes, model_type):
        if isinstance(name, str) and name in DIFFERENT:
            raise UnsupportedError(
                "text-part-differs",
                f"{label} is a {name}: {DIFFERENT[name]}",
                "Run it in transformers; its text part alone would answer otherwise.",
            )


def uncompared(classes: Iterable[str], known: Iterable[str], prefix: str) -> tuple[Event, ...]:
    """What is told of a whole that nobody here has compared with its text part."""
    names = [c for c in classes if c not in known and c not in COMPARED]
    if not names or len(names) < len(list(classes)):
        return ()
    message = (
        f"{names[0]} is not known here: its {prefix} is converted as the text model it names, "
        "which is right unless the class does more with texts"
    )
    return (Event(code="whole-class-unknown", message=message, severity="info", subject="architectures"),)


def told_left_out(tensors: Mapping[str, tuple[str, int]]) -> tuple[Event, ...]:
    """What stays behind, counted.

    Args:
        tensors: By name, the part (see `part_of`) and the bytes.
    """
    sums: dict[str, tuple[int, int]] = {}
    for part, size in tensors.values():
        count, total = sums.get(part, (0, 0))
        sums[part] = (count + 1, total + size)
    if not sums:
        return ()
    listed = ", ".join(f"{p} ({c} tensor{'s' * (c != 1)}, {s:,} bytes)" for p, (c, s) in sorted(sums.items()))
    message = f"left out, since they are no part of the text model: {listed}"
    return (Event(code="tensors-left-out", message=message, severity="info", subject=", ".join(sorted(sums))),)


def says_untied(config: Config) -> bool:
    """Whether the text part or what lies around it says that the head is no copy, whatever the other says."""
    part: Mapping[str, object] = config.raw
    stated = [part.get("tie_word_embeddings")]
    for key in filter(None, config.prefix.split(".")):
        part = part[key]  # type: ignore[assignment]
        stated.append(part.get("tie_word_embeddings"))
    return False in stated


def text_config(config: Config, architecture: Architecture) -> dict[str, object]:
    """The config.json of the text part by itself, as the class that computes it."""
    part: Mapping[str, object] = config.raw
    for key in filter(None, config.prefix.split(".")):
        part = part[key]  # type: ignore[assignment]
    others = {k.rpartition(".")[2] for k in config.left_out} if not config.prefix else set()
    # The values that the part's own class assumes are no other class's.
    out = dict(architecture.part_defaults.get(config.model_type, {})) | {k: v for k, v in part.items() if k not in others}
    for key in ("tie_word_embeddings", "eos_token_id", "num_deepstack_layers"):
        if config.values.get(key) is not None:
            out[key] = config.values[key]
    for key in ("rope_scaling", "rope_parameters"):
        rope = out.get(key)
        if isinstance(rope, Mapping):  # "mrope" is no type of rope to a text model
            plain = {k: "default" if k in ("type", "rope_type") and v == "mrope" else v for k, v in rope.items()}
            out[key] = plain
    out["architectures"] = [architecture.hf_classes[0]]
    if architecture.model_types:
        out["model_type"] = architecture.model_types[0]
    return out
