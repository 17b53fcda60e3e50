"""What the kit leaves open of these families: roles out of reach, checkpoints as published, old spellings, contradictions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from llmfit_core.errors import LlmfitError
from llmfit_core.readers.gguf import read_gguf
from llmfit_core.wiring import scale_groups
from tests.contract.test_wiring import Subject, scales
from tests.e2e.scoring import by_transformers, ids_of, reference
from tests.e2e.test_golden import tensors_of
from tests.expert_forms import config_of, load, save

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from llmfit_core.events import Event
    from llmfit_core.plugins import PluginRegistry
    from tests.golden_models import GoldenModels

    Variation = Callable[..., Path]
    ToGguf = Callable[..., tuple[Path, tuple[Event, ...]]]

transformers = pytest.importorskip("transformers", reason="the judge is transformers")

OF_TOKENIZERS = ("leading-space", "space-after-special")
SLOW = pytest.mark.slow(reason="what the wiring reaches is in the kit's quick tests")


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


def told(events: Iterable[Event]) -> list[str]:
    """What a user is told of the model; the tiny tokenizers have stories of their own."""
    return [e.code for e in events if e.severity != "info" and e.code not in OF_TOKENIZERS]


@SLOW
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
