"""Tiny models that see or hear, from transformers' own classes: the judges of what is made of their text parts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.golden_models import SMALL

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from tests.golden_models import GoldenModels

EYE = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28, "patch_size": 14}
CLIP = {"model_type": "clip_vision_model", **EYE, "projection_dim": 32}
SIGLIP = {"model_type": "siglip_vision_model", **EYE}
PIXTRAL = {"model_type": "pixtral", **EYE, "head_dim": 16}
WHISPER = {
    "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 32, "d_model": 32, "num_mel_bins": 16,
    "max_source_positions": 16,
}  # fmt: skip
QWEN_EYE = {"depth": 2, "num_heads": 2, "in_channels": 3, "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}


def mrope(*sections: int, **more: Any) -> dict[str, Any]:
    """A rope whose pairs are shared out among time, height and width."""
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": list(sections), **more}}


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How a small model of a class is made.

    Attributes:
        cls: transformers' class.
        config: Its config class.
        text: What its text model has besides `SMALL`.
        parts: The other arguments of the config class; `{width}` is the text model's width.
        key: The text part's argument; empty for a text model.
        tokenizer: Of `tests/golden/tok`.
    """

    cls: str
    config: str
    text: Mapping[str, Any] = field(default_factory=dict)
    parts: Mapping[str, Any] = field(default_factory=dict)
    key: str = "text_config"
    tokenizer: str = "bpe:qwen2"


