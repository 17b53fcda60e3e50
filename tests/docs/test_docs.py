"""The pages are true: what is generated is fresh, links lead somewhere, commands and programs run as shown."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shlex
import sys
import textwrap
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .conftest import Place

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "contrib/plugin-template/README.md"])
TUTORIALS = ("tutorial/first-model.md", "tutorial/your-architecture.md")
GUIDES = sorted(p.relative_to(DOCS).as_posix() for p in DOCS.glob("how-to/*.md"))
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKING = re.compile(r"^(\w+=\S+ )*llmfit serve(?!.*--dry-run)")


def text_of(page: str | Path) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


@dataclass
class Shown:
    """A command on a page, and what the page shows of its output."""

    line: str
    output: str


def blocks(page: str, *languages: str) -> list[tuple[str, str]]:
    return [(language, body) for language, body in FENCE.findall(text_of(page)) if language in languages]


def commands(body: str) -> Iterator[Shown]:
    """The `$ llmfit` lines of a console block, each with the lines below it."""
    found: Shown | None = None
    for line in body.replace("\\\n", " ").splitlines():
        if line.startswith("$ "):
            if found:
                yield found
            found = Shown(line[2:], "")
        elif found:
            found.output += line + "\n"
    if found:
        yield found


def run_as_shown(place: Place, shown: Shown) -> None:
    """Run a command: it has to succeed or fail as the page shows, and to print the lines that are shown."""
    if BLOCKING.match(shown.line):
        return
    words = shlex.split(shown.line)
    env: dict[str, str] = {}
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        env[name] = value
    assert words[0] == "llmfit", shown.line
    done = place.run(*words[1:], **env)
    error = re.search(r"^error: .*\[([a-z0-9-]+)\]$", shown.output, re.MULTILINE)
    if error:
        assert done.returncode != 0, shown.line
        assert f"[{error[1]}]" in done.stderr, (shown.line, done.stderr)
    else:
        assert done.returncode == 0, (shown.line, done.stderr)
    said = _plain(f"{done.stdout}\n{done.stderr}".replace(str(place.folder.resolve()), "/home/you"))
    for line in shown.output.splitlines():
        if line.strip() not in ("", "..."):
            assert _plain(line) in said, (shown.line, line, said)


def _plain(text: str) -> str:
    """Columns may have another width for another model."""
    return "\n".join(" ".join(line.split()) for line in text.splitlines())


def programs(page: str) -> list[tuple[str, str]]:
    """Name and text of the files that a page shows: blocks that begin with `# NAME`."""
    found = []
    for language, body in blocks(page, "python", "toml"):
        name = re.match(r"# (\w+\.(?:py|toml))\n", body)
        if name:
            found.append((name[1], body))
        elif language == "python":
            compile(body, page, "exec")
    return found


def install(place: Place, module: str, body: str) -> None:
    """What pip would put into the environment for the tutorial's plugin."""
    name = module.removesuffix(".py")
    distribution = name.replace("_", "-")
    place.site.mkdir(exist_ok=True)
    (place.site / module).write_text(body, encoding="utf-8")
    if name.endswith("_samples"):
        return
    info = place.site / f"{name}-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 0.1.0\n", encoding="utf-8")
    entry = name.removeprefix("llmfit_")
    (info / "entry_points.txt").write_text(f"[llmfit]\n{entry} = {name}\n", encoding="utf-8")


@pytest.mark.parametrize("page", [TUTORIALS[0], *GUIDES])
def test_commands_run_as_shown(place: Place, page: str) -> None:
    for name, body in programs(page):
        (place.folder / name).write_text(body, encoding="utf-8")
    for _, body in blocks(page, "console"):
        for shown in commands(body):
            if page == TUTORIALS[0]:
                shown.output = ""  # of a real model, which the tests do not have
            run_as_shown(place, shown)


