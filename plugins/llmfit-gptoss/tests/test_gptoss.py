"""GPT-OSS against llama.cpp's converter and against transformers: tensors, keys, logits, the way back, refusals."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from llmfit_core.errors import LlmfitError, SourceError, UnsupportedError
from llmfit_core.naming import Patterns
from llmfit_core.prepare import prepare
from llmfit_core.readers.gguf import read_gguf
from llmfit_core.wiring import scale_groups
from llmfit_gptoss.table import GPT_OSS, PUBLISHED_ROPE
from tests.contract.test_wiring import Subject, scales
from tests.e2e.scoring import by_llamacpp, by_transformers, divergence, ids_of, reference
from tests.e2e.test_golden import compare_keys, tensors_of
from tests.e2e.test_round_trip import as_the_peer, same_logits
from tests.expert_forms import config_of, load
from tests.golden_models import gold

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from llmfit_core.events import Event
    from llmfit_core.plugins import PluginRegistry

    ToGguf = Callable[..., tuple[Path, tuple[Event, ...]]]
    Make = Callable[..., Path]

transformers = pytest.importorskip("transformers", reason="the judge is transformers")

EXACT = 3e-6
SLOW = pytest.mark.slow(reason="the kind of case is covered by a quicker one")
FULL, SLIDING = "full_attention", "sliding_attention"


def yarn(**more: Any) -> dict[str, Any]:
    rope = {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "original_max_position_embeddings": 64}
    return {"rope_parameters": {**rope, **more}}


@pytest.fixture(autouse=True)
def forget_models() -> Iterator[None]:
    yield
    reference.cache_clear()


def codes(events: tuple[Event, ...]) -> list[str]:
    return [e.code for e in events if e.severity in ("warning", "fallback")]


def same_tensors(ours: Path, theirs: Path) -> None:
    a, b = load(ours), load(theirs)
    assert sorted(a) == sorted(b)
    for name, tensor in b.items():
        assert a[name].dtype == tensor.dtype, name
        assert a[name].equal(tensor), name


@pytest.mark.parametrize("case", ["gptoss-plainrope", pytest.param("gptoss-yarntrunc", marks=SLOW)])
def test_files_are_the_peers(case: str, golden_model: Callable[[str], Path], to_gguf: ToGguf) -> None:
    wanted = gold(case)
    file, events = to_gguf(golden_model(case))
    assert codes(events) == []
    assert tensors_of(file) == {t["name"]: (t["type"], t["sha256"]) for t in wanted["tensors"]}
    shapes = {t["name"]: tuple(reversed(t["shape"])) for t in wanted["tensors"]}
    assert {n: t.shape for n, t in read_gguf(file).tensors.items()} == shapes
    # No loader of this graph reads betas.
    compare_keys(case, read_gguf(file), {k: v for k, v in wanted["kv"].items() if "yarn_beta" not in k})
    ids = ids_of(golden_model(case))
    assert divergence(by_transformers(golden_model(case), ids), by_llamacpp(file, ids)).mean() < EXACT
    narrow, _ = to_gguf(golden_model(case), "bf16")
    assert tensors_of(narrow) == {n: tuple(v) for n, v in wanted["convert_bf16"]["tensors"].items()}


@pytest.mark.parametrize("scheme", ["q4_k_m", *(pytest.param(s, marks=SLOW) for s in "q4_k_s q3_k_l q2_k q6_k q8_0 iq4_xs".split())])
def test_quantized_is_the_peers(scheme: str, golden_model: Callable[[str], Path], to_gguf: ToGguf) -> None:
    file, _ = to_gguf(golden_model("gptoss-plainrope"), scheme)
    theirs = gold("gptoss-plainrope")["quantize"][scheme.upper()]["tensors"]
    types = {n: t for n, (t, _) in tensors_of(file).items()}
    assert types == {n: v[0] if isinstance(v, list) else v for n, v in theirs.items()}
    for name, value in theirs.items():
        if isinstance(value, list):
            assert tensors_of(file)[name][1] == value[1], name


RIGHT: list[Any] = [
    pytest.param({"num_hidden_layers": 3, "sliding_window": 5}, id="window-of-5", marks=SLOW),
    pytest.param({"layer_types": [FULL, SLIDING]}, id="full-first", marks=SLOW),
    pytest.param({"layer_types": [FULL, FULL]}, id="no-window"),
    pytest.param({"num_hidden_layers": 4, "layer_types": [SLIDING, SLIDING, SLIDING, FULL]}, id="every-fourth", marks=SLOW),
    pytest.param({"num_local_experts": 3, "num_experts_per_tok": 1, "intermediate_size": 64, "hidden_size": 96}, id="odd-sizes"),
    pytest.param({"tie_word_embeddings": True, "num_key_value_heads": 4}, id="tied-ungrouped", marks=SLOW),
    pytest.param({"head_dim": 64, "num_attention_heads": 8, "num_key_value_heads": 1}, id="wide-heads", marks=SLOW),
    pytest.param({"num_experts_per_tok": 4, "rms_norm_eps": 1e-3}, id="all-experts", marks=SLOW),
    pytest.param(yarn(), id="yarn", marks=SLOW),
    pytest.param(yarn(attention_factor=1.3), id="yarn-attention", marks=SLOW),
    pytest.param({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.5}}, id="linear", marks=SLOW),
]


@pytest.mark.parametrize("changes", RIGHT)
def test_variations_are_right_and_come_back(changes: dict[str, Any], variation: Make, to_gguf: ToGguf, to_hf: Make) -> None:
    model = variation(**changes)
    file, events = to_gguf(model)
    assert codes(events) == []
    ids = ids_of(model)
    assert divergence(by_transformers(model, ids), by_llamacpp(file, ids)).mean() < EXACT
    back = to_hf(to_gguf(model, "bf16")[0])
    same_tensors(back, model)
    same_logits(back, model)
    assert {"head_dim", "sliding_window", "num_local_experts", "rope_scaling"} <= set(config_of(back))


def test_the_published_rope_is_written_and_measured(variation: Make, to_gguf: ToGguf, to_hf: Make) -> None:
    """The graph rounds yarn's range: told, and as small as told at the length of a short text."""
    model = variation(max_position_embeddings=131072, head_dim=64, rope_parameters={**PUBLISHED_ROPE, "rope_theta": 150000.0})
    file, events = to_gguf(model)
    told = [e for e in events if e.severity == "warning"]
    assert [e.code for e in told] == ["rope-rounded"]
    assert "8.093 to 17.4" in told[0].message
    assert "8 to 18" in told[0].message
    ids = ids_of(model)
    here = by_llamacpp(file, ids)
    assert 1e-6 < divergence(by_transformers(model, ids), here).mean() < 1e-3
    # What is told is all there is: the same model with a rounded range is met exactly.
    rope = {**PUBLISHED_ROPE, "rope_theta": 150000.0}
    net = reference(model)
    exact, net.model.rotary_emb.inv_freq = net.model.rotary_emb.inv_freq, rounded_frequencies(rope)
    assert float((exact - net.model.rotary_emb.inv_freq).abs().max()) == pytest.approx(phase_told(told[0].message), rel=0.05)
    assert divergence(by_transformers(model, ids), here).mean() < EXACT
    reference.cache_clear()
    back = to_hf(to_gguf(model, "bf16")[0])
    assert config_of(back)["rope_scaling"] == PUBLISHED_ROPE
    same_logits(back, model)


