"""Tiny encoders, their conversions, and their vectors by transformers and by llama.cpp."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import config_dir, golden_model, golden_models, pytest_configure, registry
from tests.core.tokenizer.training import sentencepiece_model
from tests.e2e.conftest import to_gguf, to_hf

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from tests.golden_models import GoldenModels

__all__ = ["config_dir", "golden_model", "golden_models", "pytest_configure", "registry", "to_gguf", "to_hf"]

TOK = Path(__file__).parents[3] / "tests" / "golden" / "tok"
SMALL: Mapping[str, Any] = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 66,
}  # fmt: skip
DISTIL: Mapping[str, Any] = {"dim": 64, "hidden_dim": 128, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 66}


@pytest.fixture(scope="session")
def encoder(golden_models: GoldenModels) -> Callable[..., Path]:
    """`encoder(class, config class, tokenizer, **config)`: a folder with a small random model. Do not write into it."""

    def make(cls: str, config_cls: str, tokenizer: str, **config: Any) -> Path:
        values = {**(DISTIL if config_cls.startswith("DistilBert") else SMALL), **config}
        digest = hashlib.sha256(json.dumps([cls, tokenizer, values, 1], sort_keys=True).encode()).hexdigest()[:12]

        def build(maker: ModuleType) -> None:
            _build(Path(maker.ROOT, "models", f"bert-{digest}"), cls, config_cls, tokenizer, values)

        return golden_models._made(f"bert-{digest}", build)

    return make


def _build(folder: Path, cls: str, config_cls: str, tokenizer: str, values: Mapping[str, Any]) -> None:
    import torch
    import transformers

    folder.mkdir(parents=True)
    if tokenizer == "unigram":
        unigram(folder)
        size = len(transformers.AutoTokenizer.from_pretrained(folder))
    else:
        for file in (TOK / tokenizer).iterdir():
            shutil.copyfile(file, folder / file.name)
        size = 640
    torch.set_num_threads(2)
    model = getattr(transformers, cls)(getattr(transformers, config_cls)(vocab_size=size, **values))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, p in model.named_parameters():
            plain = p.dim() > 1 and "embed" not in name
            p.copy_(torch.randn(p.shape, generator=generator) * (0.12 if plain else 0.3))
            if p.dim() == 1 and name.endswith("weight"):
                p.add_(1)  # of a norm
    model.eval().save_pretrained(folder)


def unigram(folder: Path, **options: Any) -> None:
    """XLM-RoBERTa's kind of tokenizer, trained: SentencePiece's ids moved as fairseq has them, `<mask>` behind."""
    import sentencepiece
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    kind = {"byte_fallback": False, "normalization_rule_name": "nmt_nfkc", "remove_extra_whitespaces": True}
    path = sentencepiece_model(folder, "unigram", size=500, unk_id=0, bos_id=1, eos_id=2, **kind | options)
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(path))
    proto = path.read_bytes()
    vocab = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    vocab += [(pieces.IdToPiece(i), pieces.GetScore(i)) for i in range(3, len(pieces))] + [("<mask>", 0.0)]
    from llmfit_core.tokenizer.sentencepiece_model import parse_model

    charsmap = parse_model(proto, "m").charsmap
    tokenizer = Tokenizer(models.Unigram(vocab, unk_id=3, byte_fallback=False))
    tokenizer.normalizer = normalizers.Precompiled(charsmap)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme="always")]
    )
    around = [("<s>", 0), ("</s>", 2)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=around
    )
    names = {f"{k}_token": v for k, v in (("bos", "<s>"), ("eos", "</s>"), ("sep", "</s>"), ("cls", "<s>"), ("unk", "<unk>"), ("pad", "<pad>"), ("mask", "<mask>"))}  # fmt: skip
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings["tokenizer_class"] = "XLMRobertaTokenizer"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    path.rename(folder / "sentencepiece.bpe.model")
