"""A tiny Llama that needs no torch: what exporters, runtimes and packagers are tried on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmfit_core.errors import PluginError
from llmfit_core.testing.bench import Bench, Sample
from llmfit_core.testing.outcome import NotRun

if TYPE_CHECKING:
    from collections.abc import Mapping

CONFIG: Mapping[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
"""Rows of 256 and 512 values hold every block type of GGUF."""


def saved(config: Mapping[str, object]) -> dict[str, tuple[int, ...]]:
    """What transformers saves for this config."""
    width, wide, rows = (int(config[k]) for k in ("hidden_size", "intermediate_size", "vocab_size"))  # type: ignore[call-overload]
    kv = width // int(config["num_attention_heads"]) * int(config["num_key_value_heads"])  # type: ignore[call-overload]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens": (rows, width), "model.norm": (width,), "lm_head": (rows, width)
    }  # fmt: skip
    for i in range(int(config["num_hidden_layers"])):  # type: ignore[call-overload]
        layer = f"model.layers.{i}"
        shapes |= {
            f"{layer}.input_layernorm": (width,),
            f"{layer}.self_attn.q_proj": (width, width),
            f"{layer}.self_attn.k_proj": (kv, width),
            f"{layer}.self_attn.v_proj": (kv, width),
            f"{layer}.self_attn.o_proj": (width, width),
            f"{layer}.post_attention_layernorm": (width,),
            f"{layer}.mlp.gate_proj": (wide, width),
            f"{layer}.mlp.up_proj": (wide, width),
            f"{layer}.mlp.down_proj": (width, wide),
        }
    return {f"{name}.weight": shape for name, shape in shapes.items()}


def bench(variations: Mapping[str, Mapping[str, object]] | None = None) -> Bench:
    """A bench for it.

    Raises:
        NotRun: No plugin that knows Llama is installed.
    """
    from llmfit_core.plugins import load_plugins

    try:
        provided = load_plugins().architecture_of_class("LlamaForCausalLM")
    except PluginError as error:
        raise NotRun(f"{error.cause}. {error.remedy}") from error
    if provided is None:
        raise NotRun("the tiny model is a Llama, which no installed plugin knows: pip install llmfit-llama")
    return Bench(provided.value, Sample(config=CONFIG, variations=variations or {}, saved=saved))
