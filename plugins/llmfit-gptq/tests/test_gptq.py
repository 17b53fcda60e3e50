"""GPTQ folders: the packages' own files, whole models against their plain twins, and what is refused."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from safetensors.numpy import load_file

from llmfit_core.tensors import read
from llmfit_core.testing import DecoderTests
from llmfit_gptq import llmfit_decoders
from llmfit_gptq.decode import decode, detects
from tests.cases.source import command, converted, planned, refused
from tests.quantized import Pair, Rounded, changed, gptq, pair, rounded, same_tensors
from tests.quantized_files import checkpoint_of, judged

DATA = Path(__file__).parent / "data"
SECTION = {
    "bits": 4, "group_size": 32, "desc_act": False, "sym": False, "damp_percent": 0.01, "true_sequential": True, "quant_method": "gptq",
}  # fmt: skip
Q, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.down_proj"


def make(
    path: Path,
    *,
    bits: int = 4,
    group: int = 32,
    order: bool = False,
    second: bool = False,
    index: str = "stored",
    biases: bool = False,
    section: Any = (),
    said: dict[str, Any] | None = None,
    **more: Any,
) -> Pair:
    def store(_: str, x: Rounded) -> dict[str, np.ndarray]:
        out = gptq(x, bits, second=second, index=index)
        if biases:
            out["bias"] = np.zeros(x.codes.shape[0], np.float16)
        return out

    config = {**SECTION, "bits": bits, "group_size": group, "desc_act": order} | (said or {})
    if second:
        config["checkpoint_format"] = "gptq_v2"
    return pair(
        path,
        lambda _, w: rounded(w, bits, group, order=order),
        store,
        config if section == () else section,
        **{"ffn": 128, **more},
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make(tmp_path).folder


@pytest.mark.parametrize("path", sorted(DATA.glob("*.safetensors")), ids=lambda p: p.stem)
def test_files_packed_by_auto_gptq_give_what_its_layer_computes(path: Path, tmp_path: Path) -> None:
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
        pytest.param({}, id="first-format"),
        pytest.param({"said": {"checkpoint_format": "gptq"}}, id="first-format-by-name"),
        pytest.param({"second": True}, id="second-format"),
        pytest.param({"index": "absent"}, id="no-index"),
        pytest.param({"index": "zero"}, id="zero-index"),
        pytest.param({"order": True}, id="activation-order"),
        pytest.param({"order": True, "second": True, "bits": 8}, id="activation-order-second-format-8"),
        pytest.param({"group": -1}, id="whole-rows"),
        pytest.param({"group": -1, "index": "zero", "said": {"desc_act": True}}, id="whole-rows-zero-index-desc-act"),
        pytest.param({"group": -1, "index": "absent", "said": {"desc_act": True}}, id="whole-rows-no-index-desc-act"),
        pytest.param({"said": {"desc_act": True, "static_groups": True}, "index": "absent"}, id="static-groups"),
        pytest.param({"bits": 2}, id="2-bits"),
        pytest.param({"bits": 3}, id="3-bits"),
        pytest.param({"bits": 3, "second": True, "order": True}, id="3-bits-second-format-order"),
        pytest.param({"bits": 8, "group": 64}, id="8-bits"),
        pytest.param({"group": 48}, id="last-group-short"),
        pytest.param({"biases": True}, id="zero-biases"),
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
    assert ("zero-biases" in one.codes("info")) == bool(how.get("biases"))


def test_some_experts_may_be_left_as_they_were(tmp_path: Path) -> None:
    """gptqmodel leaves out experts that saw too few tokens."""
    which = r".*experts\.[013]\..*_proj\.weight"
    made = make(tmp_path, family="qwen3moe", moe=64, which=which, dtype="bfloat16")
    got = converted(made.folder).tensors
    held = load_file(made.twin / "model.safetensors")
    for part in ("gate", "up", "down"):
        each = [held[f"model.layers.1.mlp.experts.{e}.{part}_proj.weight"].astype(np.float32) for e in range(4)]
        assert np.array_equal(got[f"blk.1.ffn_{part}_exps.weight"], np.stack(each))


def test_a_stored_zero_point_goes_round_modulo_the_bits(tmp_path: Path) -> None:
    """Zero point 0 is stored as all ones."""
    made = make(tmp_path, which=r"model\.layers\.0\.mlp\.up_proj\.weight")
    name = "model.layers.0.mlp.up_proj.qzeros"
    changed(made.folder, {name: lambda x: np.full_like(x, -1)})
    weight = converted(made.folder).tensors["blk.0.ffn_up.weight"]
    assert weight.min() == 0  # every code is at least its zero point


def test_conv1d_lies_transposed(variation: Any, tmp_path: Path) -> None:
    """GPT-2's square matrices would pass either way round."""
    made = make(
        tmp_path / "made",
        family="gpt2",
        source=variation("gpt2"),
        which=r"transformer\.h\.\d+\.(attn|mlp)\.c_\w+\.weight",
        turned=True,
    )
    same_tensors(converted(made.folder).tensors, converted(made.twin).tensors)


