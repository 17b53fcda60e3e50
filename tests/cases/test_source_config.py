"""config.json: both spellings, contradictions, hostile JSON, values of the wrong kind, the ledger of keys (cases 7, 12)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.cases.source import codes, command, converted, planned, refused
from tests.tiny import DROP, FAMILIES, tiny

if TYPE_CHECKING:
    from pathlib import Path

NEW = {"torch_dtype": DROP, "dtype": "bfloat16", "rope_theta": DROP}
LINEAR_5 = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
YARN = {"factor": 4.0, "original_max_position_embeddings": 32}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize("family", FAMILIES)
def test_both_spellings_give_the_same_file(tmp_path: Path, family: str) -> None:
    old = converted(tiny(family, tmp_path / "a"), "--strict")
    five = NEW | {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}}
    new = converted(tiny(family, tmp_path / "b", config=five), "--strict")
    both = converted(tiny(family, tmp_path / "c", config={"dtype": "bfloat16", "rope_parameters": five["rope_parameters"]}), "--strict")
    assert old.path.read_bytes() == new.path.read_bytes() == both.path.read_bytes()


@pytest.mark.parametrize(
    ("kind", "keys"),
    [("linear", {"factor": 2.0}), ("dynamic", {"factor": 2.0}), ("yarn", YARN), ("llama3", LLAMA3)],
)
def test_both_spellings_of_scaled_rope_give_the_same_file(tmp_path: Path, kind: str, keys: dict[str, Any]) -> None:
    old = converted(tiny("llama", tmp_path / "a", config={"rope_scaling": {"type": kind} | keys}), "--strict")
    newer = converted(tiny("llama", tmp_path / "b", config={"rope_scaling": {"rope_type": kind} | keys}), "--strict")
    five = NEW | {"rope_parameters": {"rope_type": kind, "rope_theta": 10000} | keys}
    new = converted(tiny("llama", tmp_path / "c", config=five), "--strict")
    assert old.path.read_bytes() == newer.path.read_bytes() == new.path.read_bytes()


@pytest.mark.parametrize(
    ("changes", "one", "other"),
    [
        ({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, "rope_parameters.rope_theta", "rope_theta"),
        ({"rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": LINEAR_5 | {"factor": 4.0}}, "rope_parameters.factor", "rope_scaling.factor"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2}, "rope_parameters": LINEAR_5}, "rope_parameters.rope_type", "rope_scaling.type"),
        ({"rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": {"rope_type": "default"}}, "rope_parameters.rope_type", "rope_scaling.type"),
        ({"rope_scaling": {"type": "linear", "rope_type": "dynamic", "factor": 2}}, "rope_scaling.type", "rope_scaling.rope_type"),
        ({"dtype": "float16"}, "torch_dtype", "dtype"),
        ({"partial_rotary_factor": 0.5, "rotary_pct": 1.0}, "partial_rotary_factor", "rotary_pct"),
        ({"partial_rotary_factor": 0.5, "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 1.0}}, "partial_rotary_factor", "rope_parameters.partial_rotary_factor"),
        ({"rotary_emb_base": 5e5}, "rope_theta", "rotary_emb_base"),
        ({"original_max_position_embeddings": 32, "rope_scaling": {"type": "yarn"} | YARN | {"original_max_position_embeddings": 64}}, "original_max_position_embeddings", "64"),
    ],
)  # fmt: skip
def test_spellings_that_contradict_name_both_keys(tmp_path: Path, changes: dict[str, Any], one: str, other: str) -> None:
    refused(tiny("llama", tmp_path / "m", config=changes), "contradicting-config", one, other)


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_parameters": {"rope_theta": 10000}},
        {"rope_parameters": {}},
        {"rope_parameters": None, "rope_scaling": None},
        {"rope_scaling": {}},
        {"rope_scaling": {"type": "default"}},
        {"rope_scaling": {"type": None, "factor": None}},
        {"dtype": "torch.bfloat16"},
        {"dtype": None},
        {"rope_parameters": {"full_attention": {"rope_theta": 10000, "rope_type": "default"}}},
        {"rope_parameters": {"a": {"rope_theta": 10000}, "b": {"rope_theta": 10000}, "c": None}},
        {"quantization_config": None},
        {"quantization_config": {}},
        {"head_dim": None, "sliding_window": DROP},
        {"num_hidden_layers": 2.0},
    ],
)
def test_what_says_nothing_says_nothing(tmp_path: Path, changes: dict[str, Any]) -> None:
    plain = converted(tiny("llama", tmp_path / "a"))
    other = converted(tiny("llama", tmp_path / "b", config=changes), "--strict")
    assert other.path.read_bytes() == plain.path.read_bytes()


@pytest.mark.parametrize("family", ["mixtral", "qwen3moe", "qwen2moe"])
def test_two_counts_of_experts_contradict(tmp_path: Path, family: str) -> None:
    folder = tiny(family, tmp_path / "m", config={"num_local_experts": 4, "num_experts": 8})
    refused(folder, "contradicting-config", "num_local_experts", "num_experts")
    assert codes(planned(tiny(family, tmp_path / "n", config={"num_local_experts": 4, "num_experts": 4}))) == []


def test_a_rope_for_each_kind_of_layer_is_not_taken_for_one(tmp_path: Path) -> None:
    ropes = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    refused(tiny("llama", tmp_path / "m", config={"rope_parameters": ropes}), "config-value", "rope_parameters", exit_code=4)
    mixed = {"rope_theta": 10000, "full_attention": {"rope_theta": 1e6}}
    refused(tiny("llama", tmp_path / "n", config={"rope_parameters": mixed}), "config-key-invalid", "rope_parameters.full_attention")


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters", "quantization_config"])
@pytest.mark.parametrize("value", ["linear", 5, [1], True])
def test_an_object_key_of_another_kind(tmp_path: Path, key: str, value: object) -> None:
    refused(tiny("llama", tmp_path / "m", config={key: value}), "config-key-invalid", key)


COUNTS = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size",
    "max_position_embeddings", "vocab_size",
)  # fmt: skip


@pytest.mark.parametrize("key", COUNTS)
@pytest.mark.parametrize("value", [-1, 0.5, "64", [64], {"a": 1}, True, 1 << 40, 10**400, float("nan"), float("inf")])
def test_a_count_of_another_kind_names_its_key(tmp_path: Path, key: str, value: object) -> None:
    refused(tiny("llama", tmp_path / "m", config={key: value}), "config-key-invalid", key)


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings"])
def test_a_count_of_nought(tmp_path: Path, key: str) -> None:
    refused(tiny("llama", tmp_path / "m", config={key: 0}), "config-key-invalid", key)


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "max_position_embeddings"])
@pytest.mark.parametrize("value", [None, DROP])
def test_a_count_that_is_missing(tmp_path: Path, key: str, value: object) -> None:
    refused(tiny("llama", tmp_path / "m", config={key: value}), "config-key-missing", key)


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("qwen3moe", "decoder_sparse_step", "1"),
        ("qwen3moe", "mlp_only_layers", 1),
        ("qwen3moe", "mlp_only_layers", ["a"]),
        ("qwen3moe", "norm_topk_prob", "yes"),
        ("qwen3moe", "num_experts_per_tok", 0),
        ("qwen3moe", "num_experts_per_tok", 5),
        ("qwen3moe", "num_experts", -4),
        ("qwen2moe", "qkv_bias", "true"),
        ("qwen2moe", "shared_expert_intermediate_size", [80]),
        ("qwen2", "layer_types", "full_attention"),
        ("qwen2", "layer_types", [1, 2]),
        ("qwen2", "max_window_layers", "all"),
        ("qwen2", "use_sliding_window", "no"),
        ("llama", "tie_word_embeddings", "false"),
        ("llama", "attention_bias", "no"),
        ("llama", "attention_bias", []),
        ("llama", "mlp_bias", 2),
        ("llama", "rms_norm_eps", 0),
        ("llama", "rms_norm_eps", "1e-5"),
        ("llama", "rms_norm_eps", float("nan")),
        ("llama", "rope_theta", 0),
        ("llama", "rope_theta", 1),
        ("llama", "rope_theta", "10000"),
        ("llama", "rope_theta", float("inf")),
        ("llama", "hidden_act", 5),
        ("llama", "partial_rotary_factor", "half"),
        ("llama", "partial_rotary_factor", 1.5),
        ("phi3", "partial_rotary_factor", 0.07),
        ("phi3", "original_max_position_embeddings", "4096"),
        ("mistral", "sliding_window", "4096"),
        ("mistral", "sliding_window", -1),
    ],
)
def test_a_value_of_another_kind_names_its_key(tmp_path: Path, family: str, key: str, value: object) -> None:
    refused(tiny(family, tmp_path / "m", config={key: value}), "config-key-invalid", key)


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("llama", "hidden_act", "gelu"),
        ("qwen2", "hidden_act", "relu2"),
        ("llama", "rope_interleaved", True),
        ("llama", "is_encoder_decoder", True),
        ("llama", "add_cross_attention", True),
        ("mistral", "attention_bias", True),
        ("qwen2", "use_mrope", True),
        ("qwen2", "layer_types", ["full_attention", "chunked_attention"]),
        ("qwen2", "layer_types", ["full_attention"]),
        ("qwen2moe", "layer_types", ["full_attention", "linear_attention"]),
        ("phi3", "full_attn_mod", 2),
        ("llama", "partial_rotary_factor", 0.5),
        ("qwen2moe", "norm_topk_prob", True),
        ("qwen3moe", "norm_topk_prob", False),
    ],
)
def test_a_value_that_no_graph_computes_is_refused_by_key(tmp_path: Path, family: str, key: str, value: object) -> None:
    folder = tiny(family, tmp_path / "m", config={key: value})
    said = command("plan", folder, "--to", "gguf:f32")
    assert said.code == 4, said.err
    assert key in said.err.splitlines()[0]


def test_an_unknown_key_is_a_warning_and_fails_strict(tmp_path: Path) -> None:
    folder = tiny("llama", tmp_path / "m", config={"logit_scale": 0.5, "use_fancy_attention": True})
    plan = planned(folder)
    assert codes(plan) == ["unknown-config-key"] * 2
    assert plan["config"]["unknown"] == ["logit_scale", "use_fancy_attention"]
    refused(folder, "strict", "logit_scale", exit_code=8, flags=("--strict",))


def test_a_source_that_no_decoder_reads_is_named(tmp_path: Path) -> None:
    for method in ("bitsandbytes", "hqq", "aqlm", "brandnew"):
        folder = tiny("llama", tmp_path / method, config={"quantization_config": {"quant_method": method}})
        refused(folder, "undecodable-source", method, exit_code=4)
    folder = tiny("llama", tmp_path / "m", config={"quantization_config": {"load_in_4bit": True}})
    refused(folder, "undecodable-source", "bitsandbytes", exit_code=4)


def rewritten(folder: Path, text: str | bytes) -> Path:
    (folder / "config.json").write_bytes(text.encode() if isinstance(text, str) else text)
    return folder


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "empty-file"),
        ("{", "bad-json"),
        ("[]", "bad-json"),
        ("null", "bad-json"),
        ('"x"', "bad-json"),
        ("<!DOCTYPE html><html>", "html-page"),
        ("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n", "git-lfs-pointer"),
        (b"\xff\xfe{\x00}\x00", "bad-json"),
        ("{'a': 1}", "bad-json"),
        ('{"a": 1} extra', "bad-json"),
        ('{"hidden_size": 64, "hidden_size": 65}', "bad-json"),
        ('{"rope_scaling": {"factor": 1, "factor": 2}}', "bad-json"),
        ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "bad-json"),
        ('{"a": ' + "1" * 5000 + "}", "bad-json"),
        (b"\0" * 500, "zero-filled"),
        ("{}" + " " * (40 << 20), "file-too-large"),
    ],
    ids=range(16),
)  # fmt: skip
def test_hostile_json(tmp_path: Path, text: str | bytes, error: str) -> None:
    refused(rewritten(tiny("llama", tmp_path / "m"), text), error, "config.json")


def test_a_byte_order_mark_and_unused_infinities_are_fine(tmp_path: Path) -> None:
    plain = converted(tiny("llama", tmp_path / "a"))
    folder = tiny("llama", tmp_path / "b")
    said = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    text = json.dumps(said | {"attention_dropout": float("inf"), "resid_pdrop": float("nan")})
    other = converted(rewritten(folder, b"\xef\xbb\xbf" + text.encode()), "--strict")
    assert plain.path.read_bytes() == other.path.read_bytes()


def test_1e400_is_no_number(tmp_path: Path) -> None:
    folder = tiny("llama", tmp_path / "m")
    text = (folder / "config.json").read_text(encoding="utf-8").replace('"rope_theta": 10000.0', '"rope_theta": 1e400')
    refused(rewritten(folder, text), "config-key-invalid", "rope_theta")
