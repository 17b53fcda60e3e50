"""GLM-4 (0414): gate and up in one tensor, norms before and after each block, rope on neighbouring rows of half a head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmfit_core import DECODER_CONFIG, PRE_NORM_DECODER, Architecture, Fused, Graph, Reads, Role, UnsupportedError
from llmfit_open.common import ENDS, KEYS, PLAIN_ROPE, PRE_NORMS, QKV, RECOMPUTED, attention, common_fixes


def text_only(hparams: Mapping[str, Any]) -> dict[str, object]:
    """Nothing; a GGUF file with sections of rope is a GLM-4V, whose q and k are laid out otherwise.

    Raises:
        UnsupportedError: `gguf-variant`.
    """
    if any(hparams.get("rope.dimension_sections") or ()):
        raise UnsupportedError(
            "gguf-variant",
            "the file says rope.dimension_sections under the graph glm4: it is a GLM-4V, which no table here describes",
            "Take the model's original in Hugging Face's layout, or a plugin that knows GLM-4V.",
        )
    return {}


GLM4 = Architecture(
    name="glm4",
    hf_classes=("Glm4ForCausalLM",),
    model_types=("glm4",),
    tensors=ENDS
    | PRE_NORMS
    | attention("attention_bias", bias_out=False)
    | {
        "model.layers.{layer}.post_self_attn_layernorm": Role.ATTN_POST_NORM,
        "model.layers.{layer}.mlp.gate_up_proj": Fused((Role.FFN_GATE, Role.FFN_UP)),
        "model.layers.{layer}.mlp.down_proj": Role.FFN_DOWN,
        "model.layers.{layer}.post_mlp_layernorm": Role.FFN_POST_NORM,
    },
    config=DECODER_CONFIG
    | {
        "head_dim": Reads("attention.key_length", 128),
        "rms_norm_eps": Reads("attention.layer_norm_rms_epsilon", 1.5625e-07),
        "partial_rotary_factor": Reads("partial_rotary_factor", 0.5),
        "attention_bias": Reads("attention_bias", True),
    },
    wiring=PRE_NORM_DECODER,
    graphs=(
        Graph(
            format="gguf",
            name="glm4",
            engine="llama.cpp",
            keys=(*KEYS, "rope.dimension_count"),
            fixes={k: v for k, v in common_fixes("glm4").items() if k != "partial_rotary_factor"},
            rope=PLAIN_ROPE,
            rope_rows="pairs",
            merges={"ffn_up": (Role.FFN_GATE, Role.FFN_UP)},
            biases=QKV,
        ),
    ),
    hparams=text_only,
    waived=RECOMPUTED,
    rope_rows="pairs",
)
