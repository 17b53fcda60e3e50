"""Cases 28 and 29, and what types cannot hold: the truth about types is told, and nothing wrong is written."""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import ml_dtypes
import numpy as np
import pytest

from llmfit_core.errors import LlmfitError, SourceError, StrictError, UnsupportedError
from llmfit_core.pipeline import convert, plan_conversion
from llmfit_core.plan import Recipe
from tests.tiny import tiny, weights

if TYPE_CHECKING:
    from llmfit_core.plugins import PluginRegistry

WIDE = {"hidden": 256, "heads": 4, "head": 64, "ffn": 512}
ODD = {"hidden": 320, "heads": 5, "kv": 5, "head": 64, "ffn": 640}
NARROW = {"hidden": 48, "heads": 4, "head": 12, "ffn": 80}


def recipe(scheme: str, **options: Any) -> Recipe:
    return Recipe(exporter="gguf", scheme=scheme, **options)


def types(registry: PluginRegistry, model: Path, wanted: Recipe) -> dict[str, str]:
    return {t.name: t.type for t in plan_conversion(model, wanted, registry).plan.tensors}


@pytest.mark.parametrize(
    ("scheme", "sizes", "mostly", "number"),
    [
        ("q4_k_m", ODD, "Q5_0", 15),
        ("q6_k", ODD, "Q8_0", 18),
        ("iq4_xs", ODD, "IQ4_NL", 30),
        ("q2_k", ODD, "Q4_0", 10),
        ("q5_k_s", ODD, "Q5_1", 16),
        ("q3_k_m", ODD, "Q4_0", 12),
        ("q4_k_m", NARROW, "F16", 15),
        ("q8_0", NARROW, "F16", 7),
    ],
)
def test_rows_that_a_scheme_does_not_fit(
    registry: PluginRegistry, tmp_path: Path, scheme: str, sizes: dict[str, int], mostly: str, number: int
) -> None:
    model = tiny("llama", tmp_path / "model", **sizes)
    with pytest.raises(StrictError):
        convert(model, recipe(scheme, strict=True), tmp_path / "strict", registry, verify=False)
    assert not (tmp_path / "strict").exists()
    plan = plan_conversion(model, recipe(scheme), registry).plan
    artifact, events = convert(model, recipe(scheme), tmp_path / "o", registry)
    name = f"llama-{scheme.upper()}-mostly-{mostly}.gguf"
    assert [p.name for p in artifact.paths] == [name]
    held = gguf.GGUFReader(artifact.paths[0])
    real = {t.name: t.tensor_type.name.lower() for t in held.tensors}
    assert held.fields["general.file_type"].contents() == number
    assert {t.name: t.type for t in plan.tensors} == real
    entry: Any = json.loads((tmp_path / "o" / "llmfit.json").read_text())["artifacts"][name]
    assert {n: t["type"] for n, t in entry["tensors"].items()} == real
    true = sum(int(t.n_bytes) for t in held.tensors) * 8 / sum(int(t.n_elements) for t in held.tensors)
    assert entry["bits_per_weight"] == pytest.approx(true, abs=1e-4)
    fallen = {e.subject for e in events if e.code == "row-length"}
    assert fallen == {n for n, t in entry["tensors"].items() if "reason" in t} == {n for n, t in real.items() if t != "f32"}


def test_rows_that_fit_are_not_called_otherwise(registry: PluginRegistry, tmp_path: Path) -> None:
    model = tiny("llama", tmp_path / "model", **WIDE)
    artifact, events = convert(model, recipe("q4_k_m", strict=True), tmp_path / "o", registry, verify=False)
    assert [p.name for p in artifact.paths] == ["llama-Q4_K_M.gguf"]
    assert not [e for e in events if e.severity == "fallback"]


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny("llama", tmp_path_factory.mktemp("wide"), **WIDE)


