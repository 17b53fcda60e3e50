"""Hugging Face to GGUF and back: the same tensors, config, tokenizer and generation, as transformers reads them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.e2e.scoring import by_transformers, ids_of, reference
from tests.expert_forms import config_of, load, one_by_one
from tests.golden_models import gold

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from llmfit_core.events import Event
    from tests.golden_models import GoldenModels

    ToGguf = Callable[..., tuple[Path, tuple[Event, ...]]]
    ToHf = Callable[..., Path]

SLOW = pytest.mark.slow(reason="the kind of case is covered by a quicker one")
TEXTS = [
    "Hello world",
    " leading and  double  spaces",
    "line one\nline two\n\n\ttabbed",
    "naïve café Ελληνικά 数字 🙂 \u200d",
    "1234567890 x=1; y+=2 // don't",
    "</s><s>[INST] a [/INST] <|im_start|>user<|im_end|>",
    "",
]


def rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **more}}


FACTORS = {
    "original_max_position_embeddings": 256,
    "short_factor": [1 + 0.05 * i for i in range(16)],
    "long_factor": [1 + 0.4 * i for i in range(16)],
}
YARN = {"factor": 4.0, "original_max_position_embeddings": 128}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
VARIATIONS: list[Any] = [
    pytest.param("llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 64}, id="biases"),
    pytest.param("llama", {"tie_word_embeddings": True, "num_key_value_heads": 1}, id="tied", marks=SLOW),
    pytest.param("llama", rope("linear", factor=2.5), id="linear"),
    pytest.param("llama", rope("llama3", **LLAMA3), id="llama3"),
    pytest.param("llama", rope("llama3", **{**LLAMA3, "low_freq_factor": 1.5, "factor": 3.0}), id="odd-llama3"),
    pytest.param("llama", rope("yarn", **YARN), id="yarn"),
    pytest.param("llama", rope("yarn", **YARN, attention_factor=1.3, beta_fast=16.0), id="custom-yarn"),
    pytest.param("llama", rope("yarn", **YARN, truncate=False, mscale=0.7, mscale_all_dim=0.5), id="yarn-mscale", marks=SLOW),
    pytest.param("llama", rope("longrope", **FACTORS), id="longrope"),
    pytest.param("llama", {**rope("dynamic", factor=4.0), "max_position_embeddings": 32}, id="dynamic"),
    pytest.param("mistral", {"sliding_window": 16}, id="window"),
    pytest.param("qwen2", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}, id="qwen2-window"),
    pytest.param("qwen2", {"vocab_size": 1000}, id="padded-vocabulary", marks=SLOW),
    pytest.param("qwen2moe", {"tie_word_embeddings": True}, id="qwen2moe-tied"),
    pytest.param("qwen2moe", {"qkv_bias": False, "norm_topk_prob": True, "num_experts_per_tok": 4}, id="qwen2moe-no-biases"),
    pytest.param("qwen3", {"head_dim": 64}, id="qwen3", marks=SLOW),
    pytest.param("qwen3moe", {"head_dim": 64, "tie_word_embeddings": True}, id="qwen3moe"),
    pytest.param("mixtral", {"num_local_experts": 3}, id="mixtral"),
    pytest.param("phi3", rope("default", partial_rotary_factor=0.75), id="phi3-partial"),
    pytest.param("phi3", {**rope("longrope", **FACTORS), "original_max_position_embeddings": 256}, id="phi3-longrope"),
]


@pytest.fixture(autouse=True)
def forget_models() -> Iterator[None]:
    """Folders of finished tests are gone; their models go too."""
    yield
    reference.cache_clear()


def same_tensors(ours: Path, theirs: Path) -> None:
    """Bit for bit, in one form of experts, by the safetensors library."""
    a, b = one_by_one(load(ours)), one_by_one(load(theirs))
    assert sorted(a) == sorted(b)
    for name, tensor in b.items():
        assert a[name].dtype == tensor.dtype, name
        assert a[name].equal(tensor), name


def same_logits(ours: Path, theirs: Path) -> None:
    ids = ids_of(theirs)
    assert np.array_equal(by_transformers(ours, ids), by_transformers(theirs, ids))


@pytest.mark.parametrize(("family", "changes"), VARIATIONS)
def test_variations(
    family: str, changes: dict[str, Any], golden_models: GoldenModels, to_gguf: ToGguf, to_hf: ToHf
) -> None:
    model = golden_models.variation(family, changes)
    file, _ = to_gguf(model, "bf16")
    back = to_hf(file, "bf16")
    same_tensors(back, model)
    same_logits(back, model)
    ours, theirs = config_of(back), config_of(model)
    assert ours["architectures"] == theirs["architectures"]
    assert ours.get("tie_word_embeddings", False) == theirs.get("tie_word_embeddings", False)


@pytest.mark.parametrize("scheme", ["f32", "bf16"])
@pytest.mark.parametrize("case", ["llama-bpe", "qwen2-eoslist", "phi3", pytest.param("mixtral", marks=SLOW)])
def test_golden_cases(
    case: str, scheme: str, golden_model: Callable[[str], Path], to_gguf: ToGguf, to_hf: ToHf
) -> None:
    model = golden_model(case)
    file, _ = to_gguf(model, scheme)
    same_tensors(to_hf(file, "bf16"), model)


def test_f32_keeps_what_bf16_cannot_hold(golden_model: Callable[[str], Path], to_gguf: ToGguf, to_hf: ToHf) -> None:
    model = golden_model("llama-f32src")
    file, _ = to_gguf(model, "f32")
    same_tensors(to_hf(file, "f32"), model)


def test_folder_to_folder_changes_nothing(golden_model: Callable[[str], Path], to_hf: ToHf) -> None:
    """The hf exporter without GGUF in between: fused, biased and sharded sources."""
    for number, case in enumerate(("phi3", "llama-bias", "llama-sharded", "qwen2moe")):
        same_tensors(to_hf(golden_model(case), "bf16", name=f"copy-{number}"), golden_model(case))


@pytest.mark.parametrize("case", ["llama", "llama-bpe", "qwen2", pytest.param("phi3", marks=SLOW)])
def test_tokens(case: str, golden_model: Callable[[str], Path], to_gguf: ToGguf, to_hf: ToHf) -> None:
    """Ids of the folder that came back, by `tokenizers`, are those of the original's tokenizer, by its own library."""
    from tokenizers import Tokenizer

    model = golden_model(case)
    file, _ = to_gguf(model, "bf16")
    ours = Tokenizer.from_file(str(to_hf(file) / "tokenizer.json"))
    for text in TEXTS:
        ids = ours.encode(text, add_special_tokens=False).ids
        if (model / "tokenizer.json").exists():
            assert ids == Tokenizer.from_file(str(model / "tokenizer.json")).encode(text, add_special_tokens=False).ids
        elif "<s>" not in text:  # the library knows no control tokens in texts
            from sentencepiece import SentencePieceProcessor

            assert ids == SentencePieceProcessor(model_file=str(model / "tokenizer.model")).encode(text)
    assert ours.decode(ours.encode(TEXTS[3]).ids) == TEXTS[3]


