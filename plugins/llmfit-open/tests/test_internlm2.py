"""InternLM2, which transformers does not know: a Llama laid out as InternLM2 has to compute what the Llama computes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from llmfit_core.errors import UnsupportedError
from tests.e2e.scoring import by_llamacpp, by_transformers, divergence, ids_of
from tests.expert_forms import load, save

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor

    from tests.golden_models import GoldenModels

SLOW = pytest.mark.slow(reason="the kind of case is covered by a quicker one")
NAMES = {
    "model.embed_tokens.weight": "model.tok_embeddings.weight",
    "lm_head.weight": "output.weight",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
}


def wqkv(q: Tensor, k: Tensor, v: Tensor, groups: int) -> Tensor:
    """One tensor as InternLM2's code reads it: `(groups, queries of the group + 2, head size, ...)`."""
    import torch

    rest = q.shape[1:]
    size = k.shape[0] // groups
    parts = [q.reshape(groups, -1, size, *rest), k.reshape(groups, 1, size, *rest), v.reshape(groups, 1, size, *rest)]
    return torch.cat(parts, 1).reshape(-1, *rest)


def as_internlm2(llama: Path, to: Path, **config: Any) -> Path:
    tensors = load(llama)
    said = json.loads((llama / "config.json").read_text(encoding="utf-8"))
    out = {}
    for name, tensor in tensors.items():
        if "q_proj" in name:
            k, v = (tensors[name.replace("q_proj", x)] for x in ("k_proj", "v_proj"))
            new = name.replace("self_attn.q_proj", "attention.wqkv")
            out[new] = wqkv(tensor, k, v, said["num_key_value_heads"])
        elif "k_proj" not in name and "v_proj" not in name:
            for old, new in NAMES.items():
                name = name.replace(old, new)
            out[name] = tensor
    save(llama, out, to)
    said |= {"architectures": ["InternLM2ForCausalLM"], "model_type": "internlm2", "bias": said.pop("attention_bias"), **config}
    del said["mlp_bias"], said["head_dim"]
    (to / "config.json").write_text(json.dumps(said), encoding="utf-8")
    return to


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="two-by-two", marks=SLOW),
        pytest.param({"num_attention_heads": 8, "num_key_value_heads": 2}, id="four-by-two"),
        pytest.param({"num_key_value_heads": 4}, id="no-groups", marks=SLOW),
        pytest.param({"num_key_value_heads": 1}, id="one-group", marks=SLOW),
    ],
)
def test_computes_what_the_llama_computes_and_reads_back(
    changes: dict[str, Any],
    golden_models: GoldenModels,
    to_gguf: Callable[..., tuple[Path, Any]],
    to_hf: Callable[..., Path],
    tmp_path: Path,
) -> None:
    llama = golden_models.variation("llama", changes)
    model = as_internlm2(llama, tmp_path / "model")
    file, events = to_gguf(model)
    assert [e.code for e in events if e.severity in ("bound", "fallback", "error") and e.subject != "tokenizer_config.json"] == []
    ids = ids_of(llama)
    assert divergence(by_transformers(llama, ids), by_llamacpp(file, ids)).mean() < 3e-6
    ours, theirs = load(to_hf(file, "bf16")), load(model)
    assert sorted(ours) == sorted(theirs)
    assert all(ours[n].equal(t) for n, t in theirs.items())


def test_biases_are_refused(golden_models: GoldenModels, to_gguf: Callable[..., Any], tmp_path: Path) -> None:
    """The graph loads those of q, k and v, and not the one that InternLM2 has behind attention besides."""
    model = as_internlm2(golden_models.variation("llama", {"attention_bias": True}), tmp_path / "model")
    with pytest.raises(UnsupportedError) as caught:
        to_gguf(model)
    assert "bias on attn_output" in caught.value.cause
