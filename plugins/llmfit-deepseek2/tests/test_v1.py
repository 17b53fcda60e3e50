"""DeepSeekMoE, which transformers has no class for: judged by a Qwen2-MoE that computes the same.

Qwen2-MoE has the same attention, experts and softmax. Its shared expert is multiplied by a sigmoid, which is a half
where the gate in front of it is zero; so its `down_proj` is twice DeepSeek's. Biases of q, k and v are zero.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from llmfit_core.errors import LlmfitError
from llmfit_core.prepare import prepare
from llmfit_core.readers.gguf import read_gguf
from tests.e2e.scoring import by_llamacpp, by_transformers, divergence, ids_of
from tests.expert_forms import load, one_by_one, save

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from llmfit_core.plugins import PluginRegistry
    from tests.golden_models import GoldenModels

torch = pytest.importorskip("torch", reason="the judge is transformers")

EXACT = 3e-6
CONFIG = {
    "architectures": ["DeepseekForCausalLM"],
    "model_type": "deepseek",
    "attention_bias": False,
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": 128,
    "intermediate_size": 256,
    "max_position_embeddings": 512,
    "moe_intermediate_size": 128,
    "moe_layer_freq": 1,
    "n_routed_experts": 4,
    "n_shared_experts": 2,
    "norm_topk_prob": False,
    "num_attention_heads": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "scoring_func": "softmax",
    "aux_loss_alpha": 0.001,
    "seq_aux": True,
    "pretraining_tp": 1,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
"""As the model's authors wrote it for deepseek-moe-16b, with other sizes."""


@pytest.fixture
def twins(golden_models: GoldenModels, tmp_path: Path) -> Callable[..., tuple[Path, Path]]:
    """`twins(changes)`: a DeepSeekMoE and the Qwen2-MoE that judges it."""

    def make(qwen: dict[str, Any] | None = None, **changes: Any) -> tuple[Path, Path]:
        source = golden_models.variation(
            "qwen2moe", {"mlp_only_layers": [0], "shared_expert_intermediate_size": 256, **(qwen or {})}
        )
        judge, model = {}, {}
        for name, tensor in one_by_one(load(source)).items():
            judge[name] = torch.zeros_like(tensor) if name.endswith((".bias", "shared_expert_gate.weight")) else tensor
            if name.endswith("shared_expert.down_proj.weight"):
                judge[name] = 2 * tensor
            if not name.endswith((".bias", "shared_expert_gate.weight")):
                model[name.replace("shared_expert.", "shared_experts.")] = tensor
        number = len(list(tmp_path.iterdir()))
        ours = save(source, model, tmp_path / f"model-{number}")
        said = json.loads((source / "config.json").read_text(encoding="utf-8"))
        config = {**CONFIG, "vocab_size": said["vocab_size"], **changes}
        (ours / "config.json").write_text(json.dumps(config), encoding="utf-8")
        return ours, save(source, judge, tmp_path / f"judge-{number}")

    return make


@pytest.mark.parametrize(
    ("qwen", "changes"),
    [
        pytest.param({}, {}, id="plain"),
        pytest.param(
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}},
            {"rope_scaling": {"type": "linear", "factor": 2.0}},
            id="linear",
            marks=pytest.mark.slow(reason="a rope that others have too"),
        ),
        pytest.param(
            {"mlp_only_layers": [], "num_key_value_heads": 4},
            {"first_k_dense_replace": 0, "num_key_value_heads": 4},
            id="all-mixed",
            marks=pytest.mark.slow(reason="the dense layer is the plain one's"),
        ),
    ],
)
def test_logits_and_the_way_back(
    qwen: dict[str, Any], changes: dict[str, Any], twins: Callable[..., tuple[Path, Path]], to_gguf: Callable[..., Any],
    to_hf: Callable[..., Path],
) -> None:
    model, judge = twins(qwen, **changes)
    file, events = to_gguf(model, "f32")
    assert [e.code for e in events if e.severity in ("warning", "fallback")] == []
    ids = ids_of(judge)
    assert divergence(by_transformers(judge, ids), by_llamacpp(file, ids)).mean() < EXACT
    assert read_gguf(file).kv["general.architecture"].value == "deepseek"
    back = to_hf(file, "bf16")
    a, b = load(back), load(model)
    assert sorted(a) == sorted(b)
    assert all(a[n].equal(t) for n, t in b.items())
    config = json.loads((back / "config.json").read_text(encoding="utf-8"))
    assert {k: config[k] for k in CONFIG if k in config and k not in ("rope_scaling", "torch_dtype")} == {
        k: ({**CONFIG, **changes})[k] for k in CONFIG if k in config and k not in ("rope_scaling", "torch_dtype")
    }


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"norm_topk_prob": True}, "norm_topk_prob"),
        ({"moe_layer_freq": 2}, "moe_layer_freq"),
        ({"scoring_func": "sigmoid"}, "scoring_func"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"attention_bias": True}, "bias"),
        ({"n_shared_experts": 1}, "shared_experts"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic"),
    ],
)
def test_what_is_not_computed_is_refused(
    changes: dict[str, Any], words: str, twins: Callable[..., tuple[Path, Path]], to_gguf: Callable[..., Any]
) -> None:
    with pytest.raises(LlmfitError, match=words):
        to_gguf(twins(**changes)[0], "f32")


def test_weights_of_all_experts_are_normal_anyway(
    twins: Callable[..., tuple[Path, Path]], registry: PluginRegistry
) -> None:
    from llmfit_gguf.graphs import obstacle

    for used in (1, 4):
        model = prepare(twins(norm_topk_prob=True, num_experts_per_tok=used)[0], registry).model
        assert obstacle(model, model.architecture.graphs[0]) is None
