"""Write `docs/reference/architectures.md` from the plugins' declarations and the recorded parity figures.

Usage: python tools/gen_architectures.py [--check] [--measure]

`--measure` takes the figures anew into `docs/reference/parity.json` (minutes; torch, transformers and a runtime that scores):
those of the plugins' own tests on the conformance kit, and for classes that these do not score, of the tiny configs that
`llmfit plugins check` makes. Without it the page is written from the figures that are there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from llmfit_core.architecture import Architecture, Graph
    from llmfit_core.plugin_record import Provided
    from llmfit_core.plugins import PluginRegistry

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "reference" / "architectures.md"
FIGURES = ROOT / "docs" / "reference" / "parity.json"
SCORED = "test_the_runtime_computes_the_same"

INTRO = """# Architectures

<!-- Generated from the plugins' tables and from parity.json by tools/gen_architectures.py; `make architectures` measures anew. -->

What the plugins of this repository know. For each class: the values of `model_type` that go with it, the graphs that compute it in
a runtime, and how far the runtime's probabilities are from the reference's.

**Parity** is the mean Kullback-Leibler divergence in nats between the next-token distributions of the reference (transformers in float32
with eager attention, unless the table says otherwise) and those that the runtime computes from the file that llmfit writes in float32, over
24 positions of a random prompt in a tiny model with random weights and peaked logits. Rounding in float32 gives about 1e-7; anything above
1e-5 fails the tests. Prompts are longer than every sliding window; where the file is exact only up to a limit, they stay within it, and
*bound* says so. The largest figure of all variations is shown; where none stands, no graph computes the class, transformers lacks it,
or it is another spelling of one that is measured. Models that embed give no probabilities: of them the figure is the largest difference
of a component of any token's vector, or of their mean, in terms of the vectors' root mean square. Above 5e-3, which is what a table of GELU
in half precision costs, or one minus a cosine of 1e-6, fails the tests. What a table does not state is not computed: it is refused or
told before the work, and **known limits** are just that.
"""


def ours(registry: PluginRegistry) -> list[Provided[Architecture]]:
    """The architectures of this repository's plugins, by distribution and name."""
    names = {p.name for p in (ROOT / "plugins").iterdir() if (p / "pyproject.toml").exists()}
    found = [p for p in registry.architectures() if p.plugin.distribution in names]
    return sorted(found, key=lambda p: (p.plugin.distribution, p.value.name))


def generate(figures: list[dict[str, Any]]) -> str:
    """The page."""
    from llmfit_core import load_plugins

    provided = ours(load_plugins(env={}))
    parts = [INTRO, _measured_by(figures), *_overview(provided, figures)]
    for distribution in dict.fromkeys(p.plugin.distribution for p in provided):
        parts.append(f"## {distribution}\n")
        for p in provided:
            if p.plugin.distribution == distribution:
                parts += _section(p.value, [f for f in figures if f["architecture"] == p.value.name])
    return "\n".join(parts).rstrip() + "\n"


def _measured_by(figures: list[dict[str, Any]]) -> str:
    if not figures:
        return "No figures are recorded.\n"
    runtimes = sorted({f"{f['runtime']} {f['runtime_version']}" for f in figures})
    references = sorted({f["reference"] for f in figures})
    return f"Measured with {', '.join(runtimes)} against {', '.join(references)}: {len(figures)} figures.\n"


def _overview(provided: Iterable[Provided[Architecture]], figures: list[dict[str, Any]]) -> list[str]:
    lines = ["| class | model types | graphs, and what has them | parity | variations | wiring |", "|---|---|---|---|---|---|"]
    for p in provided:
        for cls in p.value.hf_classes:
            mine = [f for f in figures if f["architecture"] == p.value.name and f["hf_class"] == cls]
            lines.append(
                f"| `{cls}` | {_codes(p.value.model_types)} | {_graphs(p.value)} | {_worst(mine)} "
                f"| {len(mine) or ''} | {'yes' if p.value.wiring else 'no'} |"
            )
    return ["\n".join(lines), ""]


def _graphs(architecture: Architecture) -> str:
    """Names by engine (`falcon` in llama.cpp)."""
    engines: dict[str, dict[str, None]] = {}
    for graph in architecture.graphs:
        engines.setdefault(graph.engine, {})[graph.name] = None
    return "; ".join(f"{_codes(names)} in {engine}" for engine, names in engines.items()) or "none: folders only"


