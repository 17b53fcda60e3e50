"""The proof of a chat template: it renders the simplest conversation.

A template that compiles may still refuse every conversation, run without end or reach for Python's inner parts; whoever
chats with the model finds that out after the download. Rendering takes the start of a process, so planning leaves it out.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from llmfit_core.errors import UnsupportedError
from llmfit_core.events import Event
from llmfit_core.tokenizer.templates import render_errors

if TYPE_CHECKING:
    from llmfit_core.tokenizer.vocab import Vocab

_USER = {"role": "user", "content": "Hello"}
_CONVERSATIONS = ((_USER,), ({"role": "system", "content": "Be brief."}, _USER))
"""One of them has to do: some templates ask for a system message, others refuse it."""


def prove_template(vocab: Vocab | None) -> tuple[Event, ...]:
    """A `chat-template-fails` warning where the default template renders no simple conversation; else nothing.

    Templates of other names are for tools or documents, which a simple conversation has not.
    """
    if vocab is None or vocab.chat_template is None:
        return ()
    texts = {r: vocab.tokens[i] for r, i in vocab.specials.items() if i < len(vocab.tokens)}
    why = _failure(vocab.chat_template, texts.get("bos", ""), texts.get("eos", ""))
    if not why:
        return ()
    return (
        Event(
            code="chat-template-fails",
            message=f"the chat template does not render a conversation of one user message: {why}",
            subject="chat_template",
        ),
    )


@functools.lru_cache(maxsize=4)  # `convert` asks where it checks the plan, and again before the work
def _failure(template: str, bos: str, eos: str) -> str:
    """Why neither conversation renders; empty where one does, or where nothing here can render."""
    try:
        errors = render_errors(template, _CONVERSATIONS, bos=bos, eos=eos)
    except UnsupportedError:  # no jinja2; `read_templates` has said so
        return ""
    return "" if "" in errors else errors[0]
