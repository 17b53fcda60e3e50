"""A tiny gpt-oss, for `llmfit plugins check gptoss`; the tests try more. llmfit never loads this by itself."""

from __future__ import annotations

from typing import Any

from llmfit_core import FULL_ATTENTION, SLIDING_ATTENTION

SAMPLES: dict[str, dict[str, Any]] = {
    "architectures": {
        "gpt-oss": {
            "config": {
                "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 64, "intermediate_size": 96,
                "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "num_local_experts": 4,
                "num_experts_per_tok": 2, "max_position_embeddings": 512, "sliding_window": 8,
                "rope_parameters": {"rope_type": "default", "rope_theta": 150000.0},
            },
            "variations": {"full first": {"layer_types": [FULL_ATTENTION, SLIDING_ATTENTION]}},
        }
    }
}  # fmt: skip
