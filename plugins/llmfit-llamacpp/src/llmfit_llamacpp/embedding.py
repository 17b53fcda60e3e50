"""A text's vector, or its tokens' vectors, as llama.cpp computes them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from llmfit_core.errors import LaunchError, UnsupportedError
from llmfit_llamacpp.diagnose import not_finite
from llmfit_llamacpp.planning import prepare
from llmfit_llamacpp.session import session
from llmfit_llamacpp.settings import chosen

if TYPE_CHECKING:
    from llmfit_core.runtime import LaunchOptions

_AS_COMPUTED = -1
"""llama.cpp's `embd_normalize` for none."""


def embed(path: Path, ids: Sequence[int], options: LaunchOptions) -> list[list[float]]:
    """The vectors of a text, as they are computed: of no particular length.

    With plain attention, and by default on the CPU, so that the numbers can be compared with another runtime's.

    Args:
        path: The model.
        ids: Token ids, as they are: nothing is added.
        options: As for `plan`; `pooling` overrides what the file says.

    Returns:
        One vector where token vectors are pooled, by the file's word or `options.pooling`; else one for each token.

    Raises:
        LlmfitError: As `prepare` and `session`; `bad-ids`, `prompt-too-long`; `not-finite`.
        UnsupportedError: `ranks`: the file's pooling is a classifier's.
    """
    ready = prepare(path, options, least_context=max(64, len(ids)), exact=True, embed=True)
    vocabulary = ready.header.vocabulary
    wrong = [i for i in ids if not 0 <= i < vocabulary]
    if wrong or not ids:
        what = f"id {wrong[0]} is not among the {vocabulary} tokens of {path}" if wrong else "there is no token to embed"
        raise LaunchError("bad-ids", what, "Give ids of this vocabulary.")
    if len(ids) > ready.context:
        raise LaunchError(
            "prompt-too-long", f"{len(ids)} tokens do not fit in a context of {ready.context}", "Give a shorter text."
        )
    if (options.pooling or ready.header.pooling) == "rank":
        raise UnsupportedError(
            "ranks", f"{path} ranks texts and embeds none", "Serve it and ask /v1/rerank, or name a pooling (cls, mean)."
        )
    settings = chosen(ready.header.path, ready.context, options)
    layers = 0 if options.gpu_layers is None else options.gpu_layers
    settings = replace(
        settings, exact=True, chat=False, warmup=False, gpu_layers=layers, embed=True, pooling=options.pooling
    )
    with session(ready.engine, settings, ready.memory_bytes) as client:
        answer = client.ask("/embeddings", {"content": [int(i) for i in ids], "embd_normalize": _AS_COMPUTED})
    try:
        rows = json.loads(answer)[0]["embedding"]
        found = [[math.nan if x is None else float(x) for x in row] for row in rows]
    except (ValueError, KeyError, IndexError, TypeError):
        raise LaunchError("runtime-answer", "llama.cpp gave no vectors", "Install another version of llama.cpp.") from None
    if not all(math.isfinite(x) for row in found for x in row):
        raise not_finite(path)
    return found