KINDS: Mapping[str, Kind] = {
    "llava": Kind(
        cls="LlavaForConditionalGeneration", config="LlavaConfig", text={"model_type": "llama"},
        parts={"vision_config": CLIP, "image_token_index": 3}, tokenizer="spm",
    ),
    "llava-mistral": Kind(
        cls="LlavaForConditionalGeneration", config="LlavaConfig",
        text={"model_type": "mistral", "head_dim": 48, "sliding_window": None},
        parts={"vision_config": PIXTRAL, "image_token_index": 3}, tokenizer="spm",
    ),
    "llava-qwen2": Kind(
        cls="LlavaForConditionalGeneration", config="LlavaConfig", text={"model_type": "qwen2"},
        parts={"vision_config": SIGLIP, "image_token_index": 3},
    ),
    "llava-next": Kind(
        cls="LlavaNextForConditionalGeneration", config="LlavaNextConfig", text={"model_type": "mistral", "sliding_window": None},
        parts={"vision_config": CLIP, "image_token_index": 3}, tokenizer="spm",
    ),
    "llava-onevision": Kind(
        cls="LlavaOnevisionForConditionalGeneration", config="LlavaOnevisionConfig", text={"model_type": "qwen2"},
        parts={"vision_config": SIGLIP, "image_token_index": 3, "video_token_index": 4},
    ),
    "mistral3": Kind(
        cls="Mistral3ForConditionalGeneration", config="Mistral3Config",
        text={"model_type": "mistral", "sliding_window": None, "head_dim": 48},
        parts={"vision_config": PIXTRAL, "image_token_index": 3}, tokenizer="spm",
    ),
    "ministral3": Kind(
        cls="Mistral3ForConditionalGeneration", config="Mistral3Config",
        text={"model_type": "ministral3", "sliding_window": None, "head_dim": 48, "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 16,
            "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}},
        parts={"vision_config": PIXTRAL, "image_token_index": 3}, tokenizer="spm",
    ),
    "gemma3": Kind(
        cls="Gemma3ForConditionalGeneration", config="Gemma3Config",
        text={"model_type": "gemma3_text", "head_dim": 32, "sliding_window": 16, "query_pre_attn_scalar": 32,
              "layer_types": ["sliding_attention", "full_attention"]},
        parts={"vision_config": SIGLIP, "image_token_index": 3, "mm_tokens_per_image": 4}, tokenizer="spm",
    ),
    "paligemma": Kind(
        cls="PaliGemmaForConditionalGeneration", config="PaliGemmaConfig", text={"model_type": "gemma", "head_dim": 32},
        parts={"vision_config": SIGLIP, "image_token_index": 3, "projection_dim": 128, "hidden_size": 128}, tokenizer="spm",
    ),
    "qwen2vl": Kind(
        cls="Qwen2VLForConditionalGeneration", config="Qwen2VLConfig", text={"model_type": "qwen2_vl_text", **mrope(4, 6, 6)},
        parts={"vision_config": {**QWEN_EYE, "embed_dim": 32, "hidden_size": 128, "mlp_ratio": 1}, "image_token_id": 3,
               "video_token_id": 4, "vision_start_token_id": 5, "vision_end_token_id": 6},
    ),
    "qwen2.5vl": Kind(
        cls="Qwen2_5_VLForConditionalGeneration", config="Qwen2_5_VLConfig",
        text={"model_type": "qwen2_5_vl_text", "num_attention_heads": 4, **mrope(4, 6, 6)},
        parts={"vision_config": {**QWEN_EYE, "hidden_size": 32, "intermediate_size": 32, "out_hidden_size": 128,
                                 "window_size": 28, "fullatt_block_indexes": [1]}, "image_token_id": 3, "video_token_id": 4,
               "vision_start_token_id": 5, "vision_end_token_id": 6},
    ),
    "qwen3vl": Kind(
        cls="Qwen3VLForConditionalGeneration", config="Qwen3VLConfig",
        text={"model_type": "qwen3_vl_text", "head_dim": 64, **mrope(12, 10, 10, mrope_interleaved=True)},
        parts={"vision_config": {**QWEN_EYE, "hidden_size": 32, "intermediate_size": 32, "out_hidden_size": 128,
                                 "deepstack_visual_indexes": [0], "num_position_embeddings": 16}, "image_token_id": 3,
               "video_token_id": 4, "vision_start_token_id": 5, "vision_end_token_id": 6},
    ),
    "qwen3vlmoe": Kind(
        cls="Qwen3VLMoeForConditionalGeneration", config="Qwen3VLMoeConfig",
        text={"model_type": "qwen3_vl_moe_text", "head_dim": 64, **EXPERTS, **mrope(12, 10, 10, mrope_interleaved=True)},
        parts={"vision_config": {**QWEN_EYE, "hidden_size": 32, "intermediate_size": 32, "out_hidden_size": 128,
                                 "deepstack_visual_indexes": [0], "num_position_embeddings": 16}, "image_token_id": 3,
               "video_token_id": 4, "vision_start_token_id": 5, "vision_end_token_id": 6},
    ),
    "internvl": Kind(
        cls="InternVLForConditionalGeneration", config="InternVLConfig", text={"model_type": "qwen2"},
        parts={"vision_config": {**EYE, "image_size": [28, 28], "patch_size": [14, 14]}, "image_token_id": 3},
    ),
    "idefics3": Kind(
        cls="Idefics3ForConditionalGeneration", config="Idefics3Config", text={"model_type": "llama"},
        parts={"vision_config": EYE, "image_token_id": 3, "scale_factor": 2}, tokenizer="spm",
    ),
    "smolvlm": Kind(
        cls="SmolVLMForConditionalGeneration", config="SmolVLMConfig", text={"model_type": "llama"},
        parts={"vision_config": EYE, "image_token_id": 3, "scale_factor": 2},
    ),
    "qwen2audio": Kind(
        cls="Qwen2AudioForConditionalGeneration", config="Qwen2AudioConfig", text={"model_type": "qwen2"},
        parts={"audio_config": {"model_type": "qwen2_audio_encoder", **WHISPER}, "audio_token_index": 3},
    ),
    "voxtral": Kind(
        cls="VoxtralForConditionalGeneration", config="VoxtralConfig", text={"model_type": "llama", "head_dim": 48},
        parts={"audio_config": {"model_type": "voxtral_encoder", "hidden_size": 32, "intermediate_size": 128,
                                "num_hidden_layers": 1, "num_attention_heads": 2, "num_mel_bins": 16,
                                "max_source_positions": 16}, "audio_token_id": 3}, tokenizer="spm",
    ),
    "qwen2.5omni": Kind(
        cls="Qwen2_5OmniThinkerForConditionalGeneration", config="Qwen2_5OmniThinkerConfig",
        text={"model_type": "qwen2_5_omni_text", **mrope(4, 6, 6)},
        parts={"vision_config": {**QWEN_EYE, "hidden_size": 32, "intermediate_size": 32, "out_hidden_size": 128,
                                 "window_size": 28, "fullatt_block_indexes": [1]},
               "audio_config": {**WHISPER, "output_dim": 128}},
    ),
    "qwen3omni": Kind(
        cls="Qwen3OmniMoeThinkerForConditionalGeneration", config="Qwen3OmniMoeThinkerConfig",
        text={"model_type": "qwen3_omni_moe_text", "head_dim": 64, **EXPERTS, **mrope(12, 10, 10, mrope_interleaved=True)},
        parts={"vision_config": {**QWEN_EYE, "hidden_size": 32, "intermediate_size": 32, "out_hidden_size": 128,
                                 "deepstack_visual_indexes": [0], "num_position_embeddings": 16},
               "audio_config": {**WHISPER, "output_dim": 128, "downsample_hidden_size": 16}},
    ),
    "glm4v": Kind(
        cls="Glm4vForConditionalGeneration", config="Glm4vConfig",
        text={"model_type": "glm4v_text", **mrope(2, 3, 3, partial_rotary_factor=0.5)},
        parts={"vision_config": {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 32, "out_hidden_size": 128,
                                 "image_size": 28, "patch_size": 14}, "image_token_id": 3, "video_token_id": 4},
    ),
    "granite-speech": Kind(
        cls="GraniteSpeechForConditionalGeneration", config="GraniteSpeechConfig", text={"model_type": "granite"},
        parts={"encoder_config": {"hidden_dim": 32, "num_layers": 1, "num_heads": 2, "dim_head": 16, "input_dim": 16, "output_dim": 8},
               "projector_config": {"model_type": "blip_2_qformer", "hidden_size": 32, "intermediate_size": 32,
                                    "num_hidden_layers": 1, "num_attention_heads": 2, "encoder_hidden_size": 32},
               "audio_token_index": 3, "has_lora_adapter": False},
    ),
    "lightonocr": Kind(
        cls="LightOnOcrForConditionalGeneration", config="LightOnOcrConfig", text={"model_type": "qwen3", "head_dim": 64},
        parts={"vision_config": PIXTRAL, "image_token_id": 3},
    ),
}  # fmt: skip
"""By name."""


def make(models: GoldenModels, name: str, kind: Kind, text: Mapping[str, Any] | None = None) -> Path:
    """A small model of `kind` with `text` over its text config; the same gives the same model."""
    part = {**SMALL, **kind.text, **(text or {})}
    digest = hashlib.sha256(json.dumps([part, dict(kind.parts), kind.tokenizer], sort_keys=True).encode()).hexdigest()[:12]

    def build(maker: ModuleType) -> None:
        maker.CASES[f"mm-{name}-{digest}"] = None
        _build(maker, kind, part, f"mm-{name}-{digest}")

    return models._made(f"mm-{name}-{digest}", build)


def _build(maker: ModuleType, kind: Kind, part: Mapping[str, Any], name: str) -> None:
    import os
    import shutil

    import torch
    import transformers

    torch.set_num_threads(2)
    spm = kind.tokenizer == "spm"
    ends = maker.SP if spm else maker.BP
    text = {**ends, **part}
    config = getattr(transformers, kind.cls).config_class(**({kind.key: text} if kind.key else text), **dict(kind.parts))
    torch.manual_seed(7)
    net = getattr(transformers, kind.cls)._from_config(config, attn_implementation="eager").eval()
    maker.randomize(_Seen(net, config.get_text_config()), 20260)
    ids = maker.token_ids(ends["vocab_size"])
    head = net.get_output_embeddings()
    with torch.no_grad():
        logits = text_logits(net, ids)
        if head.weight is not net.get_input_embeddings().weight:
            head.weight.copy_(maker.bf16(head.weight * (3.0 / logits.std())))
    place = os.path.join(maker.ROOT, "models", name)
    os.makedirs(place)
    net.to(torch.bfloat16).save_pretrained(place)
    source = maker.make_spm() if spm else maker.make_bpe(kind.tokenizer.split(":")[1])
    for file in os.listdir(source):
        shutil.copy(os.path.join(source, file), place)
    with open(os.path.join(place, "golden.json"), "w", encoding="utf-8") as out:
        json.dump({"ids": ids}, out)


class _Seen:
    """A model with its text part's config, which is what decides how large its embedding should be."""

    def __init__(self, net: Any, config: Any) -> None:
        self.net, self.config = net, config

    def __getattr__(self, name: str) -> Any:
        return getattr(self.net, name)


def text_logits(net: Any, ids: Sequence[int]) -> Any:
    """The logits of the whole model, given token ids alone."""
    import torch

    return net(input_ids=torch.tensor([list(ids)])).logits[0].float()


def respelled(
    folder: Path, to: Path, spell: Callable[[str], str], config: Callable[[dict[str, Any]], dict[str, Any]] = dict, **more: Any
) -> Path:
    """A copy of a model folder with other tensor names, another config and `more` tensors."""
    import shutil

    from safetensors.torch import load_file, save_file

    shutil.copytree(folder, to)
    file = to / "model.safetensors"
    tensors = {spell(n): t for n, t in load_file(file).items()}
    save_file(tensors | more, file, {"format": "pt"})
    said = json.loads((to / "config.json").read_text(encoding="utf-8"))
    (to / "config.json").write_text(json.dumps(config(said)), encoding="utf-8")
    return to