def test_a_plain_folder_comes_of_it(tmp_path: Path) -> None:
    made = make(tmp_path, order=True, biases=True)
    done = command("convert", made.folder, "-o", tmp_path / "back", "--to", "hf:f16", "--no-verify", "--json")
    assert done.code == 0, done.err
    same_tensors(load_file(tmp_path / "back" / "model.safetensors"), load_file(made.twin / "model.safetensors"))
    assert "quantization_config" not in (tmp_path / "back" / "config.json").read_text(encoding="utf-8")


class TestTheConfig:
    def test_may_lie_beside_config_json(self, tmp_path: Path) -> None:
        old = {"bits": 4, "group_size": 32, "desc_act": False, "sym": False, "model_name_or_path": None}
        made = make(tmp_path, section=None, files={"quantize_config.json": old})
        same_tensors(converted(made.folder).tensors, converted(made.twin).tensors)

    def test_takes_the_format_from_the_file_beside_it(self, tmp_path: Path) -> None:
        made = make(tmp_path, second=True, section=SECTION, files={"quantize_config.json": {"checkpoint_format": "gptq_v2"}})
        same_tensors(converted(made.folder).tensors, converted(made.twin).tensors)

    def test_has_to_be_somewhere_since_no_shape_tells_the_format(self, tmp_path: Path) -> None:
        refused(make(tmp_path, section=None).folder, "no-quantization-config", "quantize_config.json")

    def test_that_contradicts_the_one_beside_it_is_an_error(self, tmp_path: Path) -> None:
        made = make(tmp_path, files={"quantize_config.json": {"bits": 4, "group_size": 64}})
        refused(made.folder, "contradicting-config", "group_size", "quantize_config.json", "32", "64")

    @pytest.mark.parametrize(
        ("change", "code", "words", "exit_code"),
        [
            ({"bits": 5}, "unknown-bits", ("bits", "5"), 4),
            ({"bits": None}, "config-key-invalid", ("bits",), 3),
            ({"bits": True}, "config-key-invalid", ("bits",), 3),
            ({"bits": 8}, "shape-mismatch", ("down_proj.qzeros", "4 bits", "8"), 3),
            ({"bits": 3}, "shape-mismatch", ("down_proj.qzeros", "4 bits", "3"), 3),
            ({"group_size": 0}, "config-key-invalid", ("group_size", "0"), 3),
            ({"group_size": "128"}, "config-key-invalid", ("group_size", "128"), 3),
            ({"group_size": 64}, "shape-mismatch", ("down_proj.scales", "[4, 64]", "64", "[2, 64]"), 3),
            ({"checkpoint_format": "marlin"}, "unknown-packing", ("marlin",), 4),
            ({"checkpoint_format": "gptq_p"}, "unknown-packing", ("gptq_p",), 4),
            ({"is_marlin_format": True}, "unknown-packing", ("marlin",), 4),
            ({"pack_dtype": "int16"}, "unknown-packing", ("int16",), 4),
            ({"meta": {"rotation": "hadamard"}}, "online-rotation", ("hadamard",), 4),
            ({"dynamic": []}, "config-key-invalid", ("dynamic",), 3),
            ({"dynamic": {"+:(": {}}}, "config-key-invalid", ("dynamic", "regular expression"), 3),
            ({"dynamic": {"+:.*": {"bits": 6}}}, "unknown-bits", ("6", "+:.*"), 4),
        ],
    )
    def test_that_the_tensors_contradict_is_an_error(
        self, change: dict[str, Any], code: str, words: tuple[str, ...], exit_code: int, folder: Path
    ) -> None:
        refused(changed(folder, section=change), code, *words, exit_code=exit_code)


    def test_that_names_no_method_is_known_by_its_keys(self, tmp_path: Path) -> None:
        made = make(tmp_path, section={k: v for k, v in SECTION.items() if k != "quant_method"})
        same_tensors(converted(made.folder).tensors, converted(made.twin).tensors)


