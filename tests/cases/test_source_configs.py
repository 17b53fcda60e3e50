"""config.json files as published (sizes shrunk): no false warning, nothing refused, everything read right.

Written down from the models' pages; every key but the sizes is theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.cases.source import codes, planned
from tests.tiny import DROP, tiny, tiny_config

if TYPE_CHECKING:
    from pathlib import Path

LLAMA2 = {
    "_name_or_path": "meta-llama/Llama-2-7b-hf", "architectures": ["LlamaForCausalLM"], "bos_token_id": 1,
    "eos_token_id": 2, "hidden_act": "silu", "initializer_range": 0.02, "max_position_embeddings": 4096,
    "model_type": "llama", "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": None,
    "tie_word_embeddings": False, "torch_dtype": "float16", "transformers_version": "4.31.0.dev0", "use_cache": True,
}  # fmt: skip
LLAMA3_8B = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 1,
    "eos_token_id": 2, "hidden_act": "silu", "initializer_range": 0.02, "max_position_embeddings": 8192,
    "model_type": "llama", "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 500000.0,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.40.0.dev0", "use_cache": True,
}  # fmt: skip
SCALED = {
    "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}  # fmt: skip
LLAMA31 = LLAMA3_8B | {
    "eos_token_id": [2, 5, 7], "max_position_embeddings": 131072, "mlp_bias": False, "rope_scaling": SCALED,
}  # fmt: skip
LLAMA32 = LLAMA31 | {"head_dim": 16, "rope_scaling": SCALED | {"factor": 32.0}, "tie_word_embeddings": True}
DISTILL_LLAMA = LLAMA31 | {"eos_token_id": 2, "transformers_version": "4.43.0.dev0"}
SMOLLM2 = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 1,
    "eos_token_id": 2, "hidden_act": "silu", "initializer_range": 0.041666666666666664, "is_llama_config": True,
    "max_position_embeddings": 8192, "mlp_bias": False, "model_type": "llama", "pad_token_id": 2, "pretraining_tp": 1,
    "rms_norm_eps": 1e-05, "rope_interleaved": False, "rope_scaling": None, "rope_theta": 100000,
    "tie_word_embeddings": True, "torch_dtype": "bfloat16", "transformers_version": "4.42.3",
    "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}}, "use_cache": True,
}  # fmt: skip
TINYLLAMA = LLAMA2 | {"attention_bias": False, "max_position_embeddings": 2048, "rope_theta": 10000.0, "torch_dtype": "bfloat16"}
YI = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 1,
    "eos_token_id": 2, "hidden_act": "silu", "initializer_range": 0.02, "max_position_embeddings": 4096,
    "model_type": "llama", "pad_token_id": 0, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": None,
    "rope_theta": 5000000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.40.0",
    "use_cache": False,
}  # fmt: skip
VICUNA_16K = LLAMA2 | {"max_sequence_length": 16384, "rope_scaling": {"factor": 4.0, "type": "linear"}}
YARN_LLAMA = LLAMA2 | {
    "max_position_embeddings": 131072,
    "rope_scaling": {"factor": 32.0, "finetuned": True, "original_max_position_embeddings": 4096, "type": "yarn"},
}
MISTRAL1 = {
    "architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
    "initializer_range": 0.02, "max_position_embeddings": 32768, "model_type": "mistral", "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0, "sliding_window": 4096, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "transformers_version": "4.34.0.dev0", "use_cache": True,
}  # fmt: skip
MISTRAL3 = MISTRAL1 | {"attention_dropout": 0.0, "rope_theta": 1000000.0, "sliding_window": None}
NEMO = MISTRAL3 | {"head_dim": 32, "max_position_embeddings": 1024000, "eos_token_id": 2}
MIXTRAL = {
    "architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
    "hidden_act": "silu", "initializer_range": 0.02, "max_position_embeddings": 32768, "model_type": "mixtral",
    "output_router_logits": False, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02,
    "sliding_window": None, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "transformers_version": "4.36.0.dev0", "use_cache": True, "num_experts_per_tok": 2,
}  # fmt: skip
QWEN15 = {
    "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 0, "eos_token_id": 2,
    "hidden_act": "silu", "initializer_range": 0.02, "max_position_embeddings": 32768, "max_window_layers": 21,
    "model_type": "qwen2", "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768,
    "tie_word_embeddings": True, "torch_dtype": "bfloat16", "transformers_version": "4.37.0", "use_cache": True,
    "use_sliding_window": False,
}  # fmt: skip
QWEN2_7B = QWEN15 | {"max_position_embeddings": 131072, "max_window_layers": 28, "sliding_window": 131072, "tie_word_embeddings": False}
QWEN25 = QWEN15 | {"use_mrope": False, "max_window_layers": 24, "transformers_version": "4.40.1"}
QWEN25_YARN = QWEN25 | {"rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"}}
DISTILL_QWEN = QWEN2_7B | {"use_mrope": False, "rope_theta": 10000, "sliding_window": 4096, "max_window_layers": 21}
QWEN2_57B = {
    "architectures": ["Qwen2MoeForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 0, "decoder_sparse_step": 1,
    "eos_token_id": 2, "hidden_act": "silu", "initializer_range": 0.02, "max_position_embeddings": 32768,
    "max_window_layers": 28, "model_type": "qwen2_moe", "norm_topk_prob": False, "num_experts_per_tok": 2,
    "output_router_logits": False, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001,
    "sliding_window": 65536, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "transformers_version": "4.40.1", "use_cache": True, "use_sliding_window": False,
}  # fmt: skip
QWEN3_8B = {
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 0,
    "eos_token_id": 2, "head_dim": 16, "hidden_act": "silu", "initializer_range": 0.02,
    "max_position_embeddings": 40960, "max_window_layers": 36, "model_type": "qwen3", "rms_norm_eps": 1e-06,
    "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": True, "use_sliding_window": False,
}  # fmt: skip
QWEN3_5 = {
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": None,
    "dtype": "bfloat16", "eos_token_id": 2, "head_dim": 16, "hidden_act": "silu", "initializer_range": 0.02,
    "layer_types": ["full_attention", "full_attention"], "max_position_embeddings": 40960, "max_window_layers": 28,
    "model_type": "qwen3", "pad_token_id": None, "rms_norm_eps": 1e-06,
    "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"}, "sliding_window": None,
    "tie_word_embeddings": False, "transformers_version": "5.2.0", "use_cache": True, "use_sliding_window": False,
}  # fmt: skip
QWEN3_30B = QWEN3_8B | {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "decoder_sparse_step": 1, "mlp_only_layers": [],
    "norm_topk_prob": True, "num_experts_per_tok": 2, "output_router_logits": False, "router_aux_loss_coef": 0.001,
    "max_window_layers": 48,
}  # fmt: skip
PHI3_4K = {
    "_name_or_path": "Phi-3-mini-4k-instruct", "architectures": ["Phi3ForCausalLM"], "attention_bias": False,
    "attention_dropout": 0.0,
    "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config", "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"},
    "bos_token_id": 1, "embd_pdrop": 0.0, "eos_token_id": 2, "hidden_act": "silu", "initializer_range": 0.02,
    "max_position_embeddings": 4096, "model_type": "phi3", "original_max_position_embeddings": 4096,
    "pad_token_id": 2, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 10000.0,
    "sliding_window": 2047, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.40.2",
    "use_cache": True,
}  # fmt: skip
FACTORS = {"long_factor": [1.08 + i for i in range(8)], "short_factor": [1.0 + i / 20 for i in range(8)]}
PHI3_128K = PHI3_4K | {"max_position_embeddings": 131072, "rope_scaling": FACTORS | {"type": "longrope"}, "sliding_window": 262144}
PHI3_128K_EARLY = PHI3_128K | {"rope_scaling": FACTORS | {"type": "su"}}
PHI4_MINI = PHI3_128K | {
    "full_attn_mod": 1, "interpolate_factor": 1, "lm_head_bias": False, "mlp_bias": False, "partial_rotary_factor": 0.75,
    "rope_scaling": {k: v[:6] for k, v in FACTORS.items()} | {"type": "longrope"}, "tie_word_embeddings": True,
}  # fmt: skip

BOUND = {"mistral-0.1": "bound-sliding-window", "phi3-4k": "bound-sliding-window"} | dict.fromkeys(
    ("phi3-128k", "phi3-128k-early", "phi4-mini"), "bound-longrope"
)
REAL: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-2": ("llama", LLAMA2), "llama-3": ("llama", LLAMA3_8B), "llama-3.1": ("llama", LLAMA31),
    "llama-3.2": ("llama", LLAMA32), "smollm2": ("llama", SMOLLM2), "tinyllama": ("llama", TINYLLAMA), "yi": ("llama", YI),
    "r1-distill-llama": ("llama", DISTILL_LLAMA), "vicuna-16k": ("llama", VICUNA_16K), "yarn-llama": ("llama", YARN_LLAMA),
    "mistral-0.1": ("mistral", MISTRAL1), "mistral-0.3": ("mistral", MISTRAL3), "nemo": ("mistral", NEMO),
    "mixtral": ("mixtral", MIXTRAL), "qwen1.5": ("qwen2", QWEN15), "qwen2": ("qwen2", QWEN2_7B),
    "qwen2.5": ("qwen2", QWEN25), "qwen2.5-yarn": ("qwen2", QWEN25_YARN), "r1-distill-qwen": ("qwen2", DISTILL_QWEN),
    "qwen2-57b-a14b": ("qwen2moe", QWEN2_57B), "qwen3": ("qwen3", QWEN3_8B), "qwen3-transformers-5": ("qwen3", QWEN3_5),
    "qwen3-30b-a3b": ("qwen3moe", QWEN3_30B), "phi3-4k": ("phi3", PHI3_4K), "phi3-128k": ("phi3", PHI3_128K),
    "phi3-128k-early": ("phi3", PHI3_128K_EARLY), "phi4-mini": ("phi3", PHI4_MINI),
}  # fmt: skip
SIZES = (
    "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads num_experts "
    "num_local_experts moe_intermediate_size shared_expert_intermediate_size"
).split()


def real(path: Path, name: str) -> Path:
    """A tiny model whose config.json has exactly the published keys, and sizes."""
    family, said = REAL[name]
    size = {"layers": 2, "hidden": 64, "heads": 4, "kv": 2, "head": said.get("head_dim", 16), "ffn": 96}
    size |= {"experts_count": 4, "moe": 48, "shared": 80, "rows": 640 if family.startswith("qwen") else 512}
    ours = tiny_config(family, size)
    changes = {k: DROP for k in ours if k not in said and k not in SIZES} | said
    tied = {"lm_head.weight": DROP} if said["tie_word_embeddings"] else {}
    sizes = {"head": size["head"]}
    experts = {"experts": "old"} if family == "mixtral" else {}
    return tiny(family, path, config=changes, tensors=tied, **sizes, **experts)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", REAL)
def test_a_published_config_is_read_in_silence(tmp_path: Path, name: str) -> None:
    family, said = REAL[name]
    folder = real(tmp_path / "m", name)
    plan = planned(folder, "--strict")
    assert plan["architecture"] == family
    assert plan["config"]["unknown"] == []
    assert codes(plan, "bound") == ([BOUND[name]] if name in BOUND else [])
    assert plan["hparams"]["context_length"] == said["max_position_embeddings"]
    theta = said.get("rope_theta", (said.get("rope_parameters") or {}).get("rope_theta", 10000))
    assert plan["hparams"]["rope.freq_base"] == theta
    assert plan["hparams"]["attention.layer_norm_rms_epsilon"] == said["rms_norm_eps"]
    assert plan["hparams"]["attention.key_length"] == said.get("head_dim", 16)
    assert plan["hparams"]["attention.head_count_kv"] == 2
    assert ("output.weight" in {t["name"] for t in plan["tensors"]}) == (not said["tie_word_embeddings"])


def test_the_windows_of_real_models(tmp_path: Path) -> None:
    assert planned(real(tmp_path / "a", "mistral-0.1"))["exact_context"] == 4096
    assert planned(real(tmp_path / "b", "phi3-4k"))["exact_context"] == 2047
    assert planned(real(tmp_path / "c", "qwen2"))["exact_context"] is None
    assert planned(real(tmp_path / "d", "phi4-mini"))["exact_context"] == 4096


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("unsloth_version", "2024.9"),
        ("unsloth_fixed", True),
        ("_attn_implementation_autoset", True),
        ("gradient_checkpointing", False),
        ("neftune_noise_alpha", 5),
        ("tokenizer_model_max_length", 4096),
        ("tokenizer_padding_side", "right"),
        ("id2label", {"0": "LABEL_0"}),
        ("label2id", {"LABEL_0": 0}),
        ("problem_type", None),
        ("task_specific_params", None),
        ("temperature", 1.0),
        ("do_sample", False),
        ("classifier_dropout", 0.0),
        ("quantization_config", None),
        ("attn_implementation", "flash_attention_2"),
        ("bos_token", "<s>"),
        ("return_dict", True),
        ("is_decoder", True),
    ],
)
def test_keys_that_tools_leave_behind_say_nothing(tmp_path: Path, key: str, value: object) -> None:
    assert codes(planned(tiny("llama", tmp_path / "m", config={key: value}), "--strict")) == []
