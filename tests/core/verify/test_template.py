"""A chat template that renders no conversation is told before the work; an ordinary one is not."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from llmfit_core.tokenizer import templates
from llmfit_core.tokenizer.vocab import Vocab
from llmfit_core.verify.template import prove_template
from tests.cases.source import command
from tests.tiny import tiny

CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m['content'] | trim }}<|im_end|>\n{% endfor %}"
FAILING = {
    "raises": "{{ raise_exception('no system') }}{% for m in messages %}{{ m.content }}{% endfor %}",
    "long-loop": "{% for i in range(10**12) %}x{% endfor %}",
    "dunder": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "dunder-quiet": CHATML + "{{ ''.__class__ }}",
    "dunder-item": CHATML + "{{ messages['__class__'] }}",
    "dunder-filter": CHATML + "{{ (messages | attr('__class__')) is defined }}",
    "undefined-call": "{{ helper(messages) }}",
    "wrong-keys": "{% for m in messages %}{{ m.text.strip() }}{% endfor %}",
    "changes": "{{ messages.append(1) }}",
    "much": "{% for i in range(99999) %}{% for j in range(9) %}aaaaaaaaaaaaaaaa{% endfor %}{% endfor %}",
}
ORDINARY = {
    "chatml": CHATML + "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "no-system": "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + CHATML,
    "system-only": "{% if messages[0].role != 'system' %}{{ raise_exception('system first') }}{% endif %}" + CHATML,
    "tools": "{% if tools is not none %}{{ raise_exception('no tools') }}{% endif %}{{ bos_token + messages[0].content }}",
    "date": "{{ strftime_now('%Y') }}{% generation %}{{ messages[0].content }}{% endgeneration %}",
    "split": "{{ messages[-1].content.split('</think>')[-1].lstrip('\\n') }}",
}


def vocab(template: str | None) -> Vocab:
    return Vocab(model="gpt2", pre="gpt-2", tokens=("a", "b"), types=(1, 3), specials={"bos": 1}, chat_template=template)


@pytest.mark.parametrize("template", FAILING.values(), ids=FAILING)
def test_a_failing_template_is_warned_of(template: str) -> None:
    (event,) = prove_template(vocab(template))
    assert (event.code, event.severity) == ("chat-template-fails", "warning")


@pytest.mark.parametrize("template", [*ORDINARY.values(), None], ids=[*ORDINARY, "none"])
def test_an_ordinary_template_is_not(template: str | None) -> None:
    assert prove_template(vocab(template)) == ()


def test_an_endless_template_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "_SECONDS", 0.7)
    endless = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    start = time.perf_counter()
    assert "longer than" in prove_template(vocab(endless))[0].message
    assert time.perf_counter() - start < 5


def test_convert_tells_it_and_strict_refuses_before_the_work(tmp_path: Path) -> None:
    folder = tiny("qwen2", tmp_path / "model")
    (folder / "chat_template.jinja").write_text(FAILING["raises"], encoding="utf-8")
    strict = command("convert", folder, "--to", "gguf:f32", "-o", tmp_path / "out" / "m.gguf", "--strict")
    assert strict.code == 8, strict.err
    assert "[chat-template-fails]" in strict.err
    assert not (tmp_path / "out").exists()
    said = command("convert", folder, "--to", "gguf:f32", "-o", tmp_path / "m.gguf", "--json")
    assert said.code == 0, said.err
    events = [e for e in json.loads(said.out)["artifact"]["events"] if e["code"] == "chat-template-fails"]
    assert len(events) == 1
    assert "no system" in events[0]["message"]


def test_plan_tells_it_when_it_checks(tmp_path: Path) -> None:
    folder = tiny("qwen2", tmp_path / "model")
    (folder / "chat_template.jinja").write_text(FAILING["dunder"], encoding="utf-8")
    for options, told in ((["--check"], True), ([], False)):
        said = command("plan", folder, "--to", "gguf:f32", "--json", *options)
        assert said.code == 0, said.err
        assert ("chat-template-fails" in said.out) is told
    assert command("plan", folder, "--to", "gguf:f32", "--check", "--strict").code == 8
