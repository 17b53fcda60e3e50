"""State spaces against llmfit's conformance kit."""

from __future__ import annotations

from typing import Any, ClassVar

from llmfit_core.testing import ArchitectureTests
from llmfit_recurrent import FALCON_MAMBA, MAMBA, MAMBA2

SIZES: dict[str, object] = {"hidden_size": 64, "num_hidden_layers": 2, "state_size": 8}
REFUSED: dict[str, Any] = {
    "gelu": ({"hidden_act": "gelu"}, "graph-cannot"),
    "no-bias-of-the-convolution": ({"use_conv_bias": False}, "graph-cannot"),
    "biases": ({"use_bias": True}, "graph-cannot"),
}


class TestMamba(ArchitectureTests):
    architecture = MAMBA
    config: ClassVar = {"architectures": ["MambaForCausalLM"], "model_type": "mamba", **SIZES}
    variations: ClassVar = {
        "a-head-and-sizes": {"tie_word_embeddings": False, "time_step_rank": 6, "conv_kernel": 3, "layer_norm_epsilon": 1e-3}
    }
    refused: ClassVar = {**REFUSED, "three-times-as-wide": ({"expand": 3}, "graph-cannot")}
    slow = frozenset(variations)


class TestFalconMamba(ArchitectureTests):
    architecture = FALCON_MAMBA
    config: ClassVar = {
        "architectures": ["FalconMambaForCausalLM"], "model_type": "falcon_mamba", "tie_word_embeddings": False, **SIZES,
    }  # fmt: skip
    variations: ClassVar = {
        "coarse-epsilon": {"mixer_rms_eps": 0.01, "tie_word_embeddings": True},
        "one-epsilon": {"mixer_rms_eps": 1e-5, "layer_norm_epsilon": 1e-5},
    }
    refused: ClassVar = {**REFUSED, "three-times-as-wide": ({"expand": 3}, "graph-cannot")}
    slow = frozenset(variations)


class TestMamba2(ArchitectureTests):
    architecture = MAMBA2
    config: ClassVar = {
        "architectures": ["Mamba2ForCausalLM"], "model_type": "mamba2", "num_heads": 8, "head_dim": 16, "n_groups": 2,
        "chunk_size": 32, **SIZES,
    }  # fmt: skip
    variations: ClassVar = {
        "one-group-tied": {"n_groups": 1, "tie_word_embeddings": True, "conv_kernel": 3},
        "three-times-as-wide": {"expand": 3, "num_heads": 12, "n_groups": 4},
    }
    refused: ClassVar = {**REFUSED, "bounded-steps": ({"time_step_limit": [0.0, 0.1]}, "graph-cannot")}
    slow = frozenset(variations)