def test_the_tutorial_on_architectures_holds(place: Place) -> None:
    page = TUTORIALS[1]
    files = dict(programs(page))
    new, first, *later = [list(commands(body)) for _, body in blocks(page, "console")]
    for shown in new:
        run_as_shown(place, shown)
    made = place.folder / "llmfit-brook"
    for module in ("llmfit_brook_samples.py", "llmfit_brook.py"):
        install(place, module, (made / module).read_text(encoding="utf-8"))
    for shown in first:
        run_as_shown(place, shown)
    assert {"llmfit_brook.py", "llmfit_brook_samples.py", "test_brook.py"} == set(files)
    for module in ("llmfit_brook_samples.py", "llmfit_brook.py"):
        (place.site / module).write_text(files[module], encoding="utf-8")
    for shown in (s for group in later for s in group):
        run_as_shown(place, shown)
    listed = place.run("plugins", "list").stdout
    assert "brook\tllmfit-brook 0.1.0\tloaded\tarchitectures: brook" in listed
    place.execute(files["test_brook.py"], "test_brook.py")
    assert "TestBrook" in (made / "tests" / "test_brook.py").read_text(encoding="utf-8")
    wrong = [("shift=1.0", "shift=0.0"), ('rope_rows="pairs"', 'rope_rows="halves"')]
    for before, after in wrong:  # the check sees what is wrong
        assert before in files["llmfit_brook.py"]
        (place.site / "llmfit_brook.py").write_text(files["llmfit_brook.py"].replace(before, after), encoding="utf-8")
        done = place.run("plugins", "check", "brook", "--json")
        assert done.returncode == 9, done.stderr
        failed = {r["check"] for r in json.loads(done.stdout)["check"]["results"] if r["result"] == "failed"}
        assert "the runtime computes the same" in failed


@pytest.mark.parametrize("name", TUTORIALS)
def test_a_tutorial_installs_what_its_scripts_import(name: str) -> None:
    page = text_of(name)
    wanted: set[str] = set()
    for _, body in blocks(name, "python"):
        for node in ast.walk(ast.parse(body)):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            wanted |= {n.split(".")[0] for n in names}
    core = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    there = {re.split(r"[^\w-]", d)[0].replace("-", "_") for d in core} | set(sys.stdlib_module_names) | {"pytest", "__future__"}
    told = {w for line in re.findall(r"^pip install (.+)$", page, re.MULTILINE) for w in line.split()}
    strangers = {n for n in wanted - there - told if not n.startswith("llmfit") and f"{n}.py" not in page}
    assert not strangers


