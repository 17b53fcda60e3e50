"""Reading a model on a hub, against a small hub on loopback that records every byte it was asked for."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pytest
import torch
from safetensors.torch import save

from llmfit_core.errors import LlmfitError, SourceError, UnsupportedError
from llmfit_core.readers import hub
from llmfit_core.readers.folder import folder_files
from llmfit_core.readers.hub_access import HubAccess
from llmfit_core.readers.remote import Remote
from llmfit_core.readers.shards import read_weights
from llmfit_core.tensors import Stored, read

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "org/tiny"


@dataclass
class Hub:
    """What the server has, how it misbehaves, and what it was asked."""

    files: dict[str, bytes]
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    fail_on: str = "/api/"
    ranges: bool = True
    body: bytes | None = None
    sent: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    url: str = ""

    def access(self, cache: Path) -> HubAccess:
        return HubAccess(token=False, endpoint=self.url, cache_dir=str(cache))


class Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.serve(body=False)

    def do_GET(self) -> None:
        self.serve(body=True)

    def serve(self, *, body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        if self.hub.status != 200 and self.hub.fail_on in path:
            self.answer(self.hub.status, b"{}" if body else b"", self.hub.headers)
        elif self.hub.body is not None and self.hub.fail_on in path:
            self.answer(200, self.hub.body, {})
        elif path.startswith("/api/models/"):
            revision = path.partition("/revision/")[2] or "main"
            if not path.startswith(f"/api/models/{REPO}"):
                self.answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
            elif revision not in ("main", COMMIT):
                self.answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            else:
                siblings = [{"rfilename": n, "size": len(b)} for n, b in self.hub.files.items()]
                info = {"id": REPO, "sha": COMMIT, "siblings": siblings, "private": False, "tags": [], "downloads": 0}
                self.answer(200, json.dumps(info).encode(), {"Content-Type": "application/json"})
        else:
            self.resolve(path, body)

    def resolve(self, path: str, body: bool) -> None:
        match = re.fullmatch(rf"/{REPO}/resolve/(main|{COMMIT})/(.+)", path)
        if match is None or match[2] not in self.hub.files:
            self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        data = self.hub.files[match[2]]
        headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        start, stop, status = 0, len(data), 200
        if wanted and self.hub.ranges:
            start = int(wanted[1])
            stop = min(len(data), int(wanted[2]) + 1 if wanted[2] else len(data))
            if start >= len(data):
                self.answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
                return
            status = 206
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
        if body:
            self.hub.sent.setdefault(match[2], []).append((start, stop))
        self.answer(status, data[start:stop], headers, body=body)

    def answer(self, status: int, data: bytes, headers: dict[str, str], *, body: bool = True) -> None:
        try:
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if body and self.command != "HEAD":
                self.wfile.write(data)
        except (BrokenPipeError, ConnectionResetError):
            pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves early is what one test is about."""


def shards() -> dict[str, bytes]:
    """A model of two shards, each with far more weights than header."""
    files: dict[str, bytes] = {"config.json": b'{"model_type": "llama"}', "tokenizer.json": b"{}", "README.md": b"hi"}
    files["additional_chat_templates/tool_use.jinja"] = b"{{ x }}"
    files["modeling_evil.py"] = b"raise SystemExit"
    files["onnx/model.onnx"] = bytes(100)
    files["onnx/config.json"] = b"{}"
    weight_map = {}
    for number in (1, 2):
        name = f"model-{number:05d}-of-00002.safetensors"
        tensors = {f"model.layers.{number - 1}.w": torch.randn(300, 200), f"model.layers.{number - 1}.n": torch.ones(7)}
        files[name] = save(tensors, {"format": "pt"})
        weight_map.update(dict.fromkeys(tensors, name))
    files["model.safetensors.index.json"] = json.dumps({"weight_map": weight_map}).encode()
    return files


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    served = Hub(files=shards())
    handler = type("Bound", (Handler,), {"hub": served})
    server = Server(("127.0.0.1", 0), handler)
    served.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield served
    from huggingface_hub.utils import close_session

    close_session()
    server.shutdown()
    server.server_close()
    thread.join()


def header_end(data: bytes) -> int:
    return 8 + int.from_bytes(data[:8], "little")


def refusal(tiny: Hub, cache: Path, revision: str | None = None, repo: str = REPO) -> LlmfitError:
    with pytest.raises(LlmfitError) as caught:
        hub.fetch_headers(repo, revision, access=tiny.access(cache))
    assert caught.value.cause
    assert caught.value.remedy
    return caught.value


