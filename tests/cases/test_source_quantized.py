"""Quantizations that nobody here decodes are refused by name before the work, by the config's word or by the tensors'."""

from __future__ import annotations

import io
import json
import zipfile
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest

from llmfit_core.errors import LlmfitError, UnsupportedError
from llmfit_core.pipeline import plan_conversion
from llmfit_core.plan import Recipe
from llmfit_core.plugins import load_plugins
from tests.cases.source import refused
from tests.tiny import DROP, tiny

if TYPE_CHECKING:
    from pathlib import Path

Q = "model.layers.0.self_attn.q_proj"
NOBODY = "bitsandbytes hqq aqlm quanto torchao eetq higgs spqr vptq exl2 exl3 fp_quant quark sinq fouroversix nvfp4".split()
BARE = "gguf,llama,qwen2"


@pytest.fixture
def bare(config_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the decoders but that of GGUF files."""
    monkeypatch.setenv("LLMFIT_PLUGINS", BARE)


def refusal(folder: Path) -> UnsupportedError:
    with pytest.raises(LlmfitError) as caught:
        plan_conversion(folder, Recipe(exporter="gguf", scheme="f32"), load_plugins())
    assert isinstance(caught.value, UnsupportedError), caught.value
    assert caught.value.code == "undecodable-source"
    assert len(caught.value.remedy) > 12
    return caught.value


def packed(last: str, *shape: int, dtype: Any = np.uint8) -> dict[str, np.ndarray]:
    return {f"{Q}.{last}": np.zeros(shape, dtype)}


@pytest.mark.parametrize("method", [*NOBODY, "brandnew"])
def test_by_the_configs_word(method: str, tmp_path: Path, config_dir: Path) -> None:
    tensors = {f"{Q}.weight": np.zeros((64, 32), np.uint8)}
    folder = tiny("llama", tmp_path / "m", config={"quantization_config": {"quant_method": method}}, tensors=tensors)
    error = refusal(folder)
    assert f"quantized by {method}" in error.cause
    assert "quantization_config in config.json" in error.cause
    assert "original" in error.remedy


@pytest.mark.parametrize(
    ("said", "word"),
    [
        ({"load_in_4bit": True}, "bitsandbytes"),
        ({"load_in_8bit": True, "quant_method": "bitsandbytes"}, "bitsandbytes"),
        ({"quant_method": "bitsandbytes_4bit"}, "bitsandbytes"),
        ({"quant_type": "int4_weight_only", "quant_method": "torchao"}, "torchao"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "W4A8_AWQ"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {"x": {"quant_algo": "NVFP4"}}}, "MIXED"),
        ({"quant_method": "HQQ"}, "hqq"),
        ({"quant_method": 7}, "7"),
        ({"bits": 4}, "does not name"),
    ],
)
def test_in_other_words(said: dict[str, Any], word: str, tmp_path: Path, config_dir: Path) -> None:
    tensors = {f"{Q}.weight": np.zeros((64, 32), np.uint8)}
    assert word in refusal(tiny("llama", tmp_path / "m", config={"quantization_config": said}, tensors=tensors)).cause


@pytest.mark.parametrize(
    ("method", "parts"),
    [
        ("bitsandbytes", {**packed("weight", 2048, 1), **packed("weight.absmax", 64, dtype=np.float32),
                          **packed("weight.quant_map", 16, dtype=np.float32), **packed("weight.quant_state.bitsandbytes__nf4", 90)}),
        ("bitsandbytes", {**packed("weight", 64, 64, dtype=np.int8), **packed("SCB", 64, dtype=np.float32)}),
        ("hqq", {**packed("W_q", 32, 64), **packed("scale", 64, dtype=np.float16), **packed("zero", 64, dtype=np.float16)}),
        ("aqlm", {**packed("codes", 8, 64, 1, dtype=np.int8), **packed("codebooks", 1, 256, 1, 8, dtype=np.float16)}),
        ("quanto", {**packed("weight._data", 64, 64, dtype=np.int8), **packed("weight._scale", 64, 1, dtype=np.float32)}),
        ("torchao", {**packed("_weight_qdata", 64, 64, dtype=np.int8), **packed("_weight_scale", 64, dtype=np.float32)}),
        ("eetq", {**packed("weight", 64, 64, dtype=np.int8), **packed("weight_scales", 64, dtype=np.float16)}),
        ("spqr", {**packed("dense_weights", 64, dtype=np.int64), **packed("row_offsets", 65, dtype=np.int32)}),
        ("vptq", {**packed("centroids.weight", 1, 2048, dtype=np.float16), **packed("indices", 1, 64, 8, dtype=np.int32)}),
        ("exl2", {**packed("q_weight", 8, 64, dtype=np.int32), **packed("q_scale_max", 1, dtype=np.float16)}),
        ("exl3", {**packed("trellis", 4, 4, 48, dtype=np.int16), **packed("suh", 64, dtype=np.float16)}),
        ("nvfp4", {**packed("weight", 64, 32), **packed("weight_scale", 64, 4, dtype=ml_dtypes.float8_e4m3fn),
                   **packed("weight_scale_2", 1, dtype=np.float32)}),
        ("mlx", {**packed("weight", 64, 8, dtype=np.uint32), **packed("scales", 64, 1, dtype=np.float16),
                 **packed("biases", 64, 1, dtype=np.float16)}),
        ("gptq", {**packed("qweight", 8, 64, dtype=np.int32), **packed("qzeros", 1, 8, dtype=np.int32),
                  **packed("scales", 1, 64, dtype=np.float16), **packed("g_idx", 64, dtype=np.int32)}),
        ("gptq or awq", {**packed("qweight", 8, 64, dtype=np.int32), **packed("qzeros", 1, 8, dtype=np.int32),
                         **packed("scales", 1, 64, dtype=np.float16)}),
        ("compressed-tensors", {**packed("weight_packed", 64, 8, dtype=np.int32), **packed("weight_scale", 64, 1, dtype=np.float16)}),
        ("bitnet", {**packed("weight", 16, 64), **packed("weight_scale", 1, dtype=np.float32)}),
        ("fp8", {**packed("weight", 64, 64, dtype=ml_dtypes.float8_e4m3fn), **packed("weight_scale", 1, dtype=np.float32)}),
    ],
)  # fmt: skip
def test_by_the_tensors_alone(method: str, parts: dict[str, np.ndarray], tmp_path: Path, bare: None) -> None:
    changes: dict[str, Any] = {f"{Q}.weight": DROP} if f"{Q}.weight" not in parts else {}
    cause = refusal(tiny("llama", tmp_path / "m", tensors={**changes, **parts})).cause
    assert f"quantized by {method}" in cause
    assert "names and types" in cause


@pytest.mark.parametrize("method", ["fp8", "fbgemm_fp8", "bitnet", "awq", "gptq", "compressed-tensors", "mxfp4"])
def test_a_plugin_that_would_decode_it_is_named(method: str, tmp_path: Path, bare: None) -> None:
    from llmfit_core.foreign import QUANTIZATIONS
    from llmfit_core.index import known_distributions

    folder = tiny("llama", tmp_path / "m", config={"quantization_config": {"quant_method": method}})
    folder = tiny("llama", folder, config={"quantization_config": {"quant_method": method}}, tensors=packed("qweight", 8, 64))
    decoder = next(q.decoder for q in QUANTIZATIONS if q.method == method)
    homes = known_distributions(decoder, "decoder")
    if not homes:
        pytest.skip(f"no distribution decodes {decoder} yet")
    assert f"pip install {homes[0]}" in refusal(folder).remedy


@pytest.mark.parametrize(("packing", "home"), [("auto_round:auto_gptq", "gptq"), ("auto_round:auto_awq", "awq")])
def test_auto_round_points_at_the_packing(packing: str, home: str, tmp_path: Path, bare: None) -> None:
    said = {"quant_method": "auto-round", "packing_format": packing, "bits": 4, "group_size": 64, "sym": True}
    folder = tiny("llama", tmp_path / "m", config={"quantization_config": said}, tensors=packed("qweight", 8, 64))
    error = refusal(folder)
    assert packing.split(":")[1] in error.cause
    from llmfit_core.index import known_distributions

    if known_distributions(home, "decoder"):
        assert f"llmfit-{home}" in error.remedy


def test_a_section_that_outlived_its_quantization(tmp_path: Path, bare: None) -> None:
    folder = tiny("llama", tmp_path / "m", config={"quantization_config": {"load_in_4bit": True}})
    assert "plain floats" in refusal(folder).remedy
    said = tiny("llama", tmp_path / "n", config={"quantization": {"group_size": 64, "bits": 4}}, tensors=packed("scales", 64, 1))
    assert "quantized by mlx" in refusal(said).cause


def test_weights_that_cannot_even_be_opened(tmp_path: Path, config_dir: Path) -> None:
    """torchao and quanto pickle tensors of their own classes, which is refused as a pickle; the cause is the quantization."""
    folder = tiny("llama", tmp_path / "m", config={"quantization_config": {"quant_method": "torchao"}})
    (folder / "model.safetensors").unlink()
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_STORED) as file:
        pickle = b"\x80\x02}q\x00X\x01\x00\x00\x00aq\x01ctorchao.dtypes\nAffineQuantizedTensor\nq\x02)Rq\x03s."
        file.writestr("archive/data.pkl", pickle)
        file.writestr("archive/version", "3\n")
        file.writestr("archive/byteorder", "little")
    (folder / "pytorch_model.bin").write_bytes(data.getvalue())
    assert "torchao" in refusal(folder).cause
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    refused(folder, "unsafe-pickle", "torchao")


def test_the_command_line_says_it(tmp_path: Path, config_dir: Path) -> None:
    folder = tiny("llama", tmp_path / "m", config={"quantization_config": {"quant_method": "hqq"}}, tensors=packed("W_q", 32, 64))
    refused(folder, "undecodable-source", "hqq", exit_code=4)


def test_plain_models_are_not_taken_for_quantized(tmp_path: Path, config_dir: Path) -> None:
    from llmfit_core.checkpoint import open_checkpoint
    from llmfit_core.foreign import by_names

    for family in ("llama", "qwen2moe", "phi3", "mixtral"):
        assert by_names(open_checkpoint(tiny(family, tmp_path / family))) is None


def test_the_page_names_every_method() -> None:
    from pathlib import Path

    from llmfit_core.foreign import QUANTIZATIONS

    page = (Path(__file__).parents[2] / "docs/reference/quantizations.md").read_text(encoding="utf-8")
    decoded, _, refusals = page.partition("## Refused")
    for kind in QUANTIZATIONS:
        for method in kind.method.split(" or "):
            part = decoded if kind.decoder or method == "auto-round" else refusals
            assert f"`{method}`" in part, method
            if kind.decoder and kind.decoder != "mxfp4":
                assert f"llmfit-{kind.decoder}`" in decoded
