"""Folders and small files that are not what they should be."""

from __future__ import annotations

import os

import pytest

from llmfit_core.errors import SourceError
from llmfit_core.readers.folder import folder_files, parse_json_object, read_json_object, require_file


def test_plain_files_and_named_templates(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / ".gitattributes").write_text("")
    (tmp_path / "checkpoint-1").mkdir()
    (tmp_path / "checkpoint-1" / "config.json").write_text("{}")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("x")
    assert list(folder_files(tmp_path)) == ["additional_chat_templates/tool_use.jinja", "config.json"]


def test_links(tmp_path):
    (tmp_path / "real.json").write_text("{}")
    (tmp_path / "config.json").symlink_to("real.json")
    (tmp_path / "README.md").symlink_to("gone")
    (tmp_path / "pytorch_model.bin").symlink_to("gone-too")
    files = folder_files(tmp_path)
    assert set(files) == {"real.json", "config.json", "pytorch_model.bin"}
    assert files["config.json"].name == "config.json"
    with pytest.raises(SourceError, match="gone-too") as caught:
        require_file(files["pytorch_model.bin"])
    assert caught.value.code == "dangling-link"
    (tmp_path / "tokenizer.json").symlink_to("/nowhere/blob")
    with pytest.raises(SourceError, match="/nowhere/blob") as caught:
        folder_files(tmp_path)
    assert caught.value.code == "dangling-link"


def test_link_to_itself(tmp_path):
    link = tmp_path / "model.safetensors"
    link.symlink_to("model.safetensors")
    with pytest.raises(SourceError):
        require_file(link)


def test_not_folders_and_not_files(tmp_path):
    with pytest.raises(SourceError) as caught:
        folder_files(tmp_path / "nothing")
    assert caught.value.code == "missing-folder"
    (tmp_path / "file").write_text("x")
    with pytest.raises(SourceError) as caught:
        folder_files(tmp_path / "file")
    assert caught.value.code == "not-a-folder"
    os.mkfifo(tmp_path / "model.safetensors")
    assert folder_files(tmp_path).keys() == {"file"}
    # Opening a pipe would wait for ever.
    for path, code in ((tmp_path / "model.safetensors", "not-a-file"), (tmp_path, "not-a-file")):
        with pytest.raises(SourceError) as caught:
            require_file(path)
        assert caught.value.code == code
    with pytest.raises(SourceError):
        require_file(tmp_path / "file" / "below")
    with pytest.raises(SourceError):
        require_file(tmp_path / ("x" * 5000))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[1]",
        b'"x"',
        b"{",
        b'{"a":1,"a":2}',
        b'{"a":{"b":1,"b":2}}',
        b"[" * 10**6,
        b"\xff",
        b'{"a":' + b"9" * 9999,
    ],
)
def test_bad_json(data):
    with pytest.raises(SourceError) as caught:
        parse_json_object(data, "config.json")
    assert "config.json" in caught.value.cause


def test_json(tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(b'\xef\xbb\xbf{"a": [1, {"b": null}]}')
    assert read_json_object(path) == {"a": [1, {"b": None}]}
    with pytest.raises(SourceError) as caught:
        read_json_object(path, limit=5)
    assert caught.value.code == "file-too-large"
