"""The head against `tie_word_embeddings`, the vocabulary's three sizes, the sources of end tokens (cases 11, 21, 22)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.cases.source import codes, command, converted, planned, refused
from tests.tiny import DROP, save, tiny, weights, write_json

if TYPE_CHECKING:
    from pathlib import Path

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def headed(path: Path, family: str, head: str, tie: object, dtype: str = "bfloat16", shards: int = 1) -> Path:
    """A model whose head is `equal` to the embedding, `different`, or `absent`."""
    rows = 640 if family.startswith("qwen") else 512
    same = weights(EMBED, (rows, 64)).astype(weights("", (1,), dtype).dtype)
    changes: dict[str, Any] = {"absent": {HEAD: DROP}, "equal": {HEAD: same}, "different": {}}[head]
    return tiny(family, path, config={"tie_word_embeddings": tie}, tensors=changes, shards=shards)


FAMILIES = ["llama", "qwen2", "mixtral", "phi3", "qwen3"]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shards", [1, 5])
def test_an_equal_head_that_is_tied_is_one_copy(tmp_path: Path, family: str, shards: int) -> None:
    found = converted(headed(tmp_path / "a", family, "equal", True, shards=shards), "--strict")
    assert "output.weight" not in found.tensors
    absent = converted(headed(tmp_path / "b", family, "absent", True), "--strict")
    assert found.path.read_bytes() == absent.path.read_bytes()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_equal_head_of_another_type_is_one_copy(tmp_path: Path, dtype: str) -> None:
    assert "output.weight" not in converted(headed(tmp_path / "m", "llama", "equal", True, dtype), "--strict").tensors


@pytest.mark.parametrize("family", FAMILIES)
def test_a_different_head_that_is_tied_is_followed_with_a_warning(tmp_path: Path, family: str) -> None:
    folder = headed(tmp_path / "m", family, "different", True)
    found = converted(folder)
    assert found.codes() == ["head-differs"]
    want = load_file(folder / "model.safetensors")[HEAD].astype(np.float32)
    assert np.array_equal(found.tensors["output.weight"], want)
    refused(folder, "strict", "head", exit_code=8, flags=("--strict",))


@pytest.mark.parametrize("head", ["equal", "different"])
def test_a_folder_says_what_it_holds(tmp_path: Path, head: str) -> None:
    folder = headed(tmp_path / "m", "llama", head, True)
    said = command("convert", folder, "-o", tmp_path / "out", "--to", "hf:bf16", "--json")
    assert said.code == 0, said.err
    config = json.loads((tmp_path / "out" / "config.json").read_text(encoding="utf-8"))
    assert config["tie_word_embeddings"] is (head == "equal")
    assert (HEAD in load_file(tmp_path / "out" / "model.safetensors")) is (head == "different")
    if head == "different":
        assert "head-differs" in [e["code"] for e in json.loads(said.out)["artifact"]["events"]]
        refused(folder, "strict", "stored head differs", exit_code=8, to="hf:bf16", flags=("--strict",))


def test_one_bit_is_a_difference(tmp_path: Path) -> None:
    folder = headed(tmp_path / "m", "llama", "equal", True)
    held = load_file(folder / "model.safetensors")
    held[HEAD] = held[EMBED].copy()
    held[HEAD].view(np.uint16)[511, 63] ^= 1
    save(folder, held)
    assert converted(folder).codes() == ["head-differs"]


def test_the_plan_names_the_check_and_answers_it(tmp_path: Path) -> None:
    folder = headed(tmp_path / "m", "llama", "different", True)
    plan = planned(folder)
    assert [c["name"] for c in plan["checks"]] == ["head-equals-embedding"]
    assert codes(planned(folder, "--check")) == ["head-differs"]
    assert codes(planned(headed(tmp_path / "n", "llama", "equal", True), "--check")) == []


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tie", [False, DROP, None])
def test_an_absent_head_that_is_not_tied_is_a_warning(tmp_path: Path, family: str, tie: object) -> None:
    folder = headed(tmp_path / "m", family, "absent", tie)
    found = converted(folder)
    assert found.codes() == ["head-missing"]
    assert "output.weight" not in found.tensors
    refused(folder, "strict", "head", exit_code=8, flags=("--strict",))


@pytest.mark.parametrize("tie", [False, DROP])
@pytest.mark.parametrize("head", ["equal", "different"])
def test_a_head_that_is_not_tied_is_kept(tmp_path: Path, tie: object, head: str) -> None:
    found = converted(headed(tmp_path / "m", "llama", head, tie), "--strict")
    assert "output.weight" in found.tensors


@pytest.mark.parametrize(("head", "tie"), [("equal", True), ("absent", True), ("different", True), ("absent", False), ("different", False)])
def test_a_graph_that_needs_a_head_gets_one(tmp_path: Path, head: str, tie: bool) -> None:
    folder = headed(tmp_path / "m", "qwen2moe", head, tie)
    found = converted(folder)
    held = load_file(folder / "model.safetensors")
    want = held.get(HEAD, held[EMBED]).astype(np.float32)
    assert np.array_equal(found.tensors["output.weight"], want)


@pytest.mark.parametrize("tie", [True, False])
def test_a_head_of_other_rows(tmp_path: Path, tie: bool) -> None:
    more = {HEAD: weights(HEAD, (520, 64))}
    folder = tiny("llama", tmp_path / "m", config={"tie_word_embeddings": tie}, tensors=more)
    refused(folder, "shape-mismatch", HEAD, "[520, 64]", "512")


# Case 21: tokenizer 512 (llama), the embedding's rows, vocab_size


@pytest.mark.parametrize(
    ("rows", "said", "outcome"),
    [
        (512, 512, []),
        (512, DROP, []),
        (512, 509, ["vocab-size"]),
        (512, 520, ["vocab-size"]),
        (520, 520, []),
        (520, 512, ["vocab-size"]),
        (520, 509, ["vocab-size"]),
        (576, DROP, []),
    ],
)
def test_rows_decide_where_that_is_safe(tmp_path: Path, rows: int, said: object, outcome: list[str]) -> None:
    found = converted(tiny("llama", tmp_path / "m", rows=rows, config={"vocab_size": said}))
    assert found.codes() == outcome
    assert len(found.keys["tokenizer.ggml.tokens"]) == rows == found.tensors["token_embd.weight"].shape[0]
    assert found.keys["llama.vocab_size"] == rows
    assert ("vocab-padded" in found.codes("info")) == (rows > 512)
    if rows > 512:
        assert found.keys["tokenizer.ggml.tokens"][512] == "[PAD512]"
        assert set(found.keys["tokenizer.ggml.token_type"][512:]) == {5}


@pytest.mark.parametrize(("rows", "said"), [(509, 509), (509, 512), (509, 520), (509, DROP), (1, 512)])
def test_tokens_without_a_row_are_an_error_with_all_numbers(tmp_path: Path, rows: int, said: object) -> None:
    numbers = ["512", str(rows), "no vocab_size" if said is DROP else f"vocab_size {said}"]
    refused(tiny("llama", tmp_path / "m", rows=rows, config={"vocab_size": said}), "vocab-size", *numbers)


def test_three_sizes_of_a_byte_level_vocabulary(tmp_path: Path) -> None:
    found = converted(tiny("qwen2", tmp_path / "m", rows=704, config={"vocab_size": 700}))
    assert found.codes() == ["vocab-size"]
    assert len(found.keys["tokenizer.ggml.tokens"]) == 704
    refused(tiny("qwen2", tmp_path / "n", rows=637, config={"vocab_size": 648}), "vocab-size", "640", "637", "648")


def test_no_tokenizer(tmp_path: Path) -> None:
    refused(tiny("llama", tmp_path / "m", tok=""), "no-tokenizer", "tokenizer", exit_code=4)


# Case 22


def ends(path: Path, generation: object = DROP, **config: object) -> Path:
    folder = tiny("llama", path, config=config)
    if generation is not DROP:
        write_json(folder / "generation_config.json", {"eos_token_id": generation})
    return folder


@pytest.mark.parametrize("said", [[2, 5, 7], [2, 7, 5, 2]])
def test_ends_from_the_generation_config_are_all_kept(tmp_path: Path, said: list[int]) -> None:
    found = converted(ends(tmp_path / "m", said, eos_token_id=2))
    assert found.keys["tokenizer.ggml.eos_token_id"] == 2
    written = {v for k, v in found.keys.items() if k.startswith("tokenizer.ggml.e") and k.endswith("_token_id")}
    stops = command("inspect", tmp_path / "m", "--json").out
    assert {5, 7} <= written | set(json.loads(stops)["inspection"]["tokenizer"]["stops"])


@pytest.mark.parametrize(
    ("generation", "config"), [(2, DROP), (DROP, 2), (DROP, [2]), ([2], None), (None, 2), (2, [2]), ([2, 2], 2)]
)
def test_one_end_whoever_says_it(tmp_path: Path, generation: object, config: object) -> None:
    folder = ends(tmp_path / "m", generation, eos_token_id=config)
    assert converted(folder).keys["tokenizer.ggml.eos_token_id"] == 2


@pytest.mark.parametrize("value", ["2", [2, "x"], {"a": 2}, -1, 100_000, [2, 99_999], 1.5])
@pytest.mark.parametrize("where", ["generation", "config"])
def test_an_end_that_is_no_token_is_no_crash(tmp_path: Path, value: object, where: str) -> None:
    folder = ends(tmp_path / "m", value) if where == "generation" else ends(tmp_path / "m", eos_token_id=value)
    said = command("plan", folder, "--to", "gguf:f32", "--json")
    assert said.code in (0, 3, 4), said.err
    if said.code == 0:
        assert "eos" in said.out or "token_id" in said.out
