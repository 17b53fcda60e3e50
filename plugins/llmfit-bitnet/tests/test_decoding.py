"""Ternary checkpoints as transformers reads them: its own unpacking, rounding and scaling is the judge."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

from llmfit_core.errors import LlmfitError, SourceError, UnsupportedError
from llmfit_core.pipeline import plan_conversion
from llmfit_core.plan import Recipe
from tests import bitnet_reference as reference
from tests import bitnet_twins as twins

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from llmfit_core.plugins import PluginRegistry

BF16 = ml_dtypes.bfloat16
SLOW = pytest.mark.slow(reason="the kind of case is covered by a quicker one")
OFFLINE_BL = twins.BITLINEAR | {"quantization_mode": "offline"}
Q = "model.layers.0.self_attn.q_proj.weight"
STORED: list[Any] = [
    pytest.param("bitnet", "packed", twins.PACKED, id="2b4t"),
    pytest.param("bitnet", "packed", twins.BITLINEAR, id="bitlinear-by-default"),
    pytest.param("bitnet", "packed", OFFLINE_BL | {"quantization_mode": "online"}, id="bitlinear-is-packed-in-any-mode"),
    pytest.param("bitnet", "packed", {"quant_method": "bitnet", "linear_class": "autobitlinear"}, id="offline-by-default"),
    pytest.param("bitnet", "unpacked", twins.PACKED, id="saved-again"),
    pytest.param("bitnet", "full", twins.ONLINE, id="online"),
    pytest.param("bitnet", "ternary", twins.ONLINE, id="online-rounds-ternary-weights-again"),
    pytest.param("bitnet", "ternary", twins.PACKED, id="ternary-without-scale"),
    pytest.param("llama", "packed", twins.BITLINEAR, id="llama"),
    pytest.param("llama", "packed", twins.PACKED, id="llama-autobitlinear"),
    pytest.param("llama", "full", twins.ONLINE, id="llama-online"),
    pytest.param("qwen2", "packed", twins.BITLINEAR, id="qwen2"),
    pytest.param("qwen3", "unpacked", twins.PACKED, id="qwen3"),
]


@pytest.mark.parametrize(("family", "stored", "section"), STORED)
def test_weights_are_those_of_transformers(
    family: str, stored: str, section: dict[str, Any], tmp_path: Path, to_hf: Callable[..., Path]
) -> None:
    model = twins.twin(tmp_path / "twin", stored, section, family=family, head=family == "llama")
    ours = load_file(to_hf(model, "f32") / "model.safetensors")
    theirs = {n: t.numpy() for n, t in reference.weights_of(model).items()}
    assert sorted(ours) == sorted(theirs)
    for name, tensor in theirs.items():
        # torch adds up float32 in an order of its own: its mean may be off by the last place.
        exact = stored != "full" and section != twins.ONLINE
        assert np.array_equal(ours[name], tensor) if exact else np.allclose(ours[name], tensor, rtol=3e-7, atol=0), name
        assert np.array_equal(np.sign(ours[name]), np.sign(tensor)), name


@pytest.mark.parametrize(
    ("family", "stored", "section"),
    [
        ("bitnet", "packed", twins.PACKED),
        pytest.param("llama", "packed", twins.BITLINEAR, marks=SLOW),
        pytest.param("bitnet", "full", twins.ONLINE, marks=SLOW),
    ],
)
def test_the_reference_is_what_transformers_loads(
    family: str, stored: str, section: dict[str, Any], tmp_path: Path
) -> None:
    """The class with its own quantizer over the ternary folder against the plain class over our reference's weights."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate", reason="transformers' quantizer wants it")
    model = twins.twin(tmp_path / "twin", stored, section, family=family)
    ids = [(7 * i + 3) % twins.ROWS for i in range(56)]
    with reference.uncompiled():
        own = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager")
    torch.nn.Module.float(own.eval())
    plain = reference.loaded(reference.plain_folder(model, tmp_path / "plain"), rounds=True)
    assert np.abs(reference.scored(own, ids) - reference.scored(plain, ids)).max() < 1e-4


@pytest.mark.parametrize("name", ["BitnetForCausalLM", "BitNetForCausalLM"])
@pytest.mark.parametrize("old_names", [False, True], ids=["sub_norm", "inner_attn_ln"])
def test_both_spellings_of_class_and_norms(
    name: str, old_names: bool, tmp_path: Path, to_hf: Callable[..., Path]
) -> None:
    odd = twins.twin(tmp_path / "odd", architectures=[name], old_names=old_names)
    usual = twins.twin(tmp_path / "usual")
    ours, wanted = (load_file(to_hf(f, "f32", name=f"hf-{f.name}") / "model.safetensors") for f in (odd, usual))
    assert sorted(ours) == sorted(wanted)
    assert all(np.array_equal(ours[n], wanted[n]) for n in wanted)