def test_headers_without_one_byte_of_weights(tiny, tmp_path):
    found = hub.fetch_headers(REPO, access=tiny.access(tmp_path))
    assert found.revision == COMMIT
    assert set(found.side) == {
        "config.json",
        "tokenizer.json",
        "model.safetensors.index.json",
        "additional_chat_templates/tool_use.jinja",
    }
    assert json.loads(found.side["config.json"].read_text()) == {"model_type": "llama"}
    assert found.weight_files == ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    assert {n: (r.shape, r.dtype) for n, r in found.tensors.items()} == {
        "model.layers.0.w": ((300, 200), "f32"),
        "model.layers.0.n": ((7,), "f32"),
        "model.layers.1.w": ((300, 200), "f32"),
        "model.layers.1.n": ((7,), "f32"),
    }
    for name in found.weight_files:
        assert max(stop for _, stop in tiny.sent[name]) <= header_end(tiny.files[name])
    assert not any(
        name in tiny.sent for name in ("modeling_evil.py", "README.md", "onnx/model.onnx", "onnx/config.json")
    )
    tensor = found.tensors["model.layers.1.w"].tensor
    assert isinstance(tensor, Remote)
    assert tensor.files() == ()
    with pytest.raises(SourceError) as caught:
        tensor.rows(0, 1)
    assert caught.value.code == "not-downloaded"
    # The offset is the tensor's real place.
    data = tiny.files["model-00002-of-00002.safetensors"]
    local = tmp_path / "x.safetensors"
    local.write_bytes(data)
    stored = read_weights({"x.safetensors": local}).tensors["model.layers.1.w"].tensor
    assert isinstance(stored, Stored)
    assert tensor.offset == stored.offset


def test_a_server_without_ranges_is_left_early(tiny, tmp_path):
    tiny.ranges = False
    found = hub.fetch_headers(REPO, access=tiny.access(tmp_path))
    assert found.tensors["model.layers.1.w"].shape == (300, 200)


def test_revisions(tiny, tmp_path):
    assert hub.fetch_headers(REPO, COMMIT, access=tiny.access(tmp_path)).revision == COMMIT
    assert refusal(tiny, tmp_path, "no-such-branch").code == "unknown-revision"


def test_download_gives_a_folder_that_opens(tiny, tmp_path):
    planned = hub.fetch_headers(REPO, access=tiny.access(tmp_path))
    root = hub.download(REPO, access=tiny.access(tmp_path))
    assert root.name == COMMIT
    weights = read_weights(folder_files(root))
    assert {n: (r.shape, r.dtype) for n, r in weights.tensors.items()} == {
        n: (r.shape, r.dtype) for n, r in planned.tensors.items()
    }
    assert read(weights.tensors["model.layers.1.n"].tensor).tolist() == [1.0] * 7
    # What lies in the cache is not asked for again.
    tiny.sent.clear()
    again = hub.fetch_headers(REPO, access=tiny.access(tmp_path))
    assert isinstance(again.tensors["model.layers.0.w"].tensor, Stored)
    assert not any(name.endswith(".safetensors") for name in tiny.sent)


def test_without_a_network_the_cache_serves(tiny, tmp_path):
    access = tiny.access(tmp_path)
    hub.download(REPO, access=access)
    gone = HubAccess(token=False, endpoint="http://127.0.0.1:9", cache_dir=str(tmp_path))
    found = hub.fetch_headers(REPO, access=gone)
    assert found.revision == COMMIT
    assert isinstance(found.tensors["model.layers.0.w"].tensor, Stored)
    assert [(e.code, e.severity) for e in found.events] == [("from-hub-cache", "warning")]
    assert hub.download(REPO, access=gone).name == COMMIT


def test_no_network_and_no_cache(tmp_path):
    gone = HubAccess(token=False, endpoint="http://127.0.0.1:9", cache_dir=str(tmp_path))
    with pytest.raises(SourceError) as caught:
        hub.fetch_headers(REPO, access=gone)
    assert caught.value.code == "no-network"


def test_planned_but_not_downloaded_is_not_enough_offline(tiny, tmp_path):
    hub.fetch_headers(REPO, access=tiny.access(tmp_path))
    gone = HubAccess(token=False, endpoint="http://127.0.0.1:9", cache_dir=str(tmp_path))
    with pytest.raises(SourceError) as caught:
        hub.fetch_headers(REPO, access=gone)
    assert caught.value.code == "offline"


def test_settings_of_the_environment_are_obeyed(tiny, tmp_path):
    """HF_ENDPOINT, HF_HUB_CACHE and HF_HUB_OFFLINE, which huggingface_hub reads when it is imported."""
    code = (
        "from llmfit_core.errors import SourceError\n"
        "from llmfit_core.readers.hub import fetch_headers, download\n"
        "import sys\n"
        "try:\n"
        f"    found = fetch_headers({REPO!r})\n"
        "    print(found.revision, *(e.severity for e in found.events))\n"
        f"    if 'get' in sys.argv: download({REPO!r})\n"
        "except SourceError as error:\n    print(error.code)\n"
    )
    environment = os.environ | {"HF_ENDPOINT": tiny.url, "HF_HUB_CACHE": str(tmp_path), "NO_PROXY": "127.0.0.1"}

    def run(*arguments: str, **more: str) -> str:
        command = [sys.executable, "-c", code, *arguments]
        done = subprocess.run(command, env=environment | more, capture_output=True, text=True, timeout=60, check=True)
        return done.stdout.strip()

    assert run(HF_HUB_OFFLINE="1") == "offline"
    assert tiny.requests == []
    assert run("get") == COMMIT
    tiny.requests.clear()
    assert run(HF_HUB_OFFLINE="1") == f"{COMMIT} info"
    assert tiny.requests == []


