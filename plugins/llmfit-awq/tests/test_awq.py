"""AWQ folders: the packages' own files, whole models against their plain twins, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from safetensors.numpy import load_file

from llmfit_awq import llmfit_decoders
from llmfit_awq.decode import decode, detects, padded_words
from llmfit_core.tensors import read
from llmfit_core.testing import DecoderTests
from tests.cases.source import codes, command, converted, planned, refused
from tests.quantized import Pair, Rounded, awq, changed, pair, rounded, same_tensors
from tests.quantized_files import checkpoint_of, judged

DATA = Path(__file__).parent / "data"
SECTION = {"bits": 4, "group_size": 32, "modules_to_not_convert": None, "quant_method": "awq", "version": "gemm", "zero_point": True}


def make(path: Path, *, group: int = 32, version: str = "gemm", symmetric: bool = False, **more: Any) -> Pair:
    def store(_: str, x: Rounded) -> dict[str, np.ndarray]:
        out = awq(x, version)
        if more.get("zeros") is False:
            del out["qzeros"]
        return out

    section = {**SECTION, "group_size": group, "version": version, "zero_point": not symmetric}
    options = {k: v for k, v in more.items() if k not in ("zeros", "section")}
    return pair(
        path,
        lambda _, w: rounded(w, 4, group, symmetric=symmetric),
        store,
        more.get("section", section),
        **{"ffn": 128, **options},
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make(tmp_path).folder


@pytest.mark.parametrize("path", sorted(DATA.glob("*.safetensors")), ids=lambda p: p.stem)
def test_files_packed_by_autoawq_give_what_its_dequantizer_gives(path: Path, tmp_path: Path) -> None:
    parts, section, want = judged(path, "weight")
    source = checkpoint_of(parts, section, tmp_path)
    assert detects(source)
    weight = decode(source, []).tensors["m.weight"].tensor
    assert weight.dtype == "f16"
    assert read(weight).tobytes() == want.tobytes()
    pieces = [weight.rows(a, min(a + 5, weight.shape[0])) for a in range(0, weight.shape[0], 5)]
    assert np.concatenate(pieces).tobytes() == want.tobytes()


@pytest.mark.parametrize(
    "how",
    [
        pytest.param({}, id="gemm"),
        pytest.param({"group": -1}, id="whole-rows"),
        pytest.param({"version": "gemv", "group": 64}, id="gemv"),
        pytest.param({"symmetric": True}, id="symmetric-with-zeros"),
        pytest.param({"symmetric": True, "zeros": False}, id="symmetric-without-zeros"),
        pytest.param({"family": "qwen2", "which": r".*(_proj|lm_head)\.weight"}, id="biases-and-head"),
        pytest.param({"family": "qwen2moe", "moe": 64, "shared": 96}, id="experts"),
        pytest.param({"family": "phi3"}, id="fused"),
        pytest.param({"which": r".*mlp\.(up|down)_proj\.weight"}, id="some-modules-plain"),
    ],
)
def test_a_folder_is_its_plain_twin(how: dict[str, Any], tmp_path: Path) -> None:
    made = make(tmp_path, **how)
    one, other = converted(made.folder), converted(made.twin)
    same_tensors(one.tensors, other.tensors)
    assert one.keys == other.keys
    assert "source-quantized" in one.codes("info")
    assert "4-bit AWQ" in one.message("source-quantized")
    assert "source-quantized" not in other.codes()


def test_a_plain_folder_comes_of_it(tmp_path: Path) -> None:
    made = make(tmp_path)
    done = command("convert", made.folder, "-o", tmp_path / "back", "--to", "hf:f16", "--no-verify", "--json")
    assert done.code == 0, done.err
    same_tensors(load_file(tmp_path / "back" / "model.safetensors"), load_file(made.twin / "model.safetensors"))
    assert "quantization_config" not in (tmp_path / "back" / "config.json").read_text(encoding="utf-8")
    assert '"decoders": [\n' in (tmp_path / "back" / "llmfit.json").read_text(encoding="utf-8")


def test_strict_counts_it(folder: Path) -> None:
    refused(folder, "strict", "each time loses more", exit_code=8, to="gguf:q8_0", flags=("--strict",))


def test_quantizing_it_again_is_warned_of(folder: Path) -> None:
    assert "requantized" in codes(planned(folder, to="gguf:q4_k_m"))


class TestTheConfig:
    def test_may_lie_beside_config_json(self, tmp_path: Path) -> None:
        old = {"zero_point": True, "q_group_size": 32, "w_bit": 4, "version": "GEMM"}
        made = make(tmp_path, section=None, files={"quant_config.json": old})
        same_tensors(converted(made.folder).tensors, converted(made.twin).tensors)

    def test_may_be_auto_rounds(self, tmp_path: Path) -> None:
        said = {"quant_method": "auto-round", "packing_format": "auto_round:auto_awq", "bits": 4, "group_size": 32, "sym": False}
        made = make(tmp_path, section={**said, "extra_config": {"lm_head": {"bits": 16}}})
        same_tensors(converted(made.folder).tensors, converted(made.twin).tensors)
        refused(changed(made.folder, section={"extra_config": {Q: {"bits": 8}}}), "config-key-invalid", "extra_config", "8")

    @pytest.mark.parametrize("group", [32, -1])
    def test_may_be_missing_where_the_shapes_tell(self, group: int, tmp_path: Path) -> None:
        made = make(tmp_path, group=group, section=None)
        got = converted(made.folder)
        same_tensors(got.tensors, converted(made.twin).tensors)
        assert f"group {group}" in got.message("quantization-inferred")

    def test_that_contradicts_the_one_beside_it_is_an_error(self, tmp_path: Path) -> None:
        made = make(tmp_path, files={"quant_config.json": {"w_bit": 4, "q_group_size": 64}})
        refused(made.folder, "contradicting-config", "group_size of quantization_config", "q_group_size of quant_config.json", "32", "64")

    @pytest.mark.parametrize(
        ("change", "code", "words", "exit_code"),
        [
            ({"bits": 8}, "unknown-bits", ("bits", "8"), 4),
            ({"bits": 3}, "unknown-bits", ("bits", "3"), 4),
            ({"bits": "four"}, "config-key-invalid", ("bits", "four"), 3),
            ({"version": "gemv_fast"}, "unknown-packing", ("gemv_fast",), 4),
            ({"version": "marlin"}, "unknown-packing", ("marlin",), 4),
            ({"version": "exllama"}, "unknown-packing", ("exllama",), 4),
            ({"backend": "llm-awq"}, "unknown-packing", ("llm-awq",), 4),
            ({"group_size": 0}, "config-key-invalid", ("group_size", "0"), 3),
            ({"group_size": -2}, "config-key-invalid", ("group_size", "-2"), 3),
            ({"group_size": 48}, "shape-mismatch", ("down_proj", "128", "48"), 3),
            ({"group_size": 64}, "shape-mismatch", ("down_proj.scales", "[4, 64]", "group_size 64", "[2, 64]"), 3),
            ({"group_size": 1 << 80}, "shape-mismatch", ("group_size",), 3),
            ({"version": "gemv"}, "shape-mismatch", ("scales",), 3),
        ],
    )
    def test_that_the_tensors_contradict_is_an_error(
        self, change: dict[str, Any], code: str, words: tuple[str, ...], exit_code: int, folder: Path
    ) -> None:
        refused(changed(folder, section=change), code, *words, exit_code=exit_code)

    def test_that_names_no_method_is_known_by_its_keys(self, tmp_path: Path) -> None:
        made = make(tmp_path, section={k: v for k, v in SECTION.items() if k != "quant_method"})
        same_tensors(converted(made.folder).tensors, converted(made.twin).tensors)

    def test_of_something_else_in_the_folder_is_an_error(self, folder: Path) -> None:
        refused(changed(folder, section={"quant_method": "hqq"}), "undecodable-source", "hqq", exit_code=4)


Q = "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("tensors", "code", "words"),
    [
        ({f"{Q}.scales": None}, "missing-tensor", (f"{Q}.scales",)),
        ({f"{Q}.qzeros": None}, "missing-tensor", (f"{Q}.qzeros",)),
        ({f"{Q}.qweight": None}, "orphan-tensor", (f"{Q}.qzeros",)),
        ({f"{Q}.qweight": lambda x: x[:-1]}, "shape-mismatch", (f"{Q}.qweight", "63")),
        ({f"{Q}.qweight": lambda x: x[:, :-1]}, "shape-mismatch", (f"{Q}.scales", "[2, 56]")),
        ({f"{Q}.qweight": lambda x: x.reshape(-1)}, "shape-mismatch", (f"{Q}.qweight", "[512]")),
        ({f"{Q}.qweight": lambda x: x[:0]}, "shape-mismatch", (f"{Q}.qweight", "[0, 8]")),
        ({f"{Q}.qweight": lambda x: x.astype(np.float32)}, "tensor-dtype", (f"{Q}.qweight", "f32", "i32")),
        ({f"{Q}.qzeros": lambda x: x[:, :-1]}, "shape-mismatch", (f"{Q}.qzeros", "[2, 7]", "[2, 8]")),
        ({f"{Q}.qzeros": lambda x: x.astype(np.int64)}, "tensor-dtype", (f"{Q}.qzeros", "i64")),
        ({f"{Q}.scales": lambda x: x.T}, "shape-mismatch", (f"{Q}.scales", "[64, 2]")),
        ({f"{Q}.scales": lambda x: x.astype(np.int32)}, "tensor-dtype", (f"{Q}.scales", "i32")),
        ({f"{Q}.weight": np.zeros((64, 64), np.float16)}, "duplicate-tensor", (f"{Q}.weight",)),
        ({"model.layers.0.mlp.act.scales": np.ones(128, np.float16)}, "activation-scales", ("mlp.act.scales",)),
        ({f"{Q}.scales": lambda x: x * np.float16("nan")}, "not-finite", ("attn_q",)),
    ],
)
def test_damage_is_named(tensors: dict[str, Any], code: str, words: tuple[str, ...], folder: Path) -> None:
    refused(changed(folder, tensors), code, *words, exit_code=4 if code == "activation-scales" else 3)


def test_a_file_that_was_cut_short_is_named(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    refused(folder, "truncated-file", "model.safetensors")


def test_no_weights_are_quantized_and_the_config_says_they_are(tmp_path: Path) -> None:
    made = make(tmp_path, which="nothing")
    refused(made.folder, "no-quantized-tensors", "qweight")


def test_widths_of_gemv_zeros() -> None:
    """AutoAWQ's `calculate_zeros_width`, by hand: 4096 / 128 / 8 = 4; 2816 / 64 / 8 = 5.5, 6; 2048 / 32 / 8 = 8; 96 / 32 / 8, 4."""
    assert [padded_words(*a) for a in ((4096, 128), (2816, 64), (2048, 32), (96, 32), (128, 128))] == [4, 6, 8, 4, 1]


def sample(**how: Any) -> Any:
    """A writer for the kit: a folder, and what its twin holds."""

    def write(folder: Path) -> tuple[Path, dict[str, np.ndarray]]:
        made = make(folder, **how)
        return made.folder, load_file(made.twin / "model.safetensors")

    return write


class TestDecoder(DecoderTests):
    decoder = next(iter(llmfit_decoders()))
    samples: ClassVar = {
        "gemm": sample(),
        "gemv": sample(version="gemv", group=64),
        "experts": sample(family="qwen2moe", moe=64, shared=96),
    }
