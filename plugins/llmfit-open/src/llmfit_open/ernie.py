"""ERNIE 4.5, the dense models: a Llama that rotates neighbouring rows."""

from __future__ import annotations

from llmfit_core import DECODER_CONFIG, PRE_NORM_DECODER, Architecture, Asserts, Fix, Graph, Reads
from llmfit_open.common import ENDS, KEYS, PLAIN_ROPE, PRE_NORMS, QKV, RECOMPUTED, attention, common_fixes, gated

ERNIE4_5 = Architecture(
    name="ernie4_5",
    hf_classes=("Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"),
    model_types=("ernie4_5",),
    tensors=ENDS | PRE_NORMS | attention("use_bias") | gated("use_bias"),
    config=DECODER_CONFIG
    | {
        "head_dim": Reads("attention.key_length", 128, null_is_none=True),
        "rms_norm_eps": Reads("attention.layer_norm_rms_epsilon", 1e-5),
        "rope_theta": Reads("rope.freq_base", 500000.0),
        "tie_word_embeddings": Reads("tie_word_embeddings", True),
        "use_bias": Reads("use_bias", False),
        # What the first revisions say besides.
        "compression_ratio": Asserts((1, 1.0, None), "positions would be compressed"),
    },
    wiring=PRE_NORM_DECODER,
    graphs=(
        Graph(
            format="gguf",
            name="ernie4_5",
            engine="llama.cpp",
            keys=KEYS,
            fixes=common_fixes("ernie4_5")
            | {
                "use_bias": Fix(
                    values=(False,),
                    why="the ernie4_5 graph adds no bias behind attention, though it loads one, and none in the feed-forward",
                )
            },
            rope=PLAIN_ROPE,
            rope_rows="pairs",
            biases=QKV,
        ),
    ),
    waived=RECOMPUTED,
    rope_rows="pairs",
)
