"""Ternary types hold ternary weights as they are, are refused to others, and no setting of torch's changes a byte."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.numpy import load_file

from llmfit_core.errors import UnsupportedError
from llmfit_core.pipeline import convert
from llmfit_core.plan import Recipe
from tests import bitnet_reference as reference
from tests import bitnet_twins as twins

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from llmfit_core.plugins import PluginRegistry

NAMES = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip


@pytest.mark.parametrize("scheme", ["tq1_0", "tq2_0"])
@pytest.mark.parametrize(("stored", "section"), [("packed", twins.PACKED), ("packed", twins.BITLINEAR), ("full", twins.ONLINE)])
def test_every_block_holds_the_tensors_scale(
    scheme: str, stored: str, section: dict[str, Any], tmp_path: Path, to_gguf: Callable[..., Any], to_hf: Callable[..., Path]
) -> None:
    """By gguf's own kernels: the signs are the source's, the scale is its scale in float16, in every block of every row."""
    model = twins.twin(tmp_path / "twin", stored, section, hidden_act="silu")
    file, events = to_gguf(model, scheme)
    assert "requantized" not in {e.code for e in events}
    weights = reference.weights_of(model)
    read = {t.name: t for t in GGUFReader(file).tensors}
    assert read["token_embd.weight"].tensor_type.name == "Q6_K"
    for layer in range(twins.LAYERS):
        for short, long in NAMES.items():
            tensor = read[f"blk.{layer}.{short}.weight"]
            assert tensor.tensor_type.name == scheme.upper()
            wanted = weights[f"model.layers.{layer}.{long}.weight"].numpy()
            found = dequantize(tensor.data, tensor.tensor_type)
            assert np.array_equal(np.sign(found), np.sign(wanted))
            assert set(np.unique(np.abs(found))) == {0.0, float(np.float16(np.abs(wanted).max()))}
    back = load_file(to_hf(file, "f32") / "model.safetensors")
    for name, wanted in weights.items():
        if "_proj" in name:
            scale = np.float16(np.abs(wanted.numpy()).max()).astype(np.float32)
            assert np.array_equal(back[name], np.sign(wanted.numpy()) * scale)


def test_what_is_not_ternary_is_refused_by_measure(tmp_path: Path, registry: PluginRegistry) -> None:
    """One module left as it was among ternary ones: named, before anything is written; a wider type for it is the way."""
    section = twins.ONLINE | {"modules_to_not_convert": ["lm_head", "layers.1.mlp.up_proj"]}
    model = twins.twin(tmp_path / "twin", "full", section, hidden_act="silu")
    out = tmp_path / "m.gguf"
    with pytest.raises(UnsupportedError) as caught:
        convert(model, Recipe(exporter="gguf", scheme="tq2_0"), out, registry, verify=False)
    assert caught.value.code == "not-ternary"
    assert "blk.1.ffn_up.weight" in caught.value.cause
    assert not out.exists()
    wider = Recipe(exporter="gguf", scheme="tq2_0", tensor_types=((r"blk\.1\.ffn_up", "q8_0"),))
    convert(model, wider, out, registry, verify=False)
    _, events = convert(
        model, Recipe(exporter="gguf", scheme="tq2_0", force=True), tmp_path / "forced.gguf", registry, verify=False
    )
    assert "not-ternary" in {e.code for e in events}


def test_other_schemes_of_a_ternary_source_are_told_to_lose(tmp_path: Path, to_gguf: Callable[..., Any]) -> None:
    model = twins.twin(tmp_path / "twin", hidden_act="silu")
    _, events = to_gguf(model, "q4_k_m")
    assert "requantized" in {e.code for e in events}


SLOW = pytest.mark.slow(reason="the kind of case is covered by a quicker one; each starts transformers anew")


@pytest.mark.parametrize(
    "setting", ["meta", *(pytest.param(s, marks=SLOW) for s in ("cpu", "float16", "float64"))]
)
def test_settings_of_torch_change_nothing(
    setting: str, tmp_path: Path, registry: PluginRegistry, capfd: pytest.CaptureFixture[str]
) -> None:
    """The twin of 2B-4T, from plan to GGUF and back, with its comparison with transformers."""
    import torch

    from llmfit_core.errors import VerificationError

    model = twins.twin(tmp_path / "twin")
    right = Recipe(exporter="gguf", scheme="tq2_0", graph="bitnet.cpp")
    convert(model, right, tmp_path / "before.gguf", registry)
    dtype = torch.get_default_dtype()
    try:
        if setting.startswith("float"):
            torch.set_default_dtype(getattr(torch, setting))
        else:
            torch.set_default_device(setting)
        convert(model, right, tmp_path / "m.gguf", registry)
        convert(tmp_path / "m.gguf", Recipe(exporter="hf", scheme="bf16"), tmp_path / "hf", registry)
        with pytest.raises(VerificationError):
            convert(model, Recipe(exporter="gguf", scheme="f32", force=True), tmp_path / "wrong.gguf", registry)
    finally:
        torch.set_default_dtype(dtype)
        torch.set_default_device(None)
    assert (tmp_path / "m.gguf").read_bytes() == (tmp_path / "before.gguf").read_bytes()
    back = load_file(tmp_path / "hf" / "model.safetensors")
    assert all(np.array_equal(np.sign(back[n].astype(np.float32)), np.sign(t.numpy()))
               for n, t in reference.weights_of(model).items() if "_proj" in n)