def phase_told(message: str) -> float:
    return float(message.split("up to ")[1].split()[0])


def rounded_frequencies(rope: dict[str, Any]) -> Any:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = transformers.GptOssConfig(head_dim=64, rope_parameters={**rope, "truncate": True})
    return ROPE_INIT_FUNCTIONS["yarn"](config, "cpu")[0]


@pytest.mark.parametrize("case", ["gptoss", "gptoss-legacy"])
def test_a_rope_that_is_too_far_off_is_refused(case: str, golden_model: Callable[[str], Path], to_gguf: ToGguf) -> None:
    with pytest.raises(UnsupportedError, match=r"truncate false.*0\.017 radians a token") as caught:
        to_gguf(golden_model(case))
    assert caught.value.code == "graph-cannot"


def test_a_config_without_rope_has_the_classes_own(variation: Make, with_config: Make, registry: PluginRegistry) -> None:
    model = variation(max_position_embeddings=131072, head_dim=64, rope_parameters={**PUBLISHED_ROPE, "rope_theta": 150000.0})
    for name, changes in (("none", {}), ("old", {"rope_theta": 150000})):
        silent = with_config(model, rope_parameters=..., **changes)
        found = prepare(silent, registry).model
        net = transformers.AutoConfig.from_pretrained(silent)
        assert net.rope_parameters["rope_type"] == "yarn", name
        assert (found.rope.type, found.rope.factor, found.rope.truncate, found.rope.original_context) == ("yarn", 32.0, False, 4096)
        assert "rope-default" in [e.code for e in found.events]
    with pytest.raises(SourceError, match="null"):
        prepare(with_config(model, rope_parameters=..., rope_scaling=None), registry)
    said = prepare(with_config(model, rope_parameters=..., rope_theta=1e4, rope_scaling={"rope_type": "default"}), registry).model
    assert said.rope.type == "default"