@pytest.mark.parametrize(
    ("pairs", "code"),
    [
        ([("nothing_like_it", "q8_0")], "override-unmatched"),
        ([("attn_q", "q8_0"), ("nothing", "q8_0")], "override-unmatched"),
        ([("model.layers.0", "q8_0")], "override-unmatched"),
        ([("blk.7.", "q8_0")], "override-unmatched"),
        ([("", "q9_9")], "override-type"),
        ([("attn_q", "")], "override-type"),
        ([("attn_q", "q4_k_m")], "override-type"),
        ([("attn_norm", "q8_0")], "override-without-effect"),
        ([("attn", "q8_0"), ("attn_q", "q6_k")], "override-without-effect"),
        ([("attn_(", "q8_0")], "override-regex"),
        ([("*", "q8_0")], "override-regex"),
        ([("(" * 5000, "q8_0")], "override-regex"),
        ([("a{99999999999999999999}", "q8_0")], "override-regex"),
    ],
)
def test_overrides_that_mean_nothing(
    registry: PluginRegistry, wide: Path, tmp_path: Path, pairs: list[tuple[str, str]], code: str
) -> None:
    with pytest.raises(UnsupportedError) as caught:
        convert(wide, recipe("q4_k_m", tensor_types=tuple(pairs)), tmp_path / "m.gguf", registry, verify=False)
    assert caught.value.code == code
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("pattern", [r"(([a-z._0-9])+)+!", r"(.|..|...)*(.|..)*(.|..)*x{9}"])
def test_patterns_that_never_end(registry: PluginRegistry, wide: Path, pattern: str) -> None:
    begun = time.monotonic()
    with pytest.raises(UnsupportedError) as caught:
        plan_conversion(wide, recipe("q4_k_m", tensor_types=((pattern, "q8_0"),)), registry)
    assert caught.value.code == "override-regex"
    assert time.monotonic() - begun < 15


def test_an_override_that_equals_the_default_is_honoured(registry: PluginRegistry, wide: Path) -> None:
    assert types(registry, wide, recipe("q4_k_m", tensor_types=(("attn_q", "q4_k"),))) == types(registry, wide, recipe("q4_k_m"))


def test_overrides(registry: PluginRegistry, wide: Path, tmp_path: Path) -> None:
    pairs = ((r"blk\.0\.attn_q", "F16"), ("attn_q", "Q6_K"), ("token_embd", "f32"), (r"ffn_(up|down)\.", "iq4_NL"))
    wanted = recipe("q4_k_m", tensor_types=pairs)
    artifact, _ = convert(wide, wanted, tmp_path / "m.gguf", registry)
    real = {t.name: t.tensor_type.name.lower() for t in gguf.GGUFReader(artifact.paths[0]).tensors}
    assert real["blk.0.attn_q.weight"] == "f16"
    assert real["blk.1.attn_q.weight"] == "q6_k"
    assert real["token_embd.weight"] == "f32"
    assert {real[f"blk.{i}.ffn_{x}.weight"] for i in (0, 1) for x in ("up", "down")} == {"iq4_nl"}
    assert real["blk.0.ffn_gate.weight"] == "q4_k"


def test_an_override_that_does_not_fit_the_rows(registry: PluginRegistry, tmp_path: Path) -> None:
    model = tiny("llama", tmp_path / "model", **ODD)
    plan = plan_conversion(model, recipe("q8_0", tensor_types=(("attn_q", "q6_k"),)), registry).plan
    assert {e.subject for e in plan.events if e.code == "row-length"} == {f"blk.{i}.attn_q.weight" for i in (0, 1)}
    with pytest.raises(StrictError):
        plan_conversion(model, recipe("q8_0", tensor_types=(("attn_q", "q6_k"),), strict=True), registry)


def test_ternary_types_for_ternary_weights_alone(registry: PluginRegistry, tmp_path: Path) -> None:
    model = tiny("llama", tmp_path / "model", **WIDE)
    for wanted in (recipe("tq2_0"), recipe("tq1_0"), recipe("q8_0", tensor_types=(("ffn_up", "tq2_0"),))):
        with pytest.raises(UnsupportedError) as caught:
            convert(model, wanted, tmp_path / "m.gguf", registry, verify=False)
        assert caught.value.code == "not-ternary"
        assert not list(tmp_path.glob("m.gguf*"))
    _, events = convert(model, recipe("tq2_0", force=True), tmp_path / "m.gguf", registry, verify=False)
    assert "not-ternary" in [e.code for e in events]
    drawn = np.random.default_rng(0).integers(-1, 2, (512, 256)) * 0.02
    three = {f"model.layers.{i}.mlp.up_proj.weight": drawn.astype(ml_dtypes.bfloat16) for i in (0, 1)}
    model = tiny("llama", tmp_path / "three", tensors=three, **WIDE)
    wanted = recipe("q8_0", tensor_types=(("ffn_up", "tq2_0"),))
    artifact, _ = convert(model, wanted, tmp_path / "t.gguf", registry, verify=False)
    held = next(t for t in gguf.GGUFReader(artifact.paths[0]).tensors if t.name == "blk.0.ffn_up.weight")
    back = gguf.dequantize(held.data, held.tensor_type)
    np.testing.assert_allclose(back, drawn, atol=1e-4)


