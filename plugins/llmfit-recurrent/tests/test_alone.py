"""Hybrids in which no layer attends: transformers makes them and cannot run them, and llama.cpp aborts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from llmfit_core.errors import UnsupportedError
from llmfit_core.pipeline import plan_conversion
from llmfit_core.plan import Recipe
from llmfit_core.testing import with_transformers
from llmfit_core.testing.tokenizer_files import VOCABULARY, write_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

NETS = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 8}
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip


@pytest.mark.parametrize(
    "config",
    [
        {"architectures": ["JambaForCausalLM"], "model_type": "jamba", "num_experts": 2, "mamba_d_state": 8},
        {"architectures": ["BambaForCausalLM"], "model_type": "bamba", **NETS},
        {"architectures": ["GraniteMoeHybridForCausalLM"], "model_type": "granitemoehybrid", "num_local_experts": 2, **NETS},
    ],
    ids=["jamba", "bamba", "granite"],
)
def test_nets_alone_are_refused(config: dict[str, Any], registry: Any, tmp_path: Path) -> None:
    with_transformers.save_start({**SMALL, **config}, tmp_path)
    write_tokenizer(tmp_path)
    with pytest.raises(UnsupportedError) as caught:
        plan_conversion(tmp_path, Recipe(exporter="gguf", scheme="f32"), registry)
    assert caught.value.code == "graph-cannot"
    assert "attend" in caught.value.cause
