"""Tiny models, made here: two Llama layers of random weights and a real SentencePiece vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

DATA = Path(__file__).parent / "data"
LAYERS, HIDDEN, HEADS, KV_HEADS, FORWARD = 2, 64, 4, 2, 96
TEMPLATE = (
    "{% for message in messages %}<s>{{ message['role'] }}\n{{ message['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The embedded engine, and a cache of the tests' own."""
    monkeypatch.delenv("LLMFIT_LLAMACPP", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="session")
def pieces() -> Any:
    """The SentencePiece processor of `data/tiny.model`."""
    sentencepiece = pytest.importorskip("sentencepiece")
    return sentencepiece.SentencePieceProcessor(model_file=str(DATA / "tiny.model"))


@pytest.fixture(scope="session")
def sizes() -> dict[str, int]:
    """The tiny model's, by the names of transformers' config."""
    return {
        "hidden_size": HIDDEN,
        "intermediate_size": FORWARD,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
    }


@pytest.fixture(scope="session")
def weights(pieces: Any) -> dict[str, np.ndarray]:
    """Weights under Hugging Face names, float32, scaled so that the model has opinions."""
    random = np.random.default_rng(7)
    vocabulary = pieces.get_piece_size()
    head = HIDDEN // HEADS

    def matrix(out: int, into: int, scale: float = 1.0) -> np.ndarray:
        return (random.standard_normal((out, into)) * scale / np.sqrt(into)).astype(np.float32)

    tensors = {
        "model.embed_tokens.weight": random.standard_normal((vocabulary, HIDDEN)).astype(np.float32),
        "model.norm.weight": (1 + 0.1 * random.standard_normal(HIDDEN)).astype(np.float32),
        "lm_head.weight": matrix(vocabulary, HIDDEN, 3.0),
    }
    for n in range(LAYERS):
        p = f"model.layers.{n}."
        tensors |= {
            p + "input_layernorm.weight": (1 + 0.1 * random.standard_normal(HIDDEN)).astype(np.float32),
            p + "post_attention_layernorm.weight": (1 + 0.1 * random.standard_normal(HIDDEN)).astype(np.float32),
            p + "self_attn.q_proj.weight": matrix(HEADS * head, HIDDEN, 2.0),
            p + "self_attn.k_proj.weight": matrix(KV_HEADS * head, HIDDEN, 2.0),
            p + "self_attn.v_proj.weight": matrix(KV_HEADS * head, HIDDEN),
            p + "self_attn.o_proj.weight": matrix(HIDDEN, HEADS * head),
            p + "mlp.gate_proj.weight": matrix(FORWARD, HIDDEN),
            p + "mlp.up_proj.weight": matrix(FORWARD, HIDDEN),
            p + "mlp.down_proj.weight": matrix(HIDDEN, FORWARD),
        }
    return tensors


def for_rope(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k in the order llama.cpp's `llama` graph rotates them: pairs beside each other."""
    rows = weight.shape[0] // heads
    return weight.reshape(heads, 2, rows // 2, -1).swapaxes(1, 2).reshape(weight.shape)


Make = Callable[..., Path]


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory, weights: dict[str, np.ndarray], pieces: Any) -> Make:
    """`make(keys={...}, tensors={...}, architecture="llama", template=...)` writes a GGUF file with changes.

    A key or tensor given as `None` is left out.
    """
    gguf = pytest.importorskip("gguf")

    def write(
        keys: dict[str, Any] | None = None,
        tensors: dict[str, np.ndarray | None] | None = None,
        architecture: str = "llama",
        template: str | None = TEMPLATE,
        name: str = "tiny.gguf",
        tensors_per_file: int = 0,
    ) -> Path:
        path = tmp_path_factory.mktemp("models") / name
        writer = gguf.GGUFWriter(str(path), architecture, split_max_tensors=tensors_per_file)
        a = architecture
        head = HIDDEN // HEADS
        values: dict[str, Any] = {
            "general.name": "Tiny, and wonderful",
            f"{a}.context_length": 512,
            f"{a}.embedding_length": HIDDEN,
            f"{a}.block_count": LAYERS,
            f"{a}.feed_forward_length": FORWARD,
            f"{a}.attention.head_count": HEADS,
            f"{a}.attention.head_count_kv": KV_HEADS,
            f"{a}.rope.dimension_count": head,
            f"{a}.rope.freq_base": 10000.0,
            f"{a}.attention.layer_norm_rms_epsilon": 1e-5,
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.pre": "default",
            "tokenizer.ggml.tokens": [pieces.id_to_piece(i) for i in range(pieces.get_piece_size())],
            "tokenizer.ggml.scores": [pieces.get_score(i) for i in range(pieces.get_piece_size())],
            "tokenizer.ggml.token_type": [_kind(pieces, i) for i in range(pieces.get_piece_size())],
            "tokenizer.ggml.bos_token_id": pieces.bos_id(),
            "tokenizer.ggml.eos_token_id": pieces.eos_id(),
            "tokenizer.ggml.unknown_token_id": pieces.unk_id(),
            "tokenizer.ggml.add_bos_token": True,
            "tokenizer.ggml.add_eos_token": False,
            "tokenizer.ggml.add_space_prefix": True,
        }
        if template is not None:
            values["tokenizer.chat_template"] = template
        for key, value in (values | (keys or {})).items():
            if value is None:
                continue
            add = {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
            add.get(type(value), writer.add_array)(key, value)
        arrays: dict[str, np.ndarray | None] = {
            "token_embd.weight": weights["model.embed_tokens.weight"],
            "output_norm.weight": weights["model.norm.weight"],
            "output.weight": weights["lm_head.weight"],
        }
        for n in range(LAYERS):
            p, b = f"model.layers.{n}.", f"blk.{n}."
            arrays |= {
                b + "attn_norm.weight": weights[p + "input_layernorm.weight"],
                b + "ffn_norm.weight": weights[p + "post_attention_layernorm.weight"],
                b + "attn_q.weight": for_rope(weights[p + "self_attn.q_proj.weight"], HEADS),
                b + "attn_k.weight": for_rope(weights[p + "self_attn.k_proj.weight"], KV_HEADS),
                b + "attn_v.weight": weights[p + "self_attn.v_proj.weight"],
                b + "attn_output.weight": weights[p + "self_attn.o_proj.weight"],
                b + "ffn_gate.weight": weights[p + "mlp.gate_proj.weight"],
                b + "ffn_up.weight": weights[p + "mlp.up_proj.weight"],
                b + "ffn_down.weight": weights[p + "mlp.down_proj.weight"],
            }
        for tensor, array in (arrays | (tensors or {})).items():
            if array is not None:
                writer.add_tensor(tensor, np.ascontiguousarray(array))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


def _kind(pieces: Any, i: int) -> int:
    for kind, test in ((2, pieces.is_unknown), (3, pieces.is_control), (5, pieces.is_unused), (6, pieces.is_byte)):
        if test(i):
            return kind
    return 1


@pytest.fixture(scope="session")
def tiny(make: Make) -> Path:
    """The plain one, with a chat template."""
    return make()