def spoiled(path: Path, name: str, value: float, dtype: str = "bfloat16", row: int = 3) -> Path:
    """A model with one odd value."""
    shape = (512, 256) if "mlp" in name else (256,)
    array = weights(name, shape, dtype).copy()
    array.reshape(-1, 256)[row if len(shape) > 1 else 0, 7] = value
    return tiny("llama", path, tensors={name: array}, dtype=dtype, **WIDE)


UP = "model.layers.1.mlp.up_proj.weight"


@pytest.mark.parametrize("to", ["gguf:f16", "hf:f16"])
@pytest.mark.parametrize(("value", "dtype"), [(70000.0, "bfloat16"), (-1e30, "float32"), (65520.0, "float32")])
def test_values_beyond_float16(registry: PluginRegistry, tmp_path: Path, to: str, value: float, dtype: str) -> None:
    model = spoiled(tmp_path / "model", UP, value, dtype)
    exporter, scheme = to.split(":")
    out = tmp_path / ("m.gguf" if exporter == "gguf" else "m")
    with pytest.raises(UnsupportedError) as caught:
        convert(model, Recipe(exporter=exporter, scheme=scheme), out, registry, verify=False)
    assert caught.value.code == "overflow"
    assert ("blk.1.ffn_up.weight" if exporter == "gguf" else UP) in caught.value.cause
    assert not list(tmp_path.glob("m[.]*")) + list(tmp_path.glob("m"))


def test_values_below_float16_are_counted(registry: PluginRegistry, tmp_path: Path) -> None:
    model = spoiled(tmp_path / "model", UP, 1e-9)
    artifact, events = convert(model, recipe("f16"), tmp_path / "m.gguf", registry, verify=False)
    assert [(e.code, e.severity, e.subject) for e in events if e.severity in ("warning", "fallback")] == [("underflow", "fallback", "blk.1.ffn_up.weight")]
    assert "1 value" in next(e.message for e in events if e.code == "underflow")
    manifest: Any = artifact.manifest
    assert [e["code"] for e in manifest["events"] if e["severity"] in ("warning", "fallback")] == ["underflow"]
    with pytest.raises(StrictError):
        convert(model, recipe("f16", strict=True), tmp_path / "n.gguf", registry, verify=False)
    assert not list(tmp_path.glob("n.gguf*"))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("scheme", ["q4_k_m", "q8_0", "iq4_nl", "q2_k"])
def test_blocks_of_no_numbers(registry: PluginRegistry, tmp_path: Path, value: float, scheme: str) -> None:
    model = spoiled(tmp_path / "model", UP, value, row=300)
    with pytest.raises(SourceError) as caught:
        convert(model, recipe(scheme), tmp_path / "m.gguf", registry, verify=False)
    assert caught.value.code == "not-finite"
    assert "blk.1.ffn_up.weight" in caught.value.cause
    assert "row 300 " in caught.value.cause
    assert not list(tmp_path.glob("m.gguf*"))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("scheme", ["bf16", "f16", "f32"])
def test_no_numbers_in_floats_are_refused(registry: PluginRegistry, tmp_path: Path, value: float, scheme: str) -> None:
    """Told only where forced; once it was told always, and the runtime then refused the file as if we were at fault."""
    model = spoiled(tmp_path / "model", UP, value)
    with pytest.raises(SourceError, match="not-finite") as caught:
        convert(model, recipe(scheme), tmp_path / "m.gguf", registry, verify=False)
    assert "blk.1.ffn_up.weight" in caught.value.cause
    assert not list(tmp_path.glob("*m.gguf*"))
    _, events = convert(model, recipe(scheme, force=True), tmp_path / "m.gguf", registry, verify=False)
    assert [(e.code, e.severity, e.subject) for e in events if e.severity in ("warning", "fallback")] == [("not-finite", "warning", "blk.1.ffn_up.weight")]
    with pytest.raises(StrictError):
        convert(model, recipe(scheme, strict=True, force=True), tmp_path / "n.gguf", registry, verify=False)


