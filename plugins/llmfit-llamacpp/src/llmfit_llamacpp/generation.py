"""Let a model answer once."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmfit_core.errors import LaunchError
from llmfit_core.runtime import Generated, LaunchOptions
from llmfit_llamacpp.diagnose import not_finite
from llmfit_llamacpp.planning import prepare
from llmfit_llamacpp.session import Client, session
from llmfit_llamacpp.settings import chosen

_ROLES = ("system", "user", "assistant", "tool", "developer")


def generate(
    path: Path,
    prompt: str | Sequence[Mapping[str, str]],
    options: LaunchOptions,
    max_tokens: int,
    temperature: float,
    on_text: Callable[[str], None],
) -> Generated:
    """Continue `prompt`, or answer the messages, in a child process that ends with this call.

    Messages are rendered with the model's own chat template by llama.cpp. A model without one gets their contents
    as plain text, and so is every `str` given. At temperature 0 the same prompt gives the same text.

    Args:
        path: The model.
        prompt: A text to continue, or chat messages (`role`, `content`).
        options: As for `plan`; host and port play no part.
        max_tokens: Tokens to generate, at most; the end of the context ends it too.
        temperature: 0 for the likeliest token each time.
        on_text: Receives each piece of text as it comes.

    Raises:
        LlmfitError: As `prepare` and `session`; `bad-option`, `bad-message`, `prompt-too-long`, `bad-template`.
    """
    if max_tokens < 1 or not (math.isfinite(temperature) and temperature >= 0):
        raise LaunchError(
            "bad-option",
            f"{max_tokens} tokens at temperature {temperature} cannot be generated",
            "Ask for at least one token, at a temperature of 0 or more.",
        )
    _check(prompt)
    ready = prepare(path, options)
    body = {"temperature": temperature, "cache_prompt": False}
    if temperature == 0:
        body |= {"seed": 0, "top_k": 1}
    chat = not isinstance(prompt, str) and ready.header.has_template
    settings = replace(chosen(ready.header.path, ready.context, options), chat=chat, warmup=False)
    with session(ready.engine, settings, ready.memory_bytes) as client:
        started = time.monotonic()
        pieces: list[str] = []
        counts = (0, 0)
        answer = _chat if chat else _plain
        for text, now in answer(client, prompt, body, max_tokens):
            counts = now
            if text:
                pieces.append(text)
                on_text(text)
        if not pieces and counts[1] and _computes_nan(client):
            raise not_finite(path)
        return Generated(
            text="".join(pieces), prompt_tokens=counts[0], tokens=counts[1], seconds=time.monotonic() - started
        )


def _computes_nan(client: Client) -> bool:
    """Whether probabilities come out as NaN, for which JSON has no number; such a model says nothing, in many tokens."""
    return b'"logprob":null' in client.ask("/completion", {"prompt": "1", "n_predict": 1, "n_probs": 1})


_Pieces = Iterator[tuple[str, tuple[int, int]]]


def _chat(client: Client, messages: Any, body: dict[str, Any], max_tokens: int) -> _Pieces:
    request = {
        **body,
        "messages": [dict(m) for m in messages],
        "max_tokens": max_tokens,
        "stream_options": {"include_usage": True},
        # Whatever the model says is its answer: nothing it generates goes missing.
        "reasoning_format": "none",
    }
    counts = (0, 0)
    for event in client.events("/v1/chat/completions", request):
        usage = event.get("usage")
        if usage:
            counts = (int(usage["prompt_tokens"]), int(usage["completion_tokens"]))
        choices = event.get("choices") or [{}]
        delta = choices[0].get("delta") or {}
        yield (delta.get("reasoning_content") or "") + (delta.get("content") or ""), counts


def _plain(client: Client, prompt: Any, body: dict[str, Any], max_tokens: int) -> _Pieces:
    text = prompt if isinstance(prompt, str) else "\n\n".join(str(m["content"]) for m in prompt)
    for event in client.events("/completion", {**body, "prompt": text, "n_predict": max_tokens}):
        counts = (int(event.get("tokens_evaluated", 0)), int(event.get("tokens_predicted", 0)))
        yield event.get("content") or "", counts


def _check(prompt: str | Sequence[Mapping[str, str]]) -> None:
    texts = [prompt] if isinstance(prompt, str) else []
    if not isinstance(prompt, str):
        if not prompt:
            raise LaunchError("bad-message", "there are no messages to answer", "Give at least one message.")
        for number, message in enumerate(prompt, 1):
            if message.get("role") not in _ROLES or not isinstance(message.get("content"), str):
                raise LaunchError(
                    "bad-message",
                    f"message {number} has no content or the role {str(message.get('role'))[:40]!r}",
                    f"A message has a content and one of the roles {', '.join(_ROLES)}.",
                )
            texts.append(message["content"])
    for text in texts:
        require_text(text)


def require_text(text: str) -> None:
    """Raise `LaunchError("bad-text")` for what is no Unicode text: lone surrogates, from bytes read wrongly."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise LaunchError(
            "bad-text", f"a text is no Unicode at position {error.start}", "Read it as the encoding it is in."
        ) from None