REFUSED: list[Any] = [
    pytest.param({"swiglu_limit": 5.0}, "swiglu_limit is 5.0", id="limit"),
    pytest.param({"swiglu_alpha": 1.5}, "swiglu_alpha is 1.5", id="alpha"),
    pytest.param({"sliding_window": None}, "sliding_window in config.json is None", id="no-window"),
    pytest.param({"layer_types": [SLIDING]}, "1 entries for 2 layers", id="too-few-kinds"),
    pytest.param({"layer_types": [SLIDING, "chunked_attention"]}, "chunked_attention", id="other-kinds"),
    pytest.param({"num_local_experts": 5}, "num_local_experts = 5", id="experts"),
    pytest.param({"intermediate_size": 100}, "192", id="width"),
    pytest.param({"attention_bias": False}, "attention_bias", id="biases"),
]


@pytest.mark.parametrize(("changes", "word"), REFUSED)
def test_refusals(changes: dict[str, Any], word: str, variation: Make, with_config: Make, to_gguf: ToGguf) -> None:
    with pytest.raises(LlmfitError, match=word.replace(".", r"\.")):
        to_gguf(with_config(variation(), **changes))


def test_missing_biases_are_named(variation: Make, to_gguf: ToGguf, tmp_path: Path) -> None:
    from tests.expert_forms import save

    model = variation()
    tensors = {n: t for n, t in load(model).items() if n != "model.layers.1.mlp.experts.gate_up_proj_bias"}
    with pytest.raises(SourceError, match=r"model\.layers\.1\.mlp\.experts\.gate_up_proj_bias"):
        to_gguf(save(model, tensors, tmp_path / "less"))
    no_bias = variation(attention_bias=False)
    with pytest.raises(UnsupportedError, match="wants biases"):
        to_gguf(no_bias)


def test_a_file_as_the_peer_writes_it_reads_back(
    golden_model: Callable[[str], Path], to_gguf: ToGguf, to_hf: Make, tmp_path: Path
) -> None:
    """Written by gguf-py with the peer's keys only: nothing of the way back may hang on keys of our own."""
    for case in ("gptoss-plainrope", "gptoss-yarntrunc"):
        model = golden_model(case)
        back = to_hf(as_the_peer(to_gguf(model, "bf16", name=case)[0], case, tmp_path / f"{case}.gguf"), name=case)
        same_tensors(back, model)
        same_logits(back, model)


def test_the_table_holds_what_is_saved_and_nothing_else(variation: Make) -> None:
    patterns = Patterns(GPT_OSS.tensors)
    matches = {name: patterns.match(name) for name in load(variation())}
    assert [n for n, m in matches.items() if m is None] == []
    assert {m.pattern for m in matches.values() if m} == set(GPT_OSS.tensors)


