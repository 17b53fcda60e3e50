"""Text parts of models that see or hear: what llama.cpp computes of a text is what the whole class does, given text alone."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from llmfit_core.errors import LlmfitError, UnsupportedError
from tests.e2e.scoring import POSITIONS, by_llamacpp, by_transformers, divergence
from tests.multimodal_models import KINDS, make, respelled, text_logits

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from tests.golden_models import GoldenModels

EXACT = 5e-6
SLOW = pytest.mark.slow(reason="the kind of whole is covered by a quicker one; together they take minutes")
QUICK = ("llava", "ministral3", "qwen2.5vl", "qwen3vl", "smolvlm")
GRAPHS = {
    "qwen2vl": "qwen2vl", "qwen2.5vl": "qwen2vl", "qwen2.5omni": "qwen2vl", "qwen3vl": "qwen3vl", "qwen3vlmoe": "qwen3vlmoe",
    "qwen3omni": "qwen3vlmoe", "ministral3": "mistral3", "gemma3": "gemma3", "granite-speech": "granite", "glm4v": "glm4",
    "llava-qwen2": "qwen2", "llava-onevision": "qwen2", "internvl": "qwen2", "qwen2audio": "qwen2", "lightonocr": "qwen3",
}  # fmt: skip
UNSUPPORTED = {"paligemma", "glm4v"}
CONVERTED = [n for n in KINDS if n not in UNSUPPORTED]
ALL = [n if n in QUICK else pytest.param(n, marks=SLOW) for n in CONVERTED]


def by_whole(folder: Path, cls: str, ids: list[int]) -> NDArray[np.float64]:
    """Log-probabilities of the whole class in float32, given ids alone."""
    import torch
    import transformers

    torch.set_num_threads(2)
    net = getattr(transformers, cls).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.inference_mode():
        every = text_logits(net, ids).double().log_softmax(-1).numpy()
    return np.array([every[n - 1] for n in POSITIONS])


def ids_of(folder: Path) -> list[int]:
    found: list[int] = json.loads((folder / "golden.json").read_text(encoding="utf-8"))["ids"]
    return found


def graph_of(path: Path) -> str:
    from gguf import GGUFReader

    field = GGUFReader(path).get_field("general.architecture")
    assert field is not None
    return str(field.contents())


@pytest.mark.parametrize("name", ALL)
def test_the_text_part_computes_what_the_whole_does(name: str, golden_models: GoldenModels, to_gguf: Any, to_hf: Any) -> None:
    model = make(golden_models, name, KINDS[name])
    file, events = to_gguf(model)
    assert [e for e in events if e.severity != "info" and e.subject != "tokenizer_config.json"] == []
    codes = {e.code for e in events}
    assert {"text-part", "part-left-out", "tensors-left-out", "no-mmproj"} <= codes
    assert "whole-class-unknown" not in codes
    assert graph_of(file) == GRAPHS.get(name, "llama")
    wanted = by_whole(model, KINDS[name].cls, ids_of(model))
    assert divergence(wanted, by_llamacpp(file, ids_of(model))).mean() < EXACT
    # As a folder of its own, straight and by way of the file, it is a text model that transformers loads.
    for number, source in enumerate((model, file)):
        back = to_hf(source, name=f"back-{number}")
        assert divergence(wanted, by_transformers(back, ids_of(model))).mean() < 1e-9


def test_what_stays_behind_is_counted(golden_models: GoldenModels, to_gguf: Any) -> None:
    from safetensors import safe_open

    model = make(golden_models, "llava", KINDS["llava"])
    _, events = to_gguf(model)
    (told,) = [e for e in events if e.code == "tensors-left-out"]
    with safe_open(model / "model.safetensors", "pt") as held:
        for part in ("vision_tower", "multi_modal_projector"):
            tensors = [held.get_tensor(n) for n in held.keys() if n.startswith(part)]
            size = sum(t.numel() * t.element_size() for t in tensors)
            assert f"{part} ({len(tensors)} tensors, {size:,} bytes)" in told.message


def swap(**prefixes: str) -> Callable[[str], str]:
    """Names with the first prefix that fits replaced; `__` stands for a dot."""

    def spell(name: str) -> str:
        for old, new in prefixes.items():
            if name.startswith(old.replace("__", ".")):
                return new + name.removeprefix(old.replace("__", "."))
        return name

    return spell


INSIDE = swap(
    language_model__model__="model.language_model.", language_model__lm_head__="lm_head.", vision_tower__="model.vision_tower.",
    multi_modal_projector__="model.multi_modal_projector.", image_newline="model.image_newline",
)  # fmt: skip
OUTSIDE = swap(model__language_model__="language_model.model.", lm_head__="language_model.lm_head.", model__visual__="visual.")
SPELLINGS: list[Any] = [
    ("llava", INSIDE),
    pytest.param("llava-next", INSIDE, marks=SLOW),
    pytest.param("gemma3", INSIDE, marks=SLOW),
    ("qwen3vl", OUTSIDE),
    ("qwen2vl", swap(model__="model.language_model.", visual__="model.visual.")),
    ("smolvlm", swap(model__text_model__="language_model.model.", model__vision_model__="vision_model.", model__connector__="connector.")),
    ("internvl", swap(vision_tower__="vision_model.", multi_modal_projector__="mlp1.")),
    ("qwen2.5omni", lambda n: f"thinker.{n}"),
    pytest.param("qwen3omni", lambda n: f"thinker.{n}", marks=SLOW),
]


@pytest.mark.parametrize(("name", "spell"), SPELLINGS)
def test_other_spellings_of_names_give_the_same_file(
    name: str, spell: Callable[[str], str], golden_models: GoldenModels, to_gguf: Any, tmp_path: Path
) -> None:
    model = make(golden_models, name, KINDS[name])
    file, _ = to_gguf(model, "bf16")
    other, _ = to_gguf(respelled(model, tmp_path / "other", spell), "bf16", name="other")
    assert other.read_bytes() == file.read_bytes()


def test_experts_that_lie_the_other_way_round(golden_models: GoldenModels, to_gguf: Any, to_hf: Any, tmp_path: Path) -> None:
    """As Qwen3-VL's mixtures are published; the text model's own class has them upright."""
    from safetensors.torch import load_file, save_file

    model = make(golden_models, "qwen3vlmoe", KINDS["qwen3vlmoe"])
    other = respelled(model, tmp_path / "other", str)
    tensors = load_file(other / "model.safetensors")
    turned = {n: t.transpose(1, 2).contiguous() if ".experts." in n else t for n, t in tensors.items()}
    assert sum(a.shape != b.shape for a, b in zip(turned.values(), tensors.values(), strict=True)) == 4
    save_file(turned, other / "model.safetensors", {"format": "pt"})
    a, b = to_gguf(model, "bf16")[0], to_gguf(other, "bf16", name="other")[0]
    assert a.read_bytes() == b.read_bytes()
    x, y = (load_file(to_hf(source, name=f"back-{n}") / "model.safetensors") for n, source in enumerate((model, other)))
    assert sorted(x) == sorted(y)
    assert all(t.equal(y[n]) for n, t in x.items())


def flat(config: dict[str, Any]) -> dict[str, Any]:
    """As Qwen2-VL was first published: the text model's keys at the top, rope of the type mrope."""
    text = dict(config.pop("text_config"))
    rope = text.pop("rope_parameters")
    theta = rope.pop("rope_theta")
    rope["type"] = {"default": "mrope"}[rope.pop("rope_type")]
    del text["model_type"]
    return {**text, **config, "rope_theta": theta, "rope_scaling": rope}


