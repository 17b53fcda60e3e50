"""Cases 34 to 36: where an artifact may go, what is never overwritten or deleted, what it is called."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from llmfit_core.errors import OutputError
from llmfit_core.pipeline import convert
from llmfit_core.plan import Recipe
from tests.tiny import tiny

if TYPE_CHECKING:
    from llmfit_core.plugins import PluginRegistry

Q8 = Recipe(exporter="gguf", scheme="q8_0")
HF = Recipe(exporter="hf", scheme="bf16")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny("llama", tmp_path_factory.mktemp("model"))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def tree(folder: Path) -> dict[str, str]:
    """Every file below a folder, by its sha256."""
    return {
        p.relative_to(folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


@pytest.mark.parametrize(
    ("out", "file"),
    [
        ("m.gguf", "m.gguf"),
        (".", "llama-Q8_0.gguf"),
        ("new", "new/llama-Q8_0.gguf"),
        ("a/b/c/m.gguf", "a/b/c/m.gguf"),
        ("a/../b/m.gguf", "b/m.gguf"),
        ("../over/m.gguf", "../over/m.gguf"),
        ("my model (1)/größe 模型 🙂.gguf", "my model (1)/größe 模型 🙂.gguf"),
        ("M.GGUF", "M.GGUF"),
        (".gguf", ".gguf"),
        ("-x.gguf", "-x.gguf"),
        ("x" * 250 + ".gguf", "x" * 250 + ".gguf"),
        ("ä" * 125 + ".gguf", "ä" * 125 + ".gguf"),
        ("model.v1.0", "model.v1.0/llama-Q8_0.gguf"),
        ("% $HOME ~ *.gguf", "% $HOME ~ *.gguf"),
        ("new\nline.gguf", "new\nline.gguf"),
    ],
)
def test_places_that_work(model: Path, registry: PluginRegistry, here: Path, out: str, file: str) -> None:
    artifact, _ = convert(model, Q8, Path(out), registry, verify=False)
    assert artifact.paths == (Path(os.path.abspath(here / file)),)
    assert artifact.paths[0].read_bytes()[:4] == b"GGUF"
    assert list(artifact.paths[0].parent.glob("*.partial")) == []
    assert json.loads((artifact.paths[0].parent / "llmfit.json").read_text())["artifacts"]


@pytest.mark.parametrize("out", ["hf", ".", "a/b", "größe 模型", "x.gguf"])
def test_folders_that_work(model: Path, registry: PluginRegistry, here: Path, out: str) -> None:
    convert(model, HF, Path(out), registry, verify=True)
    assert {"config.json", "model.safetensors", "llmfit.json"} <= {p.name for p in Path(out).iterdir()}
    assert not list(Path().rglob("*.partial"))


def test_a_folder_of_the_files_name(model: Path, registry: PluginRegistry, here: Path) -> None:
    Path("x.gguf").mkdir()
    artifact, _ = convert(model, Q8, Path("x.gguf"), registry, verify=False)
    assert artifact.paths == (here / "x.gguf" / "llama-Q8_0.gguf",)


def refused(model: Path, recipe: Recipe, out: Path, registry: PluginRegistry, code: str, **options: bool) -> OutputError:
    with pytest.raises(OutputError) as caught:
        convert(model, recipe, out, registry, verify=False, **options)  # type: ignore[arg-type]
    assert caught.value.code == code
    return caught.value


@pytest.mark.parametrize("out", ["/dev/null", "/dev/null/x.gguf", "/proc/m.gguf", "/sys/new/m.gguf", "/dev/full"])
def test_places_that_cannot_be(model: Path, registry: PluginRegistry, out: str) -> None:
    with pytest.raises(OutputError):
        convert(model, Q8, Path(out), registry, verify=False)


@pytest.mark.parametrize("out", ["x" * 251 + ".gguf", "x" * 256 + "/m.gguf", "/".join(["y" * 200] * 30) + "/m.gguf"])
def test_names_that_are_too_long(model: Path, registry: PluginRegistry, here: Path, out: str) -> None:
    with pytest.raises(OutputError):
        convert(model, Q8, Path(out), registry, verify=False)
    assert tree(here) == {}


def test_a_parent_that_is_a_file(model: Path, registry: PluginRegistry, here: Path) -> None:
    Path("file").write_text("mine")
    refused(model, Q8, Path("file/m.gguf"), registry, "not-writable")
    refused(model, Q8, Path("file"), registry, "not-writable")
    refused(model, HF, Path("file"), registry, "output-exists")
    refused(model, HF, Path("file"), registry, "output-exists", overwrite=True)
    assert tree(here) == {"file": hashlib.sha256(b"mine").hexdigest()}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder(model: Path, registry: PluginRegistry, here: Path) -> None:
    here.chmod(0o555)
    try:
        refused(model, Q8, Path("m.gguf"), registry, "not-writable")
        refused(model, HF, Path("hf"), registry, "not-writable")
    finally:
        here.chmod(0o755)


def test_existing_files_stay_unless_told(model: Path, registry: PluginRegistry, here: Path) -> None:
    out = Path("m.gguf")
    out.write_text("mine")
    refused(model, Q8, out, registry, "output-exists")
    assert out.read_text() == "mine"
    convert(model, Q8, out, registry, verify=False, overwrite=True)
    first = tree(here)
    refused(model, Recipe(exporter="gguf", scheme="q4_0"), out, registry, "output-exists")
    assert tree(here) == first
    convert(model, Recipe(exporter="gguf", scheme="q4_0"), out, registry, verify=False, overwrite=True)
    assert json.loads(Path("llmfit.json").read_text())["artifacts"]["m.gguf"]["scheme"] == "q4_0"


def test_one_part_in_the_way(model: Path, registry: PluginRegistry, here: Path) -> None:
    recipe = Recipe(exporter="gguf", scheme="q8_0", split_max_bytes=20_000)
    artifact, _ = convert(model, recipe, Path("first/m.gguf"), registry, verify=False)
    Path("m").mkdir()
    (Path("m") / artifact.paths[-1].name).write_text("mine")
    refused(model, recipe, Path("m/m.gguf"), registry, "output-exists")
    assert [p.read_text() for p in Path("m").iterdir()] == ["mine"]


def test_links(model: Path, registry: PluginRegistry, here: Path) -> None:
    target = here / "target"
    target.write_text("mine")
    Path("link.gguf").symlink_to(target)
    Path("dangling.gguf").symlink_to(here / "nothing")
    for name in ("link.gguf", "dangling.gguf"):
        refused(model, Q8, Path(name), registry, "output-exists")
        convert(model, Q8, Path(name), registry, verify=False, overwrite=True)
        assert not Path(name).is_symlink()
    assert target.read_text() == "mine"
    assert not (here / "nothing").exists()
    Path("real").mkdir()
    Path("folder").symlink_to(here / "real")
    convert(model, Q8, Path("folder/m.gguf"), registry, verify=False)
    assert (here / "real" / "m.gguf").exists()
    Path("lost").symlink_to(here / "nowhere")
    refused(model, Q8, Path("lost/m.gguf"), registry, "not-writable")
    refused(model, HF, Path("lost"), registry, "output-exists")
    assert not (here / "nowhere").exists()


def test_through_a_linked_empty_folder(model: Path, registry: PluginRegistry, here: Path) -> None:
    Path("real").mkdir()
    Path("link").symlink_to(here / "real")
    convert(model, HF, Path("link"), registry, verify=False)
    assert Path("link").is_symlink()
    assert (here / "real" / "config.json").exists()


def test_a_source_is_never_overwritten(model: Path, registry: PluginRegistry, here: Path) -> None:
    artifact, _ = convert(model, Q8, Path("m.gguf"), registry, verify=False)
    before = tree(here)
    for out in ("m.gguf", "./x/../m.gguf", str(here / "m.gguf")):
        refused(artifact.paths[0], Recipe(exporter="gguf", scheme="f16"), Path(out), registry, "output-is-source", overwrite=True)
    Path("link.gguf").symlink_to(here / "m.gguf")
    refused(artifact.paths[0], Q8, Path("link.gguf"), registry, "output-is-source", overwrite=True)
    Path("link.gguf").unlink()
    assert tree(here) == before
    copy = here / "source"
    shutil.copytree(model, copy)
    before = tree(copy)
    for recipe_out in (copy, copy.parent):
        refused(copy, HF, recipe_out, registry, "output-is-source", overwrite=True)
    assert tree(copy) == before


def test_the_folder_of_a_hub_snapshot_is_never_overwritten(model: Path, registry: PluginRegistry, here: Path) -> None:
    snapshot = snapshot_of(model, here)
    before = tree(here)
    refused(snapshot, HF, snapshot, registry, "output-is-source", overwrite=True)
    assert tree(here) == before


def test_inside_the_source_folder(model: Path, registry: PluginRegistry, here: Path) -> None:
    copy = here / "source"
    shutil.copytree(model, copy)
    first, _ = convert(copy, Q8, copy / "m.gguf", registry, verify=False)
    second, _ = convert(copy, Q8, copy / "n.gguf", registry, verify=False)
    convert(copy, HF, copy / "hf", registry, verify=False)
    assert first.paths[0].read_bytes() == second.paths[0].read_bytes()
    assert set(json.loads((copy / "llmfit.json").read_text())["artifacts"]) == {"m.gguf", "n.gguf"}


@pytest.mark.parametrize("kind", ["file", "folder", "link", "hollow link", "journal"])
def test_a_strangers_partial(model: Path, registry: PluginRegistry, here: Path, kind: str) -> None:
    partial = Path("m.gguf.partial")
    Path("elsewhere").mkdir()
    Path("elsewhere/m.gguf").write_text("mine")
    if kind == "file":
        partial.write_text("mine")
    elif kind == "folder":
        partial.mkdir()
        (partial / "m.gguf").write_text("mine")
    elif kind == "link":
        partial.symlink_to(here / "elsewhere")
    elif kind == "hollow link":
        partial.symlink_to(here / "nothing")
    else:
        partial.mkdir()
        (partial / "llmfit.journal").write_text("my diary")
        (partial / "m.gguf").write_text("mine")
    before = tree(here)
    refused(model, Q8, Path("m.gguf"), registry, "stranger-partial", overwrite=True)
    assert tree(here) == before


def test_a_strangers_file_in_our_stage_stays(model: Path, registry: PluginRegistry, here: Path) -> None:
    stage = Path("m.gguf.partial")
    stage.mkdir()
    (stage / "llmfit.journal").write_text("llmfit-journal 1 0\nfile ../keep\nfile /etc/hostname\nfile old.gguf\n")
    (stage / "old.gguf").write_text("of an earlier plan")
    (stage / "notes.txt").write_text("mine")
    Path("keep").write_text("mine")
    convert(model, Q8, Path("m.gguf"), registry, verify=False)
    assert Path("keep").read_text() == "mine"
    assert [p.name for p in stage.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    "text",
    ["mine", "[]", "{}", '{"schema": 2, "artifacts": {}}', '{"schema": 1, "artifacts": {"a": 1}}', "[" * 100_000, b"\xff\xfe"],
)
@pytest.mark.parametrize("recipe", [Q8, HF])
def test_a_strangers_manifest(model: Path, registry: PluginRegistry, here: Path, text: str | bytes, recipe: Recipe) -> None:
    Path("o").mkdir()
    Path("o/llmfit.json").write_bytes(text.encode() if isinstance(text, str) else text)
    before = tree(here)
    refused(model, recipe, Path("o"), registry, "stranger-manifest", overwrite=True)
    assert tree(here) == before


def test_a_manifest_that_names_files_elsewhere_deletes_nothing(model: Path, registry: PluginRegistry, here: Path) -> None:
    Path("keep.txt").write_text("mine")
    Path("o/sub").mkdir(parents=True)
    Path("o/m.gguf").write_text("another artifact of ours")
    Path("o/link").symlink_to(here)
    listed = {"../keep.txt": {}, str(here / "keep.txt"): {}, "sub/../../keep.txt": {}, "sub": {}, "link/keep.txt": {}, "gone.safetensors": {}}
    entries = {".": {"files": listed}, "m.gguf": {"files": {"m.gguf": {}}}}
    Path("o/llmfit.json").write_text(json.dumps({"schema": 1, "artifacts": entries}))
    convert(model, HF, Path("o"), registry, verify=False, overwrite=True)
    assert Path("keep.txt").read_text() == "mine"
    assert Path("o/m.gguf").exists()
    assert Path("o/sub").is_dir()
    assert set(json.loads(Path("o/llmfit.json").read_text())["artifacts"]) == {".", "m.gguf"}


def test_a_folder_with_strangers(model: Path, registry: PluginRegistry, here: Path) -> None:
    Path("o").mkdir()
    Path("o/README.md").write_text("mine")
    refused(model, HF, Path("o"), registry, "output-exists")
    convert(model, HF, Path("o"), registry, verify=False, overwrite=True)
    assert Path("o/README.md").read_text() == "mine"


@pytest.mark.parametrize(
    "name",
    ["model-00001-of-00002.safetensors", "pytorch_model.bin", "tokenizer.json", "chat_template.jinja", "adapter_config.json",
     "additional_chat_templates/rag.jinja"],
)  # fmt: skip
def test_strangers_that_a_loader_would_read_too(model: Path, registry: PluginRegistry, here: Path, name: str) -> None:
    Path("o", name).parent.mkdir(parents=True)
    Path("o", name).write_text("{}")
    before = tree(here)
    refused(model, HF, Path("o"), registry, "stranger-in-folder", overwrite=True)
    assert tree(here) == before


def test_more_shards_before_than_now(model: Path, registry: PluginRegistry, here: Path) -> None:
    many = Recipe(exporter="hf", scheme="bf16", split_max_bytes=20_000)
    convert(model, many, Path("o"), registry, verify=False)
    assert Path("o/model.safetensors.index.json").exists()
    Path("o/notes.txt").write_text("mine")
    convert(model, HF, Path("o"), registry, verify=True, overwrite=True)
    convert(model, HF, Path("fresh"), registry, verify=True)
    assert tree(here / "o") == tree(here / "fresh") | {"notes.txt": hashlib.sha256(b"mine").hexdigest()}
    convert(model, many, Path("o"), registry, verify=False, overwrite=True)
    assert not Path("o/model.safetensors").exists()


def test_two_artifacts_share_a_manifest(model: Path, registry: PluginRegistry, here: Path) -> None:
    convert(model, Q8, here, registry, verify=False)
    convert(model, Recipe(exporter="gguf", scheme="f16"), here, registry, verify=False)
    manifest = json.loads(Path("llmfit.json").read_text())
    assert sorted(manifest["artifacts"]) == ["llama-F16.gguf", "llama-Q8_0.gguf"]
    for name, entry in manifest["artifacts"].items():
        assert entry["files"][name]["sha256"] == hashlib.sha256(Path(name).read_bytes()).hexdigest()
        assert entry["files"][name]["bytes"] == Path(name).stat().st_size


def snapshot_of(model: Path, cache: Path) -> Path:
    """A hub cache: files named by their hash, linked from the snapshot of a commit."""
    repo = cache / "hub" / "models--org--My-Model"
    snapshot = repo / "snapshots" / "0123456789abcdef0123456789abcdef01234567"
    (repo / "blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for file in model.iterdir():
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        shutil.copyfile(file, repo / "blobs" / digest)
        (snapshot / file.name).symlink_to(repo / "blobs" / digest)
    return snapshot


def test_named_after_the_repo(model: Path, registry: PluginRegistry, here: Path) -> None:
    snapshot = snapshot_of(model, here)
    artifact, _ = convert(snapshot, Q8, here / "o", registry, verify=False)
    assert [p.name for p in artifact.paths] == ["My-Model-Q8_0.gguf"]
    source = artifact.manifest["source"]
    assert isinstance(source, dict)
    assert (source["repo"], source["revision"]) == ("org/My-Model", snapshot.name)
    assert source["files"] == {"model.safetensors": hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()}


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("My Model", "My-Model-Q8_0.gguf"),
        ("org/Some-7B", "Some-7B-Q8_0.gguf"),
        ("../../etc/passwd", "passwd-Q8_0.gguf"),
        ("..", "model-Q8_0.gguf"),
        ("größe", "größe-Q8_0.gguf"),
        ("模" * 300, "模" * 50 + "-Q8_0.gguf"),
        ("a\nb\x1b[31m", "a-b--31m-Q8_0.gguf"),
    ],
)
def test_conventional_names(model: Path, registry: PluginRegistry, here: Path, name: str, file: str) -> None:
    recipe = Recipe(exporter="gguf", scheme="q8_0", name=name)
    artifact, _ = convert(model, recipe, here, registry, verify=False)
    assert [p.name for p in artifact.paths] == [file]
