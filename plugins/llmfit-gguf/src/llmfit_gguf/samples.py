"""Files and settings for the tests and for `llmfit plugins check gguf`. llmfit never loads this by itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def written(kind: str, folder: Path) -> tuple[Path, dict[str, Any]]:
    """A file by gguf-py, its matrices quantized by gguf-py, and its values by gguf-py: under Hugging Face's names.

    Raises:
        NotRun: gguf-py is not installed.
    """
    import numpy as np

    from llmfit_core.testing.outcome import NotRun
    from llmfit_core.testing.tiny_llama import CONFIG, saved
    from llmfit_core.testing.tokenizer_files import END_ID, MERGES, VOCABULARY, tokens

    try:
        from gguf import GGMLQuantizationType as Kind
        from gguf import GGUFReader, GGUFWriter
        from gguf.quants import dequantize, quantize
    except ImportError:
        raise NotRun("the judge is not installed: pip install gguf") from None

    path = folder / "model.gguf"
    writer = GGUFWriter(path, "llama")
    for name, value in {"block_count": 2, "context_length": 512, "embedding_length": 256, "feed_forward_length": 512,
                        "attention.head_count": 4, "attention.head_count_kv": 2, "rope.dimension_count": 64}.items():  # fmt: skip
        writer.add_uint32(f"llama.{name}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_float32("llama.rope.freq_base", 10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens())
    writer.add_token_types([1] * END_ID + [3])
    writer.add_token_merges([" ".join(pair) for pair in MERGES])
    writer.add_eos_token_id(END_ID)
    random = np.random.default_rng(3)
    ggml = {}
    for name, shape in saved({"vocab_size": VOCABULARY, **CONFIG}).items():
        values = random.normal(1.0 if len(shape) == 1 else 0.0, 0.2, shape).astype(np.float32)
        stem = name.removesuffix(".weight")
        layer = stem.split(".")[2] if stem.startswith("model.layers.") else ""
        role = NAMES[stem.removeprefix(f"model.layers.{layer}.")]
        target = f"blk.{layer}.{role}.weight" if layer else f"{role}.weight"
        ggml[target] = name
        if len(shape) == 1 or kind == "F32":
            writer.add_tensor(target, values)
        else:
            packed = quantize(values, Kind[kind])
            writer.add_tensor(target, packed, raw_dtype=Kind[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    reference = {}
    for tensor in GGUFReader(path).tensors:
        shape = tuple(int(n) for n in reversed(tensor.shape))
        values = dequantize(tensor.data, tensor.tensor_type).reshape(shape)
        name = ggml[tensor.name]
        if name.endswith(("q_proj.weight", "k_proj.weight")):  # pairs of rows to halves
            heads = shape[0] // 64
            values = values.reshape(heads, 32, 2, -1).swapaxes(1, 2).reshape(shape)
        reference[name] = values
    return path, reference


def writer_of(kind: str) -> Callable[[Path], tuple[Path, dict[str, Any]]]:
    """`written`, of one kind."""
    return lambda folder: written(kind, folder)


SAMPLES: dict[str, dict[str, Any]] = {
    "exporters": {
        "gguf": {
            "refused": {"gelu": ({"hidden_act": "gelu"}, "graph-cannot")},
            "refused_schemes": {"tq1_0": "not-ternary", "tq2_0": "not-ternary"},
        },
    },
    "decoders": {
        "gguf": [
            {"samples": {kind.lower(): writer_of(kind) for kind in ("Q8_0", "Q4_1", "Q5_0")}},
            {"samples": {"f32": writer_of("F32")}, "lossless": True},
        ],
    },
}