class TestRulesOfSomeModules:
    def test_have_their_own_bits_and_groups(self, tmp_path: Path) -> None:
        def round_off(name: str, w: np.ndarray) -> Rounded:
            return rounded(w, 8, 64) if ".mlp.down" in name else rounded(w, 4, -1) if ".1." in name else rounded(w, 4, 32)

        dynamic = {
            r"+:.*\.mlp\.down_proj$": {"bits": 8, "group_size": 64}, r"-:lm_head": {}, r"model\.layers\.1\..*": {"group_size": -1},
        }  # fmt: skip
        made = pair(
            tmp_path,
            round_off,
            lambda m, x: gptq(x, 8 if m.endswith(".mlp.down_proj") else 4),
            {**SECTION, "dynamic": dynamic},
            ffn=128,
        )
        one = converted(made.folder)
        same_tensors(one.tensors, converted(made.twin).tensors)
        assert "4 and 8-bit GPTQ" in one.message("source-quantized")

    @pytest.mark.parametrize("pattern", ["(a+)+$", "(.*)*x", r"(\w|\d+)*!", ".*.*.*.*.*.*.*.*x", "(" * 500 + ")" * 500, r"(a)\1"])
    def test_cannot_keep_it_busy(self, pattern: str, folder: Path) -> None:
        began = time.monotonic()
        changed(folder, section={"dynamic": {f"+:{pattern}": {"bits": 4}}})
        done = command("plan", folder, "--to", "gguf:f32")
        assert time.monotonic() - began < 5
        assert done.code in (0, 3)


class TestAutoRound:
    """Its own format is GPTQ's (or AWQ's) under another `quant_method`."""

    @pytest.mark.parametrize(("packing", "second"), [("auto_round:auto_gptq", False), ("auto_round:gptqmodel", True), ("auto_round", True)])
    @pytest.mark.parametrize("bits", [4, 6])
    def test_is_read(self, packing: str, second: bool, bits: int, tmp_path: Path) -> None:
        said = {"quant_method": "auto-round", "packing_format": packing, "bits": bits, "group_size": 32, "sym": False, "data_type": "int"}
        made = make(tmp_path, second=second, bits=bits, index="absent", section=said)
        same_tensors(converted(made.folder).tensors, converted(made.twin).tensors)

    def test_single_modules_may_differ(self, tmp_path: Path) -> None:
        extra = {DOWN: {"bits": 8, "group_size": 64}, r".*layers\.1\.mlp.*": {"bits": 2}, "lm_head": {"bits": 16, "data_type": "float"}}
        said = {"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq", "bits": 4, "group_size": 32, "extra_config": extra}
        bits = lambda m: 8 if m == DOWN else 2 if ".1.mlp." in m else 4  # noqa: E731
        made = pair(
            tmp_path,
            lambda n, w: rounded(w, bits(n.removesuffix(".weight")), 64 if n == f"{DOWN}.weight" else 32),
            lambda m, x: gptq(x, bits(m), index="absent"),
            said,
            ffn=128,
        )
        same_tensors(converted(made.folder).tensors, converted(made.twin).tensors)

    @pytest.mark.parametrize("change", [{"data_type": "mx_fp"}, {"act_bits": 8}, {"packing_format": "auto_round:llm_compressor"}])
    def test_of_another_kind_is_refused(self, change: dict[str, Any], tmp_path: Path) -> None:
        said = {"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq", "bits": 4, "group_size": 32}
        made = make(tmp_path, index="absent", section={**said, **change})
        word = str(next(iter(change.values()))).removeprefix("auto_round:")
        refused(made.folder, "undecodable-source" if "packing_format" in change else "unknown-packing", word, exit_code=4)