def old_twin(path: Path, stored: str = "full", **more: Any) -> Path:
    """As 1bitLLM publishes: a class of its own, `model_type` llama, bits, no `quantization_config`, SentencePiece."""
    config = {
        "architectures": ["BitnetForCausalLM"], "model_type": "llama", "weight_bits": 1, "input_bits": 8, "hidden_act": "silu",
        "auto_map": {"AutoModelForCausalLM": "modeling_bitnet.X"}, "eos_token_id": 2, "bos_token_id": 1,
    }  # fmt: skip
    return twins.twin(path, stored, None, old_names=True, tok="spm", **{**config, **more})


def test_the_older_class_always_rounds(tmp_path: Path, to_hf: Callable[..., Path]) -> None:
    back = to_hf(old_twin(tmp_path / "old"), "f32")
    wanted = reference.weights_of(twins.twin(tmp_path / "online", "full", twins.ONLINE))
    ours = load_file(back / "model.safetensors")
    assert all(np.allclose(ours[n], t.numpy(), rtol=3e-7, atol=0) for n, t in wanted.items())
    config = json.loads((back / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == ["BitNetForCausalLM"]
    assert config["model_type"] == "bitnet"
    assert not {"auto_map", "weight_bits"} & set(config)


def test_the_older_class_does_not_round_ternary_weights_again(tmp_path: Path, to_hf: Callable[..., Path]) -> None:
    ours = load_file(to_hf(old_twin(tmp_path / "old", "ternary"), "f32") / "model.safetensors")
    codes, scale = twins.ternary(twins.plain()[Q])
    assert np.array_equal(ours[Q], codes * scale)


def test_what_the_older_config_leaves_out(tmp_path: Path, registry: PluginRegistry) -> None:
    silent = dict.fromkeys(("hidden_act", "rms_norm_eps", "rope_theta", "max_position_embeddings"), ...)
    model = old_twin(tmp_path / "old", **silent)
    plan = plan_conversion(model, Recipe(exporter="gguf", scheme="f32"), registry).plan
    assert plan.metadata["bitnet.attention.layer_norm_rms_epsilon"] == 1e-6
    assert plan.metadata["bitnet.rope.freq_base"] == 10000.0
    assert plan.metadata["bitnet.context_length"] == 2048


def test_plain_weights_without_a_quantization_config_are_taken_as_transformers_takes_them(
    tmp_path: Path, to_hf: Callable[..., Path]
) -> None:
    ours = load_file(to_hf(twins.twin(tmp_path / "twin", "full", None), "f32") / "model.safetensors")
    assert all(np.array_equal(ours[n], a) for n, a in twins.plain().items())


def test_modules_that_are_not_converted(tmp_path: Path, to_hf: Callable[..., Path]) -> None:
    """Names, patterns and ends of names, as transformers reads them; the head is one where the list names none."""
    names = ["lm_head", "model.layers.1.mlp", "layers.*.self_attn.q_proj", "k_proj"]
    model = twins.twin(tmp_path / "twin", "full", twins.ONLINE | {"modules_to_not_convert": names}, head=True)
    ours, plain = load_file(to_hf(model, "f32") / "model.safetensors"), twins.plain(head=True)
    left = {n for n, a in plain.items() if np.array_equal(ours[n], a)}
    wanted = {n for n in plain if "norm" in n or "embed" in n or "lm_head" in n or "1.mlp" in n or "k_proj" in n}
    from transformers.quantizers.quantizers_utils import should_convert_module

    linears = {n for n in plain if "_proj" in n or "lm_head" in n}
    judged = {n for n in linears if not should_convert_module(n.removesuffix(".weight"), names)}
    assert left == wanted | {n for n in plain if "norm" in n or "embed" in n} == judged | (set(plain) - linears)
    named = twins.twin(tmp_path / "named", "full", twins.ONLINE | {"modules_to_not_convert": ["k_proj"]}, head=True)
    head = load_file(to_hf(named, "f32", name="named-hf") / "model.safetensors")["lm_head.weight"]
    assert len(np.unique(head)) == 3


def code_three(path: Path) -> Path:
    packed = np.full((twins.HIDDEN // 4, twins.HIDDEN), 0b11, np.uint8)
    return twins.twin(path, tensors={Q: packed})


def bad_scale(value: float, section: Any = twins.PACKED) -> Callable[[Path], Path]:
    return lambda path: twins.twin(path, "packed", section, tensors={f"{Q}_scale": np.array([value], BF16)})


def section(**changes: Any) -> Callable[[Path], Path]:
    return lambda path: twins.twin(path, section=twins.PACKED | changes)


INNER = "model.layers.0.self_attn.q_proj.rms_norm.weight"
REFUSED: list[Any] = [
    pytest.param(section(use_rms_norm=True), "bitnet-norms", id="use-rms-norm"),
    pytest.param(
        lambda p: twins.twin(p, tensors={INNER: np.ones(twins.HIDDEN, BF16)}), "bitnet-norms", id="norms-in-the-file"
    ),
    pytest.param(section(linear_class="superlinear"), "config-value", id="linear-class"),
    pytest.param(section(quantization_mode=["offline"]), "config-value", id="mode"),
    pytest.param(section(modules_to_not_convert="lm_head"), "config-key-invalid", id="modules-no-list"),
    pytest.param(
        lambda p: twins.twin(p, "full", twins.ONLINE | {"modules_to_not_convert": ["(a+)+$"]}), "bitnet-modules", id="modules-regex"
    ),
    pytest.param(section(quantization_mode="online"), "contradicting-config", id="packed-and-online"),
    pytest.param(lambda p: twins.twin(p, section=None), "quantization-config-missing", id="packed-without-config"),
    pytest.param(lambda p: twins.twin(p, tensors={f"{Q}_scale": ...}), "missing-tensor", id="scale-missing"),
    pytest.param(
        lambda p: twins.twin(p, tensors={f"{Q}_scale": np.ones(twins.HIDDEN, BF16)}), "shape-mismatch", id="scale-of-rows"
    ),
    pytest.param(lambda p: twins.twin(p, tensors={Q: ...}), "", id="weight-missing"),
    pytest.param(lambda p: twins.twin(p, "unpacked", twins.BITLINEAR), "bitnet-unpacked", id="bitlinear-unpacked"),
    pytest.param(lambda p: twins.twin(p, "full", twins.PACKED), "not-ternary", id="full-and-offline"),
    pytest.param(lambda p: twins.twin(p, "full", twins.BITLINEAR, family="llama"), "not-ternary", id="llama-full-and-offline"),
    pytest.param(
        lambda p: twins.twin(p, "full", twins.ONLINE | {"modules_to_not_convert": ["k_proj"]}), "bitnet-head", id="tied-head"
    ),
    pytest.param(code_three, "not-ternary", id="code-3"),
    pytest.param(bad_scale(float("nan")), "bad-scale", id="scale-nan"),
    pytest.param(bad_scale(float("inf")), "bad-scale", id="scale-infinite"),
    pytest.param(bad_scale(0, twins.BITLINEAR), "bad-scale", id="divided-by-zero"),
    pytest.param(bad_scale(0), "bad-scale", id="times-zero"),
    pytest.param(
        lambda p: twins.twin(p, tensors={Q: np.zeros((twins.HIDDEN // 8, twins.HIDDEN), np.uint8)}), "shape-mismatch", id="rows"
    ),
    pytest.param(
        lambda p: twins.twin(p, old_names=True, tensors={"model.layers.0.self_attn.attn_sub_norm.weight": np.ones(256, BF16)}),
        "duplicate-tensor", id="both-spellings-at-once",
    ),
    pytest.param(lambda p: old_twin(p, weight_bits=2), "config-value", id="weight-bits"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "code"), REFUSED)
def test_refused_and_nothing_written(
    make: Callable[[Path], Path], code: str, tmp_path: Path, to_hf: Callable[..., Path]
) -> None:
    model = make(tmp_path / "twin")
    with pytest.raises((SourceError, UnsupportedError)) as caught:
        to_hf(model, "f32")
    error: LlmfitError = caught.value
    assert error.code == code or not code
    assert error.remedy
    assert not (tmp_path / "back").exists() or not any((tmp_path / "back").glob("*.safetensors"))


def test_an_unknown_key_of_the_section_is_told(tmp_path: Path, registry: PluginRegistry) -> None:
    plan = plan_conversion(section(rotation="hadamard")(tmp_path / "t"), Recipe(exporter="hf", scheme="bf16"), registry).plan
    assert [e.subject for e in plan.events if e.code == "unknown-config-key"] == ["quantization_config.rotation"]
