"""compressed-tensors folders: the package's own files, whole models against their plain twins, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

from llmfit_compressed_tensors import llmfit_decoders
from llmfit_compressed_tensors.decode import decode, detects
from llmfit_core.checkpoint import open_checkpoint
from llmfit_core.readers.remote import Remote
from llmfit_core.tensors import read
from llmfit_core.testing import DecoderTests
from tests.cases.source import command, converted, planned, refused
from tests.quantized import Arrays, Pair, Rounded, changed, packed, pair, rounded, same_tensors
from tests.quantized_files import checkpoint_of, judged

DATA = Path(__file__).parent / "data"
Q, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.down_proj"


def section(*groups: dict[str, Any], form: str = "pack-quantized", **more: Any) -> dict[str, Any]:
    said = {
        f"group_{i}": {"targets": ["Linear"], "input_activations": None, "output_activations": None, **g}
        for i, g in enumerate(groups)
    }
    return {
        "quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed", "ignore": ["lm_head"],
        "kv_cache_scheme": None, "global_compression_ratio": 1.5, "sparsity_config": {}, "transform_config": {}, "version": "0.12.2",
        "config_groups": said, **more,
    }  # fmt: skip


def weights(bits: int = 4, group: int | None = 32, **more: Any) -> dict[str, Any]:
    strategy = {None: "tensor", -1: "channel"}.get(group, "group")
    args = {
        "actorder": None, "block_structure": None, "dynamic": False, "group_size": group, "num_bits": bits, "observer": "minmax",
        "observer_kwargs": {}, "strategy": strategy, "symmetric": True, "type": "int",
    }  # fmt: skip
    return {"weights": {**args, **more}}


def in_bytes(x: Rounded, bits: int = 8, *, symmetric: bool = True) -> Arrays:
    """An int-quantized module."""
    half = 1 << bits - 1
    out = {"weight": (x.codes - half).astype(np.int8), "weight_scale": x.scales}
    if not symmetric:
        out["weight_zero_point"] = (x.zeros - half).astype(np.int8)
    return out


def make(
    path: Path, *, bits: int = 4, group: int = 32, symmetric: bool = True, order: bool = False, dtype: Any = np.float16,
    form: str = "pack-quantized", said: dict[str, Any] | None = None, extra: dict[str, Any] | None = None, **more: Any,
) -> Pair:  # fmt: skip
    def store(_: str, x: Rounded) -> Arrays:
        return packed(x, bits, symmetric=symmetric, index=order) if form == "pack-quantized" else in_bytes(x, bits, symmetric=symmetric)

    args = weights(bits, group, symmetric=symmetric, actorder="group" if order else None)
    return pair(
        path,
        lambda _, w: rounded(w, bits, group, symmetric=symmetric, order=order, dtype=dtype),
        store,
        {**section({**args, **(extra or {})}, form=form), **(said or {})},
        **{"ffn": 128, **more},
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make(tmp_path).folder


@pytest.mark.parametrize("path", sorted(DATA.glob("*.safetensors")), ids=lambda p: p.stem)
def test_files_by_the_package_give_what_it_makes_of_them(path: Path, tmp_path: Path) -> None:
    parts, said, want = judged(path, "expected")
    source = checkpoint_of(parts, said, tmp_path)
    assert detects(source)
    weight = decode(source, []).tensors["m.weight"].tensor
    got = read(weight)
    assert got.dtype == want.dtype
    assert got.tobytes() == want.tobytes()
    pieces = [weight.rows(a, min(a + 5, weight.shape[0])) for a in range(0, weight.shape[0], 5)]
    assert np.concatenate(pieces).tobytes() == want.tobytes()


@pytest.mark.parametrize(
    "how",
    [
        pytest.param({}, id="symmetric"),
        pytest.param({"symmetric": False}, id="asymmetric"),
        pytest.param({"group": -1}, id="rows"),
        pytest.param({"group": -1, "symmetric": False}, id="rows-asymmetric"),
        pytest.param({"bits": 8, "group": -1}, id="8-bits"),
        pytest.param({"bits": 8, "group": 32, "symmetric": False}, id="8-bits-asymmetric"),
        pytest.param({"bits": 3}, id="3-bits"),
        pytest.param({"order": True}, id="activation-order"),
        pytest.param({"order": True, "symmetric": False, "bits": 8}, id="activation-order-asymmetric"),
        pytest.param({"extra": weights(4, 32, actorder="weight")}, id="order-of-the-work"),
        pytest.param({"extra": weights(4, 32, actorder=False)}, id="no-order"),
        pytest.param({"dtype": ml_dtypes.bfloat16}, id="bfloat16"),
        pytest.param({"dtype": np.float32}, id="float32"),
        pytest.param({"form": "int-quantized", "bits": 8, "group": -1}, id="int8"),
        pytest.param({"form": "int-quantized", "bits": 8, "group": 32, "symmetric": False}, id="int8-asymmetric"),
        pytest.param({"form": "naive-quantized", "bits": 8, "group": -1}, id="naive"),
        pytest.param({"said": {"format": "mixed-precision"}, "extra": {"format": "pack-quantized"}}, id="format-of-the-group"),
        pytest.param({"family": "qwen2", "which": r".*(_proj|lm_head)\.weight"}, id="biases-and-head"),
        pytest.param({"family": "qwen2moe", "moe": 64, "shared": 96}, id="experts"),
        pytest.param({"family": "phi3"}, id="fused"),
    ],
)
def test_a_folder_is_its_plain_twin(how: dict[str, Any], tmp_path: Path) -> None:
    made = make(tmp_path, **how)
    one, other = converted(made.folder), converted(made.twin)
    same_tensors(one.tensors, other.tensors)
    assert one.keys == other.keys
    assert "source-quantized" in one.codes("info")


def test_experts_in_one_tensor(tmp_path: Path) -> None:
    """`[E, N, K]` packed matrix by matrix."""
    made = make(tmp_path, family="qwen3moe", moe=64, symmetric=False, which="nothing", experts="fused")
    held = load_file(made.twin / "model.safetensors")
    change: dict[str, Any] = {}
    for layer in range(2):
        for part in ("gate_up_proj", "down_proj"):
            name = f"model.layers.{layer}.mlp.experts.{part}"
            each = [rounded(w, 4, 32) for w in held[name]]
            stored = [packed(x, symmetric=False) for x in each]
            change[name] = None
            change |= {f"{name}.{p}": np.stack([s[p] for s in stored]) for p in stored[0]}
            change[f"{name}.weight_shape"] = np.array(held[name].shape)
            held[name] = np.stack([x.weight for x in each])
    changed(made.folder, change)
    changed(made.twin, {n: v for n, v in held.items() if "experts" in n})
    same_tensors(converted(made.folder).tensors, converted(made.twin).tensors)


def test_groups_by_name_pattern_and_class(tmp_path: Path) -> None:
    def round_off(name: str, w: np.ndarray) -> Rounded:
        if name == f"{DOWN}.weight":
            return rounded(w, 8, -1, symmetric=True)
        return rounded(w, 4, 64, symmetric=True) if ".self_attn." in name else rounded(w, 4, 32, symmetric=False)

    made = pair(
        tmp_path,
        round_off,
        lambda m, x: in_bytes(x) if m == DOWN else packed(x, symmetric=".self_attn." in m),
        section(
            {**weights(4, 32, symmetric=False), "format": "pack-quantized"},
            {**weights(4, 64), "targets": ["re:.*self_attn.*"], "format": "pack-quantized"},
            {**weights(8, -1), "targets": [DOWN], "format": "int-quantized"},
            form="mixed-precision",
        ),
        ffn=128,
    )
    one = converted(made.folder)
    same_tensors(one.tensors, converted(made.twin).tensors)
    assert "8-bit" in one.message("source-quantized")


def test_scales_of_what_is_not_stored_are_left_out(tmp_path: Path) -> None:
    made = make(tmp_path, form="int-quantized", bits=8, group=-1, extra={"input_activations": weights(8, None)["weights"]})
    one = np.ones(1, np.float16)
    changed(made.folder, {f"{Q}.input_scale": one, "model.layers.0.self_attn.k_scale": one, "model.layers.0.self_attn.v_scale": one})
    got = converted(made.folder)
    same_tensors(got.tensors, converted(made.twin).tensors)
    assert {"scales-left-out", "activations-plain"} <= set(got.codes("info"))


def test_a_quantized_cache_alone_is_a_plain_model(tmp_path: Path) -> None:
    made = make(tmp_path, which="nothing", said={"config_groups": {}, "format": "dense", "kv_cache_scheme": weights(8, None)["weights"]})
    changed(made.folder, {"model.layers.0.self_attn.k_scale": np.ones(1, np.float16)})
    got = converted(made.folder)
    same_tensors(got.tensors, converted(made.twin).tensors)
    assert "source-quantized" not in got.codes()


def test_a_plain_folder_comes_of_it(tmp_path: Path) -> None:
    made = make(tmp_path, symmetric=False)
    done = command("convert", made.folder, "-o", tmp_path / "back", "--to", "hf:f16", "--no-verify", "--json")
    assert done.code == 0, done.err
    same_tensors(load_file(tmp_path / "back" / "model.safetensors"), load_file(made.twin / "model.safetensors"))
    assert "quantization_config" not in (tmp_path / "back" / "config.json").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("said", "code", "words", "exit_code"),
    [
        ({"format": "marlin-24"}, "unknown-packing", ("marlin-24",), 4),
        ({"format": "nvfp4-pack-quantized"}, "unknown-packing", ("nvfp4-pack-quantized",), 4),
        ({"format": "mxfp4-pack-quantized"}, "unknown-packing", ("mxfp4-pack-quantized",), 4),
        ({"sparsity_config": {"format": "sparse-24-bitmask"}}, "unknown-packing", ("sparse-24-bitmask",), 4),
        ({"transform_config": {"config_groups": {"R4": {}}}}, "online-rotation", ("transform_config",), 4),
        ({"quantization_status": "frozen"}, "not-compressed", ("frozen",), 4),
        ({"format": "dense"}, "not-compressed", ("dense",), 4),
        ({"format": "mixed-precision"}, "not-compressed", ("mixed-precision",), 4),
        ({"config_groups": []}, "config-key-invalid", ("config_groups",), 3),
        ({"config_groups": {"W4A16": ["Linear"]}}, "config-key-invalid", ("config_groups", "W4A16"), 3),
        ({"config_groups": {"g": {**weights(), "targets": "Linear"}}}, "config-key-invalid", ("targets",), 3),
        ({"config_groups": {"g": {**weights(), "targets": ["re:("]}}}, "config-key-invalid", ("targets",), 3),
        ({"config_groups": {"g": {**weights(), "targets": ["re:(.*)*x"]}}}, "config-key-invalid", ("targets",), 3),
        ({"config_groups": {"g": {"targets": ["Linear"], **weights(16)}}}, "unknown-bits", ("16 bits",), 4),
        ({"config_groups": {"g": {"targets": ["Linear"], **weights(4, 32, type="float")}}}, "unknown-bits", ("float",), 4),
        ({"config_groups": {"g": {"targets": ["Linear"], **weights(4, 32, strategy="block")}}}, "unknown-packing", ("blocks",), 4),
        ({"config_groups": {"g": {"targets": ["Linear"], **weights(4, 32, strategy="tensor_group")}}}, "unknown-packing", ("tensor_group",), 4),
        ({"config_groups": {"g": {"targets": ["Linear"], **weights(4, 0, strategy="group")}}}, "config-key-invalid", ("group_size",), 3),
        ({"config_groups": {"g": {"targets": ["Linear"], **weights(4, 48)}}}, "shape-mismatch", ("down_proj", "128", "48"), 3),
        ({"config_groups": {"g": {"targets": ["Linear"], **weights(4, 64)}}}, "shape-mismatch", ("down_proj.weight_scale", "[64, 4]"), 3),
        ({"config_groups": {"g": {"targets": ["Linear"], **weights(8, 32)}}}, "shape-mismatch", ("weight_packed", "8 bits", "[64, 32]"), 3),
        ({"config_groups": {"g": {"targets": ["Linear"], **weights(4, 32, symmetric=False)}}}, "missing-tensor", ("weight_zero_point",), 3),
        ({"config_groups": {"g": {"targets": ["Linear"], **weights(4, 32, actorder="group")}}}, "missing-tensor", ("weight_g_idx",), 3),
        ({"config_groups": {"g": {"targets": ["Linear"], **weights(4, 32, actorder=True)}}}, "missing-tensor", ("weight_g_idx",), 3),
        (
            {"config_groups": {k: {"targets": ["re:.*q_proj"], **weights(4, 32)} for k in ("a", "b")}},
            "no-scheme", ("down_proj", "2 config_groups"), 3,
        ),
    ],
)  # fmt: skip
def test_a_config_that_cannot_be_followed(
    said: dict[str, Any], code: str, words: tuple[str, ...], exit_code: int, folder: Path
) -> None:
    refused(changed(folder, section=said), code, *words, exit_code=exit_code)


@pytest.mark.parametrize(
    ("tensors", "code", "words"),
    [
        ({f"{Q}.weight_scale": None}, "missing-tensor", (f"{Q}.weight_scale",)),
        ({f"{Q}.weight_packed": None}, "missing-tensor", (f"{Q}.weight_packed",)),
        ({f"{Q}.weight_shape": None}, "missing-tensor", (f"{Q}.weight_shape",)),
        ({f"{Q}.weight_shape": np.array([64, 63])}, "shape-mismatch", (f"{Q}.weight", "63", "32")),
        ({f"{Q}.weight_shape": np.array([32, 64])}, "shape-mismatch", (f"{Q}.weight_shape", "[32, 64]", "[64, 8]")),
        ({f"{Q}.weight_shape": np.array([64, 1 << 60])}, "shape-mismatch", (f"{Q}.weight_packed",)),
        ({f"{Q}.weight_shape": np.array([64, -64])}, "shape-mismatch", (f"{Q}.weight_shape", "-64")),
        ({f"{Q}.weight_shape": np.array([64, 64, 1])}, "shape-mismatch", (f"{Q}.weight_packed", "[3]")),
        ({f"{Q}.weight_packed": lambda x: x[:, :-1]}, "shape-mismatch", (f"{Q}.weight_packed", "[64, 7]", "[64, 8]")),
        ({f"{Q}.weight_packed": lambda x: x.astype(np.int64)}, "tensor-dtype", (f"{Q}.weight_packed", "i64")),
        ({f"{Q}.weight_scale": lambda x: x[:, :1]}, "shape-mismatch", (f"{Q}.weight_scale", "[64, 1]", "[64, 2]")),
        ({f"{Q}.weight_scale": lambda x: x.astype(np.float64)}, "tensor-dtype", (f"{Q}.weight_scale", "f64")),
        ({f"{Q}.weight_zero_point": np.zeros((64, 2), np.int32)}, "shape-mismatch", (f"{Q}.weight_zero_point", "[64, 2]", "[8, 2]")),
        ({f"{Q}.weight_g_idx": np.zeros(63, np.int32)}, "shape-mismatch", (f"{Q}.weight_g_idx",)),
        ({f"{Q}.weight_g_idx": np.r_[np.full(40, 0), np.full(24, 1)].astype(np.int32)}, "group-index", (f"{Q}.weight", "40", "32")),
        ({f"{Q}.weight_g_idx": np.r_[np.full(32, 0), np.full(32, 7)].astype(np.int32)}, "group-index", (f"{Q}.weight", "group 7")),
        ({f"{Q}.weight": np.zeros((64, 64), np.float16)}, "duplicate-tensor", (f"{Q}.weight",)),
        ({f"{Q}.weight_scale": lambda x: x * np.float16("nan")}, "not-finite", ("attn_q",)),
        ({"model.layers.0.mlp.gate.weight_zero_point": np.zeros(1, np.int8)}, "orphan-tensor", ("mlp.gate.weight_zero_point",)),
    ],
)
def test_damage_is_named(tensors: dict[str, Any], code: str, words: tuple[str, ...], folder: Path) -> None:
    refused(changed(folder, tensors), code, *words)


@pytest.mark.parametrize("index", [np.full(64, -1, np.int32), (np.arange(64) // 32).astype(np.int32)])
def test_an_index_that_says_nothing(index: np.ndarray, tmp_path: Path) -> None:
    made = make(tmp_path)
    changed(made.folder, {f"{Q}.weight_g_idx": index})
    same_tensors(converted(made.folder).tensors, converted(made.twin).tensors)


def test_the_weights_are_plain_again_and_the_config_says_they_are_not(tmp_path: Path) -> None:
    made = make(tmp_path, which="nothing")
    refused(made.folder, "no-quantized-tensors", "weight_packed")


def test_planning_needs_no_more_than_headers_and_shapes(folder: Path) -> None:
    assert planned(folder)["events"]


@pytest.mark.parametrize("group", [32, -1])
def test_of_a_model_on_a_hub_headers_tell_the_shape(group: int, tmp_path: Path) -> None:
    """weight_shape is a tensor, and planning downloads none."""
    made = make(tmp_path, group=group)
    here = open_checkpoint(made.folder)
    far = {
        n: replace(r, tensor=Remote(repo="org/name", revision="main", filename="m", offset=0, shape=r.shape, dtype=r.dtype))
        for n, r in here.tensors.items()
    }
    plain = decode(replace(here, tensors=far), [])
    assert {n: r.shape for n, r in plain.tensors.items()} == {n: r.shape for n, r in open_checkpoint(made.twin).tensors.items()}


def sample(**how: Any) -> Any:
    """A writer for the kit: a folder, and what its twin holds."""

    def write(folder: Path) -> tuple[Path, dict[str, np.ndarray]]:
        made = make(folder, **how)
        return made.folder, load_file(made.twin / "model.safetensors")

    return write


class TestDecoder(DecoderTests):
    decoder = next(iter(llmfit_decoders()))
    samples: ClassVar = {
        "packed": sample(symmetric=False),
        "order": sample(order=True, symmetric=False, bits=8),
        "int8": sample(form="int-quantized", bits=8, group=-1, symmetric=False),
        "experts": sample(symmetric=False, family="qwen2moe", moe=64, shared=96),
    }