def generator(name: str) -> object:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["gen_cli_reference", "gen_errors_reference", "gen_architectures"])
def test_references_are_fresh(name: str) -> None:
    assert generator(name).main(["--check"]) == 0, f"run python tools/{name}.py"  # type: ignore[attr-defined]


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(FENCE, "", path.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", t.lower()).replace(" ", "-") for t in titles}


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(path: Path) -> None:
    text = re.sub(FENCE, "", path.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        where, _, anchor = target.partition("#")
        found = (path.parent / where).resolve() if where else path
        assert found.exists(), f"{path.name}: {target}"
        if anchor:
            assert anchor in anchors(found), f"{path.name}: {target}"


def source_codes(pattern: str) -> set[str]:
    """Codes by a plain search of the source, which knows nothing of its syntax."""
    found: set[str] = set()
    for folder in ("llmfit_core", "plugins"):
        for path in (ROOT / folder).rglob("*.py"):
            # What the contract shows are examples of plugins.
            if "tests" not in path.relative_to(ROOT).parts and path.name != "hookspecs.py":
                found |= set(re.findall(pattern, path.read_text(encoding="utf-8")))
    return found


def test_every_code_is_documented() -> None:
    errors = text_of("reference/errors.md")
    for code in source_codes(r'(?:Source|Unsupported|Plugin|Output|Launch|Strict|Verification|Usage|Llmfit)Error\(\s*"([a-z0-9-]+)"\s*[,)]'):
        assert f"\n### {code}\n" in errors, code
    events = text_of("reference/events.md")
    for code in source_codes(r'Event\(\s*code="([a-z0-9-]+)"\s*[,)]'):
        assert f"| `{code}` |" in events, code


def test_codes_that_pages_name_exist() -> None:
    known = set(re.findall(r"^### (.+)$", text_of("reference/errors.md"), re.MULTILINE))
    known |= set(re.findall(r"^\| `([a-z0-9-]+)` \|", text_of("reference/events.md"), re.MULTILINE))
    page = text_of("how-to/mend-a-refusal.md")
    named = set(re.findall(r"\*\*`([a-z0-9-]+)`\*\*", page)) | set(re.findall(r"^\| (`[^|]+`) \|", page, re.MULTILINE))
    named = {code for part in named for code in (re.findall(r"`([a-z0-9-]+)`", part) or [part])}
    assert named <= known, named - known


def keys_of(heading: str) -> set[str]:
    """The first column of the tables under a heading of `json.md`."""
    page = text_of("reference/json.md")
    section = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]+`) \|", section, re.MULTILINE)
    assert cells, heading
    return {key for cell in cells for key in re.findall(r"`(\w+)`", cell)}


def test_json_has_the_keys_that_the_page_has(place: Place) -> None:
    def said(*arguments: str) -> dict[str, object]:
        done = place.run(*arguments, "--json")
        value = json.loads(done.stdout)
        assert value.pop("schema") == 1
        return dict(value)

    assert set(said("inspect", "model")["inspection"]) == keys_of("llmfit inspect")  # type: ignore[call-overload]
    assert set(said("plan", "model")["plan"]) == keys_of("llmfit plan")  # type: ignore[call-overload]
    artifact = said("convert", "model", "-o", "keys.gguf", "--overwrite", "--no-verify")["artifact"]
    assert set(artifact) == keys_of("llmfit convert")  # type: ignore[call-overload]
    assert set(said("serve", "model.gguf", "--dry-run", "--port", "0")["launch"]) == keys_of("llmfit serve")  # type: ignore[call-overload]
    assert set(said("run", "model.gguf", "x", "-n", "1")["answer"]) == keys_of("llmfit run")  # type: ignore[call-overload]
    assert set(said("plugins", "prefer", "llama", "--forget")) == keys_of("llmfit plugins prefer")
    (plugin,) = said("plugins", "info", "llama")["plugins"]  # type: ignore[misc]
    assert set(plugin) == keys_of("llmfit plugins list, llmfit plugins info")
    assert set(said("plugins", "new", "keys", "-d", "new")["plugin"]) == keys_of("llmfit plugins new")  # type: ignore[call-overload]
    assert set(said("plugins", "check", "llamacpp")["check"]) == keys_of("llmfit plugins check")  # type: ignore[call-overload]
    assert set(said("plan", "nowhere")["error"]) == {"code", "cause", "remedy"}  # type: ignore[call-overload]
    manifest = text_of("reference/manifest.md").partition("## Keys inside")[0]
    rows = re.findall(r"^\| (`[^|]+`) \|", manifest, re.MULTILINE)
    documented = {key.partition(".")[0] for cell in rows for key in re.findall(r"`([\w.]+)`", cell)}
    assert set(artifact["manifest"]) == documented  # type: ignore[index, call-overload]


def difference_patterns() -> list[str]:
    """Keys in the first column of the tables of `gguf-differences.md`."""
    page = text_of("reference/gguf-differences.md").partition("## Names of files")[0]
    cells = re.findall(r"^\| ([^|]*`[^|]+) \|", page, re.MULTILINE)
    keys = [key for cell in cells for key in re.findall(r"`([\w.]+)`", cell)]
    return [k if "." in k else f"ARCH.rope.scaling.{k}" for k in keys]


@pytest.mark.parametrize("case", ["llama-bpe", "qwen2-eoslist", "mixtral", "llama-yarn-attnf", "phithree-longrope-long"])
def test_no_difference_is_undocumented(case: str, golden_model, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from llmfit_core import Recipe, convert, load_plugins
    from llmfit_core.readers.gguf import read_gguf

    gold = json.loads((ROOT / "tests/golden/json" / f"{case}.json").read_text(encoding="utf-8"))["kv"]
    recipe = Recipe(exporter="gguf", scheme="f32")
    convert(golden_model(case), recipe, tmp_path / "x.gguf", load_plugins(), verify=False)
    ours = {k: kv.value for k, kv in read_gguf(tmp_path / "x.gguf").kv.items()}
    changed = {k for k in {*ours, *gold} if (k in ours) != (k in gold)}
    for key in {*ours} & {*gold}:
        want = gold[key].get("value")
        if want is not None and ours[key] != pytest.approx(want):
            changed.add(key)
    prefix = f"{ours['general.architecture']}."
    plain = {re.sub(f"^{re.escape(prefix)}", "ARCH.", k) for k in changed}
    assert plain <= set(difference_patterns()), plain - set(difference_patterns())


def test_programs_on_pages_are_programs() -> None:
    for path in PAGES:
        if path.name == "hooks.md":
            continue  # it has bare signatures, and tests of its own
        for language, body in FENCE.findall(path.read_text(encoding="utf-8")):
            if language in ("python", "py"):
                compile(textwrap.dedent(body), str(path), "exec")
