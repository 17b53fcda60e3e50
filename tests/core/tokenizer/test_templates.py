"""Chat templates: transformers' precedence, broken ones, and hostile ones."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from llmfit_core.errors import LlmfitError, SourceError, StrictError
from llmfit_core.events import require_none_strict
from llmfit_core.tokenizer.read import read_vocab
from llmfit_core.tokenizer.templates import render_chat
from tests.core.tokenizer.training import folder, side

TOK = Path(__file__).parents[2] / "golden" / "tok" / "bpe-gpt-2"
CHATML = (
    "{% for m in messages %}{% if m.role == 'skip' %}{% continue %}{% endif %}<|im_start|>{{ m.role }}\n"
    "{% generation %}{{ m.content }}{% endgeneration %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MESSAGES = [{"role": "system", "content": "Be <brief>."}, {"role": "user", "content": "Hi & bye"}]


def model(path: Path, **texts: Any) -> dict[str, Path]:
    """A folder with the tokenizer and templates: `config=`, `jinja=`, `extra={name: text}`, `processor=`."""
    path.mkdir(parents=True, exist_ok=True)
    config = json.loads((TOK / "tokenizer_config.json").read_text(encoding="utf-8"))
    if "config" in texts:
        config["chat_template"] = texts["config"]
    folder(path, json.loads((TOK / "tokenizer.json").read_text(encoding="utf-8")), tokenizer_config=config)
    if "jinja" in texts:
        (path / "chat_template.jinja").write_text(texts["jinja"], encoding="utf-8")
    for name, text in texts.get("extra", {}).items():
        (path / "additional_chat_templates").mkdir(exist_ok=True)
        (path / "additional_chat_templates" / f"{name}.jinja").write_text(text, encoding="utf-8")
    if "processor" in texts:
        (path / "chat_template.json").write_text(json.dumps({"chat_template": texts["processor"]}), encoding="utf-8")
    return side(path)


@pytest.mark.parametrize(
    "texts",
    [
        {"jinja": "J"},
        {"config": "C"},
        {"config": "C", "jinja": "J"},
        {"config": [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]},
        {"config": [{"name": "tool_use", "template": "T"}]},
        {"jinja": "J", "extra": {"tool_use": "T", "rag": "R"}},
        {"extra": {"tool_use": "T"}},
        {"config": "C", "extra": {"tool_use": "T"}},
        {},
    ],
    ids=str,
)
def test_precedence_is_that_of_transformers(texts: dict[str, Any], tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    files = model(tmp_path, **texts)
    vocab = read_vocab(files, {})
    theirs = AutoTokenizer.from_pretrained(tmp_path).chat_template
    theirs = {"default": theirs} if isinstance(theirs, str) else dict(theirs or {})
    ours = dict(vocab.chat_templates) | ({"default": vocab.chat_template} if vocab.chat_template is not None else {})
    assert ours == theirs
    require_none_strict(vocab.events)


def test_processor_file_is_the_last_resort(tmp_path: Path) -> None:
    assert read_vocab(model(tmp_path / "a", processor="P"), {}).chat_template == "P"
    assert read_vocab(model(tmp_path / "b", processor="P", config="C"), {}).chat_template == "C"


@pytest.mark.parametrize(
    "broken",
    [
        "{% if %}",
        "{{ messages",
        "{% for m in messages %}",
        "{{ x | nosuchfilter }}",
        "{% unknown %}",
        "{% break %}",
        "{{ 1 is nosuch }}",
        "{{" * 3000,
    ],
)
def test_broken_template_is_left_out_with_a_warning(broken: str, tmp_path: Path) -> None:
    vocab = read_vocab(model(tmp_path, jinja=broken, extra={"good": CHATML}), {})
    assert vocab.chat_template is None
    assert vocab.chat_templates == {"good": CHATML}
    assert [e.code for e in vocab.events] == ["chat-template-broken"]
    with pytest.raises(StrictError, match="chat-template-broken"):
        require_none_strict(vocab.events)


@pytest.mark.parametrize("value", [5, [1], [{"name": "a"}], {"default": 3}])
def test_template_of_a_wrong_type_is_warned_of(value: Any, tmp_path: Path) -> None:
    vocab = read_vocab(model(tmp_path, config=value), {})
    assert vocab.chat_template is None
    assert [e.code for e in vocab.events] == ["chat-template-broken"]


@pytest.mark.parametrize("prompt", [True, False])
def test_rendering_equals_transformers(prompt: bool, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    template = (
        CHATML
        + "{{ bos_token }}{{ {'a': ['<', 'é']} | tojson }}{{ tools | tojson(indent=2) }}{% set ns = namespace(x=1) %}{{ ns.x }}\n"
    )
    model(tmp_path, jinja=template)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    messages = [*MESSAGES, {"role": "skip", "content": "no"}]
    theirs = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt, tools=[{"n": 1}])
    ours = render_chat(
        template, messages, bos="<|endoftext|>", eos="<|endoftext|>", add_generation_prompt=prompt, tools=[{"n": 1}]
    )
    assert ours == theirs


@pytest.mark.parametrize(
    "hostile",
    [
        "{{ ().__class__.__bases__[0].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% for a in range(99999999) %}{% endfor %}",
        "{{ 'a' * 10**10 }}",
        "{% set ns = namespace(t='aa') %}{% for i in range(60) %}{% set ns.t = ns.t ~ ns.t %}{% endfor %}",
        "{% for i in range(90000) %}{% for j in range(9) %}aaaaaaaaaaaaaaaa{% endfor %}{% endfor %}",
        "{{ raise_exception('roles must alternate') }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_hostile_templates_fail_cleanly(hostile: str) -> None:
    start = time.perf_counter()
    with pytest.raises(SourceError) as caught:
        render_chat(hostile, MESSAGES)
    assert caught.value.code == "chat-template-failed"
    assert time.perf_counter() - start < 20


def test_the_reason_of_a_refusal_is_said() -> None:
    with pytest.raises(SourceError, match="roles must alternate"):
        render_chat("{{ raise_exception('roles must alternate') }}", MESSAGES)


def test_endless_template_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    from llmfit_core.tokenizer import templates

    monkeypatch.setattr(templates, "_SECONDS", 0.7)
    with pytest.raises(SourceError, match="longer than"):
        render_chat("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", MESSAGES)


def test_messages_have_to_be_plain() -> None:
    with pytest.raises(LlmfitError, match="bad-messages"):
        render_chat(CHATML, [{"role": "user", "content": object()}])
