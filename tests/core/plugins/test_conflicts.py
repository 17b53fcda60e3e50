"""Two plugins that claim one name: the error comes when it is used, and a preference decides."""

from __future__ import annotations

import json
import stat
import sys

import pytest

from llmfit_core.errors import PluginError
from llmfit_core.preferences import preferences_path, read_preferences, write_preference

EXPORTERS = "@hookimpl\ndef llmfit_exporters(): return [exporter(n) for n in {!r}]\n"
ARCHITECTURES = "@hookimpl\ndef llmfit_architectures(): return [architecture(*a) for a in {!r}]\n"


def prefer(site, **preferences):
    folder = site.folder.parent / "config"
    folder.mkdir(exist_ok=True)
    content = {"schema": 1, "prefer": preferences}
    (folder / "preferences.json").write_text(json.dumps(content), encoding="utf-8")


@pytest.fixture
def two(site):
    site.add("llmfit-gguf", EXPORTERS.format(["gguf", "hf"]), version="1.0")
    site.add("acme-gguf", EXPORTERS.format(["gguf"]), version="2.0", entries={"acme": "acme_gguf"})


def test_both_load_and_the_name_is_an_error_once_it_is_used(two, load):
    registry = load()
    assert [r.status for r in registry.records()] == ["loaded", "loaded"]
    for record in registry.records():
        for text in ("acme-gguf 2.0", "llmfit-gguf 1.0", "'gguf'"):
            assert text in record.reason
    assert registry.exporter("hf").plugin.distribution == "llmfit-gguf"
    with pytest.raises(PluginError) as caught:
        registry.exporter("gguf")
    error = caught.value
    assert error.code == "plugin-conflict"
    for text in ("acme-gguf 2.0", "llmfit-gguf 1.0", "gguf"):
        assert text in error.cause
    assert "llmfit plugins prefer gguf acme-gguf" in error.remedy
    assert "llmfit plugins prefer gguf llmfit-gguf" in error.remedy


def test_a_preference_decides_and_shadows(two, site, load):
    prefer(site, gguf="LLMFIT_GGUF")
    registry = load()
    assert registry.exporter("gguf").plugin.distribution == "llmfit-gguf"
    assert {p.value.name: p.plugin.distribution for p in registry.exporters()} == {
        "gguf": "llmfit-gguf",
        "hf": "llmfit-gguf",
    }
    acme, ours = registry.records()
    assert (acme.status, ours.status) == ("shadowed", "loaded")
    assert "gguf" in acme.reason
    assert "LLMFIT_GGUF" in acme.reason
    assert ours.reason == ""
    prefer(site, gguf="acme-gguf")
    acme, ours = load().records()
    assert (acme.status, ours.status) == ("loaded", "loaded")
    assert "acme-gguf" in ours.reason
    assert load().exporter("hf").plugin.distribution == "llmfit-gguf"


def test_a_preference_for_somebody_who_is_not_there_decides_nothing(two, site, load):
    prefer(site, gguf="gone", hf="acme-gguf")
    registry = load()
    assert registry.exporter("hf").plugin.distribution == "llmfit-gguf"
    with pytest.raises(PluginError, match="claimed by"):
        registry.exporter("gguf")


def test_one_distribution_against_itself(site, load):
    site.add("llmfit-x", EXPORTERS.format(["x"]), entries={"one": "llmfit_x", "two": "llmfit_y"})
    (site.folder / "llmfit_y.py").write_text(
        (site.folder / "llmfit_x.py").read_text(encoding="utf-8"), encoding="utf-8"
    )
    site.modules.append("llmfit_y")
    with pytest.raises(PluginError) as caught:
        load().exporter("x")
    assert "LLMFIT_PLUGINS=-one or LLMFIT_PLUGINS=-two" in caught.value.remedy


@pytest.fixture
def classes(site):
    site.add("llmfit-llama", ARCHITECTURES.format([("llama", "LlamaForCausalLM"), ("mistral", "MistralForCausalLM")]))
    site.add("acme-llama", ARCHITECTURES.format([("acme", "LlamaForCausalLM", "AcmeForCausalLM")]), version="3")


def test_two_architectures_claim_one_class(classes, load):
    registry = load()
    assert registry.architecture_of_class("AcmeForCausalLM").value.name == "acme"
    assert registry.architecture_of_class("MistralForCausalLM").value.name == "mistral"
    assert registry.architecture_of_class("llamaforcausallm") is None
    registry.require_decided(["AcmeForCausalLM", "MistralForCausalLM", "Unknown"])
    for ask in (
        lambda: registry.architecture_of_class("LlamaForCausalLM"),
        lambda: registry.require_decided(["llamaForCausalLM"]),
    ):
        with pytest.raises(PluginError) as caught:
            ask()
        assert "llmfit plugins prefer LlamaForCausalLM acme-llama" in caught.value.remedy
        assert "llmfit-llama 1.0" in caught.value.cause
    assert all("LlamaForCausalLM" in r.reason for r in registry.records())


