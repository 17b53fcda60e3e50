"""Cases 18 to 20, 23 and 38 end to end: tokens proven in the runtime, broken templates, files from strangers."""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import pytest
import tokenizers

from llmfit_core.cli.guarded import run
from llmfit_core.errors import LlmfitError, StrictError, VerificationError
from llmfit_core.pipeline import convert, plan_conversion
from llmfit_core.plan import Recipe
from tests.tiny import TOKENIZERS, tiny

if TYPE_CHECKING:
    from llmfit_core.plugins import PluginRegistry

F16 = Recipe(exporter="gguf", scheme="f16")
TEXT = [
    "The quick brown fox jumps over the lazy dog, 1234567 times; the other 42 did not.",
    "def main():\n    return {'größe': [1, 2, 3]}\n\n\n\tprint(x)  # and so on",
    "模型 量化 日本語 한국어 🙂🙃 don't we'll I'M they've",
] * 20


def self_trained(path: Path, added: tuple[str, ...] = (), special: tuple[str, ...] = ("<|end|>",)) -> Path:
    """A model whose byte-level BPE nobody has seen before."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    pattern = tokenizers.Regex(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Split(pattern, behavior="isolated"),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(TEXT, trainer)
    made.add_tokens([tokenizers.AddedToken(t, normalized=False) for t in added])
    made.add_special_tokens(list(special))
    tiny("llama", path, tok="", rows=made.get_vocab_size(), config={"eos_token_id": made.get_vocab_size() - 1, "bos_token_id": None})
    made.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": special[0], "tokenizer_class": "PreTrainedTokenizerFast"}))
    return path


def proven(source: Path, out: Path, registry: PluginRegistry) -> dict[str, Any]:
    artifact, _ = convert(source, F16, out, registry)
    verified: Any = artifact.manifest["verified"]
    assert verified["tokens"] is True
    assert verified["texts"] > 10
    return {k: f.contents() for k, f in gguf.GGUFReader(artifact.paths[0]).fields.items() if k.startswith("tokenizer.")}


def test_a_self_trained_tokenizer_is_proven(registry: PluginRegistry, tmp_path: Path) -> None:
    keys = proven(self_trained(tmp_path / "model"), tmp_path / "m.gguf", registry)
    assert keys["tokenizer.ggml.pre"] == "llama-bpe"
    assert keys["tokenizer.ggml.eos_token_id"] == len(keys["tokenizer.ggml.tokens"]) - 1


@pytest.mark.parametrize("added", [("the",), (" the quick",), ("1234",), ("größe", "模型"), ("\n\n\n",)])
def test_added_tokens_in_ordinary_text_are_proven(registry: PluginRegistry, tmp_path: Path, added: tuple[str, ...]) -> None:
    proven(self_trained(tmp_path / "model", added), tmp_path / "m.gguf", registry)


def test_a_wrong_override_is_found_out(registry: PluginRegistry, tmp_path: Path) -> None:
    source = self_trained(tmp_path / "model")
    wanted = Recipe(exporter="gguf", scheme="f16", pre="gpt-2")
    with pytest.raises(VerificationError) as caught:
        convert(source, wanted, tmp_path / "m.gguf", registry)
    assert caught.value.code == "tokens-differ"
    assert not list(tmp_path.glob("m.gguf*"))


def test_merges_as_texts_and_as_pairs(registry: PluginRegistry, tmp_path: Path) -> None:
    source = self_trained(tmp_path / "a")
    other = self_trained(tmp_path / "b")
    value = json.loads((other / "tokenizer.json").read_text())
    merges = value["model"]["merges"]
    value["model"]["merges"] = [m.split(" ") if isinstance(m, str) else " ".join(m) for m in merges]
    (other / "tokenizer.json").write_text(json.dumps(value))
    one, _ = convert(source, F16, tmp_path / "one.gguf", registry)
    two, _ = convert(other, F16, tmp_path / "two.gguf", registry)
    assert one.paths[0].read_bytes() == two.paths[0].read_bytes()


def test_a_tokenizer_model_alone(registry: PluginRegistry, tmp_path: Path) -> None:
    keys = proven(tiny("llama", tmp_path / "model"), tmp_path / "m.gguf", registry)
    assert keys["tokenizer.ggml.model"] == "llama"
    assert len(keys["tokenizer.ggml.scores"]) == len(keys["tokenizer.ggml.tokens"])
    assert sum(t == 6 for t in keys["tokenizer.ggml.token_type"]) == 256


BROKEN = ["{% for m in messages %}", "{{ messages[ }}", "{% endif %}", "{% unknown_tag %}"]


@pytest.mark.parametrize("template", BROKEN)
@pytest.mark.parametrize("file", ["chat_template.jinja", "tokenizer_config.json"])
def test_a_template_that_does_not_compile(registry: PluginRegistry, tmp_path: Path, template: str, file: str) -> None:
    source = tiny("llama", tmp_path / "model")
    if file.endswith(".jinja"):
        (source / file).write_text(template)
    else:
        config = json.loads((source / file).read_text())
        (source / file).write_text(json.dumps(config | {"chat_template": template}))
    artifact, events = convert(source, F16, tmp_path / "m.gguf", registry)
    assert [e.severity for e in events if "template" in e.code] == ["warning"]
    assert "tokenizer.chat_template" not in gguf.GGUFReader(artifact.paths[0]).fields
    with pytest.raises(StrictError):
        plan_conversion(source, Recipe(exporter="gguf", scheme="f16", strict=True), registry)


def gguf_bytes(tensors: int, keys: int, rest: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, keys) + rest


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


HOSTILE = {
    "counts": gguf_bytes(2**40, 2**40),
    "a key's length": gguf_bytes(0, 1, struct.pack("<Q", 2**50) + b"abc"),
    "an array": gguf_bytes(0, 1, text("a") + struct.pack("<IIQ", 9, 4, 2**40)),
    "arrays of arrays": gguf_bytes(0, 1, text("a") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 5000),
    "an alignment": gguf_bytes(0, 1, text("general.alignment") + struct.pack("<II", 4, 3)),
    "axes": gguf_bytes(1, 0, text("t") + struct.pack("<I", 2**31)),
    "an offset": gguf_bytes(1, 0, text("t") + struct.pack("<IQIQ", 1, 32, 0, 2**60)),
    "a type": gguf_bytes(1, 0, text("t") + struct.pack("<IQIQ", 1, 32, 999, 0)),
    "a name": gguf_bytes(1, 0, text("../../x") + struct.pack("<IQIQ", 1, 8, 0, 0) + bytes(128)),
    "nothing": b"",
    "half a magic": b"GG",
    "a big-endian version": b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
}


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("command", ["plan", "inspect", "convert", "run"])
def test_files_from_strangers(
    config_dir: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], kind: str, command: str
) -> None:
    file = tmp_path / "hostile.gguf"
    file.write_bytes(HOSTILE[kind])
    more = {"convert": ["-o", str(tmp_path / "out"), "--to", "hf"], "run": ["hello"]}.get(command, [])
    run(["plugins", "list"])  # what is loaded once does not count
    capfd.readouterr()
    begun = time.process_time()
    code = run([command, str(file), *more])
    assert time.process_time() - begun < 1
    out, err = capfd.readouterr()
    assert code in (3, 4, 7), err
    assert out == ""
    assert len(err.splitlines()) == 2, err
    assert not (tmp_path / "out").exists()


def test_a_name_of_the_tokenizers_folder_is_not_followed(registry: PluginRegistry, tmp_path: Path) -> None:
    source = tiny("llama", tmp_path / "model", tok="")
    (source / "tokenizer.model").symlink_to(tmp_path / "nothing")
    with pytest.raises(LlmfitError, match=r"tokenizer\.model"):
        convert(source, F16, tmp_path / "m.gguf", registry)
    (source / "tokenizer.model").unlink()
    (source / "tokenizer.model").symlink_to(TOKENIZERS / "spm" / "tokenizer.model")
    convert(source, F16, tmp_path / "m.gguf", registry)
