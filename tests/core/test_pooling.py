"""sentence-transformers' files: how token vectors become a text's, and what is left out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from llmfit_core.errors import SourceError
from llmfit_core.pooling import pooling_files, read_pooling
from llmfit_core.readers.folder import folder_files

if TYPE_CHECKING:
    from pathlib import Path

TRANSFORMER = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
POOLING = {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
NORMALIZE = {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}
DENSE = {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}


def folder(path: Path, settings: Any, *modules: dict[str, Any]) -> dict[str, Path]:
    (path / "modules.json").write_text(json.dumps([TRANSFORMER, POOLING, *modules]), encoding="utf-8")
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder_files(path)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_lasttoken": True}, "last"),
        ({"pooling_mode": "mean"}, "mean"),
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode": ["cls"]}, "cls"),
    ],
)
def test_what_runtimes_know(settings: dict[str, Any], name: str, tmp_path: Path) -> None:
    found = read_pooling(folder(tmp_path, settings, NORMALIZE))
    assert (found.name, found.events) == (name, ())


@pytest.mark.parametrize(
    "settings",
    [
        {"pooling_mode_max_tokens": True},
        {"pooling_mode_weightedmean_tokens": True},
        {"pooling_mode_mean_sqrt_len_tokens": True},
        # Two at once are laid end to end; the peer takes the mean alone.
        {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True},
        {"pooling_mode": "max"},
        {},
    ],
)
def test_what_they_do_not_is_told(settings: dict[str, Any], tmp_path: Path) -> None:
    found = read_pooling(folder(tmp_path, settings))
    assert found.name == ""
    assert [(e.code, e.severity) for e in found.events] == [("pooling-left-out", "warning")]


def test_modules_behind_the_pooling_are_told(tmp_path: Path) -> None:
    found = read_pooling(folder(tmp_path, {"pooling_mode_mean_tokens": True}, DENSE))
    assert found.name == "mean"
    assert ["Dense" in e.message for e in found.events if e.severity == "warning"] == [True]


def test_prompts_left_out_of_the_pooling_are_told(tmp_path: Path) -> None:
    found = read_pooling(folder(tmp_path, {"pooling_mode_mean_tokens": True, "include_prompt": False}))
    assert [e.code for e in found.events] == ["prompt-pooled"]


def test_no_modules_say_nothing(tmp_path: Path) -> None:
    assert read_pooling(folder_files(tmp_path)).name == ""


@pytest.mark.parametrize("text", ["{}", "[1]", "nonsense"])
def test_damaged_modules(text: str, tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text(text, encoding="utf-8")
    with pytest.raises(SourceError, match=r"modules\.json"):
        read_pooling(folder_files(tmp_path))


def test_missing_settings_are_named(tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text(json.dumps([TRANSFORMER, {**POOLING, "path": "../elsewhere"}]), encoding="utf-8")
    with pytest.raises(SourceError, match=r"elsewhere/config\.json"):
        read_pooling(folder_files(tmp_path))


@pytest.mark.parametrize("name", ["mean", "cls", "last"])
def test_the_way_back(name: str, tmp_path: Path) -> None:
    for place, data in pooling_files(name, 64).items():
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_bytes(data)
    assert read_pooling(folder_files(tmp_path)).name == name
    assert pooling_files("rank", 64) == pooling_files("", 64) == {}