def test_a_preferred_class_leaves_the_other_architecture(classes, site, load):
    prefer(site, LlamaForCausalLM="acme-llama")
    registry = load()
    registry.require_decided(["LlamaForCausalLM"])
    assert registry.architecture_of_class("LlamaForCausalLM").value.name == "acme"
    by_class = [(c, p.value.name) for p in registry.architectures() for c in p.value.hf_classes]
    assert sorted(by_class) == [
        ("AcmeForCausalLM", "acme"),
        ("LlamaForCausalLM", "acme"),
        ("MistralForCausalLM", "mistral"),
    ]
    prefer(site, LlamaForCausalLM="llmfit-llama")
    assert load().architecture_of_class("LlamaForCausalLM").value.name == "llama"
    assert load().architecture_of_class("AcmeForCausalLM").value.name == "acme"


def test_one_name_in_two_kinds_is_no_conflict(site, load):
    site.add("llmfit-a", EXPORTERS.format(["gguf"]))
    site.add("llmfit-b", "@hookimpl\ndef llmfit_decoders(): yield decoder('gguf')\n")
    registry = load()
    assert registry.exporter("gguf").plugin.name == "a"
    assert registry.decoder("gguf").plugin.name == "b"
    assert [r.reason for r in registry.records()] == ["", ""]


def test_transforms_of_a_pair_come_by_name(site, load):
    source = """
    @hookimpl
    def llmfit_transforms():
        for name, format in (("b", "gguf"), ("a", "gguf"), ("c", "awq")):
            yield Transform(name=name, architecture="x", format=format, apply=print)
    """
    site.add("llmfit-a", source)
    assert [t.value.name for t in load().transforms("x", "gguf")] == ["a", "b"]
    site.add("llmfit-b", source)
    with pytest.raises(PluginError, match="transform 'a' is claimed"):
        load().transforms("x", "gguf")
    assert load().transforms("y", "gguf") == ()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"schema": 2}',
        '{"prefer": {}}',
        '{"schema": 1, "prefer": []}',
        '{"schema": 1, "prefer": {"a": 1}}',
        "[" * 100000,
        "\x00",
    ],
)
def test_a_damaged_preference_file_concerns_only_conflicts(text, two, site, load):
    path = site.folder.parent / "config" / "preferences.json"
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")
    registry = load()
    assert registry.exporter("hf").plugin.name == "gguf"
    with pytest.raises(PluginError) as caught:
        registry.exporter("gguf")
    assert caught.value.code == "preferences-unreadable"
    assert str(path) in caught.value.cause
    assert [e.code for e in registry.events] == ["preferences-unreadable"]
    with pytest.raises(PluginError, match="preferences-unreadable"):
        write_preference(path, "gguf", "acme-gguf")
    assert path.read_text(encoding="utf-8") == text


def test_preferences_are_written_whole(tmp_path):
    path = tmp_path / "deep er" / "ü" / "preferences.json"
    assert read_preferences(path) == {}
    assert write_preference(path, "b", "x") == {"b": "x"}
    assert write_preference(path, "a", "y") == {"a": "y", "b": "x"}
    assert write_preference(path, "b", None) == {"a": "y"}
    assert write_preference(path, "b", None) == {"a": "y"}
    assert json.loads(path.read_text(encoding="utf-8")) == {"schema": 1, "prefer": {"a": "y"}}
    assert [p.name for p in path.parent.iterdir()] == ["preferences.json"]


def test_preferences_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(PluginError) as caught:
        write_preference(tmp_path / "file" / "preferences.json", "a", "b")
    assert caught.value.code in ("preferences-unwritable", "preferences-unreadable")
    assert str(tmp_path) in caught.value.cause
    (tmp_path / "folder" / "preferences.json").mkdir(parents=True)
    with pytest.raises(PluginError, match="preferences-unreadable"):
        read_preferences(tmp_path / "folder" / "preferences.json")


def test_where_preferences_are(tmp_path):
    assert preferences_path({"LLMFIT_CONFIG_DIR": str(tmp_path)}) == tmp_path / "preferences.json"
    assert preferences_path({}).parent.name == "llmfit"


@pytest.mark.skipif(sys.platform == "win32", reason="file modes")
def test_preferences_are_the_users_own(tmp_path):
    path = tmp_path / "preferences.json"
    write_preference(path, "a", "b")
    assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
