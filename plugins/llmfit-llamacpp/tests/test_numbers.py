"""Scores and token ids, judged by transformers and sentencepiece."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmfit_core.errors import LlmfitError
from llmfit_core.runtime import LaunchOptions
from llmfit_llamacpp import LLAMACPP

Make = Callable[..., Path]
OPTIONS = LaunchOptions(port=0)
TEXTS = ["Hello world", "", " two  spaces", "12 345\n\n\ttab", "naïve 日本 😀", "a</s>b<s>", "nul\0byte"]


def reference(weights: dict[str, np.ndarray], sizes: dict[str, int], ids: list[int]) -> np.ndarray:
    """Log-probabilities by transformers, float32, eager attention."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=weights["lm_head.weight"].shape[0],
        **sizes,
        rms_norm_eps=1e-5,
        max_position_embeddings=512,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=False,
        attn_implementation="eager",
    )
    model = transformers.LlamaForCausalLM(config).eval()
    model.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].double()
    return torch.log_softmax(logits, dim=-1).numpy()


def test_scores_agree_with_transformers(
    tiny: Path, weights: dict[str, np.ndarray], sizes: dict[str, int], pieces: Any
) -> None:
    ids = np.random.default_rng(3).integers(3, pieces.get_piece_size(), 24).tolist()
    ours = np.array(LLAMACPP.score(tiny, ids, OPTIONS))
    theirs = reference(weights, sizes, ids)
    assert ours.shape == theirs.shape
    assert abs(ours - theirs).max() < 1e-3
    kl = (np.exp(theirs) * (theirs - ours)).sum(axis=1)
    assert abs(kl).max() < 1e-5
    assert np.exp(ours).sum(axis=1) == pytest.approx(1, abs=1e-4)


def test_ids_outside_the_vocabulary_and_none(tiny: Path) -> None:
    with pytest.raises(LlmfitError, match="bad-ids"):
        LLAMACPP.score(tiny, [5, 512], OPTIONS)
    with pytest.raises(LlmfitError, match="bad-ids"):
        LLAMACPP.score(tiny, [-1], OPTIONS)
    assert LLAMACPP.score(tiny, [], OPTIONS) == []
    with pytest.raises(LlmfitError, match="prompt-too-long"):
        LLAMACPP.score(tiny, [5] * 512, OPTIONS)


def test_weights_of_nan_are_found(make: Make) -> None:
    broken = make(tensors={"output_norm.weight": np.full(64, np.nan, dtype=np.float32)})
    with pytest.raises(LlmfitError, match="not-finite"):
        LLAMACPP.score(broken, [5, 6], OPTIONS)
    with pytest.raises(LlmfitError, match="not-finite"):
        LLAMACPP.generate(broken, "Hello", OPTIONS, 4, 0.0, lambda text: None)


def test_ids_agree_with_sentencepiece(tiny: Path, pieces: Any) -> None:
    plain = [text for text in TEXTS if "<" not in text and "\0" not in text]
    assert LLAMACPP.tokenize(tiny, plain, False) == [pieces.encode(text) for text in plain]
    assert LLAMACPP.tokenize(tiny, plain, True) == [[pieces.bos_id(), *pieces.encode(text)] for text in plain]


def test_specials_in_a_text_are_one_id_each(tiny: Path, pieces: Any) -> None:
    (ids,) = LLAMACPP.tokenize(tiny, ["a</s>b<s>"], False)
    assert ids.count(pieces.eos_id()) == 1
    assert ids[-1] == pieces.bos_id()


def test_a_vocabulary_without_a_model_is_enough(make: Make, pieces: Any) -> None:
    # A template that does not compile and tensors that do not load have no say in token ids.
    odd = make(template="{% for %}", tensors={"output_norm.weight": None})
    assert LLAMACPP.tokenize(odd, ["Hello"], False) == [pieces.encode("Hello")]


def test_what_is_no_text_is_refused(tiny: Path) -> None:
    with pytest.raises(LlmfitError, match="bad-text"):
        LLAMACPP.tokenize(tiny, ["ok", "\ud800"], False)


def test_a_vocabulary_that_llama_cpp_refuses(make: Make) -> None:
    with pytest.raises(LlmfitError, match="bad-vocabulary"):
        LLAMACPP.tokenize(make(keys={"tokenizer.ggml.scores": [0.0]}), ["Hello"], False)
    with pytest.raises(LlmfitError, match="pretokenizer-missing"):
        LLAMACPP.tokenize(make(keys={"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "nonsense"}), ["a"], False)
    with pytest.raises(LlmfitError, match="missing-key"):
        LLAMACPP.tokenize(make(keys={"tokenizer.ggml.tokens": None}), ["Hello"], False)
