"""Single modules that the formats' own packages packed (`plugins/*/tests/data`), as checkpoints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from llmfit_core.checkpoint import Checkpoint
from llmfit_core.config import normalise
from llmfit_core.readers.shards import read_weights


def judged(path: Path, expected: str) -> tuple[dict[str, np.ndarray], dict[str, Any], np.ndarray]:
    """A file's tensors, its quantization config, and the weight that the package makes of them."""
    with safe_open(path, "np") as file:
        held = {name: file.get_tensor(name) for name in file.keys()}
        section = json.loads(file.metadata()["config"])
    return held, section, held.pop(expected)


def checkpoint_of(parts: Mapping[str, np.ndarray], section: Mapping[str, Any], folder: Path) -> Checkpoint:
    """A checkpoint of one module `m`."""
    path = folder / "model.safetensors"
    save_file({f"m.{name}": np.ascontiguousarray(value) for name, value in parts.items()}, path)
    found = read_weights({path.name: path}, layers=None)
    return Checkpoint(label=str(folder), config=normalise({"quantization_config": dict(section)}), tensors=found.tensors)