@pytest.mark.parametrize(
    ("tensors", "code", "words"),
    [
        ({f"{Q}.scales": None}, "missing-tensor", (f"{Q}.scales",)),
        ({f"{Q}.qzeros": None}, "missing-tensor", (f"{Q}.qzeros",)),
        ({f"{Q}.qweight": None}, "orphan-tensor", (f"{Q}.g_idx",)),
        ({f"{Q}.qweight": lambda x: x[:-1]}, "shape-mismatch", (f"{Q}.g_idx", "[64]", "[56]")),
        ({f"{Q}.qweight": lambda x: x[:, :-1]}, "shape-mismatch", (f"{Q}.scales", "[2, 64]", "[2, 63]")),
        ({f"{Q}.qweight": lambda x: x.reshape(-1)}, "shape-mismatch", (f"{Q}", "[512]")),
        ({f"{Q}.qweight": lambda x: x.astype(np.int64)}, "tensor-dtype", (f"{Q}.qweight", "i64")),
        ({f"{Q}.qzeros": lambda x: x[:1]}, "shape-mismatch", (f"{Q}.qzeros", "[1, 8]", "[2, 8]")),
        ({f"{Q}.scales": lambda x: x[:1]}, "shape-mismatch", (f"{Q}.scales", "[1, 64]", "[2, 64]")),
        ({f"{Q}.g_idx": lambda x: x[:-1]}, "shape-mismatch", (f"{Q}.g_idx", "[63]")),
        ({f"{Q}.g_idx": lambda x: x.astype(np.float32)}, "tensor-dtype", (f"{Q}.g_idx", "f32")),
        ({f"{Q}.g_idx": lambda x: x + 1}, "group-index", (f"{Q}.weight", "group 2", "there are 2")),
        ({f"{Q}.g_idx": lambda x: x - 1}, "group-index", (f"{Q}.weight", "group -1")),
        ({f"{Q}.weight": np.zeros((64, 64), np.float16)}, "duplicate-tensor", (f"{Q}.weight",)),
        ({f"{Q}.bias": np.ones(64, np.float16)}, "bias-not-zero", (f"{Q}.bias",)),
        ({f"{Q}.scales": lambda x: x * np.float16("nan")}, "not-finite", ("attn_q",)),
    ],
)
def test_damage_is_named(tensors: dict[str, Any], code: str, words: tuple[str, ...], folder: Path) -> None:
    refused(changed(folder, tensors), code, *words)


@pytest.mark.parametrize("index", ["absent", "zero"])
def test_an_order_that_is_promised_and_not_there(index: str, tmp_path: Path) -> None:
    made = make(tmp_path, index=index, said={"desc_act": True})
    refused(made.folder, "missing-tensor" if index == "absent" else "group-index", "g_idx" if index == "absent" else "desc_act")


def test_planning_reads_no_weight(folder: Path) -> None:
    """Of a file that holds nothing but its header the plan is made all the same."""
    plan = planned(folder)
    file = folder / "model.safetensors"
    data = file.read_bytes()
    head = 8 + int.from_bytes(data[:8], "little")
    file.write_bytes(data[:head])
    with file.open("r+b") as stream:
        stream.truncate(len(data))
    assert planned(folder) == plan


def sample(**how: Any) -> Any:
    """A writer for the kit: a folder, and what its twin holds."""

    def write(folder: Path) -> tuple[Path, dict[str, np.ndarray]]:
        made = make(folder, **how)
        return made.folder, load_file(made.twin / "model.safetensors")

    return write


class TestDecoder(DecoderTests):
    decoder = next(iter(llmfit_decoders()))
    samples: ClassVar = {
        "order": sample(order=True),
        "second-format-3-bits": sample(order=True, second=True, bits=3),
        "experts": sample(order=True, family="qwen2moe", moe=64, shared=96),
    }
