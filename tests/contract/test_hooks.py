"""Every hook is documented with its exact signature, and every example is a working plugin."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
import types
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from llmfit_core.errors import VerificationError
from llmfit_core.hookspecs import Hooks
from llmfit_core.plugin_loading import Plugin, _register, load
from llmfit_core.plugin_record import KINDS

ROOT = Path(__file__).resolve().parents[2]
HOOKS = [name for name in vars(Hooks) if name.startswith("llmfit_")]


def tool(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


reference = tool("gen_hooks_reference")


def test_the_page_is_what_the_specifications_say():
    page = (ROOT / "docs" / "reference" / "hooks.md").read_text(encoding="utf-8")
    assert page == reference.generate(), "run python tools/gen_hooks_reference.py"


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_is_on_the_page_with_its_signature(hook):
    page = (ROOT / "docs" / "reference" / "hooks.md").read_text(encoding="utf-8")
    section = page.partition(f"## {hook}\n")[2].partition("\n## ")[0]
    spec = inspect.signature(getattr(Hooks, hook))
    arguments = ", ".join(f"{n}: {p.annotation}" for n, p in spec.parameters.items() if n != "self")
    assert f"```python\n{hook}({arguments}) -> {spec.return_annotation}\n```" in section
    assert "Called once" in section
    assert "@hookimpl" in section


def test_design_names_the_same_hooks():
    assert HOOKS == [
        "llmfit_architectures",
        "llmfit_tokenizers",
        "llmfit_decoders",
        "llmfit_transforms",
        "llmfit_exporters",
        "llmfit_runtimes",
        "llmfit_packagers",
        "llmfit_diagnoses",
        "llmfit_commands",
        "llmfit_artifact_written",
    ]
    assert [k.hook for k in KINDS] == HOOKS[:8]


@pytest.fixture
def example(request, monkeypatch):
    """The example of a hook as an imported module, and what loading it as a plugin gives."""
    import importlib.metadata

    from llmfit_core.plugin_loading import Found
    from llmfit_core.plugin_record import PluginId

    source = reference.example(getattr(Hooks, request.param))
    module = types.ModuleType("llmfit_example")
    exec(compile(source, f"<example of {request.param}>", "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, "llmfit_example", module)
    point = importlib.metadata.EntryPoint(name="example", value="llmfit_example", group="llmfit")
    plugin = load(Found(id=PluginId(name="example", distribution="llmfit-example", version="1"), entry_point=point))
    return request.param, module, plugin


@pytest.mark.parametrize("example", HOOKS, indirect=True)
def test_every_example_is_a_complete_plugin(example):
    hook, module, plugin = example
    assert isinstance(plugin, Plugin)
    assert (plugin.record.status, plugin.record.reason, plugin.record.notes) == ("loaded", "", ())
    assert list(_register(module, "example")) == [hook]
    for kind in KINDS:
        if kind.hook == hook:
            assert plugin.record.provides[kind.plural]


def test_the_examples_do_what_they_say(tmp_path):
    def namespace(hook):
        found: dict[str, object] = {}
        exec(reference.example(getattr(Hooks, hook)), found)
        return found

    (tmp_path / "vocab.txt").write_text("[UNK]\na\n", encoding="utf-8")
    tokenizers = namespace("llmfit_tokenizers")
    side = {"vocab.txt": tmp_path / "vocab.txt"}
    assert tokenizers["detects"](side, {})
    assert tokenizers["read"](side, {}).specials == {"unk": 0}

    packagers = namespace("llmfit_packagers")
    packed = packagers["package"](tmp_path / "m.gguf", None)
    assert [p.name for p in packed.paths] == ["acme.json"]
    with pytest.raises(Exception, match="output-exists"):
        packagers["package"](tmp_path / "m.gguf", None)

    runtimes = namespace("llmfit_runtimes")
    assert not runtimes["probe"]().available
    assert runtimes["capabilities"]().engine == "acme"

    exporters = namespace("llmfit_exporters")
    path = tmp_path / "x.json"
    planned = exporters["plan"](types.SimpleNamespace(name="m", refs=()), None)
    filled = exporters["fill"](planned.files[0], path, None)
    exporters["reopen"](path, planned)
    assert filled.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    path.write_text("{", encoding="utf-8")
    with pytest.raises(VerificationError, match="damaged"):
        exporters["reopen"](path, planned)

    app = typer.Typer()
    namespace("llmfit_commands")["llmfit_commands"](app)
    assert CliRunner().invoke(app, ["you"]).output == "hello you\n"


def test_the_index_is_what_the_tables_say():
    written = (ROOT / "llmfit_core" / "index.json").read_text(encoding="utf-8")
    assert written == tool("gen_index").generate(), "run python tools/gen_index.py"


def test_the_index_promises_only_what_is_in_the_repository():
    from llmfit_core.index import known_distributions, known_names

    homes = {d for table in known_names().values() for names in table.values() for d in names}
    assert homes <= {p.parent.name for p in ROOT.glob("plugins/*/pyproject.toml")}
    assert known_distributions("Qwen2ForCausalLM") == ["llmfit-qwen2"]
    assert known_distributions("qwen2forcausalLM") == ["llmfit-qwen2"]
    assert known_distributions("qwen2") == ["llmfit-qwen2"]
    assert known_distributions("NoSuchForCausalLM") == []
