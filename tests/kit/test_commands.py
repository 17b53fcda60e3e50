"""`llmfit plugins new` and `llmfit plugins check`, as an author meets them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEMPLATE = ROOT / "contrib" / "plugin-template"


def llmfit(*arguments: str, site: Path | None = None, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "llmfit_core", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=cwd, env=env(site))


def env(site: Path | None) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("LLMFIT_")}
    return {**kept, "PYTHONPATH": str(site)} if site else kept


def installed(folder: Path, site: Path) -> None:
    """What pip would put into the environment."""
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    name = project["project"]["name"].replace("-", "_")
    site.mkdir(exist_ok=True)
    for module in project["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]:
        shutil.copyfile(folder / module, site / module)
    info = site / f"{name}-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['project']['name']}\nVersion: 0.1.0\n", encoding="utf-8")
    points = project["project"]["entry-points"]["llmfit"]
    lines = "".join(f"{k} = {v}\n" for k, v in points.items())
    (info / "entry_points.txt").write_text(f"[llmfit]\n{lines}", encoding="utf-8")


@pytest.fixture(scope="module")
def author(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A fresh plugin `my-river`, and the place where it is installed."""
    place = tmp_path_factory.mktemp("author")
    done = llmfit("plugins", "new", "my-river", "--directory", str(place), "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)["plugin"]
    folder = Path(said["folder"])
    assert folder == place / "llmfit-my-river"
    assert sorted(said["files"]) == sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    installed(folder, place / "site")
    return folder, place / "site"


def test_nothing_of_the_template_s_name_is_left(author: tuple[Path, Path]) -> None:
    folder, _ = author
    for path in folder.rglob("*"):
        assert "acme" not in path.name.lower()
        if path.is_file():
            assert "acme" not in path.read_text(encoding="utf-8").lower(), path
    assert {p.name for p in folder.iterdir()} == {"README.md", "llmfit_my_river.py", "llmfit_my_river_samples.py", "pyproject.toml", "tests"}


def test_a_name_may_hold_the_template_s(tmp_path: Path) -> None:
    from llmfit_core.testing.new_plugin import new_plugin

    folder, files = new_plugin("my-acme", tmp_path)
    assert sorted(p.name for p in files) == ["README.md", "llmfit_my_acme.py", "llmfit_my_acme_samples.py", "pyproject.toml", "test_my_acme.py"]
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["name"] == "llmfit-my-acme"
    assert project["project"]["entry-points"]["llmfit"] == {"my_acme": "llmfit_my_acme"}
    assert "class TestMyAcme(" in (folder / "tests" / "test_my_acme.py").read_text(encoding="utf-8")


def test_a_fresh_copy_passes_its_check(author: tuple[Path, Path]) -> None:
    pytest.importorskip("xllamacpp", reason="the runtime that scores")
    _, site = author
    done = llmfit("plugins", "check", "my-river", "--json", site=site)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)["check"]
    assert said["plugins"] == [{"name": "my_river", "distribution": "llmfit-my-river", "version": "0.1.0"}]
    assert said["failed"] == 0
    assert said["passed"] + said["not_run"] == len(said["results"])
    same = [r for r in said["results"] if r["check"] == "the runtime computes the same"]
    assert [r["subject"] for r in same] == ["base", "tied", "one-kv-head"]
    assert all(r["result"] == "passed" and "mean KL" in r["figure"] for r in same)
    assert all(r["reason"] for r in said["results"] if r["result"] == "not run")


def test_a_fresh_copy_passes_its_tests(author: tuple[Path, Path]) -> None:
    folder, site = author
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", "-k", "not same and not true"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False, env=env(site))
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


def test_a_fault_is_a_row_and_an_exit_code(author: tuple[Path, Path], tmp_path: Path) -> None:
    _, site = author
    wrong = tmp_path / "site"
    shutil.copytree(site, wrong)
    table = wrong / "llmfit_my_river.py"
    text = table.read_text(encoding="utf-8")
    assert '"decoder.norm": Role.OUTPUT_NORM,' in text
    table.write_text(text.replace('"decoder.norm": Role.OUTPUT_NORM,', ""), encoding="utf-8")
    done = llmfit("plugins", "check", "my-river", site=wrong)
    assert done.returncode == 9
    assert "[plugin-check-failed]" in done.stderr
    row = next(line for line in done.stdout.splitlines() if "every saved tensor is claimed once" in line)
    assert "failed" in row
    assert "decoder.norm.weight" in row