def inside_thinker(config: dict[str, Any]) -> dict[str, Any]:
    """As Qwen-Omni is published: a thinker that has a text part, beside a talker."""
    del config["architectures"]
    return {
        "architectures": ["Qwen2_5OmniModel"],
        "model_type": "qwen2_5_omni",
        "thinker_config": config,
        "talker_config": {"hidden_size": 32},
        "token2wav_config": {"dit_config": {"dim": 8}},
    }


def as_chat_model(config: dict[str, Any]) -> dict[str, Any]:
    """As InternVL is published for code of its own."""
    text = config.pop("text_config") | {"architectures": ["Qwen2ForCausalLM"]}
    return config | {"architectures": ["InternVLChatModel"], "model_type": "internvl_chat", "llm_config": text, "auto_map": {"a": "b"}}


@pytest.mark.parametrize(
    ("name", "config", "spell"),
    [
        ("internvl", as_chat_model, swap(vision_tower__="vision_model.", multi_modal_projector__="mlp1.")),
        ("qwen2vl", flat, str),
        ("qwen2.5vl", flat, str),
        ("qwen2.5omni", inside_thinker, lambda n: f"thinker.{n}"),
    ],
)
def test_other_forms_of_the_config_give_the_same_file(
    name: str, config: Any, spell: Any, golden_models: GoldenModels, to_gguf: Any, to_hf: Any, tmp_path: Path
) -> None:
    import torch

    model = make(golden_models, name, KINDS[name])
    file, _ = to_gguf(model, "bf16")
    more = {"talker.model.norm.weight": torch.ones(32), "token2wav.dit.weight": torch.ones(8)} if "omni" in name else {}
    other = respelled(model, tmp_path / "other", spell, config, **more)
    same, events = to_gguf(other, "bf16", name="other")
    assert [e for e in events if e.severity != "info"] == []
    assert "whole-class-unknown" not in {e.code for e in events}
    assert same.read_bytes() == file.read_bytes()
    ids = ids_of(model)
    assert np.array_equal(by_transformers(to_hf(other), ids), by_transformers(to_hf(file, name="again"), ids))


