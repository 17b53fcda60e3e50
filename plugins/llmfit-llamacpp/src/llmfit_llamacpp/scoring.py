"""The probability of every next token, at every position of a text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmfit_core.errors import LaunchError, SourceError
from llmfit_llamacpp.diagnose import not_finite
from llmfit_llamacpp.planning import prepare
from llmfit_llamacpp.session import session
from llmfit_llamacpp.settings import chosen

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from llmfit_core.runtime import LaunchOptions
    from llmfit_llamacpp.header import Header

FLOOR = -103.27893
"""Logarithm of the smallest positive float32. llama.cpp gives its lowest float where the probability is less."""

_ID = re.compile(rb'"id":(\d+)')
_LOG = re.compile(rb'"logprob":(-?[0-9.]+(?:[eE][+-]?[0-9]+)?)')


def score(path: Path, ids: Sequence[int], options: LaunchOptions) -> list[list[float]]:
    """Natural logarithms of the next token's probabilities after each prefix of `ids`.

    With a float32 cache and plain attention, and by default on the CPU, so that the numbers can be compared with
    another runtime's. llama.cpp rounds each probability to float32, and what is below `FLOOR` is `FLOOR`.

    Args:
        path: The model.
        ids: Token ids, as they are: nothing is added.
        options: As for `plan`; the default context is what `ids` need, at least 256.

    Returns:
        Shape [len(ids), vocabulary]: row i is for the token after `ids[: i + 1]`.

    Raises:
        LlmfitError: As `prepare` and `session`; `bad-ids` for ids outside the vocabulary, `prompt-too-long`.
    """
    return [row.tolist() for row in score_rows(path, ids, options)]


def score_rows(path: Path, ids: Sequence[int], options: LaunchOptions) -> NDArray[np.float32]:
    """`score` as one float32 array."""
    import numpy as np

    ready = prepare(path, options, least_context=max(256, len(ids) + 1), exact=True)
    vocabulary = ready.header.vocabulary
    if not vocabulary:
        raise SourceError("missing-tensor", f"{path} lacks the tensor token_embd.weight", "Name a language model.")
    wrong = [i for i in ids if not 0 <= i < vocabulary]
    if wrong:
        raise LaunchError(
            "bad-ids", f"id {wrong[0]} is not among the {vocabulary} tokens of {path}", "Give ids of this vocabulary."
        )
    if len(ids) >= ready.context:
        raise LaunchError(
            "prompt-too-long", f"{len(ids)} tokens do not fit in a context of {ready.context}", "Ask for more context."
        )
    rows = np.empty((len(ids), vocabulary), dtype=np.float32)
    if not len(ids):
        return rows
    settings = chosen(ready.header.path, ready.context, options)
    layers = 0 if options.gpu_layers is None else options.gpu_layers
    settings = replace(settings, exact=True, chat=False, warmup=False, gpu_layers=layers)
    with session(ready.engine, settings, ready.memory_bytes) as client:
        request: dict[str, Any] = {"n_predict": 1, "n_probs": vocabulary, "temperature": 0, "cache_prompt": True}
        # Probabilities are of the raw logits, but they are left out where the token chosen is a piece of a character:
        # have a whole one chosen.
        request["logit_bias"] = [[_whole_text(ready.header), 1e6]]

        def answer(end: int) -> bytes:
            # Each prefix extends the one before, whose cache is kept: one token is computed. So they go one by one: a
            # shorter prefix that overtakes makes the engine go back, which gave wrong numbers with a sliding window.
            return client.ask("/completion", {**request, "prompt": [int(i) for i in ids[:end]]})

        # Reading megabytes of JSON takes longer than a small model: do that while the next prefix is computed.
        with ThreadPoolExecutor(1) as pool:
            try:
                waiting = pool.submit(answer, 1)
                for number in range(len(ids)):
                    said = waiting.result()
                    if number + 1 < len(ids):
                        waiting = pool.submit(answer, number + 2)
                    if b'"logprob":null' in said:
                        raise not_finite(path)
                    rows[number] = _row(said, vocabulary)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    return rows


def _whole_text(header: Header) -> int:
    """The id of an ordinary token that is plain text by itself."""
    kinds, tokens = (header.file.kv.get(f"tokenizer.ggml.{key}") for key in ("token_type", "tokens"))
    if tokens is not None and tokens.type == "array[string]":
        ordinary = kinds.value if kinds is not None and len(kinds.value) == len(tokens.value) else None
        for number, token in enumerate(tokens.value):
            if token.isascii() and token.isalnum() and (ordinary is None or ordinary[number] == 1):
                return number
    return 0


def _row(answer: bytes, vocabulary: int) -> NDArray[np.float32]:
    """The log-probabilities in an answer, in the order of ids.

    Found by pattern, ten times as fast as parsing megabytes of JSON. Inside a JSON string a quote is always preceded
    by a backslash, so a token's text cannot look like a key. The token that was chosen comes first and again in
    the list; a position without a list is no answer.
    """
    import numpy as np

    found, logs = _ID.findall(answer), _LOG.findall(answer)
    if len(found) != len(logs) or len(found) != vocabulary + 1:
        raise LaunchError(
            "runtime-answer",
            f"llama.cpp gave {len(logs)} probabilities for a vocabulary of {vocabulary}",
            "Install another version of llama.cpp.",
        )
    places = np.array(found, dtype=np.int64)
    row = np.full(vocabulary, np.nan, dtype=np.float32)
    if places.max() >= vocabulary:
        raise LaunchError("runtime-answer", f"llama.cpp gave the id {places.max()}", "Install another llama.cpp.")
    row[places] = np.maximum(np.array(logs, dtype=np.float64), FLOOR)
    if np.isnan(row).any():
        raise LaunchError(
            "runtime-answer", "llama.cpp gave one id twice and another never", "Install another llama.cpp."
        )
    return row