@pytest.mark.parametrize(
    "text", ["SAMPLES = [1]\n", "import no_such_module\n", "SAMPLES = {\n", 'SAMPLES = {"architectures": {"my_rivre": {}}}\n']
)
def test_samples_that_are_none_are_a_row(author: tuple[Path, Path], tmp_path: Path, text: str) -> None:
    _, site = author
    wrong = tmp_path / "site"
    shutil.copytree(site, wrong)
    (wrong / "llmfit_my_river_samples.py").write_text(text, encoding="utf-8")
    done = llmfit("plugins", "check", "my-river", "--json", site=wrong)
    assert done.returncode == 9
    (row,) = [r for r in json.loads(done.stdout)["check"]["results"] if r["check"] == "a sample"]
    assert row["result"] == "failed"
    assert "SAMPLES" in row["reason"] or "llmfit_my_river_samples does not import" in row["reason"]


def test_without_torch_it_says_what_to_install(tmp_path: Path) -> None:
    """A plugin without samples, where torch cannot be imported: nothing passes by default."""
    (tmp_path / "torch.py").write_text("raise ImportError('hidden by the test')\n", encoding="utf-8")
    done = llmfit("plugins", "check", "llama", "--json", site=tmp_path)
    said = json.loads(done.stdout)["check"]
    assert said["failed"] == 0, [r for r in said["results"] if r["result"] == "failed"]
    rows = {r["check"]: r for r in said["results"] if r["name"] == "llama"}
    assert rows["the runtime computes the same"]["result"] == "not run"
    assert "pip install torch transformers" in rows["the runtime computes the same"]["reason"]
    assert rows["the module imports nothing heavy"]["result"] == "passed"


def test_models_and_fixtures_can_be_written(author: tuple[Path, Path], tmp_path: Path) -> None:
    _, site = author
    done = llmfit("plugins", "check", "my-river", "--write-fixture", "f", "--write-models", "m", "--json", site=site, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    written = [Path(p) for p in json.loads(done.stdout)["written"]]
    assert [p.as_posix() for p in written[:3]] == [f"f/my_river/{case}.json" for case in ("base", "tied", "one-kv-head")]
    inspected = llmfit("inspect", "m/my_river/base", "--json", site=site, cwd=tmp_path)
    assert inspected.returncode == 0, inspected.stderr
    fixture = json.loads((tmp_path / "f/my_river/tied.json").read_text(encoding="utf-8"))
    assert "head.weight" not in fixture["tensors"]
    assert fixture["tensors"]["decoder.norm.weight"] == {"shape": [64], "dtype": "bfloat16", "fill": 1.0}


@pytest.mark.parametrize("name", ["Bad", "../x", "a b", "", "-x", "x-", "a--b", "9a", "x" * 50, "class", "ä", "core"])
def test_names_that_make_no_plugin_are_refused(name: str, tmp_path: Path) -> None:
    from llmfit_core.errors import UnsupportedError
    from llmfit_core.testing.new_plugin import new_plugin

    with pytest.raises(UnsupportedError) as caught:
        new_plugin(name, tmp_path)
    assert caught.value.code == "bad-plugin-name"
    assert not list(tmp_path.iterdir())


def test_a_name_that_is_taken_and_a_folder_that_is_there_are_refused(tmp_path: Path) -> None:
    done = llmfit("plugins", "new", "phi3", "-d", str(tmp_path))
    assert done.returncode == 4
    assert "[bad-plugin-name]" in done.stderr
    (tmp_path / "llmfit-brook").mkdir()
    done = llmfit("plugins", "new", "brook", "-d", str(tmp_path))
    assert done.returncode == 6
    assert "[output-exists]" in done.stderr
    assert not list((tmp_path / "llmfit-brook").iterdir())


def test_the_wheel_has_the_whole_template(tmp_path: Path) -> None:
    import zipfile

    from hatchling.builders.wheel import WheelBuilder

    wheel = next(WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"]))
    with zipfile.ZipFile(wheel) as archive:
        prefix = "llmfit_core/testing/template/"
        packed = {n.removeprefix(prefix): archive.read(n) for n in archive.namelist() if n.startswith(prefix)}
    tracked = subprocess.run(["git", "ls-files", "."], cwd=TEMPLATE, capture_output=True, text=True, check=False)
    wanted = tracked.stdout.split() or [n for n in packed]
    assert packed == {name: (TEMPLATE / name).read_bytes() for name in wanted}
