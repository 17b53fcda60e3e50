"""Three sizes that have to agree: the tokenizer's, the config's `vocab_size`, and the embedding's rows."""

from __future__ import annotations

from dataclasses import replace

from llmfit_core.errors import SourceError
from llmfit_core.events import Event
from llmfit_core.tokenizer.pieces import PAD_SCORE, pad_name
from llmfit_core.tokenizer.vocab import TokenType, Vocab

_MAX_ROWS = 16_000_000


def fit_vocab(vocab: Vocab, rows: int, config_vocab_size: int | None) -> Vocab:
    """Bring a vocabulary to the number of embedding rows, which decide where that is safe.

    More rows than tokens: the rest is named `[PAD<id>]` and marked unused, so that nothing encodes to it.
    Fewer rows: safe only where every token without a row is itself a padding of the file (unused), which
    is then cut off. Any other token without a row could be met in a text and has no embedding.

    Args:
        vocab: As read.
        rows: Rows of the embedding, as stored.
        config_vocab_size: The config's `vocab_size`, `None` where it has none.

    Raises:
        SourceError: Tokens without a row.
    """
    tokens = len(vocab.tokens)
    if not 0 < rows <= _MAX_ROWS:
        raise SourceError("vocab-size", f"the embedding has {rows} rows", "Check the embedding's shape.")
    said = "no vocab_size" if config_vocab_size is None else f"vocab_size {config_vocab_size}"
    events: list[Event] = []
    if config_vocab_size is not None and config_vocab_size != rows:
        events.append(
            Event(
                code="vocab-size",
                message=f"config.json says vocab_size {config_vocab_size}, the embedding has {rows} rows; the rows decide",
                subject="vocab_size",
            )
        )
    if rows < tokens:
        lost = [i for i in range(rows, tokens) if vocab.types[i] != TokenType.UNUSED]
        if lost:
            raise SourceError(
                "vocab-size",
                f"the tokenizer has {tokens} tokens, the embedding {rows} rows and config.json {said}: "
                f"{len(lost)} tokens have no row, the first is {ascii(vocab.tokens[lost[0]])[:60]} (id {lost[0]})",
                "Resize the model's embedding to the tokenizer, or remove the added tokens from the tokenizer's files.",
            )
        cut = {
            "tokens": vocab.tokens[:rows],
            "types": vocab.types[:rows],
            "scores": vocab.scores[:rows],
        }
        return replace(vocab, **cut, events=(*vocab.events, *events))  # type: ignore[arg-type]
    if rows == tokens:
        return replace(vocab, events=(*vocab.events, *events)) if events else vocab
    taken = set(vocab.tokens)
    more = rows - tokens
    events.append(
        Event(
            code="vocab-padded",
            message=f"the embedding has {rows} rows, the tokenizer {tokens} tokens: {more} unused tokens [PAD{tokens}] and on are added",
            severity="info",
            subject="tokenizer.ggml.tokens",
        )
    )
    return replace(
        vocab,
        tokens=(*vocab.tokens, *(pad_name(i, taken) for i in range(tokens, rows))),
        types=(*vocab.types, *[int(TokenType.UNUSED)] * more),
        scores=(*vocab.scores, *[PAD_SCORE] * more) if vocab.scores else (),
        events=(*vocab.events, *events),
    )
