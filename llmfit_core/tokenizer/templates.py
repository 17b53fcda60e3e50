"""Chat templates: which one a folder means, whether it compiles, and rendering it without trust.

Templates are programs from strangers. They run under jinja2's immutable sandbox, as in
transformers, and here in a child process of bounded time, memory and output.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from llmfit_core.errors import LlmfitError, SourceError, UnsupportedError
from llmfit_core.events import Event
from llmfit_core.tokenizer.sources import MAX_TEMPLATE_BYTES, read_object, read_text

_FOLDER = "additional_chat_templates"
_SECONDS = 10.0
_MAX_OUTPUT = 4 * 1024 * 1024
_MAX_MEMORY = 1024 * 1024 * 1024


def read_templates(
    side: Mapping[str, Path], tokenizer_config: Mapping[str, object]
) -> tuple[str | None, dict[str, str], tuple[Event, ...]]:
    """The default template, the further ones by name, and events, by transformers' precedence.

    `chat_template.jinja` and the files of `additional_chat_templates/`, if there is any of them, hide
    `chat_template` of `tokenizer_config.json`; that hides `chat_template.json`, which processors write.
    A template that does not compile is left out with a warning.
    """
    found: dict[str, str] = {}
    hidden = ""
    for name in sorted(side):
        path = PurePosixPath(name)
        if name == "chat_template.jinja":
            found["default"] = read_text(side[name], MAX_TEMPLATE_BYTES)
        elif path.parent.name == _FOLDER and path.suffix == ".jinja":
            found[path.name.removesuffix(".jinja")] = read_text(side[name], MAX_TEMPLATE_BYTES)
    source = "chat_template.jinja"
    events: list[Event] = []
    configured = _named(tokenizer_config.get("chat_template"), "tokenizer_config.json", events)
    if found:
        if configured and configured.get("default") != found.get("default"):
            hidden = "tokenizer_config.json"
    elif configured:
        found, source = configured, "tokenizer_config.json"
    elif "chat_template.json" in side:
        found = _named(read_object(side, "chat_template.json").get("chat_template"), "chat_template.json", events)
        source = "chat_template.json"
    if hidden:
        events.append(
            Event(
                code="chat-template-hidden",
                message=f"{source} is taken, the template of {hidden} is another and left out, as in transformers",
                severity="info",
                subject=hidden,
            )
        )
    for name, problem in zip(list(found), compile_errors(list(found.values())), strict=True):
        if problem:
            which = "chat template" if name == "default" else f"chat template {name!r}"
            events.append(
                Event(
                    code="chat-template-broken",
                    message=f"{source}: the {which} does not compile and is left out: {problem}",
                    subject=source,
                )
            )
            del found[name]
    default = found.pop("default", None)
    return default, dict(sorted(found.items())), tuple(events)


def _named(value: object, where: str, events: list[Event]) -> dict[str, str]:
    """A `chat_template` value, a text or a list of `{"name", "template"}`, as templates by name."""
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, Mapping):
        value = [{"name": n, "template": t} for n, t in value.items()]
    if isinstance(value, list):
        named = {
            item["name"]: item["template"]
            for item in value
            if isinstance(item, Mapping) and isinstance(item.get("name"), str) and isinstance(item.get("template"), str)
        }
        if len(named) == len(value):
            return named
    if value is not None:
        events.append(
            Event(code="chat-template-broken", message=f"{where}: chat_template is no template", subject=where)
        )
    return {}


def compile_errors(templates: Sequence[str]) -> list[str]:
    """Why each template does not compile under transformers' extensions; empty where it does."""
    return [str(answer.get("error") or "") for answer in _run([{"template": t, "variables": None} for t in templates])]


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, object]],
    *,
    bos: str = "",
    eos: str = "",
    add_generation_prompt: bool = True,
    **extra: object,
) -> str:
    """The prompt that `template` makes of `messages`.

    Args:
        template: Jinja source, as in `Vocab.chat_template`.
        messages: `{"role": ..., "content": ...}` and what else the template reads; plain JSON values.
        bos: Text of the `bos` token (`bos_token` in templates).
        eos: Text of the `eos` token.
        add_generation_prompt: Whether to open the assistant's turn.
        **extra: Further variables (`tools`, `documents`, `enable_thinking`); plain JSON values.

    Raises:
        SourceError: The template does not compile, fails, refuses these messages, or exceeds ten seconds,
            1 GiB of memory or 4 MiB of text.
    """
    variables = {
        **extra, "messages": list(messages), "bos_token": bos, "eos_token": eos, "add_generation_prompt": add_generation_prompt
    }  # fmt: skip
    answer = _run([{"template": template, "variables": variables}])[0]
    text = answer.get("text")
    if not isinstance(text, str):
        raise _failed(str(answer.get("error"))[:300])
    return text


def render_errors(
    template: str, conversations: Sequence[Sequence[Mapping[str, object]]], *, bos: str = "", eos: str = ""
) -> list[str]:
    """Why `template` does not render each of `conversations`, in one process; empty where it does.

    Reaching for an attribute that the sandbox hides counts as failing, though jinja2 may go on with nothing in its place.
    """
    common: dict[str, object] = {"bos_token": bos, "eos_token": eos, "add_generation_prompt": True}
    common |= {"tools": None, "documents": None}  # as transformers gives them
    jobs = [{"template": template, "variables": {**common, "messages": list(c)}} for c in conversations]
    return [str(a.get("error") or a.get("unsafe") or "") for a in _run(jobs)]


def _run(jobs: Sequence[Mapping[str, object]]) -> list[Mapping[str, object]]:
    """Compile and, where there are variables, render each job's template in one child process.

    Even compiling happens there: jinja2 computes constant expressions while it compiles.
    """
    if not jobs:
        return []
    if importlib.util.find_spec("jinja2") is None:
        raise UnsupportedError("missing-jinja2", "chat templates need jinja2", "pip install jinja2") from None
    try:
        job = json.dumps({"jobs": jobs, "memory": _MAX_MEMORY, "output": _MAX_OUTPUT})
    except (TypeError, ValueError, RecursionError) as error:
        raise LlmfitError(
            "bad-messages", f"messages have to be plain JSON values: {error}", "Give texts, numbers, lists and objects."
        ) from None
    child = Path(__file__).with_name("template_child.py")
    try:
        done = subprocess.run(
            [sys.executable, "-I", str(child)], input=job.encode(), capture_output=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return [{"error": f"it ran longer than {_SECONDS:.0f} seconds"}] * len(jobs)
    try:
        answers = json.loads(done.stdout)
        if isinstance(answers, list) and len(answers) == len(jobs):
            return answers
    except ValueError:
        pass
    last = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return [{"error": f"its process died ({last[-1][:120] if last else done.returncode})"}] * len(jobs)


def _failed(why: str) -> SourceError:
    return SourceError(
        "chat-template-failed",
        f"the chat template fails on these messages: {why}",
        "Change the messages or give another template.",
    )