@pytest.mark.parametrize(
    ("to", "value", "remedy"), [("f16", 1e6, "bf16"), ("bf16", 3.4e38, "f32"), ("q4_0", 3e38, "float type")]
)
def test_an_overflow_names_the_type_and_a_wider_one(
    registry: PluginRegistry, tmp_path: Path, to: str, value: float, remedy: str
) -> None:
    model = spoiled(tmp_path / "model", UP, value, "float32")
    with pytest.raises(UnsupportedError, match="overflow") as caught:
        convert(model, recipe(to), tmp_path / "m.gguf", registry, verify=False)
    assert to in caught.value.cause
    assert remedy in caught.value.remedy


def test_a_norm_beyond_float16_stays_float32(registry: PluginRegistry, tmp_path: Path) -> None:
    model = spoiled(tmp_path / "model", "model.norm.weight", 70000.0)
    artifact, _ = convert(model, recipe("f16"), tmp_path / "m.gguf", registry, verify=False)
    held = {t.name: t for t in gguf.GGUFReader(artifact.paths[0]).tensors}
    assert float(held["output_norm.weight"].data[7]) == float(np.float32(ml_dtypes.bfloat16(70000.0)))


@pytest.mark.parametrize("scheme", ["q4_0", "q8_0", "q4_k_m"])
def test_scales_beyond_float16(registry: PluginRegistry, tmp_path: Path, scheme: str) -> None:
    """A block's scale is a float16: what does not fit into it becomes infinite for the whole block."""
    model = spoiled(tmp_path / "model", UP, 3e38)
    with pytest.raises(LlmfitError) as caught:
        convert(model, recipe(scheme), tmp_path / "m.gguf", registry, verify=False)
    assert caught.value.code == "overflow"
    assert not list(tmp_path.glob("m.gguf*"))


def test_torch_is_not_imported(wide: Path, tmp_path: Path) -> None:
    import subprocess
    import sys

    script = (
        "import sys\nfrom llmfit_core.cli.guarded import run\n"
        "assert run(sys.argv[1:]) == 0\n"
        "assert not {'torch', 'transformers', 'gguf', 'numba'} & set(sys.modules), sorted(sys.modules)"
    )
    command = [sys.executable, "-c", script, "convert", str(wide), "--to", "gguf:q4_k_m", "-o", str(tmp_path / "m.gguf")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_plan_reads_no_weights(registry: PluginRegistry, tmp_path: Path) -> None:
    """A folder of 8 shards in the shape of a 70 billion parameter model, whose weights are holes, planned in no time."""
    folder = holes(tmp_path / "large", layers=80)
    begun = time.process_time()
    plan = plan_conversion(folder, recipe("q4_k_m"), registry).plan
    spent = time.process_time() - begun
    assert len(plan.tensors) == 723
    assert 40e9 < plan.size < 45e9
    assert spent < 1
    assert sum(f.stat().st_blocks * 512 for f in folder.iterdir()) < 2e6


def holes(folder: Path, layers: int) -> Path:
    """A folder of sparse files: true headers, no data."""
    tiny("llama", folder, layers=1)
    (folder / "model.safetensors").unlink()
    wide, inner, kv = 8192, 28672, 1024
    config = json.loads((folder / "config.json").read_text()) | {
        "hidden_size": wide, "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": 64,
        "num_key_value_heads": 8,
    }  # fmt: skip
    config.pop("head_dim", None)
    (folder / "config.json").write_text(json.dumps(config))
    shapes = {"model.embed_tokens.weight": [512, wide], "model.norm.weight": [wide], "lm_head.weight": [512, wide]}
    for i in range(layers):
        at = f"model.layers.{i}."
        shapes |= {f"{at}{n}_layernorm.weight": [wide] for n in ("input", "post_attention")}
        shapes |= {f"{at}self_attn.{n}_proj.weight": [r, wide] for n, r in (("q", wide), ("k", kv), ("v", kv), ("o", wide))}
        shapes |= {f"{at}mlp.{n}_proj.weight": [inner, wide] for n in ("gate", "up")}
        shapes[f"{at}mlp.down_proj.weight"] = [wide, inner]
    names = list(shapes)
    where = {}
    for part in range(8):
        file = f"model-{part + 1:05d}-of-00008.safetensors"
        header: dict[str, Any] = {}
        end = 0
        for name in names[part::8]:
            size = 2 * int(np.prod(shapes[name]))
            header[name] = {"dtype": "BF16", "shape": shapes[name], "data_offsets": [end, end + size]}
            where[name] = file
            end += size
        text = json.dumps(header).encode()
        with open(folder / file, "wb") as handle:
            handle.write(struct.pack("<Q", len(text)) + text)
            handle.truncate(8 + len(text) + end)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return folder
