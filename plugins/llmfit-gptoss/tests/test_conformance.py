"""The table and the decoder against the kit."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, ClassVar

from llmfit_core import FULL_ATTENTION, SLIDING_ATTENTION
from llmfit_core.testing import ArchitectureTests, DecoderTests
from llmfit_gptoss import llmfit_decoders
from llmfit_gptoss.table import GPT_OSS
from tests.expert_forms import load
from tests.golden_models import GoldenModels

(DECODER,) = llmfit_decoders()
PLAIN: Any = {"rope_type": "default", "rope_theta": 150000.0}


class TestGptOss(ArchitectureTests):
    architecture = GPT_OSS
    config: ClassVar[Any] = {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 512,
        "sliding_window": 8,
        "rope_parameters": PLAIN,
    }
    variations: ClassVar[Any] = {
        "full first": {"layer_types": [FULL_ATTENTION, SLIDING_ATTENTION]},
        "tied": {"tie_word_embeddings": True},
        "ungrouped": {"num_key_value_heads": 4, "layer_types": [FULL_ATTENTION, FULL_ATTENTION]},
    }
    refused: ClassVar[Any] = {
        "limit": ({"swiglu_limit": 5.0}, "graph-cannot"),
        "no window": ({"sliding_window": None}, "config-key-invalid"),
        "llama3": (
            {
                "rope_parameters": {
                    **PLAIN,
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 32,
                }
            },
            "graph-cannot",
        ),
    }
    slow: ClassVar[frozenset[str]] = frozenset({"tied", "ungrouped"})


def sample(folder: Path) -> tuple[Path, dict[str, Any]]:
    """The golden case, and what transformers unpacks of it."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    cache = os.environ.get("LLMFIT_TEST_CACHE") or Path(__file__).parents[3] / ".cache" / "tiny-models"
    shutil.copytree(GoldenModels(cache).golden("gptoss-plainrope-mxfp4"), folder, dirs_exist_ok=True)
    stored = load(folder)
    names = [n.removesuffix("_blocks") for n in stored if n.endswith("_blocks")]
    unpacked = {n: convert_moe_packed_tensors(stored[f"{n}_blocks"], stored[f"{n}_scales"]) for n in names}
    plain = {n: t for n, t in stored.items() if not n.endswith(("_blocks", "_scales"))}
    return folder, {n: t.float().numpy() for n, t in {**plain, **unpacked}.items()}


class TestMxfp4(DecoderTests):
    decoder = DECODER
    samples: ClassVar[Any] = {"gpt-oss": sample}
