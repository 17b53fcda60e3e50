"""Which plugins are imported at all: versions, blocking, damaged metadata, twins."""

from __future__ import annotations

import importlib.metadata
import json
import sys

import pytest

from llmfit_core.errors import PluginError

EXPORTER = "@hookimpl\ndef llmfit_exporters(): yield exporter({!r})\n"


@pytest.mark.parametrize(
    ("requires", "fits"),
    [
        ([], True),
        (["numpy>=999"], True),
        (["llmfit-core"], True),
        (["llmfit-core>=0.1,<0.2"], True),
        (["llmfit_core (>=0.1)"], True),
        (["LLMFIT.Core[standard]>=0.1"], True),
        (["llmfit-core>=999"], False),
        (["Llmfit_Core<0.1"], False),
        (["llmfit-core==0.0.1"], False),
        (["llmfit-core>=0.1.0.0,<1"], True),
        (["llmfit-core>0.1.0"], False),
        (["llmfit-core<=0.1"], True),
        (["llmfit-core>=0.1,<0.2,!=0.1.0"], False),
        (["llmfit-core>=0.1a1"], True),
        (["llmfit-core~=0.1.0"], True),
        (["llmfit-core>=0.1,<0.1.0"], False),
        (["llmfit-core>=0.1", "llmfit-core<0.1"], False),
        (["llmfit-core>=999; python_version < '3'"], True),
        (["llmfit-core>=999; python_version >= '3'"], False),
        (["llmfit-core>=999; extra == 'new'"], True),
        (["llmfit-core @ file:///nowhere"], True),
        (["llmfit-core ><>< what"], True),
        (["llmfit-core-extras>=999"], True),
    ],
)
def test_core_version_is_read_before_the_import(requires, fits, site, load):
    module = site.add("llmfit-x", EXPORTER.format("x"), requires=requires)
    registry = load(core="0.1.0")
    (record,) = registry.records()
    assert record.status == ("loaded" if fits else "incompatible")
    assert (module in sys.modules) == fits
    if not fits:
        assert "llmfit-core" in record.reason
        with pytest.raises(PluginError) as caught:
            registry.exporter("x")
        assert "llmfit-x" in str(caught.value)
        assert record.reason in caught.value.cause


@pytest.mark.parametrize(
    ("value", "loaded"),
    [
        ("", "abc"),
        ("none", ""),
        ("NONE", ""),
        ("a", "a"),
        ("a,b", "ab"),
        (" a , llmfit-c ", "ac"),
        ("LLMFIT_A", "a"),
        ("-c", "ab"),
        ("-a,-llmfit.b", "c"),
        ("a,b,-b", "a"),
    ],
)
def test_llmfit_plugins_selects(value, loaded, site, load):
    for name in "abc":
        site.add(f"llmfit-{name}", EXPORTER.format(name))
    registry = load(LLMFIT_PLUGINS=value)
    assert [p.value.name for p in registry.exporters()] == list(loaded)
    for record in registry.records():
        assert record.status == ("loaded" if record.name in loaded else "blocked")
        assert (f"llmfit_{record.name}" in sys.modules) == (record.name in loaded)
    assert registry.events == ()


def test_a_blocked_plugin_is_named_when_it_is_missed(site, load):
    site.add("llmfit-a", EXPORTER.format("a"))
    with pytest.raises(PluginError) as caught:
        load(LLMFIT_PLUGINS="-a").exporter("a")
    assert "LLMFIT_PLUGINS=-a" in caught.value.cause
    assert "LLMFIT_PLUGINS" in caught.value.remedy


def test_a_name_in_llmfit_plugins_that_is_not_installed_is_told(site, load):
    site.add("llmfit-alpha", EXPORTER.format("a"))
    (event,) = load(LLMFIT_PLUGINS="-alpa").events
    assert event.code == "unknown-plugin-name"
    assert "alpha" in event.message