def _section(architecture: Architecture, figures: list[dict[str, Any]]) -> list[str]:
    parts = [f"### {architecture.name}\n", f"{_codes(architecture.hf_classes)}\n"]
    if figures:
        rows = ["| config | parity | largest | tokens | bound | graph | in |", "|---|---|---|---|---|---|---|"]
        for f in figures:
            bound = f"exact to {f['exact_context']}" if f["exact_context"] else ""
            by = "" if f["reference"].startswith("transformers") else f", against {f['reference']}"
            name = f["variation"] if len({g["hf_class"] for g in figures}) == 1 else f"{f['hf_class']} {f['variation']}"
            found = (f["kl"], f["max_kl"]) if f["kl"] is not None else (None, f["max_difference"])
            shown = f"{found[0]:.1e} | {found[1]:.1e}" if found[0] is not None else f"vectors | {found[1]:.1e}"
            rows.append(
                f"| {name} | {shown} | {f['longest']} | {bound} | `{f['graph']}` | {f['runtime']}{by} |"
            )
        parts += ["\n".join(rows), ""]
    limits = [line for graph in architecture.graphs for line in _limits(graph)]
    asserted = [f"- `{key}` has to be {_values(use.values)}: {use.why}" for key, use in _asserts(architecture)]
    if limits or asserted:
        parts += ["Known limits:\n", "\n".join([*limits, *asserted]), ""]
    return parts


def _limits(graph: Graph) -> list[str]:
    lines = [
        f"- {graph.engine}'s `{graph.name}`: `{hparam}` {_values(fix.values)}" f"{' (or where it makes no difference)' if fix.unless else ''}: {fix.why}"
        for hparam, fix in graph.fixes.items()
    ]
    lines += [f"- {graph.engine}'s `{graph.name}`: {limit.message.format(tokens='the limit in')}" for limit in graph.limits]
    lines.append(f"- {graph.engine}'s `{graph.name}` computes the ropes {_codes(sorted(graph.rope))}")
    return lines


def _asserts(architecture: Architecture) -> list[tuple[str, Any]]:
    from llmfit_core import DECODER_CONFIG, Asserts

    return [(k, u) for k, u in architecture.config.items() if isinstance(u, Asserts) and DECODER_CONFIG.get(k) != u]


def _values(values: Iterable[object]) -> str:
    return " or ".join("absent" if v is None else f"`{v}`" for v in values)


def _codes(names: Iterable[str]) -> str:
    return ", ".join(f"`{n}`" for n in names)


def _worst(figures: list[dict[str, Any]]) -> str:
    divergences = [f["kl"] for f in figures if f["kl"] is not None]
    if divergences:
        return f"{max(divergences):.1e}"
    return f"vectors to {max(f['max_difference'] for f in figures):.1e}" if figures else ""


def measure() -> list[dict[str, Any]]:
    """The figures of the plugins' tests, and of tiny configs for the classes that those leave out."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "figures.jsonl")
        tests = [str(p) for p in sorted((ROOT / "plugins").glob("*/tests"))]
        command = [sys.executable, "-m", "pytest", "-q", "-k", SCORED, *tests]
        subprocess.run(command, cwd=ROOT, env={**os.environ, "LLMFIT_KIT_RECORD": path}, check=False)
        text = Path(path).read_text(encoding="utf-8") if os.path.exists(path) else ""
    figures = [json.loads(line) for line in text.splitlines()]
    figures += _of_configs_made({f["hf_class"] for f in figures})
    order = {(f["architecture"], f["hf_class"], f["variation"]): f for f in figures}
    return [order[key] for key in sorted(order)]


def _of_configs_made(covered: set[str]) -> list[dict[str, Any]]:
    from llmfit_core import load_plugins
    from llmfit_core.testing import ArchitectureTests, CheckFailed, NotRun, record
    from llmfit_core.testing.plugin_check import settings_of

    registry = load_plugins(env={})
    records = {r.id: r for r in registry.records()}
    before = len(record.figures())
    for p in ours(registry):
        try:
            settings = settings_of(records[p.plugin], "architectures", p.value.name, p.value)
        except (CheckFailed, NotRun) as error:
            print(f"{p.value.name}: {error}", file=sys.stderr)
            continue
        for label, sample in settings.items():
            config = sample["config"]
            cls = config["architectures"][0]
            if cls in covered:
                continue
            tests = type("TestMade", (ArchitectureTests,), {"architecture": p.value, "sample": sample})
            for case in tests.cases():
                try:
                    getattr(tests(), SCORED)(case)
                except Exception as error:
                    print(f"{p.value.name} {label or cls} {case}: {error}", file=sys.stderr)
            tests.teardown_class()
    return [f.as_json() for f in record.figures()[before:] if f.kl is None or f.kl < 1e-5]


def main(argv: list[str]) -> int:
    """Write the page, or with `--check` say whether it is as it should be."""
    sys.path.insert(0, str(ROOT))
    if "--measure" in argv:
        figures = measure()
        FIGURES.write_text("[\n" + ",\n".join(json.dumps(f, sort_keys=True) for f in figures) + "\n]\n", encoding="utf-8")
    text = generate(json.loads(FIGURES.read_text(encoding="utf-8")) if FIGURES.exists() else [])
    if "--check" in argv:
        fresh = TARGET.exists() and TARGET.read_text(encoding="utf-8") == text
        return 0 if fresh else 1
    TARGET.write_text(text, encoding="utf-8")
    print(f"written: {TARGET.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
