"""A command that needed a broken plugin says so; one that did not never notices."""

from __future__ import annotations

import pytest

from llmfit_core.errors import PluginError

EXPORTER = "@hookimpl\ndef llmfit_exporters(): yield exporter({!r})\n"


def test_the_failed_plugin_that_would_have_provided_it_is_named(site, load):
    site.add("llmfit-shapes", "raise OSError('no luck')\n")
    site.add("llmfit-other", EXPORTER.format("other"))
    registry = load()
    with pytest.raises(PluginError) as caught:
        registry.exporter("shapes")
    assert caught.value.code == "unknown-exporter"
    for text in ("'shapes'", "llmfit-shapes 1.0", "failed to load", "OSError: no luck"):
        assert text in caught.value.cause
    assert "llmfit-shapes" in caught.value.remedy
    assert registry.exporter("other").value.name == "other"


def test_unrelated_failures_are_mentioned_in_passing(site, load):
    site.add("llmfit-zzz", "raise OSError('no luck')\n")
    site.add("llmfit-shapes", EXPORTER.format("shapes"))
    with pytest.raises(PluginError) as caught:
        load().exporter("shpaes")
    assert "zzz" in caught.value.cause
    assert "no luck" not in caught.value.cause
    assert "Did you mean shapes?" in caught.value.remedy


def test_our_distribution_is_named_when_it_is_not_installed(load):
    with pytest.raises(PluginError) as caught:
        load().exporter("gguf")
    assert "llmfit-gguf" in caught.value.remedy
    with pytest.raises(PluginError) as caught:
        load().architecture("qwen2")
    assert "llmfit-qwen2" in caught.value.remedy


def test_what_there_is_when_nothing_is_alike(site, load):
    site.add("llmfit-shapes", EXPORTER.format("shapes"))
    with pytest.raises(PluginError) as caught:
        load().exporter("qqqq")
    assert caught.value.remedy == "There are: shapes."
    with pytest.raises(PluginError) as caught:
        load().runtime("qqqq")
    assert "Install a plugin" in caught.value.remedy


@pytest.mark.parametrize("kind", ["architecture", "exporter", "decoder", "runtime", "packager"])
def test_every_lookup_by_name_refuses_the_unknown(kind, load):
    with pytest.raises(PluginError) as caught:
        getattr(load(), kind)("nothing-like-this")
    assert caught.value.code == f"unknown-{kind}"
    assert caught.value.exit_code == 5


def test_every_listing_is_empty_without_plugins(load):
    registry = load()
    for listing in (
        "architectures",
        "tokenizers",
        "decoders",
        "exporters",
        "runtimes",
        "packagers",
        "diagnoses",
        "records",
    ):
        assert getattr(registry, listing)() == ()


def test_observers_see_the_artifact_and_their_errors_are_events(site, load, capfd):
    source = """
    seen = []
    @hookimpl
    def llmfit_artifact_written(plan, artifact):
        print("noise")
        seen.append((artifact, plan))
    """
    site.add("llmfit-good", source)
    site.add("llmfit-plan-only", "seen = []\n@hookimpl\ndef llmfit_artifact_written(plan): seen.append(plan)\n")
    site.add("llmfit-bad", "@hookimpl\ndef llmfit_artifact_written(artifact): raise SystemExit(7)\n")
    registry = load()
    events = registry.notify_written("the artifact", "the plan")
    assert [(e.code, e.severity, e.subject) for e in events] == [("observer-failed", "info", "bad")]
    assert "llmfit-bad 1.0" in events[0].message
    assert "7" in events[0].message
    import llmfit_good
    import llmfit_plan_only

    assert llmfit_good.seen == [("the artifact", "the plan")]
    assert llmfit_plan_only.seen == ["the plan"]
    assert capfd.readouterr().out == ""