def test_defaults_are_those_of_the_config_class(variation: Make, registry: PluginRegistry) -> None:
    from llmfit_core.architecture import REQUIRED, Reads

    config = transformers.GptOssConfig()
    for key, use in GPT_OSS.config.items():
        if isinstance(use, Reads) and use.default is not REQUIRED and use.default is not None and hasattr(config, key):
            assert use.default == getattr(config, key), key
    own = transformers.GptOssConfig().rope_parameters
    assert {k: own[k] for k in PUBLISHED_ROPE} == PUBLISHED_ROPE
    assert prepare(variation(), registry).model.ledger.unknown == ()


def test_the_wiring_is_true(variation: Make, registry: PluginRegistry, tmp_path: Path) -> None:
    model = variation(num_key_value_heads=4, num_hidden_layers=1, intermediate_size=4, hidden_size=64)
    subject = Subject(model, "", registry, tmp_path)
    groups = scale_groups(subject.model)
    assert {g.link.source for g in groups} == {"attn_norm", "attn_v", "ffn_norm"}
    assert subject.distance(scales(groups)) < 1e-4
    for group, scale in scales(groups):
        for sink in group.sinks:
            assert subject.distance([(group, scale)], left_out=sink) > 1e-4, (group.link.source, sink)


HARMONY = (
    "<|startoftext|> <|endoftext|> <|return|> <|constrain|> <|channel|> <|start|> <|end|> <|message|> <|call|>"
).split()


def test_harmonys_tokens_end_a_turn(variation: Make, to_gguf: ToGguf, to_hf: Make, tmp_path: Path) -> None:
    """The ends that generation_config.json lists are the ends of the file, and its pre-tokenizer is recognised."""
    model = tmp_path / "harmony"
    shutil.copytree(variation(vocab_size=648), model)
    path = model / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    known = tokenizer["model"]["vocab"]
    new = [t for t in HARMONY if t not in known]
    ids = {t: known[t] for t in HARMONY if t in known} | {t: len(known) + i for i, t in enumerate(new)}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer["added_tokens"] += [{"id": ids[t], "content": t, **flags} for t in new]
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    (model / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<|startoftext|>", "eos_token": "<|return|>", "pad_token": "<|endoftext|>"}), encoding="utf-8"
    )
    template = (
        "{%- for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}"
        "{%- if add_generation_prompt %}<|start|>assistant{% endif %}"
    )
    (model / "chat_template.jinja").write_text(template, encoding="utf-8")
    ends = [ids["<|return|>"], ids["<|endoftext|>"], ids["<|call|>"]]
    (model / "generation_config.json").write_text(
        json.dumps({"bos_token_id": ids["<|startoftext|>"], "eos_token_id": ends, "pad_token_id": ids["<|endoftext|>"]}),
        encoding="utf-8",
    )
    file, events = to_gguf(model, "bf16")
    assert codes(events) == []
    kv = {k: v.value for k, v in read_gguf(file).kv.items()}
    assert kv["tokenizer.ggml.pre"] == "gpt-4o"
    assert kv["tokenizer.ggml.eos_token_id"] == ids["<|return|>"]
    assert kv["tokenizer.ggml.bos_token_id"] == ids["<|startoftext|>"]
    assert kv["tokenizer.ggml.padding_token_id"] == ids["<|endoftext|>"]
    assert kv["tokenizer.chat_template"] == template
    back = to_hf(file)
    said = json.loads((back / "generation_config.json").read_text(encoding="utf-8"))["eos_token_id"]
    assert set(ends) <= set(said)
    assert ids["<|end|>"] not in said, "it ends a message, not the turn"


@SLOW
def test_logits_hold_beyond_the_window(variation: Make, to_gguf: ToGguf) -> None:
    """A prompt many windows long, every position."""
    model = variation(num_hidden_layers=4, max_position_embeddings=1024)
    file, _ = to_gguf(model)
    rng = np.random.default_rng(5)
    ids = rng.integers(12, 600, 260).tolist()
    positions = range(220, 260)
    found = divergence(by_transformers(model, ids, positions), by_llamacpp(file, ids, positions, context=512))
    assert found.mean() < EXACT
