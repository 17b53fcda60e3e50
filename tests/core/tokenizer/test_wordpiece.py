"""WordPiece: what we write, loaded by llama.cpp, against `tokenizers` and transformers."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from llmfit_core.errors import SourceError, UnsupportedError
from llmfit_core.tokenizer.fit import fit_vocab
from llmfit_core.tokenizer.from_gguf import vocab_from_gguf
from llmfit_core.tokenizer.proof import explained_difference, proof_texts, reference_ids
from llmfit_core.tokenizer.read import read_vocab
from llmfit_core.tokenizer.to_gguf import gguf_keys
from llmfit_core.tokenizer.vocab import TokenType, Vocab
from llmfit_core.tokenizer.write import vocab_files
from tests.core.tokenizer.llamacpp import LlamaCpp, ids_of, write_tiny
from tests.core.tokenizer.training import corpus, folder, side

WPM = Path(__file__).parents[2] / "golden" / "tok" / "wpm"
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CONFIG: dict[str, Any] = {"model_type": "bert"}


def trained(*, lowercase: bool = True, strip: bool | None = None, size: int = 1500, **normalizer: bool) -> dict[str, Any]:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strip, **normalizer)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=SPECIALS, show_progress=False)
    tokenizer.train_from_iterator(corpus(), trainer)
    return dict(json.loads(tokenizer.to_str()))


def compared(files: dict[str, Path], tmp: Path, config: dict[str, Any] | None = None) -> tuple[Vocab, list[str], list[str]]:
    """The vocabulary, texts whose ids differ without a reason, and with one."""
    vocab = read_vocab(files, CONFIG if config is None else config)
    texts = proof_texts(vocab)
    ours = ids_of(write_tiny(tmp / "tiny.gguf", gguf_keys(vocab), len(vocab.tokens)), texts)
    differ = [t for t, a, b in zip(texts, reference_ids(files, texts), ours, strict=True) if a != b]
    reasons = [explained_difference(vocab, t) for t in differ]
    return vocab, [t for t, r in zip(differ, reasons, strict=True) if not r], [r for r in reasons if r]


def test_golden_tokenizer(tmp_path: Path) -> None:
    vocab, bad, explained = compared(side(WPM), tmp_path)
    assert (bad, explained) == ([], [])
    assert (vocab.lowercase, vocab.strip_accents, vocab.add_bos, vocab.add_eos, vocab.add_sep) == (True, True, True, True, False)
    assert vocab.specials == {"bos": 2, "eos": 3, "unk": 1, "sep": 3, "pad": 0, "mask": 4}


def test_a_vocab_txt_alone_gives_the_same(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes((WPM / "vocab.txt").read_bytes())
    whole = read_vocab(side(WPM), CONFIG)
    lone, bad, _ = compared(side(tmp_path), tmp_path)
    assert not bad
    assert gguf_keys(lone) == gguf_keys(whole)


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("strip", [None, True, False])
def test_case_and_accents_are_the_tokenizers(lowercase: bool, strip: bool | None, tmp_path: Path) -> None:
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": lowercase, "strip_accents": strip}
    files = folder(tmp_path / "model", trained(lowercase=lowercase, strip=strip), tokenizer_config=settings)
    vocab, bad, explained = compared(files, tmp_path)
    assert bad == []
    stripped = lowercase if strip is None else strip
    assert (vocab.lowercase, vocab.strip_accents) == (lowercase, stripped)
    # Stripped: Devanagari's spacing marks, and Hangul.
    assert stripped or all("dotted I" in e for e in explained)
    ids = ids_of(tmp_path / "tiny.gguf", ["\u00c9COLE \u00e9cole Stra\u00dfe"], add_special=True)
    assert ids == reference_ids(files, ["\u00c9COLE \u00e9cole Stra\u00dfe"], add_special=True)


@pytest.mark.parametrize("stated", [True, False, None])
def test_settings_of_berts_own_class_decide_as_in_transformers(stated: bool | None, tmp_path: Path) -> None:
    import transformers

    settings = {"tokenizer_class": "BertTokenizer"} | ({} if stated is None else {"do_lower_case": stated})
    files = folder(tmp_path / "model", trained(lowercase=stated is False), tokenizer_config=settings, config=CONFIG)
    vocab = read_vocab(files, CONFIG)
    assert "tokenizers-disagree" in [e.code for e in vocab.events if e.severity == "warning"]
    text = "Hello, WORLD iPhone \u00c9COLE"
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")(text)["input_ids"]
    path = write_tiny(tmp_path / "tiny.gguf", gguf_keys(vocab), len(vocab.tokens))
    assert ids_of(path, [text], add_special=True) == [theirs] == reference_ids(files, [text], add_special=True)


def test_another_class_follows_the_json(tmp_path: Path) -> None:
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": True}
    vocab = read_vocab(folder(tmp_path, trained(lowercase=False), tokenizer_config=settings), CONFIG)
    assert not vocab.lowercase
    assert "tokenizers-disagree" not in [e.code for e in vocab.events]


def test_every_character_of_unicode(tmp_path: Path) -> None:
    """Those that differ are the ones that are told: marks, Hangul, and what newer versions of Unicode call punctuation."""
    chars = [chr(c) for c in range(0x20, 0x3400) if unicodedata.category(chr(c)) not in ("Cn", "Co", "Cs")]
    pieces = [*SPECIALS, *dict.fromkeys(p for c in chars if not c.isspace() for p in (c, f"##{c}"))]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    files = side(tmp_path)
    vocab = read_vocab(files, CONFIG)
    texts = [f"a{c}b {c}" for c in chars]
    judge = LlamaCpp(write_tiny(tmp_path / "tiny.gguf", gguf_keys(vocab), len(vocab.tokens)))
    try:
        odd = [c for c, t, ids in zip(chars, texts, reference_ids(files, texts), strict=True) if judge.ids(t) != ids]
    finally:
        judge.close()
    from llmfit_core.tokenizer.wordpiece import wordpiece_difference

    unexplained = [c for c in odd if not wordpiece_difference(vocab, c)]
    # U+166D changed its class, U+2581 is GGUF's mark; the rest are signs that got theirs after Unicode 8.
    assert len(unexplained) < 40
    assert not [c for c in unexplained if c < "\u0600"]


def test_added_tokens(tmp_path: Path) -> None:
    tokenizer = trained()
    size = len(tokenizer["model"]["vocab"])
    flags = {"single_word": False, "lstrip": False, "rstrip": False}
    tokenizer["added_tokens"] += [
        {"id": size, "content": "[QUERY]", "special": True, "normalized": False, **flags},
        {"id": size + 1, "content": "llmfitish", "special": False, "normalized": False, **flags},
    ]
    settings = {"tokenizer_class": "BertTokenizer"}
    vocab, bad, _ = compared(folder(tmp_path / "model", tokenizer, tokenizer_config=settings), tmp_path)
    assert bad == []
    assert vocab.types[size:] == (TokenType.CONTROL, TokenType.USER_DEFINED)
    tokenizer["added_tokens"][-1]["normalized"] = True
    vocab, bad, explained = compared(folder(tmp_path / "model", tokenizer, tokenizer_config=settings), tmp_path)
    assert bad == []
    assert explained
    assert "added-token-normalized" in [e.code for e in vocab.events if e.severity == "warning"]


def test_rows_and_tokens(tmp_path: Path) -> None:
    vocab = read_vocab(side(WPM), CONFIG)
    fitted = fit_vocab(vocab, 648, 648)
    assert len(fitted.tokens) == len(fitted.types) == 648
    assert fitted.types[640:] == (TokenType.UNUSED,) * 8
    path = write_tiny(tmp_path / "tiny.gguf", gguf_keys(fitted), 648)
    assert ids_of(path, ["the licence [PAD641]"]) == reference_ids(side(WPM), ["the licence [PAD641]"])
    with pytest.raises(SourceError) as caught:
        fit_vocab(vocab, 637, 640)
    assert all(n in caught.value.cause for n in ("640", "637"))


@pytest.mark.parametrize("gone", ["[UNK]", "[CLS]", "[SEP]"])
def test_without_a_token_that_it_needs(gone: str, tmp_path: Path) -> None:
    lines = (WPM / "vocab.txt").read_text(encoding="utf-8").split("\n")
    (tmp_path / "vocab.txt").write_text("\n".join("[gone]" if t == gone else t for t in lines), encoding="utf-8")
    with pytest.raises(UnsupportedError) as caught:
        read_vocab(side(tmp_path), CONFIG)
    assert (caught.value.code, gone in caught.value.cause) == ("unsupported-wordpiece", True)


def test_a_token_twice_in_vocab_txt(tmp_path: Path) -> None:
    text = (WPM / "vocab.txt").read_text(encoding="utf-8")
    (tmp_path / "vocab.txt").write_text(text + "the\n", encoding="utf-8")
    with pytest.raises(SourceError, match=r"lines \d+ and 641"):
        read_vocab(side(tmp_path), CONFIG)


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        ("pre_tokenizer", {"type": "Whitespace"}, "unknown-pretokenizer"),
        ("pre_tokenizer", None, "unknown-pretokenizer"),
        ("normalizer", {"type": "Replace", "pattern": {"String": "a"}, "content": "b"}, "unknown-normalizer"),
    ],
)
def test_other_cuts_are_refused(key: str, value: object, code: str, tmp_path: Path) -> None:
    files = folder(tmp_path, trained() | {key: value}, tokenizer_config={"tokenizer_class": "PreTrainedTokenizerFast"})
    names = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(names), encoding="utf-8")
    with pytest.raises(UnsupportedError) as caught:
        read_vocab(side(tmp_path) | files, CONFIG)
    assert caught.value.code == code


def test_a_space_of_its_own_begins_no_word(tmp_path: Path) -> None:
    """A piece that is U+2581 alone, or goes on with it, would let llama.cpp begin words that the tokenizer knows not."""
    pieces = [*SPECIALS, "the", "##x", "\u2581", "##\u2581", "##\u2581the", ""]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    files = side(tmp_path)
    vocab = read_vocab(files, CONFIG)
    path = write_tiny(tmp_path / "tiny.gguf", gguf_keys(vocab), len(vocab.tokens))
    assert ids_of(path, ["the x thex"]) == reference_ids(files, ["the x thex"]) == [[5, 1, 5, 6]]


@pytest.mark.parametrize("lowercase", [True, False])
def test_the_way_back(lowercase: bool, tmp_path: Path) -> None:
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": lowercase}
    files = folder(tmp_path / "model", trained(lowercase=lowercase), tokenizer_config=settings)
    vocab = read_vocab(files, CONFIG)
    back = vocab_from_gguf({k: kv.value for k, kv in gguf_keys(vocab).items()})
    for name, data in vocab_files(back).items():
        (tmp_path / name).write_bytes(data)
    texts = ["Hello, WORLD!", "caf\u00e9 [MASK] na\u00efve", "\u6f22\u5b57"]
    again = {p.name: p for p in tmp_path.iterdir() if p.suffix == ".json"}
    assert reference_ids(again, texts, add_special=True) == reference_ids(files, texts, add_special=True)
    assert gguf_keys(read_vocab(again, CONFIG)) == gguf_keys(vocab)
