"""Small tokenizers, trained in the test on text of many scripts, so that every structure can show."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmfit_core.tokenizer.proof import PROOF_TEXT

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def corpus() -> list[str]:
    """The proof texts and their parts, often enough that merges cross every kind of border."""
    numbers = [str(n * 7919) for n in range(400)] + ["1234567890" * 3, "\u0967\u0968\u0969\u0967\u0968\u0969"]
    words = [w for text in PROOF_TEXT for w in text.split()]
    return [*PROOF_TEXT * 3, *numbers, *words * 2, *[f" {a}{b}" for a, b in zip(words, words[7:], strict=False)]]


def byte_level(
    steps: Sequence[str] = (),
    *,
    pre_tokenizer: Any = None,
    ignore_merges: bool = False,
    size: int = 2000,
    normalizer: str = "",
) -> dict[str, Any]:
    """A trained tokenizer.json as a dict, cut by `steps` or by a whole `pre_tokenizer`."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    splits = [pre_tokenizers.Split(Regex(s), "isolated") for s in steps]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    if pre_tokenizer is not None:
        tokenizer = Tokenizer.from_str(json.dumps({**json.loads(tokenizer.to_str()), "pre_tokenizer": pre_tokenizer}))
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer:
        tokenizer.normalizer = getattr(normalizers, normalizer)()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    return dict(json.loads(tokenizer.to_str()))


def folder(path: Path, tokenizer: dict[str, Any] | None = None, **files: Any) -> dict[str, Path]:
    """Write side files (`tokenizer_config={...}` and the like) and give them by name."""
    path.mkdir(parents=True, exist_ok=True)
    if tokenizer is not None:
        files["tokenizer"] = tokenizer
    for name, value in files.items():
        (path / f"{name}.json").write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")
    return side(path)


def side(path: Path) -> dict[str, Path]:
    """The files of a folder by plain name."""
    return {p.relative_to(path).as_posix(): p for p in path.rglob("*") if p.is_file()}


def sentencepiece_model(path: Path, kind: str = "bpe", size: int = 700, **options: Any) -> Path:
    """Train a `tokenizer.model` into the folder `path`."""
    import sentencepiece

    path.mkdir(parents=True, exist_ok=True)
    options = {
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        **options,
    }
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for text in corpus() for line in text.split("\n") if line]),
        model_prefix=str(path / "tokenizer"),
        model_type=kind,
        vocab_size=size,
        minloglevel=2,
        hard_vocab_limit=False,
        num_threads=1,
        character_coverage=0.98,
        **options,
    )
    (path / "tokenizer.vocab").unlink()
    return path / "tokenizer.model"