OWN = ("sliding_window", "tie_word_embeddings")
"""Stated by every config that has them, or settled by the file."""


def test_a_text_part_that_says_only_what_differs_from_its_class(golden_models: GoldenModels, registry: Any) -> None:
    """transformers 4 saves no more of a nested part; every default is that of the class."""
    import transformers

    from llmfit_core.architecture import REQUIRED, Reads
    from llmfit_core.config import normalise
    from llmfit_core.hparams import read_config

    classes = {k: v for k, v in transformers.CONFIG_MAPPING.items()}
    for provided in registry.architectures():
        architecture = provided.value
        for kind in architecture.part_defaults:
            if kind not in architecture.model_types or kind in ("qwen2_vl", "qwen2_5_vl"):
                continue
            own = classes[kind]() if kind in classes else _text_class(kind)()
            raw = {"model_type": "some", "vision_config": {}, "text_config": {"model_type": kind}}
            if kind == "ministral3":
                raw["text_config"]["rope_parameters"] = dict(own.rope_parameters)
            hparams = read_config(normalise(raw), architecture).hparams
            for key, use in architecture.config.items():
                if isinstance(use, Reads) and use.hparam in hparams and hasattr(own, key) and key not in OWN:
                    assert hparams[use.hparam] == getattr(own, key), (kind, key)
            theta = (own.rope_parameters or {}).get("rope_theta")
            assert hparams["rope.freq_base"] == theta, kind
            assert REQUIRED not in hparams.values()


def _text_class(kind: str) -> Any:
    import importlib

    family = kind.removesuffix("_text")
    module = importlib.import_module(f"transformers.models.{family}.configuration_{family}")
    return next(c for c in vars(module).values() if getattr(c, "model_type", "") == kind)


def test_a_stray_tensor_is_still_an_error(golden_models: GoldenModels, to_gguf: Any, tmp_path: Path) -> None:
    import torch

    model = make(golden_models, "llava", KINDS["llava"])
    for number, name in enumerate(("model.extra.weight", "language_model.model.layers.0.vision_gate.weight", "encoder.x.weight")):
        other = respelled(model, tmp_path / f"other-{number}", str, **{name: torch.ones(4)})
        with pytest.raises(LlmfitError) as caught:
            to_gguf(other)
        assert caught.value.code == "stray-tensor"
        assert name in caught.value.cause


def test_a_whole_that_nobody_knows_is_told(golden_models: GoldenModels, to_gguf: Any, tmp_path: Path) -> None:
    model = make(golden_models, "llava", KINDS["llava"])
    file, _ = to_gguf(model, "bf16")
    other = respelled(
        model, tmp_path / "other", str, lambda c: c | {"architectures": ["OddForConditionalGeneration"], "model_type": "odd"}
    )
    same, events = to_gguf(other, "bf16", name="other")
    assert "OddForConditionalGeneration" in next(e.message for e in events if e.code == "whole-class-unknown")
    assert same.read_bytes() == file.read_bytes()


def test_a_whole_whose_text_part_is_another_model_is_refused(golden_models: GoldenModels, to_gguf: Any) -> None:
    with pytest.raises(UnsupportedError) as caught:
        to_gguf(make(golden_models, "paligemma", KINDS["paligemma"]))
    assert caught.value.code == "text-part-differs"
    assert "both directions" in caught.value.cause


def test_pictures_that_reach_the_last_layer_are_refused(golden_models: GoldenModels, to_gguf: Any, tmp_path: Path) -> None:
    """llama.cpp aborts while loading such a file."""

    def deep(config: dict[str, Any]) -> dict[str, Any]:
        config["vision_config"]["deepstack_visual_indexes"] = [0, 1]
        return config

    model = make(golden_models, "qwen3vl", KINDS["qwen3vl"])
    with pytest.raises(UnsupportedError) as caught:
        to_gguf(respelled(model, tmp_path / "other", str, deep))
    assert "deepstack_visual_indexes" in caught.value.cause


@pytest.mark.parametrize("sections", [[4, 6], [4, 6, 5], [4, 4, 4, 2, 2]])
def test_sections_that_do_not_share_out_a_head_are_refused(
    sections: list[int], golden_models: GoldenModels, to_gguf: Any, tmp_path: Path
) -> None:
    def odd(config: dict[str, Any]) -> dict[str, Any]:
        config["text_config"]["rope_parameters"]["mrope_section"] = sections
        return config

    model = make(golden_models, "qwen2vl", KINDS["qwen2vl"])
    with pytest.raises(UnsupportedError) as caught:
        to_gguf(respelled(model, tmp_path / "other", str, odd))
    assert "mrope_section" in caught.value.cause
