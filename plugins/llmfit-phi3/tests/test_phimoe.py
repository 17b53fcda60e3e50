"""Phi-3.5-MoE: a folder of it is the same model, and no GGUF file is written or read as one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from llmfit_core.errors import UnsupportedError
from llmfit_core.prepare import prepare
from tests.expert_forms import load

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import ModuleType

    from llmfit_core.plugins import PluginRegistry
    from tests.golden_models import GoldenModels

torch = pytest.importorskip("torch", reason="the judge is transformers")
transformers = pytest.importorskip("transformers", reason="the judge is transformers")

SMALL = {
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 512,
    "num_local_experts": 4,
    "attention_bias": True,
    "lm_head_bias": True,
}
LONG_ROPE = {
    "type": "longrope",
    "original_max_position_embeddings": 64,
    "short_factor": [1.0] * 16,
    "long_factor": [1.0 + i / 8 for i in range(16)],
    "short_mscale": 1.243163121016122,
    "long_mscale": 1.243163121016122,
}


@pytest.fixture
def model(golden_models: GoldenModels) -> Path:
    """A small model, as transformers saves it."""

    def build(maker: ModuleType) -> None:
        maker.case("phimoe-small", "PhimoeForCausalLM", "PhimoeConfig", "spm", SMALL, base={})
        maker.build("phimoe-small")

    return golden_models._made("phimoe-small", build)


def test_gguf_is_refused_with_both_reasons(model: Path, to_gguf: Callable[..., Any]) -> None:
    with pytest.raises(UnsupportedError, match=r"phimoe: .*sparse mixer.*LayerNorm") as caught:
        to_gguf(model, "f32")
    assert caught.value.code == "graph-cannot"


@pytest.mark.parametrize("spelling", ["PhimoeForCausalLM", "PhiMoEForCausalLM"])
def test_a_folder_is_the_same_model(
    spelling: str, model: Path, golden_models: GoldenModels, to_hf: Callable[..., Path], registry: PluginRegistry, tmp_path: Path
) -> None:
    source = golden_models.copy(
        model, tmp_path / "source", architectures=[spelling], rope_parameters=..., rope_theta=10000.0, rope_scaling=LONG_ROPE
    )
    found = prepare(source, registry).model
    assert found.rope.type == "longrope"
    assert [e for e in found.events if e.severity in ("warning", "fallback")] == []
    back = to_hf(source, "bf16")
    ours, theirs = load(back), load(source)
    assert sorted(ours) == sorted(theirs)
    assert all(ours[n].equal(t) for n, t in theirs.items())
    config = json.loads((back / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == [spelling]
    assert config["rope_scaling"] == LONG_ROPE


def test_a_file_of_that_graph_is_refused(registry: PluginRegistry, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason="writes the file")
    import numpy as np

    path = tmp_path / "phimoe.gguf"
    writer = gguf.GGUFWriter(path, "phimoe")
    writer.add_block_count(1)
    writer.add_context_length(512)
    writer.add_embedding_length(128)
    writer.add_feed_forward_length(192)
    writer.add_head_count(4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tensor("token_embd.weight", np.zeros((8, 128), np.float32))
    writer.add_tensor("blk.0.attn_norm.weight", np.ones(128, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedError, match="phimoe") as caught:
        prepare(path, registry)
    assert caught.value.code == "unknown-graph"
