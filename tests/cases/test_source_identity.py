"""What is it? Classes, model types, tensor names, adapters, hub caches, code that comes along (cases 1 to 4, 36, 37)."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from tests.cases.source import codes, command, converted, planned, refused
from tests.tiny import DROP, tiny, write_json

if TYPE_CHECKING:
    from pathlib import Path


def test_the_exact_class_is_taken_in_silence(tmp_path: Path) -> None:
    plan = planned(tiny("llama", tmp_path / "m"), "--strict")
    assert plan["evidence"] == "class LlamaForCausalLM"
    assert codes(plan) == []


@pytest.mark.parametrize("name", ["llamaForCausalLM", "LlamaForCausallm", "LLAMAFORCAUSALLM", "llamaforcausallm"])
def test_another_case_is_a_warning_with_the_canonical_name(tmp_path: Path, name: str) -> None:
    folder = tiny("llama", tmp_path / "m", config={"architectures": [name]})
    found = converted(folder)
    assert "LlamaForCausalLM" in found.message("class-spelling")
    assert name in found.message("class-spelling")
    assert found.keys["general.architecture"] == "llama"
    refused(folder, "strict", name, exit_code=8, flags=("--strict",))


@pytest.mark.parametrize(("said", "other"), [("qwen2", "Qwen2ForCausalLM"), ("mistral", "MistralForCausalLM")])
def test_a_model_type_of_another_class_is_a_warning(tmp_path: Path, said: str, other: str) -> None:
    folder = tiny("llama", tmp_path / "m", config={"model_type": said})
    found = converted(folder)
    for word in (said, other, "LlamaForCausalLM"):
        assert word in found.message("model-type-differs")
    assert found.keys["general.architecture"] == "llama"
    refused(folder, "strict", said, exit_code=8, flags=("--strict",))


def test_a_model_type_that_nobody_knows_says_nothing(tmp_path: Path) -> None:
    folder = tiny("llama", tmp_path / "m", config={"model_type": "my_own"})
    assert "model-type-differs" not in codes(planned(folder))


@pytest.mark.parametrize("name", ["LLaMAForCausalLM", "LlamaForCausalLM"])
def test_both_published_spellings_of_llama_are_exact(tmp_path: Path, name: str) -> None:
    assert codes(planned(tiny("llama", tmp_path / "m", config={"architectures": [name]}))) == []


@pytest.mark.parametrize(
    "name", ["BitTorrentForCausalLM", "LlamaForCausalLM2", "LlamaForSequenceClassification", "llama", "Ünïcode"]
)
def test_an_unknown_class_is_refused_though_its_model_type_is_known(tmp_path: Path, name: str) -> None:
    folder = tiny("llama", tmp_path / "m", config={"architectures": [name], "model_type": "llama"})
    refused(folder, "unknown-architecture", name, exit_code=4)


def test_a_near_name_is_offered(tmp_path: Path) -> None:
    folder = tiny("qwen2", tmp_path / "m", config={"architectures": ["Qwen2ForCausalML"]})
    refused(folder, "unknown-architecture", "Qwen2ForCausalML", "Qwen2ForCausalLM", exit_code=4)


def test_control_characters_of_a_class_name_do_not_reach_the_terminal(tmp_path: Path) -> None:
    folder = tiny("llama", tmp_path / "m", config={"architectures": ["Foo\x1b[2J\ud800Bar"]})
    cause = refused(folder, "unknown-architecture", "Foo", exit_code=4)
    assert cause.isprintable()
    assert command("plan", folder, "--json").code == 4


def test_a_class_as_a_plain_text(tmp_path: Path) -> None:
    assert planned(tiny("llama", tmp_path / "m", config={"architectures": "LlamaForCausalLM"}))["architecture"] == "llama"


@pytest.mark.parametrize("value", [[5], [None], {"a": 1}, 7, True, [["LlamaForCausalLM"]]])
def test_a_class_list_of_another_kind_is_an_error(tmp_path: Path, value: object) -> None:
    refused(tiny("llama", tmp_path / "m", config={"architectures": value}), "config-key-invalid", "architectures")


def test_several_classes(tmp_path: Path) -> None:
    twice = tiny("llama", tmp_path / "a", config={"architectures": ["LlamaForCausalLM", "LlamaForCausalLM"]})
    assert codes(planned(twice)) == []
    later = tiny("llama", tmp_path / "b", config={"architectures": ["MyLlama", "LlamaForCausalLM"]})
    plan = planned(later)
    assert codes(plan) == ["class-passed-over"]
    assert "MyLlama" in next(e["message"] for e in plan["events"] if e["code"] == "class-passed-over")
    two = tiny("llama", tmp_path / "c", config={"architectures": ["LlamaForCausalLM", "MistralForCausalLM"]})
    refused(two, "ambiguous-architecture", "LlamaForCausalLM", "MistralForCausalLM", exit_code=4)


@pytest.mark.parametrize("value", [DROP, [], None, "", [""]])
def test_without_a_class_the_model_type_decides(tmp_path: Path, value: object) -> None:
    plan = planned(tiny("qwen3", tmp_path / "m", config={"architectures": value}))
    assert plan["architecture"] == "qwen3"
    assert plan["evidence"] == "model_type qwen3"
    assert codes(plan, "info") == ["class-missing"]


def test_a_model_type_of_another_case_is_said(tmp_path: Path) -> None:
    plan = planned(tiny("llama", tmp_path / "m", config={"architectures": [], "model_type": "LLaMA"}))
    assert codes(plan) == ["class-spelling"]


def test_an_unknown_model_type_is_refused(tmp_path: Path) -> None:
    folder = tiny("llama", tmp_path / "m", config={"architectures": [], "model_type": "lama9"})
    refused(folder, "unknown-architecture", "lama9", exit_code=4)
    folder = tiny("llama", tmp_path / "n", config={"architectures": [], "model_type": 9})
    refused(folder, "config-key-invalid", "model_type")


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "qwen2moe", "qwen3moe", "phi3", "mixtral"])
def test_tensor_names_decide_where_the_config_is_silent(tmp_path: Path, family: str) -> None:
    more = {"experts": "old"} if family == "mixtral" else {}
    folder = tiny(family, tmp_path / "m", config={"architectures": DROP, "model_type": DROP}, **more)  # type: ignore[arg-type]
    plan = planned(folder)
    assert plan["architecture"] == family
    assert plan["evidence"] == "tensor names"


def test_of_two_classes_with_the_same_names_the_one_that_assumes_less_is_taken(tmp_path: Path) -> None:
    """Mistral's tensors are called as Llama's are; only its config speaks of a sliding window."""
    plan = planned(tiny("llama", tmp_path / "m", config={"architectures": DROP, "model_type": DROP}))
    assert plan["architecture"] == "llama"
    said = tiny("mistral", tmp_path / "n", config={"architectures": DROP, "model_type": DROP, "sliding_window": 64})
    plan = planned(said)
    assert (plan["architecture"], plan["exact_context"]) == ("mistral", 64)


def test_names_that_fit_nothing(tmp_path: Path) -> None:
    folder = tiny(
        "llama", tmp_path / "m", config={"architectures": [], "model_type": ""}, rename=lambda n: n.replace("mlp", "ffn")
    )
    refused(folder, "unknown-architecture", "tensor names", exit_code=4)


def test_a_class_without_its_head_is_said(tmp_path: Path) -> None:
    folder = tiny(
        "llama",
        tmp_path / "m",
        config={"architectures": ["LlamaModel"], "tie_word_embeddings": True},
        tensors={"lm_head.weight": DROP},
        rename=lambda n: n.removeprefix("model."),
    )
    plan = planned(folder)
    assert codes(plan) == ["class-without-head"]


@pytest.mark.parametrize("weights", ["adapter_model.safetensors", "adapter_model.bin", ""])
def test_an_adapter(tmp_path: Path, weights: str) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    write_json(folder / "adapter_config.json", {"peft_type": "LORA", "base_model_name_or_path": "meta-llama/Llama-3.2-1B"})
    if weights:
        (folder / weights).write_bytes(b"\0" * 64)
    refused(folder, "lora-adapter", "LoRA adapter of meta-llama/Llama-3.2-1B")


def test_an_adapter_with_a_config_beside_it(tmp_path: Path) -> None:
    folder = tiny("llama", tmp_path / "m")
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    write_json(folder / "adapter_config.json", {"base_model_name_or_path": "org/base"})
    refused(folder, "adapter-weights", "adapter_model.safetensors")


def test_a_damaged_adapter_config(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{", encoding="utf-8")
    refused(folder, "bad-json", "adapter_config.json")


def test_unmerged_lora_weights_are_named(tmp_path: Path) -> None:
    import numpy as np

    stray = {"model.layers.0.self_attn.q_proj.lora_A.weight": np.zeros((4, 64), np.float32)}
    folder = tiny("llama", tmp_path / "m", tensors=stray)
    refused(folder, "stray-tensor", "lora_A")
    assert "merge" in command("plan", folder).err


def test_an_unknown_class_is_refused_before_a_weight_file_is_opened(tmp_path: Path) -> None:
    """The weight file has ten (sparse) gigabytes of nonsense: opening it at all would give another error."""
    folder = tiny("llama", tmp_path / "m", config={"architectures": ["FancyNewForCausalLM"]})
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(10 << 30)
    os.utime(folder / "model.safetensors", ns=(1, 1))
    began = time.monotonic()
    refused(folder, "unknown-architecture", "FancyNewForCausalLM", exit_code=4)
    assert time.monotonic() - began < 1
    assert (folder / "model.safetensors").stat().st_atime_ns == 1
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}', encoding="utf-8")
    said = command("plan", folder)
    assert said.code == 3
    assert "model.safetensors" in said.err


@pytest.mark.parametrize("kind", ["direct", "linked", "relative"])
def test_a_hub_cache_snapshot_is_named_by_its_repo(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    blobs = tiny("llama", tmp_path / "models--some-org--My-Model" / "blobs")
    snapshot = tmp_path / "models--some-org--My-Model" / "snapshots" / commit
    snapshot.mkdir(parents=True)
    for file in list(blobs.iterdir()):
        blob = file.rename(blobs / f"{abs(hash(file.name)):064x}")
        (snapshot / file.name).symlink_to(os.path.relpath(blob, snapshot))
    source = snapshot
    if kind == "linked":
        source = tmp_path / "latest"
        source.symlink_to(snapshot)
    if kind == "relative":
        monkeypatch.chdir(snapshot)
        source = snapshot.relative_to(snapshot)
    plan = planned(source)
    assert plan["name"] == "My-Model"
    assert commit not in str(plan["name"])
    said = command("convert", source, "-o", tmp_path / "out", "--to", "gguf:f32", "--no-verify")
    assert said.code == 0, said.err
    assert [p.name for p in (tmp_path / "out").glob("*.gguf")] == ["My-Model-F32.gguf"]


def test_the_root_of_a_hub_cache_is_no_model(tmp_path: Path) -> None:
    root = tmp_path / "models--some-org--My-Model"
    tiny("llama", root / "snapshots" / "abc")
    refused(root, "hub-cache-root", "models--some-org--My-Model")
    assert "snapshots/abc" in command("plan", root).err


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.model"])
def test_a_dangling_link_is_named_with_its_target(tmp_path: Path, name: str) -> None:
    folder = tiny("llama", tmp_path / "m")
    (folder / name).unlink()
    (folder / name).symlink_to("../../blobs/feedbeef")
    refused(folder, "dangling-link", name, "../../blobs/feedbeef")


@pytest.mark.parametrize("where", ["config.json", "tokenizer_config.json"])
def test_code_of_the_folder_is_never_run(tmp_path: Path, where: str) -> None:
    import json

    folder = tiny("llama", tmp_path / "m")
    proof = tmp_path / "proof"
    code = f"open({str(proof)!r}, 'w').close()\n"
    for name in ("modeling_evil", "configuration_evil", "tokenization_evil"):
        (folder / f"{name}.py").write_text(code, encoding="utf-8")
    said = json.loads((folder / where).read_text(encoding="utf-8"))
    said["auto_map"] = {
        "AutoModelForCausalLM": "modeling_evil.Evil",
        "AutoConfig": "configuration_evil.Evil",
        "AutoTokenizer": ["tokenization_evil.Evil", None],
    }
    write_json(folder / where, said)
    found = converted(folder, "--strict")
    assert any(e["subject"] in ("auto_map", where) and "never" in e["message"] for e in found.events)
    assert not proof.exists()


@pytest.mark.parametrize("value", [[1], "x", 5, {"AutoModel": 3}])
def test_an_odd_auto_map_is_no_crash(tmp_path: Path, value: object) -> None:
    assert "remote-code-ignored" in codes(planned(tiny("llama", tmp_path / "m", config={"auto_map": value})), "info")


def test_sources_that_are_no_model(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    refused(empty, "no-config", "empty")
    refused(tmp_path / "nowhere", "no-such-source", "nowhere")
    folder = tiny("llama", tmp_path / "m")
    refused(folder / "model.safetensors", "weights-without-folder", "model.safetensors")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    refused(pipe, "no-such-source", "pipe")
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    refused(folder, "no-config", "config.json")
