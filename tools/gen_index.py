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
    from llmfit_core.plugin_loading import Found, load
    from llmfit_core.plugin_record import PluginId

    names: dict[str, dict[str, set[str]]] = {t: {} for t in (*TABLES, "classes", "model_types")}
    for pyproject in sorted(ROOT.glob("plugins/*/pyproject.toml")):
        project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
        sys.path[:0] = [str(pyproject.parent), str(pyproject.parent / "src")]
        importlib.invalidate_caches()
        for name, value in project.get("entry-points", {}).get("llmfit", {}).items():
            point = importlib.metadata.EntryPoint(name=name, value=value, group="llmfit")
            who = PluginId(name=name, distribution=project["name"], version=project["version"])
            plugin = load(Found(id=who, entry_point=point))
            if plugin.record.status != "loaded":
                raise SystemExit(f"{project['name']}: {plugin.record.reason}")
            for table in TABLES:
                for declared in plugin.record.provides[table]:
                    names[table].setdefault(declared, set()).add(project["name"])
            for architecture in plugin.declarations["architectures"]:
                for table, known in (("classes", architecture.hf_classes), ("model_types", architecture.model_types)):  # type: ignore[attr-defined]
                    for declared in known:
                        names[table].setdefault(declared, set()).add(project["name"])
        del sys.path[:2]
    plain = {table: {n: sorted(homes) for n, homes in sorted(found.items())} for table, found in sorted(names.items())}
    return json.dumps({"schema": 1, "names": plain}, indent=1) + "\n"


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
