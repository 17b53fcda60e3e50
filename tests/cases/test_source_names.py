"""Prefixes of wrappers, base models, collisions, and text parts of larger models (cases 5 and 6)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.cases.source import codes, converted, planned, refused
from tests.tiny import DROP, tiny, tiny_config, weights

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def body(name: str) -> str:
    return name.removeprefix("model.")


RENAMES: dict[str, Callable[[str], str]] = {
    "base": body,
    "peft": lambda n: f"base_model.model.{n}",
    "compiled": lambda n: f"_orig_mod.{n}",
    "parallel": lambda n: f"module.{n}",
    "parallel-compiled": lambda n: f"module._orig_mod.{n}",
    "compiled-parallel-peft": lambda n: f"_orig_mod.module.base_model.model.{n}",
    "text-of-vision": lambda n: f"language_model.{n}",
    "text-of-vision-5": lambda n: n if n.startswith("lm_head") else f"model.language_model.{body(n)}",
    "smolvlm": lambda n: n if n.startswith("lm_head") else f"model.text_model.{body(n)}",
    "lightning": lambda n: f"model.{n}",
    "lightning-module": lambda n: f"_forward_module.{n}",
    "fsdp": lambda n: f"_fsdp_wrapped_module.{n}",
    "checkpointing": lambda n: n.replace("model.layers.0.", "model.layers.0._checkpoint_wrapped_module."),
    "fsdp-inside": lambda n: re.sub(r"(layers\.\d+)\.", r"\1._fsdp_wrapped_module.", n),
    "compiled-inside": lambda n: n.replace(".self_attn.", ".self_attn._orig_mod."),
    "parallel-base": lambda n: f"module.{body(n)}",
    "thinker": lambda n: f"thinker.{n}",
    "half-base": lambda n: body(n) if "layers.1." in n else n,
}


@pytest.mark.parametrize("kind", RENAMES)
def test_a_wrappers_prefix_is_removed_and_said_once(tmp_path: Path, kind: str) -> None:
    plain = converted(tiny("llama", tmp_path / "a"))
    other = converted(tiny("llama", tmp_path / "b", rename=RENAMES[kind]))
    said = [e for e in other.events if e["code"] == "prefix-normalised"]
    assert len(said) == 1, said
    assert "prefix" in said[0]["message"]
    assert other.codes() == []
    assert other.path.read_bytes() == plain.path.read_bytes()


@pytest.mark.parametrize("family", ["mixtral", "qwen2moe", "phi3"])
@pytest.mark.parametrize("kind", ["base", "peft", "text-of-vision-5"])
def test_prefixes_of_other_families(tmp_path: Path, family: str, kind: str) -> None:
    plain = converted(tiny(family, tmp_path / "a"))
    other = converted(tiny(family, tmp_path / "b", rename=RENAMES[kind]))
    assert other.path.read_bytes() == plain.path.read_bytes()


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "base_model.model.", "language_model."])
def test_two_names_that_become_one_collide(tmp_path: Path, prefix: str) -> None:
    name = "model.norm.weight"
    folder = tiny("llama", tmp_path / "m", tensors={prefix + name: weights(name, (64,))})
    refused(folder, "colliding-names", name, prefix + name)


def test_two_wrapped_names_collide(tmp_path: Path) -> None:
    more = {"module.model.norm.weight": weights("x", (64,)), "model.norm.weight": DROP, "norm.weight": weights("y", (64,))}
    refused(tiny("llama", tmp_path / "m", tensors=more), "colliding-names", "norm.weight", "module.model.norm.weight")


@pytest.mark.parametrize("prefix", ["wrapper.", "student.model.", "model.module2."])
def test_an_unheard_prefix_is_named(tmp_path: Path, prefix: str) -> None:
    refused(tiny("llama", tmp_path / "m", rename=lambda n: prefix + n), "stray-tensor", prefix)


# Case 5


def nested(path: Path, *keys: str, around: dict[str, Any] | None = None, text: dict[str, Any] | None = None, **more: Any) -> Path:
    """A llama under `keys`, its tensors under `language_model.`."""
    folder = tiny("llama", path, rename=lambda n: f"language_model.{n}", **more)
    from tests.tiny import write_json

    said: dict[str, Any] = tiny_config("llama", SIZE) | (text or {})
    said = {k: v for k, v in said.items() if v is not DROP}
    for depth, key in enumerate(reversed(keys)):
        outer = {"vision_config": {"hidden_size": 32}} if depth == len(keys) - 1 else {"audio_config": {"d_model": 8}}
        said = {key: said, **outer}
    said |= {"architectures": ["FancyVisionForConditionalGeneration"], "model_type": "fancy_vision", "image_token_index": 7}
    write_json(folder / "config.json", said | (around or {}))
    return folder


SIZE = {
    "layers": 2, "hidden": 64, "heads": 4, "kv": 2, "head": 16, "ffn": 96, "experts_count": 4, "moe": 48, "shared": 80, "rows": 512,
}  # fmt: skip
VISION = {"vision_tower.embed.weight": np.zeros((4, 4), np.float32), "multi_modal_projector.bias": np.zeros(4, np.float32)}


@pytest.mark.parametrize("keys", [("text_config",), ("llm_config",), ("language_config",), ("thinker_config", "text_config")])
def test_the_text_part_is_converted_and_the_rest_listed(tmp_path: Path, keys: tuple[str, ...]) -> None:
    plain = converted(tiny("llama", tmp_path / "a"))
    other = converted(nested(tmp_path / "b", *keys, tensors=VISION), "--strict")
    assert ".".join(keys) in other.message("text-part")
    left = {e["subject"] for e in other.events if e["code"] == "part-left-out"}
    assert left == ({"vision_config", "thinker_config.audio_config"} if len(keys) == 2 else {"vision_config"})
    assert other.path.read_bytes() == plain.path.read_bytes()
    plan = planned(nested(tmp_path / "c", *keys, tensors=VISION))
    assert set(plan["waived"]) == set(VISION)


def test_a_text_part_without_a_class_is_known_by_its_model_type(tmp_path: Path) -> None:
    plan = planned(nested(tmp_path / "m", "text_config", text={"architectures": DROP}))
    assert plan["evidence"] == "text_config.model_type llama"


def test_a_text_part_of_unknown_class_or_type_is_refused(tmp_path: Path) -> None:
    folder = nested(tmp_path / "a", "text_config", text={"architectures": ["OddForCausalLM"]})
    refused(folder, "unknown-architecture", "OddForCausalLM", exit_code=4)
    folder = nested(tmp_path / "b", "text_config", text={"architectures": DROP, "model_type": "odd_text"})
    refused(folder, "unknown-architecture", "odd_text", "FancyVision", exit_code=4)
    folder = nested(tmp_path / "c", "text_config", text={"architectures": DROP, "model_type": DROP, "attention_bias": False})
    assert planned(folder)["evidence"] == "tensor names and config keys"


def test_vision_tensors_without_a_vision_part_are_strays(tmp_path: Path) -> None:
    refused(tiny("llama", tmp_path / "m", tensors=VISION), "stray-tensor", "vision_tower.embed.weight")


@pytest.mark.parametrize(
    ("key", "value"),
    [("hidden_size", 128), ("num_hidden_layers", 3), ("rope_theta", 5e5), ("rms_norm_eps", 1e-6), ("rope_scaling", {"type": "linear", "factor": 2})],
)
def test_outer_and_text_part_contradict(tmp_path: Path, key: str, value: object) -> None:
    text = {"rope_scaling": {"type": "linear", "factor": 4.0}} if key == "rope_scaling" else {}
    folder = nested(tmp_path / "m", "text_config", around={key: value}, text=text)
    refused(folder, "contradicting-config", key, f"text_config.{key}")


def test_outer_and_text_part_agree(tmp_path: Path) -> None:
    folder = nested(tmp_path / "m", "text_config", around={"hidden_size": 64, "rope_theta": 10000, "vocab_size": 512})
    assert codes(planned(folder)) == []


def test_what_only_the_outside_says_is_not_read_in_silence(tmp_path: Path) -> None:
    folder = nested(tmp_path / "m", "text_config", around={"rope_theta": 5e5}, text={"rope_theta": DROP})
    plan = planned(folder)
    assert codes(plan) == ["outside-text-part"]
    assert plan["hparams"]["rope.freq_base"] == 10000


def test_two_text_parts_contradict(tmp_path: Path) -> None:
    folder = nested(tmp_path / "m", "text_config", around={"llm_config": {"model_type": "qwen2"}})
    refused(folder, "contradicting-config", "text_config", "llm_config")


def test_a_tie_said_outside_counts(tmp_path: Path) -> None:
    folder = nested(
        tmp_path / "m",
        "text_config",
        around={"tie_word_embeddings": True},
        text={"tie_word_embeddings": DROP},
        tensors={"language_model.lm_head.weight": DROP},
    )
    assert codes(planned(folder)) == []


def test_a_text_part_that_leaves_out_a_size_is_told_so(tmp_path: Path) -> None:
    folder = nested(tmp_path / "m", "text_config", text={"hidden_size": DROP})
    refused(folder, "config-key-missing", "text_config.hidden_size")
