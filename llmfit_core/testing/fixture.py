"""Fixtures: a config and the names, shapes and types that are saved under it, so that the kit does without torch.

    python -m llmfit_core.testing.fixture FOLDER -o tests/acme.json

FOLDER is a model folder: a tiny one that transformers saved, or a real one, whose headers alone are read.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmfit_core.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class SavedTensor:
    """What is saved under a name: shape, dtype (numpy's name), and the one value that training starts from, if it is one."""

    shape: tuple[int, ...]
    dtype: str
    fill: float | None = None


@dataclass(frozen=True, kw_only=True)
class Fixture:
    """A checkpoint without its weights.

    Attributes:
        config: Its config.json.
        tensors: By name.
        source: What it was made from.
    """

    config: Mapping[str, object]
    tensors: Mapping[str, SavedTensor]
    source: str = ""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The tensors as training starts from them; zeros where that is not known."""
        import numpy as np

        from llmfit_core.testing.safetensor_files import numpy_type

        return {
            name: np.full(t.shape, t.fill or 0.0).astype(numpy_type(t.dtype)) for name, t in self.tensors.items()
        }


def read_fixture(path: Path) -> Fixture:
    """Read a fixture.

    Raises:
        SourceError: `fixture-invalid`.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if value["schema"] != SCHEMA:
            raise ValueError(f"schema {value['schema']}")
        tensors = {
            name: SavedTensor(shape=tuple(map(int, t["shape"])), dtype=str(t["dtype"]), fill=t.get("fill"))
            for name, t in value["tensors"].items()
        }
        return Fixture(config=dict(value["config"]), tensors=tensors, source=str(value.get("source", "")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SourceError(
            "fixture-invalid", f"{path} is no fixture of the kit: {error}", "Write it again: llmfit_core.testing.fixture."
        ) from error


def write_fixture(path: Path, config: Mapping[str, object], tensors: Mapping[str, NDArray[Any]], source: str) -> None:
    """Write a fixture: config, and of each tensor its shape, type and start."""
    import numpy as np

    entries = {}
    for name, array in sorted(tensors.items()):
        entry: dict[str, object] = {"shape": list(array.shape), "dtype": array.dtype.name}
        values = array.astype(np.float64)
        if array.ndim < 2 and array.size and not np.ptp(values):
            entry["fill"] = float(values.flat[0])
        entries[name] = entry
    lines = ",\n  ".join(f"{json.dumps(n)}: {json.dumps(e)}" for n, e in entries.items())
    head = {"schema": SCHEMA, "source": source, "config": dict(config)}
    text = json.dumps(head, indent=1)[:-2] + ',\n "tensors": {\n  ' + lines + "\n }\n}\n"
    path.write_text(text, encoding="utf-8")


def fixture_of(folder: Path, path: Path) -> None:
    """Write the fixture of a model folder. Of its files only headers are read."""
    from llmfit_core.checkpoint import open_checkpoint
    from llmfit_core.dtypes import numpy_dtype

    checkpoint = open_checkpoint(folder)
    entries: dict[str, dict[str, object]] = {}
    for name, ref in sorted(checkpoint.tensors.items()):
        entries[name] = {"shape": list(ref.shape), "dtype": str(numpy_dtype(ref.dtype).name)}
        if len(ref.shape) < 2:
            entries[name]["fill"] = 0.0 if name.endswith("bias") else 1.0
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    value = {"schema": SCHEMA, "source": "a model folder", "config": config, "tensors": entries}
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    import argparse

    from llmfit_core.errors import LlmfitError

    parser = argparse.ArgumentParser(prog="python -m llmfit_core.testing.fixture", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="a model folder")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the fixture to write")
    options = parser.parse_args(argv)
    try:
        fixture_of(options.folder, options.output)
    except LlmfitError as error:
        print(f"error: {error.cause} [{error.code}]\n  fix: {error.remedy}", file=sys.stderr)
        return error.exit_code
    print(f"written: {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
