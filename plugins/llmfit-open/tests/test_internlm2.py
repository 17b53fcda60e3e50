"""InternLM2 with biases, which its graph cannot have; the rest is in the kit."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from llmfit_core.errors import UnsupportedError
from tests.expert_forms import load, save

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor

    from tests.golden_models import GoldenModels

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


def test_biases_are_refused(golden_models: GoldenModels, to_gguf: Callable[..., Any], tmp_path: Path) -> None:
    """The graph loads those of q, k and v, and not the one that InternLM2 has behind attention besides."""
    model = as_internlm2(golden_models.variation("llama", {"attention_bias": True}), tmp_path / "model")
    with pytest.raises(UnsupportedError) as caught:
        to_gguf(model)
    assert "bias on attn_output" in caught.value.cause
