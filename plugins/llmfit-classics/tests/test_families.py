"""Each family's table against transformers: what it saves, what its config class assumes, what it computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from llmfit_core.architecture import REQUIRED, Reads, slot_roles
from llmfit_core.errors import LlmfitError
from llmfit_core.naming import Patterns
from llmfit_core.prepare import prepare
from llmfit_core.readers.gguf import read_gguf
from llmfit_core.wiring import scale_groups
from tests.contract.test_wiring import Subject, scales
from tests.e2e.scoring import by_llamacpp, by_transformers, divergence, ids_of, reference
from tests.e2e.test_golden import tensors_of
from tests.expert_forms import config_of, load, save

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from llmfit_core.architecture import Architecture
    from llmfit_core.events import Event
    from llmfit_core.plugins import PluginRegistry
    from tests.golden_models import GoldenModels

    Variation = Callable[..., Path]
    ToGguf = Callable[..., tuple[Path, tuple[Event, ...]]]

transformers = pytest.importorskip("transformers", reason="the judge is transformers")

EXACT = 3e-6
OF_TOKENIZERS = ("leading-space", "space-after-special")
SLOW = pytest.mark.slow(reason="the kind of case is covered by a quicker one")
FAMILIES = ("gpt2", "bigcode", "bloom", "gptneox", "falcon", "phi", "stablelm", "starcoder2", "nemotron")


def rope(kind: str, theta: float = 10000.0, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **more}}


YARN = {"factor": 4.0, "original_max_position_embeddings": 128}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}

# Family, changes. Each is converted, scored, and read back.
RIGHT: list[Any] = [
    pytest.param("gpt2", {"n_inner": 192, "layer_norm_epsilon": 1e-3, "activation_function": "gelu"}, id="gpt2-inner"),
    pytest.param("gpt2", {"tie_word_embeddings": False, "num_attention_heads": 2, "n_positions": 100}, id="gpt2-own-head", marks=SLOW),
    pytest.param("bigcode", {}, id="bigcode"),
    pytest.param("bigcode", {"multi_query": False, "n_inner": 192, "tie_word_embeddings": False}, id="bigcode-own-keys"),
    pytest.param("bloom", {}, id="bloom"),
    pytest.param(
        "bloom", {"hidden_size": 192, "n_head": 6, "layer_norm_epsilon": 1e-3, "tie_word_embeddings": False}, id="bloom-six-heads"
    ),
    pytest.param(
        "gptneox", {"use_parallel_residual": False, **rope("linear", factor=2.5, partial_rotary_factor=0.5)}, id="gptneox-in-turn"
    ),
    pytest.param(
        "gptneox", {"tie_word_embeddings": True, **rope("yarn", 5e5, partial_rotary_factor=1.0, **YARN)}, id="gptneox-tied-yarn"
    ),
    pytest.param("falcon", {"ffn_hidden_size": 192, "layer_norm_epsilon": 1e-3}, id="falcon-old"),
    pytest.param("falcon", {"multi_query": False, **rope("linear", 5e5, factor=2.5)}, id="falcon-own-keys", marks=SLOW),
    pytest.param(
        "falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1}, id="falcon-new-one-norm"
    ),
    pytest.param("falcon", {"new_decoder_architecture": True, "tie_word_embeddings": False}, id="falcon-new-own-head", marks=SLOW),
    pytest.param(
        "falcon",
        {"new_decoder_architecture": True, "num_kv_heads": 1, "parallel_attn": True, **rope("yarn", **YARN)},
        id="falcon-new-one-kv-head",
        marks=SLOW,
    ),
    pytest.param("phi", {"num_key_value_heads": 2, **rope("default", 5e5, partial_rotary_factor=0.25)}, id="phi-grouped"),
    pytest.param("phi", {"tie_word_embeddings": True, "hidden_act": "gelu"}, id="phi-tied"),
    pytest.param("phi", {"intermediate_size": 192, **rope("yarn", partial_rotary_factor=1.0, **YARN)}, id="phi-yarn", marks=SLOW),
    pytest.param("stablelm", {"use_parallel_residual": True, "use_qkv_bias": True, "num_key_value_heads": 4}, id="stablelm-side"),
    pytest.param(
        "stablelm", {"tie_word_embeddings": True, **rope("linear", 5e5, factor=2.5, partial_rotary_factor=1.0)}, id="stablelm-tied"
    ),
    pytest.param("stablelm", {"qk_layernorm": True, "use_parallel_residual": True}, id="stablelm-normed"),
    pytest.param("stablelm", {"qk_layernorm": True, "num_key_value_heads": 1}, id="stablelm-normed-in-turn", marks=SLOW),
    pytest.param("starcoder2", {"tie_word_embeddings": False, "num_key_value_heads": 4, "norm_epsilon": 1e-3}, id="starcoder2-own-head", marks=SLOW),
    pytest.param("starcoder2", {"sliding_window": 4096, **rope("yarn", 1e6, **YARN)}, id="starcoder2-yarn"),
    pytest.param("nemotron", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4}, id="nemotron-biases"),
    pytest.param(
        "nemotron", {"tie_word_embeddings": True, **rope("linear", 5e5, factor=2.5, partial_rotary_factor=1.0)}, id="nemotron-tied", marks=SLOW
    ),
    pytest.param("nemotron", rope("yarn", partial_rotary_factor=0.5, **YARN), id="nemotron-yarn", marks=SLOW),
    pytest.param("stablelm", rope("yarn", partial_rotary_factor=0.5, **YARN, attention_factor=1.3), id="stablelm-yarn", marks=SLOW),
    pytest.param("gptneox", rope("yarn", partial_rotary_factor=0.25, **YARN), id="gptneox-yarn", marks=SLOW),
]

# Family, changes, and a word of the refusal.
REFUSED: list[Any] = [
    pytest.param("gpt2", {"activation_function": "relu"}, "activation_function", id="gpt2-relu"),
    pytest.param("gpt2", {"activation_function": "quick_gelu"}, "activation_function", id="gpt2-quick-gelu"),
    pytest.param("gpt2", {"scale_attn_weights": False}, "scale_attn_weights", id="gpt2-unscaled"),
    pytest.param("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "inverse_layer_idx", id="gpt2-by-layer"),
    pytest.param("bigcode", {"scale_attn_weights": False}, "scale_attn_weights", id="bigcode-unscaled"),
    pytest.param("bloom", {"apply_residual_connection_post_layernorm": True}, "post_layernorm", id="bloom-residual"),
    pytest.param("gptneox", {"hidden_act": "relu"}, "hidden_act", id="gptneox-relu"),
    pytest.param("gptneox", {"attention_bias": False}, "attention_bias", id="gptneox-no-biases"),
    pytest.param("gptneox", rope("llama3", partial_rotary_factor=0.25, **LLAMA3), "llama3", id="gptneox-llama3"),
    pytest.param("falcon", {"alibi": True}, "alibi", id="falcon-alibi"),
    pytest.param("falcon", {"parallel_attn": False}, "parallel_attn", id="falcon-in-turn"),
    pytest.param("falcon", {"bias": True}, "bias", id="falcon-biases"),
    pytest.param("falcon", {"activation": "silu"}, "activation", id="falcon-silu"),
    pytest.param("phi", {"qk_layernorm": True}, "qk_layernorm", id="phi-normed"),
    pytest.param("phi", {"head_dim": 64}, "width", id="phi-wide-heads"),
    pytest.param("phi", {"hidden_act": "silu"}, "hidden_act", id="phi-silu"),
    pytest.param("stablelm", {"hidden_act": "gelu"}, "hidden_act", id="stablelm-gelu"),
    pytest.param("starcoder2", {"use_bias": False}, "use_bias", id="starcoder2-no-biases"),
    pytest.param("starcoder2", {"head_dim": 64}, "width", id="starcoder2-wide-heads"),
    pytest.param("starcoder2", rope("llama3", **LLAMA3), "llama3", id="starcoder2-llama3"),
    pytest.param("nemotron", {"hidden_act": "silu"}, "hidden_act", id="nemotron-silu"),
    pytest.param("nemotron", {"head_dim": 64}, "width", id="nemotron-wide-heads"),
]

# Family, changes, the event's code, and the tokens up to which it is exact.
BOUND: list[Any] = [
    pytest.param("starcoder2", {"sliding_window": 16}, "bound-sliding-window", 16, id="starcoder2-window"),
    pytest.param(
        "gptneox",
        {**rope("dynamic", factor=4.0, partial_rotary_factor=0.25), "max_position_embeddings": 32},
        "bound-dynamic-rope",
        32,
        id="gptneox-dynamic",
    ),
]

# Family, changes, and roles whose matrices no scale can reach.
WIRED: list[Any] = [
    pytest.param("gpt2", {}, {"ffn_down"}, id="gpt2"),
    pytest.param("bigcode", {"num_hidden_layers": 1}, {"attn_output", "ffn_down"}, id="bigcode"),
    pytest.param("bloom", {"num_hidden_layers": 1}, {"attn_output", "ffn_down"}, id="bloom"),
    pytest.param("gptneox", {"num_hidden_layers": 1}, {"attn_output", "ffn_down"}, id="gptneox"),
    pytest.param("falcon", {"num_hidden_layers": 1}, {"attn_output", "ffn_down"}, id="falcon"),
    pytest.param(
        "falcon",
        {"num_hidden_layers": 1, "new_decoder_architecture": True, "num_kv_heads": 2},
        {"attn_output", "ffn_down"},
        id="falcon-new",
    ),
    pytest.param("falcon", {"num_hidden_layers": 1, "parallel_attn": False}, {"attn_output", "ffn_down"}, id="falcon-in-turn"),
    pytest.param("phi", {"num_hidden_layers": 1}, {"ffn_down"}, id="phi"),
    pytest.param("stablelm", {"num_hidden_layers": 1}, {"attn_output"}, id="stablelm"),
    pytest.param(
        "stablelm",
        {"num_hidden_layers": 1, "use_parallel_residual": True, "use_qkv_bias": True, "num_key_value_heads": 4},
        set(),
        id="stablelm-side",
    ),
    pytest.param("starcoder2", {"num_hidden_layers": 1, "num_key_value_heads": 4}, {"ffn_down"}, id="starcoder2"),
    pytest.param("nemotron", {"num_hidden_layers": 1}, {"attn_output", "ffn_down"}, id="nemotron"),
]


@pytest.fixture(autouse=True)
def forget_models() -> Iterator[None]:
    """Folders of finished tests are gone; their models go too."""
    yield
    reference.cache_clear()


def table(registry: PluginRegistry, cls: str) -> Architecture:
    found = [p.value for p in registry.architectures() if cls in p.value.hf_classes]
    assert len(found) == 1
    return found[0]


def told(events: Iterable[Event]) -> list[str]:
    """What a user is told of the model; the tiny tokenizers have stories of their own."""
    return [e.code for e in events if e.severity != "info" and e.code not in OF_TOKENIZERS]


def kl(model: Path, file: Path, positions: range = range(33, 57)) -> float:
    ids = ids_of(model)
    return float(divergence(by_transformers(model, ids, positions), by_llamacpp(file, ids, positions)).mean())


@pytest.mark.parametrize(("family", "changes"), RIGHT)
def test_computes_the_same_and_reads_back(
    family: str, changes: dict[str, Any], variation: Variation, to_gguf: ToGguf, to_hf: Callable[..., Path]
) -> None:
    model = variation(family, changes)
    file, events = to_gguf(model)
    assert told(events) == []
    assert kl(model, file) < EXACT
    back = to_hf(file, "bf16")
    ours, theirs = load(back), load(model)
    assert sorted(ours) == sorted(theirs)
    assert all(ours[n].equal(t) and ours[n].dtype == t.dtype for n, t in theirs.items())
    ids = ids_of(model)
    assert np.array_equal(by_transformers(back, ids), by_transformers(model, ids))
    assert config_of(back)["architectures"] == config_of(model)["architectures"]


@pytest.mark.parametrize(("family", "changes", "word"), REFUSED)
def test_what_the_graph_cannot_is_refused(
    family: str, changes: dict[str, Any], word: str, variation: Variation, to_gguf: ToGguf
) -> None:
    with pytest.raises(LlmfitError) as caught:
        to_gguf(variation(family, changes))
    assert word in caught.value.cause


@pytest.mark.parametrize(("family", "changes", "code", "tokens"), BOUND)
def test_bounds_are_told_and_true(
    family: str, changes: dict[str, Any], code: str, tokens: int, variation: Variation, to_gguf: ToGguf
) -> None:
    model = variation(family, changes)
    file, events = to_gguf(model)
    assert told(events) == [code]
    assert kl(model, file, range(4, tokens)) < EXACT


@pytest.mark.parametrize("family", FAMILIES)
def test_the_table_holds_what_is_saved_and_assumes_what_the_class_assumes(
    family: str, registry: PluginRegistry, variation: Variation, classes: Callable[[str], tuple[str, str]]
) -> None:
    cls, config_cls = classes(family)
    architecture = table(registry, cls)
    model = variation(family)
    patterns = Patterns(architecture.tensors)
    matches = {name: patterns.match(name) for name in load(model)}
    assert [n for n, m in matches.items() if m is None] == []
    covered = {role for m in matches.values() if m for role in slot_roles(architecture.slot(m.pattern))}
    roles = {r for p in architecture.tensors if not architecture.slot(p).when for r in slot_roles(architecture.slot(p))}
    assert roles - covered <= {"output"}
    config = getattr(transformers, config_cls)()
    values = config.to_dict()
    theirs = {**values, **(values.get("rope_parameters") or {})}
    for key, use in architecture.config.items():
        if isinstance(use, Reads) and use.default is not REQUIRED and use.default is not None and key in theirs:
            assert use.default == theirs[key], key
    assert config.model_type in architecture.model_types
    assert prepare(model, registry).model.ledger.unknown == ()


@pytest.mark.parametrize(("family", "changes", "unreached"), WIRED)
def test_the_wiring_is_true(
    family: str, changes: dict[str, Any], unreached: set[str], variation: Variation, registry: PluginRegistry, tmp_path: Path
) -> None:
    subject = Subject(variation(family, changes), "", registry, tmp_path)
    groups = scale_groups(subject.model)
    assert subject.distance(scales(groups)) < 1e-4
    for group, scale in scales(g for g in groups if g.layer == 0):
        for sink in group.sinks:
            assert subject.distance([(group, scale)], left_out=sink) > 1e-3, (group.link.source, sink.name)
    read = {b.name for g in groups for b in g.sinks}
    missed = {ref.role for ref in subject.model.refs if ref.layer is not None and len(ref.shape) > 1 and ref.name not in read}
    assert missed == unreached


@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_gpt2_as_published(prefix: str, variation: Variation, to_gguf: ToGguf, tmp_path: Path) -> None:
    """The Hub's files have masks among the weights, no prefix, and a config with `n_ctx`."""
    import torch

    model = variation("gpt2")
    tensors = {n.replace("transformer.", prefix): t for n, t in load(model).items()}
    for layer in range(2):
        tensors[f"{prefix}h.{layer}.attn.bias"] = torch.ones(1, 1, 512, 512).tril()
        tensors[f"{prefix}h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    published = save(model, tensors, tmp_path / "published")
    assert tensors_of(to_gguf(published, name="published")[0]) == tensors_of(to_gguf(model)[0])


def test_gpt2_has_no_rope_and_no_other_context(variation: Variation, to_gguf: ToGguf) -> None:
    for options, word in (({"rope_freq_base": 5e5}, "rope"), ({"context_length": 256}, "learned")):
        with pytest.raises(LlmfitError) as caught:
            to_gguf(variation("gpt2"), **options)
        assert word in caught.value.cause


def test_gptneox_as_published(variation: Variation, to_gguf: ToGguf, tmp_path: Path) -> None:
    """Pythia's files have masks and frequencies among the weights."""
    import torch

    model = variation("gptneox")
    tensors = load(model)
    for layer in range(2):
        at = f"gpt_neox.layers.{layer}.attention."
        tensors[at + "bias"] = torch.ones(1, 1, 512, 512, dtype=torch.bool).tril()
        tensors[at + "masked_bias"] = torch.tensor(-1e9)
        tensors[at + "rotary_emb.inv_freq"] = 1 / 10000 ** (torch.arange(0, 8, 2) / 8)
    published = save(model, tensors, tmp_path / "published")
    assert tensors_of(to_gguf(published, name="published")[0]) == tensors_of(to_gguf(model)[0])


RESPELLED: list[Any] = [
    pytest.param(
        "gpt2",
        {"n_embd": ..., "hidden_size": 128, "n_layer": ..., "num_hidden_layers": 2, "n_head": ..., "num_attention_heads": 4, "n_ctx": 64},
        id="gpt2",
    ),
    pytest.param(
        "falcon",
        {
            "architectures": ["RWForCausalLM"],
            "model_type": "RefinedWebModel",
            "num_attention_heads": ...,
            "n_head": 4,
            "num_hidden_layers": ...,
            "n_layer": 2,
            **dict.fromkeys(
                "num_kv_heads new_decoder_architecture ffn_hidden_size activation num_ln_in_parallel_attn rope_parameters".split(), ...
            ),
            "apply_residual_connection_post_layernorm": False,
        },
        id="falcon",
    ),
    pytest.param(
        "stablelm",
        {
            "architectures": ["StableLMEpochForCausalLM"],
            "model_type": "stablelm_epoch",
            "rope_parameters": ...,
            "rope_pct": 0.25,
            "rope_theta": 10000,
            "layer_norm_eps": ...,
            "norm_eps": 1e-5,
        },
        id="stablelm",
    ),
    pytest.param("gptneox", {"rope_parameters": ..., "rotary_pct": 0.25, "rotary_emb_base": 10000}, id="gptneox"),
    pytest.param(
        "starcoder2",
        {"norm_type": "layer_norm", "mlp_type": "default", "layer_norm_epsilon": 1e-5, "scale_attn_weights": True},
        id="starcoder2",
    ),
]


@pytest.mark.parametrize(("family", "config"), RESPELLED)
def test_spellings_of_first_revisions(
    family: str, config: dict[str, Any], variation: Variation, golden_models: GoldenModels, to_gguf: ToGguf, tmp_path: Path
) -> None:
    model = variation(family)
    older, events = to_gguf(golden_models.copy(model, tmp_path / "copy", **config), name="older")
    assert told(events) == []
    newer, _ = to_gguf(model)
    assert tensors_of(older) == tensors_of(newer)
    a, b = ({k: v.value for k, v in read_gguf(f).kv.items() if not k.startswith(("llmfit.", "tokenizer."))} for f in (older, newer))
    assert a == b


CONTRADICTED: list[Any] = [
    pytest.param("gpt2", {"hidden_size": 64}, "hidden_size", id="gpt2-two-widths"),
    pytest.param("falcon", {"multi_query": False}, "rows", id="falcon-heads"),
    pytest.param("falcon", {"new_decoder_architecture": True, "num_kv_heads": 3}, "rows", id="falcon-odd-heads"),
    pytest.param("falcon", {"apply_residual_connection_post_layernorm": True}, "residual", id="falcon-residual"),
    pytest.param("falcon", {"parallel_attn": False}, "post_attention_layernorm", id="falcon-norms"),
    pytest.param("stablelm", {"use_parallel_residual": True}, "post_attention_layernorm", id="stablelm-norms"),
    pytest.param("stablelm", {"use_qkv_bias": True}, "bias", id="stablelm-biases"),
    pytest.param("starcoder2", {"mlp_type": "gated"}, "mlp_type", id="starcoder2-gated"),
    pytest.param("gptneox", {"rotary_pct": 0.5}, "rotary_pct", id="gptneox-two-shares"),
    pytest.param("gptneox", {"num_attention_heads": 3}, "num_attention_heads", id="gptneox-odd-heads"),
]


@pytest.mark.parametrize(("family", "config", "word"), CONTRADICTED)
def test_configs_that_the_file_contradicts_are_refused(
    family: str,
    config: dict[str, Any],
    word: str,
    variation: Variation,
    golden_models: GoldenModels,
    to_gguf: ToGguf,
    tmp_path: Path,
) -> None:
    with pytest.raises(LlmfitError) as caught:
        to_gguf(golden_models.copy(variation(family), tmp_path / "copy", **config))
    assert word in caught.value.cause


@pytest.mark.parametrize("side", [True, False])
def test_stablelm_is_told_by_its_tensors_where_the_key_is_missing(
    side: bool, variation: Variation, to_gguf: ToGguf, to_hf: Callable[..., Path], tmp_path: Path
) -> None:
    """llama.cpp reads no such key for StableLM: it looks for the norm."""
    from gguf import GGUFReader, GGUFWriter

    model = variation("stablelm", {"use_parallel_residual": side})
    reader = GGUFReader(to_gguf(model, "bf16")[0])
    writer = GGUFWriter(tmp_path / "theirs.gguf", "stablelm")
    for name, field in reader.fields.items():
        if name.startswith("tokenizer.ggml.tok") or name in ("tokenizer.ggml.merges",):
            writer.add_array(name, field.contents())
        elif name.startswith(("stablelm.", "tokenizer.")) and "llmfit" not in name and not name.endswith("residual"):
            writer.add_key_value(name, field.contents(), field.types[0])
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    back = to_hf(tmp_path / "theirs.gguf")
    assert config_of(back)["use_parallel_residual"] is side
    ids = ids_of(model)
    assert np.array_equal(by_transformers(back, ids), by_transformers(model, ids))
