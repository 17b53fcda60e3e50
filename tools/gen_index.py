"""Write `llmfit_core/index.json`: which of our distributions knows which name, from the plugins' own tables.

Usage: python tools/gen_index.py [--check]
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "llmfit_core" / "index.json"
TABLES = ("architectures", "exporters", "decoders", "runtimes", "packagers")


def generate() -> str:
    """The file's content, from every plugin folder that has a module to load."""
    names: dict[str, dict[str, set[str]]] = {t: {} for t in (*TABLES, "classes", "model_types")}
    for pyproject in sorted(ROOT.glob("plugins/*/pyproject.toml")):
        project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
        entries = project.get("entry-points", {}).get("llmfit", {})
        places = [str(pyproject.parent), str(pyproject.parent / "src")]
        sys.path[:0] = places
        try:
            importlib.invalidate_caches()
            for name, value in entries.items():
                _add(names, project["name"], name, value)
        finally:
            for place in places:
                sys.path.remove(place)
    plain = {table: {n: sorted(homes) for n, homes in sorted(found.items())} for table, found in sorted(names.items())}
    return json.dumps({"schema": 1, "names": plain}, indent=1) + "\n"


def _add(names: dict[str, dict[str, set[str]]], distribution: str, name: str, value: str) -> None:
    from llmfit_core.architecture import Architecture
    from llmfit_core.plugin_loading import Found, load
    from llmfit_core.plugin_record import PluginId

    point = importlib.metadata.EntryPoint(name=name, value=value, group="llmfit")
    plugin = load(Found(id=PluginId(name=name, distribution=distribution, version=""), entry_point=point))
    if plugin.record.status != "loaded":
        raise SystemExit(f"{distribution}: {plugin.record.reason}")
    declared = [(table, n) for table in TABLES for n in plugin.record.provides[table]]
    for architecture in plugin.declarations["architectures"]:
        assert isinstance(architecture, Architecture)
        declared += [("classes", c) for c in architecture.hf_classes]
        declared += [("model_types", m) for m in architecture.model_types]
    for table, known in declared:
        names[table].setdefault(known, set()).add(distribution)


def main(arguments: list[str]) -> int:
    """Write the file, or with `--check` say whether it is up to date."""
    text = generate()
    if "--check" in arguments:
        current = TARGET.read_text(encoding="utf-8") if TARGET.exists() else ""
        if current != text:
            print("llmfit_core/index.json is not what the tables say; run python tools/gen_index.py", file=sys.stderr)
        return int(current != text)
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    raise SystemExit(main(sys.argv[1:]))