def test_transformers_takes_tokenizer_template_and_ends(
    golden_model: Callable[[str], Path], to_gguf: ToGguf, to_hf: ToHf
) -> None:
    import transformers

    model = golden_model("qwen2-eoslist")
    file, _ = to_gguf(model, "bf16")
    back = to_hf(file)
    wanted, found = (transformers.AutoTokenizer.from_pretrained(f) for f in (model, back))
    chat = [{"role": "user", "content": "Hello\nthere"}]
    assert found.apply_chat_template(chat, tokenize=False) == wanted.apply_chat_template(chat, tokenize=False)
    for text in TEXTS:
        assert found(text).input_ids == wanted(text).input_ids
    said = json.loads((back / "generation_config.json").read_text(encoding="utf-8"))
    assert {2, 0} <= set(said["eos_token_id"])
    transformers.GenerationConfig.from_pretrained(back).validate(strict=True)


@pytest.mark.parametrize(
    "case", ["llama", "llama-rope3", "llama-bias", "mixtral", "qwen2moe", "qwen3", "phithree", "phithree-longrope-long"]
)
def test_a_file_as_the_peer_writes_it(
    case: str, golden_model: Callable[[str], Path], to_gguf: ToGguf, to_hf: ToHf, tmp_path: Path
) -> None:
    """Written by gguf-py with the peer's keys only: nothing of the way back may hang on keys of our own."""
    model = golden_model(case)
    file, _ = to_gguf(model, "bf16")
    theirs = as_the_peer(file, case, tmp_path / "peer.gguf")
    back = to_hf(theirs)
    same_tensors(back, model)
    same_logits(back, model)


def test_factors_of_no_known_rope_still_compute_the_same(
    golden_models: GoldenModels, to_gguf: ToGguf, to_hf: ToHf, tmp_path: Path
) -> None:
    """A `rope_freqs` tensor whose parameters nobody wrote down: the factors themselves become the config's."""
    from tests.e2e.scoring import divergence

    changes = rope("llama3", **{**LLAMA3, "low_freq_factor": 1.5, "factor": 3.0})
    model = golden_models.variation("llama", changes)
    file, _ = to_gguf(model, "bf16")
    back = to_hf(as_the_peer(file, "llama-rope3", tmp_path / "peer.gguf"))
    same_tensors(back, model)
    ids = ids_of(model)
    assert divergence(by_transformers(model, ids), by_transformers(back, ids)).mean() < 1e-9


def test_a_stated_rope_that_the_file_contradicts_is_not_believed(
    golden_models: GoldenModels, to_gguf: ToGguf, to_hf: ToHf, tmp_path: Path
) -> None:
    model = golden_models.variation("llama", rope("llama3", **LLAMA3))
    file, _ = to_gguf(model, "bf16")
    lie = json.dumps({"rope_scaling": {**changes_of_rope(model), "factor": 2.0}, "hidden_act": "silu"})
    back = to_hf(as_the_peer(file, "llama-rope3", tmp_path / "lie.gguf", {"llmfit.config": lie}))
    same_logits(back, model)
    for number, broken in enumerate(("{", "[]", "null", '{"rope_scaling": 7}', '{"rope_scaling": {"rope_type": "yarn"}}')):
        lie_file = as_the_peer(file, "llama-rope3", tmp_path / f"broken-{number}.gguf", {"llmfit.config": broken})
        same_logits(to_hf(lie_file, name=f"back-{number}"), model)


def changes_of_rope(model: Path) -> dict[str, Any]:
    found = config_of(model)["rope_parameters"]
    assert isinstance(found, dict)
    return {k: v for k, v in found.items() if k != "rope_theta"}


def as_the_peer(file: Path, case: str, out: Path, more: dict[str, str] | None = None) -> Path:
    """The tensors of `file` under the keys that the golden data has for `case`, written by gguf-py."""
    from gguf import GGUFReader, GGUFValueType, GGUFWriter

    reader = GGUFReader(file)
    keys = set(gold(case)["kv"])
    arch = reader.fields["general.architecture"].contents()
    writer = GGUFWriter(out, arch)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture" or name not in keys:
            continue
        kind = field.types[0]
        if kind == GGUFValueType.ARRAY:
            writer.add_array(name, field.contents())
        else:
            writer.add_key_value(name, field.contents(), kind)
    for name, text in (more or {}).items():
        writer.add_string(name, text)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out
