"""An engine that only we talk to: started for one job, asked over its HTTP API, and ended."""

from __future__ import annotations

import http.client
import json
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from llmfit_core.errors import LaunchError, LlmfitError
from llmfit_core.launch import Explain, Server, free_port, launch
from llmfit_core.runtime import LaunchPlan
from llmfit_llamacpp.diagnose import explain
from llmfit_llamacpp.planning import environment
from llmfit_llamacpp.settings import Settings, command
from llmfit_llamacpp.worker import KEY_VARIABLE

if TYPE_CHECKING:
    from llmfit_llamacpp.engine import Engine

_SLOWEST_DISK = 20e6
_ATTEMPTS = 3


class Client:
    """Asks one engine. Every failure of it is an error that says what happened to the engine."""

    def __init__(self, server: Server, key: str, model: Path) -> None:
        """Talk to `server`, which has loaded `model`, with the key it was given."""
        parts = urlsplit(server.url)
        self._server = server
        self._explain: Explain = explain(model)
        self._model = model
        self._headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        self._host, self._port = parts.hostname or "", parts.port

    def ask(self, path: str, body: dict[str, Any]) -> bytes:
        """The answer to a POST, as it came.

        Raises:
            LaunchError: `runtime-refused` with what the engine said, `runtime-died` with its last words.
        """
        with self._posted(path, body) as response:
            data = response.read()
        if response.status != 200:
            raise self._refused(response.status, data)
        return data

    def events(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The events of a streamed answer (`data: {...}` lines) as they come, the closing mark left out."""
        with self._posted(path, {**body, "stream": True}) as response:
            if response.status != 200:
                raise self._refused(response.status, response.read())
            ended = False
            while line := response.readline():
                if line.startswith(b"error: ") or line.startswith(b'data: {"error"'):
                    raise self._refused(500, line.split(b": ", 1)[1])
                if line.strip() == b"data: [DONE]":
                    ended = True
                elif line.startswith(b"data: "):
                    event = json.loads(line[6:])
                    ended = ended or event.get("stop") is True
                    yield event
            if not ended:
                # http.client takes a connection that breaks off for the end of a chunked answer.
                raise ConnectionError("it ended in the middle of an answer")

    @contextmanager
    def _posted(self, path: str, body: dict[str, Any]) -> Iterator[http.client.HTTPResponse]:
        """The response to one request, over a connection of its own: an engine may close one after any answer."""
        connection = http.client.HTTPConnection(self._host, self._port)
        try:
            connection.request("POST", path, json.dumps(body).encode(), self._headers)
            yield connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise self._lost(error) from None
        finally:
            connection.close()

    def _lost(self, error: Exception) -> LlmfitError:
        # A process that aborts closes its connections a moment before it is gone.
        until = time.monotonic() + 5
        while self._server.alive() and time.monotonic() < until:
            time.sleep(0.02)
        if not self._server.alive():
            return self._server.died(f"computing with {self._model}", self._explain)
        return LaunchError(
            "runtime-died", f"llama.cpp broke the connection: {error}", "Try again; report it if it happens again."
        )

    def _refused(self, status: int, data: bytes) -> LaunchError:
        try:
            said = json.loads(data)
            said = said.get("error", said)
            kind, message = str(said.get("type", "")), str(said.get("message", said))
        except (ValueError, AttributeError):
            kind, message = "", data[:300].decode("utf-8", "replace")
        if kind == "exceed_context_size_error" or "exceeds the available context" in message:
            return LaunchError(
                "prompt-too-long", f"the prompt does not fit in the context: {message}", "Choose a larger --context."
            )
        if "template" in message.lower() or "jinja" in message.lower():
            return LaunchError(
                "bad-template",
                f"the chat template of {self._model} refuses these messages: {message[:300]}",
                "Give a plain prompt, or convert with another template.",
            )
        return LaunchError("runtime-refused", f"llama.cpp refused ({status}): {message[:300]}", "Mend the request.")


@contextmanager
def session(
    engine: Engine,
    settings: Settings,
    memory_bytes: int,
    on_progress: Callable[[float, str], None] | None = None,
) -> Iterator[Client]:
    """An engine with a model loaded, until the block ends.

    Args:
        engine: Which.
        settings: How; host and port are chosen here.
        memory_bytes: What it is expected to take.
        on_progress: As for `launch`.

    Raises:
        LlmfitError: As `launch`, and what `explain` makes of its last words.
    """
    model = settings.model
    key = secrets.token_urlsafe(24)
    timeout = 120 + model.stat().st_size / _SLOWEST_DISK
    for attempt in range(_ATTEMPTS):
        here = replace(settings, host="127.0.0.1", port=free_port())
        plan = LaunchPlan(
            runtime="llamacpp",
            argv=command(engine, here),
            env={KEY_VARIABLE: key, **environment(engine, memory_bytes)},
            url=f"http://{here.host}:{here.port}",
            context=here.context,
        )
        try:
            server = launch(plan, timeout=timeout, on_progress=on_progress, explain=explain(model))
            break
        except LaunchError as error:
            # Somebody took the free port between our choice and the engine's bind.
            if error.code != "port-taken" or attempt == _ATTEMPTS - 1:
                raise
    with server:
        yield Client(server, key, model)
