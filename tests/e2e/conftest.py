"""What the end-to-end tests share: the judges have to be there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from llmfit_core.pipeline import convert
from llmfit_core.plan import Recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from llmfit_core.events import Event
    from llmfit_core.plugins import PluginRegistry

for module in ("torch", "transformers", "xllamacpp"):
    pytest.importorskip(module, reason="a judge of these tests")


@pytest.fixture
def to_gguf(registry: PluginRegistry, tmp_path: Path) -> Callable[..., tuple[Path, tuple[Event, ...]]]:
    """`to_gguf(folder, scheme="f32")`: the file and every event."""

    def run(folder: Path, scheme: str = "f32", name: str = "out", **recipe: Any) -> tuple[Path, tuple[Event, ...]]:
        out = tmp_path / f"{name}-{scheme}.gguf"
        _, events = convert(folder, Recipe(exporter="gguf", scheme=scheme, **recipe), out, registry, verify=False)
        return out, events

    return run


@pytest.fixture
def to_hf(registry: PluginRegistry, tmp_path: Path) -> Callable[..., Path]:
    """`to_hf(source, scheme)`: a folder."""

    def run(source: Path, scheme: str = "bf16", name: str = "back") -> Path:
        out = tmp_path / name
        convert(source, Recipe(exporter="hf", scheme=scheme), out, registry, verify=False)
        return out

    return run


@pytest.fixture
def with_config(tmp_path: Path, golden_models: Any) -> Callable[..., Path]:
    """`with_config(folder, key=value)`: a copy with another config.json; `...` removes a key."""

    def run(folder: Path, **changes: Any) -> Path:
        to: Path = golden_models.copy(folder, tmp_path / f"copy-{len(list(tmp_path.iterdir()))}", **changes)
        return to

    return run


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """A JSON file."""
    path.write_text(json.dumps(value), encoding="utf-8")