@pytest.mark.parametrize(
    ("status", "headers", "code"),
    [
        (401, {"X-Error-Code": "GatedRepo"}, "gated-repo"),
        (403, {"X-Error-Code": "GatedRepo"}, "gated-repo"),
        (401, {}, "no-access"),
        (403, {}, "no-access"),
        (404, {"X-Error-Code": "RepoNotFound"}, "unknown-repo"),
        (403, {"X-Error-Message": "Access to this resource is disabled."}, "disabled-repo"),
        (429, {}, "rate-limited"),
        (503, {}, "hub-down"),
        (418, {}, "hub-error"),
    ],
)
def test_refusals_of_the_listing(tiny, tmp_path, status, headers, code):
    tiny.status, tiny.headers = status, headers
    error = refusal(tiny, tmp_path)
    assert error.code == code
    assert REPO in error.cause


@pytest.mark.parametrize(
    ("status", "headers", "code"),
    [(403, {"X-Error-Code": "GatedRepo"}, "gated-repo"), (429, {}, "rate-limited"), (404, {}, "unknown-repo")],
)
def test_refusals_of_the_weights(tiny, tmp_path, status, headers, code):
    tiny.status, tiny.headers, tiny.fail_on = status, headers, ".safetensors"
    del tiny.files["model.safetensors.index.json"]
    assert refusal(tiny, tmp_path).code == code


@pytest.mark.parametrize("body", [b"<html>log in</html>", b"[]", b"{}", b'{"id": "a/b", "sha": "../../x"}', b"null"])
def test_an_answer_that_is_not_a_hubs(tiny, tmp_path, body):
    tiny.body = body
    assert refusal(tiny, tmp_path).code == "hub-error"


@pytest.mark.parametrize(
    "repo", ["", "name", "a/b/c", "../x", "a/..", "a/b--c", "a b/c", "/abs/path", "a/b\n", "-a/b", "a/" + "x" * 200]
)
def test_ids_that_are_none(tiny, tmp_path, repo):
    assert refusal(tiny, tmp_path, repo=repo).code == "bad-hub-id"
    assert tiny.requests == []


def test_hub_ids_with_revision():
    assert hub.parse_hub_id("org/name") == ("org/name", None)
    assert hub.parse_hub_id("org/name@refs/pr/1") == ("org/name", "refs/pr/1")
    for text in ("org/name@", "org/name@../x", "org/name@a@b"):
        with pytest.raises(SourceError):
            hub.parse_hub_id(text)


def test_hostile_names_stay_out(tiny, tmp_path):
    tiny.files |= {"../../evil.json": b"{}", "a\\b.json": b"{}", ".hidden.json": b"{}", "C:x.json": b"{}"}
    found = hub.fetch_headers(REPO, access=tiny.access(tmp_path))
    assert len(found.side) == 4
    tiny.files["model.safetensors.index.json"] = b'{"weight_map": {"a": "../../x.safetensors"}}'
    assert refusal(tiny, tmp_path / "other").code == "unsafe-path"


def test_missing_shard(tiny, tmp_path):
    del tiny.files["model-00002-of-00002.safetensors"]
    error = refusal(tiny, tmp_path)
    assert error.code == "missing-shard"
    assert "model.layers.1.w" in error.cause
    with pytest.raises(SourceError) as caught:
        hub.download(REPO, access=tiny.access(tmp_path))
    assert caught.value.code == "missing-shard"
    assert not any(name.endswith(".safetensors") for name in tiny.sent if (0, len(tiny.files[name])) in tiny.sent[name])


def test_strangers_are_named(tiny, tmp_path):
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 99\n"
    tiny.files = {"config.json": b"{}", "model.safetensors": pointer}
    error = refusal(tiny, tmp_path)
    assert error.code == "git-lfs-pointer"
    assert "model.safetensors" in error.cause


def test_pickles_only(tiny, tmp_path):
    tiny.files = {"config.json": b"{}", "pytorch_model.bin": b"PK\3\4"}
    error = refusal(tiny, tmp_path)
    assert isinstance(error, UnsupportedError)
    assert error.code == "remote-pickle"
    assert "pytorch_model.bin" not in tiny.sent


def test_adapters_and_gguf_repositories_are_left_to_the_caller(tiny, tmp_path):
    tiny.files = {"adapter_config.json": b'{"base_model_name_or_path": "x"}', "adapter_model.safetensors": b""}
    found = hub.fetch_headers(REPO, access=tiny.access(tmp_path))
    assert set(found.side) == {"adapter_config.json"}
    assert found.tensors == {}


def test_large_side_files(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(hub, "SIDE_FILE_BYTES", 1000)
    tiny.files["stats.json"] = bytes(2000)
    assert "stats.json" not in hub.fetch_headers(REPO, access=tiny.access(tmp_path)).side
    tiny.files["tokenizer.json"] = bytes(2000)
    error = refusal(tiny, tmp_path / "other")
    assert error.code == "file-too-large"
    assert "tokenizer.json" in error.cause
