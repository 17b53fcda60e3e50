"""What `convert` proves: tokens before the work, opening after it; and what it says where it cannot."""

from __future__ import annotations

import json
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from llmfit_core.errors import LaunchError, SourceError, VerificationError
from llmfit_core.verify.opening import prove_opens
from llmfit_llamacpp import LLAMACPP
from tests.cases.source import command
from tests.tiny import tiny


def test_a_wrong_pretokenizer_is_found_before_a_weight_is_read(tmp_path: Path) -> None:
    folder = tiny("qwen2", tmp_path / "model")
    out = tmp_path / "out" / "m.gguf"
    said = command("convert", folder, "--to", "gguf:q8_0", "-o", out, "--pre", "falcon")
    assert said.code == 9, said.err
    assert "[tokens-differ]" in said.err
    assert not out.parent.exists()


def test_what_was_proven_is_told_and_kept(tmp_path: Path) -> None:
    folder = tiny("qwen2", tmp_path / "model")
    out = tmp_path / "m.gguf"
    said = command("convert", folder, "--to", "gguf:f32", "-o", out, "--json")
    assert said.code == 0, said.err
    kept = json.loads((tmp_path / "llmfit.json").read_text(encoding="utf-8"))["artifacts"]["m.gguf"]["verified"]
    assert [kept["reopened"], kept["tokens"], kept["opened"]] == [True, True, True]
    assert json.loads(said.out)["artifact"]["manifest"]["verified"] == kept


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A file whose keys can be read."""
    from gguf import GGUFWriter

    writer = GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return tmp_path / "m.gguf"


def test_a_file_that_the_runtime_refuses_is_an_error(written: Path) -> None:
    def refuse(*_: object) -> list[list[float]]:
        raise SourceError("tensor-shape", "blk.0.attn_q.weight has another shape", "Convert again.")

    with pytest.raises(VerificationError, match="does-not-open"):
        prove_opens(replace(LLAMACPP, score=refuse), written, 10)


def test_a_file_of_nonsense_numbers_is_an_error(written: Path) -> None:
    with pytest.raises(VerificationError, match="not-finite"):
        prove_opens(replace(LLAMACPP, score=lambda *_: [[float("nan")], [float("nan")]]), written, 10)


def test_nonsense_numbers_that_the_runtime_itself_names_are_no_refusal(written: Path) -> None:
    def no_numbers(*_: object) -> list[list[float]]:
        raise SourceError("not-finite", "m.gguf computes NaN or infinity", "Compare its weights.")

    with pytest.raises(VerificationError, match="not-finite") as caught:
        prove_opens(replace(LLAMACPP, score=no_numbers), written, 10)
    assert "Report" not in caught.value.remedy


def test_a_runtime_that_cannot_say_is_told_and_no_error(written: Path) -> None:
    def broken(*_: object) -> list[list[float]]:
        raise LaunchError("runtime-died", "the runtime died", "Reinstall it.")

    said, events = prove_opens(replace(LLAMACPP, score=broken), written, 10)
    assert (said, [e.code for e in events]) == ({}, ["not-opened"])


def test_what_is_too_large_for_this_machine_is_left_alone(written: Path) -> None:
    said, events = prove_opens(LLAMACPP, written, 1 << 60)
    assert (said, [e.code for e in events]) == ({}, ["not-opened"])


def test_without_the_judge_the_tokens_are_not_proven_and_the_file_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny("llama", tmp_path / "model")
    assert (folder / "tokenizer.model").exists()
    assert not (folder / "tokenizer.json").exists()
    monkeypatch.setitem(sys.modules, "sentencepiece", None)  # importing it raises ImportError
    said = command("convert", folder, "--to", "gguf:f32", "-o", tmp_path / "m.gguf", "--strict", "--json")
    assert said.code == 0, said.err
    artifact = json.loads(said.out)["artifact"]
    assert [e["severity"] for e in artifact["events"] if e["code"] == "tokens-not-proven"] == ["info"]
    assert artifact["manifest"]["verified"]["tokens"] is False


def test_a_folder_that_no_library_reads_is_written_unproven(tmp_path: Path) -> None:
    folder = tiny("qwen2", tmp_path / "model")
    model = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]), encoding="utf-8")
    (folder / "merges.txt").write_text("\n".join(merges), encoding="utf-8")
    said = command("convert", folder, "--to", "gguf:f32", "-o", tmp_path / "m.gguf", "--json")
    assert said.code == 0, said.err
    assert "tokens-not-proven" in {e["code"] for e in json.loads(said.out)["artifact"]["events"]}


def test_what_the_proof_needs_is_installed_with_the_core() -> None:
    root = Path(__file__).parents[3] / "pyproject.toml"
    needed = {d.split(">")[0] for d in tomllib.loads(root.read_text(encoding="utf-8"))["project"]["dependencies"]}
    assert {"sentencepiece", "tokenizers"} <= needed