@pytest.mark.parametrize(
    "text",
    ["[llmfit]\nno equals sign here\n", "[llmfit]\nx = \xff\xfe\n", "[llmfit]\n= x\n"],
    ids=["no =", "bytes", "no name"],
)
def test_damaged_entry_points_spare_the_rest(text, site, llmfit):
    site.add("llmfit-good", EXPORTER.format("good"))
    site.add("llmfit-bad", "", entries="")
    (site.folder / "llmfit_bad-1.0.dist-info" / "entry_points.txt").write_bytes(text.encode("latin-1"))
    done = llmfit("plugins", "list", "--json")
    assert done.returncode == 0, done.stderr
    listed = {p["distribution"]: p for p in json.loads(done.stdout)["plugins"]}
    assert listed["llmfit-good"]["status"] == "loaded"
    assert listed.get("llmfit-bad", {"status": "failed"})["status"] == "failed"


def test_a_damaged_distribution_of_somebody_else_is_no_concern(site, llmfit):
    site.add("llmfit-good", EXPORTER.format("good"))
    site.add("other", "", entries="[console_scripts]\nno equals sign\n")
    (site.folder / "empty-1.0.dist-info").mkdir()
    done = llmfit("plugins", "list", "--json")
    assert done.returncode == 0, done.stderr
    listed = {p["distribution"]: p["status"] for p in json.loads(done.stdout)["plugins"]}
    assert listed["llmfit-good"] == "loaded"
    assert "other" not in listed


def test_a_distribution_without_a_name(site, llmfit):
    site.add("llmfit-good", EXPORTER.format("good"))
    site.add("llmfit-bad", EXPORTER.format("bad"))
    (site.folder / "llmfit_bad-1.0.dist-info" / "METADATA").write_text("", encoding="utf-8")
    done = llmfit("plugins", "list", "--json")
    assert done.returncode == 0, done.stderr
    listed = {p["distribution"]: p for p in json.loads(done.stdout)["plugins"]}
    assert listed["llmfit-good"]["status"] == "loaded"
    assert listed["llmfit_bad-1.0.dist-info"]["status"] == "failed"
    assert "no name" in listed["llmfit_bad-1.0.dist-info"]["reason"]


def test_two_distributions_may_use_one_plugin_name(site, load):
    site.add("llmfit-one", EXPORTER.format("one"), entries={"same": "llmfit_one"})
    site.add("llmfit-two", EXPORTER.format("two"), entries={"same": "llmfit_two"})
    registry = load()
    assert [(r.name, r.distribution, r.status) for r in registry.records()] == [
        ("same", "llmfit-one", "loaded"),
        ("same", "llmfit-two", "loaded"),
    ]
    assert registry.exporter("one").plugin.distribution == "llmfit-one"
    assert registry.exporter("two").plugin.distribution == "llmfit-two"


def test_two_distributions_of_one_module_do_not_conflict(site, load):
    site.add("llmfit-new", EXPORTER.format("x"), module="llmfit_x")
    site.add("llmfit-old", EXPORTER.format("x"), module="llmfit_x")
    registry = load()
    assert [r.status for r in registry.records()] == ["loaded", "shadowed"]
    assert "same module" in registry.records()[1].reason
    assert registry.exporter("x").plugin.distribution == "llmfit-new"


def test_one_distribution_that_uses_a_name_twice(site, load):
    text = "[llmfit]\nx = llmfit_x\nx = llmfit_x2\nx = llmfit_x\n"
    site.add("llmfit-x", EXPORTER.format("x"), entries=text)
    (site.folder / "llmfit_x2.py").write_text("raise OSError\n", encoding="utf-8")
    registry = load()
    assert [r.status for r in registry.records()] == ["loaded", "shadowed"]
    assert "llmfit_x is the one used" in registry.records()[1].reason


def test_everything_installed_is_found_as_importlib_finds_it():
    from llmfit_core.plugin_discovery import installed

    found, broken = installed()
    ours = {(f.id.name, f.entry_point.value) for f in found}
    assert not broken
    assert ours == {(e.name, e.value) for e in importlib.metadata.entry_points(group="llmfit")}
