"""GLM-4 (9B-chat in transformers' layout): a GLM-4 (0414) without the norms behind each block, for ChatGLM's graph."""

from __future__ import annotations

from llmfit_core import PRE_NORM_DECODER, Architecture, Graph, Reads, Role
from llmfit_open.common import KEYS, PLAIN_ROPE, QKV, RECOMPUTED, common_fixes
from llmfit_open.glm4 import GLM4

GLM = Architecture(
    name="glm",
    hf_classes=("GlmForCausalLM",),
    model_types=("glm",),
    tensors={k: v for k, v in GLM4.tensors.items() if v not in (Role.ATTN_POST_NORM, Role.FFN_POST_NORM)},
    config=dict(GLM4.config)
    | {
        "num_key_value_heads": Reads("attention.head_count_kv", 2, null_is_none=True),
        "head_dim": Reads("attention.key_length", 128),
        "max_position_embeddings": Reads("context_length", 131072),
    },
    wiring=PRE_NORM_DECODER,
    graphs=(
        Graph(
            format="gguf",
            name="chatglm",
            engine="llama.cpp",
            keys=(*KEYS, "rope.dimension_count"),
            fixes={k: v for k, v in common_fixes("chatglm", square=True).items() if k != "partial_rotary_factor"},
            rope=PLAIN_ROPE,
            rope_rows="pairs",
            merges={"ffn_up": (Role.FFN_GATE, Role.FFN_UP)},
            biases=QKV,
        ),
    ),
    waived=RECOMPUTED,
    rope_rows="pairs",
)
