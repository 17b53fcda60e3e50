"""Plugins that misbehave, each a real distribution: shown as such, and the rest works."""

from __future__ import annotations

import json
import sys

import pytest

from tests.tiny import tiny

GOOD = """
@hookimpl
def llmfit_architectures():
    yield architecture("good", "GoodForCausalLM")

@hookimpl
def llmfit_exporters():
    return [exporter("good")]
"""

BROKEN = {
    "does not import": (
        "import a_module_that_is_not_there\n",
        ["ModuleNotFoundError", "a_module_that_is_not_there", "llmfit_bad.py"],
    ),
    "has a syntax error": ("def broken(:\n", ["SyntaxError"]),
    "exits at import": ("import sys\nsys.exit(3)\n", ["sys.exit", "3"]),
    "raises BaseException at import": ("class Odd(BaseException): pass\nraise Odd('odd')\n", ["Odd", "odd"]),
    "raises an error without text": (
        "class Mute(Exception):\n def __str__(self): raise ValueError\nraise Mute\n",
        ["Mute"],
    ),
    "raises the user's interrupt": ("raise KeyboardInterrupt\n", ["KeyboardInterrupt"]),
    "never ends at import": ("while True: pass\n", ["takes more than", "to load"]),
    "never yields": ("@hookimpl\ndef llmfit_exporters():\n  while True: pass\n  yield\n", ["takes more than", "to load"]),
    "exhausts the stack": ("def f(): return f()\nf()\n", ["RecursionError"]),
    "raises in a hook": (
        "@hookimpl\ndef llmfit_runtimes(): raise OSError('no disk')\n",
        ["llmfit_runtimes", "OSError", "no disk"],
    ),
    "exits in a hook": ("@hookimpl\ndef llmfit_runtimes(): raise SystemExit('bye')\n", ["llmfit_runtimes", "bye"]),
    "raises midway": (
        "@hookimpl\ndef llmfit_exporters():\n  yield exporter('half')\n  1 / 0\n",
        ["llmfit_exporters", "ZeroDivisionError"],
    ),
    "fails after a good hook": (
        "@hookimpl\ndef llmfit_architectures(): yield architecture('half', 'Half')\n"
        "@hookimpl\ndef llmfit_runtimes(): return 1 / 0\n",
        ["llmfit_runtimes", "ZeroDivisionError"],
    ),
    "misspells a hook": (
        "@hookimpl\ndef llmfit_architecture(): return []\n",
        ["llmfit_architecture is no hook", "llmfit_architectures"],
    ),
    "names a hook nothing like one": ("@hookimpl\ndef xyzzy(): return []\n", ["xyzzy is no hook", "llmfit_exporters"]),
    "misspells a hook by specname": (
        "@hookimpl(specname='llmfit_exporter')\ndef mine(): return []\n",
        ["llmfit_exporters"],
    ),
    "forgets the decorator": ("def llmfit_exporters(): return []\n", ["llmfit_exporters is not marked"]),
    "forgets the decorator and misspells": ("def llmfit_exporter(): return []\n", ["no hook", "llmfit_exporters"]),
    "implements nothing": ("x = 1\n", ["implements no hook"]),
    "wants an argument": ("@hookimpl\ndef llmfit_exporters(config): return []\n", ["llmfit_exporters()", "config"]),
    "misnames an argument": (
        "@hookimpl\ndef llmfit_artifact_written(file, plan): return None\n",
        ["llmfit_artifact_written(artifact, plan)", "file"],
    ),
    "wraps a hook": ("@hookimpl(wrapper=True)\ndef llmfit_exporters():\n  return (yield)\n", ["wrapper"]),
    "returns nothing": ("@hookimpl\ndef llmfit_exporters(): pass\n", ["returned None", "iterable"]),
    "returns one value": ("@hookimpl\ndef llmfit_exporters(): return exporter('x')\n", ["an Exporter", "iterable"]),
    "returns text": ("@hookimpl\ndef llmfit_exporters(): return 'gguf'\n", ["a str"]),
    "returns a mapping": ("@hookimpl\ndef llmfit_exporters(): return {'x': exporter('x')}\n", ["a dict"]),
    "is a coroutine": ("@hookimpl\nasync def llmfit_exporters(): return []\n", ["a coroutine"]),
    "yields another type": (
        "@hookimpl\ndef llmfit_exporters(): yield architecture('x', 'X')\n",
        ["an Architecture", "Exporter"],
    ),
    "yields without end": (
        "@hookimpl\ndef llmfit_exporters():\n  while True: yield exporter('x')\n",
        ["more than 1000", "no end"],
    ),
    "declares a name twice": (
        "@hookimpl\ndef llmfit_exporters(): return [exporter('x'), exporter('x')]\n",
        ["'x' twice"],
    ),
    "declares a class twice": (
        "@hookimpl\ndef llmfit_architectures(): return [architecture('x', 'C'), architecture('y', 'C')]\n",
        ["'C' twice"],
    ),
    "has an empty name": ("@hookimpl\ndef llmfit_exporters(): yield exporter('')\n", ["name ''"]),
    "has a name with a colon": ("@hookimpl\ndef llmfit_exporters(): yield exporter('a:b')\n", ["'a:b'", "lower-case"]),
    "has a name that is no text": ("@hookimpl\ndef llmfit_exporters(): yield exporter(None)\n", ["None"]),
    "gives classes as text": (
        "@hookimpl\ndef llmfit_architectures():\n"
        "  yield Architecture(name='x', hf_classes=('XForCausalLM'), tensors={'a': 'b'}, config={})\n",
        ["hf_classes", "tuple[str, ...]", "XForCausalLM"],
    ),
    "gives no classes": (
        "@hookimpl\ndef llmfit_architectures(): yield Architecture(name='x', hf_classes=(), tensors={'a': 'b'}, config={})\n",
        ["hf_classes is empty"],
    ),
    "gives a role that is none": (
        "@hookimpl\ndef llmfit_architectures():\n"
        "  yield Architecture(name='x', hf_classes=('X',), tensors={'a': 3}, config={})\n",
        ["tensors"],
    ),
    "errs deep inside": (
        "@hookimpl\ndef llmfit_architectures():\n"
        "  yield Architecture(name='x', hf_classes=('X',), tensors={'a': Fused('attn_q')}, config={})\n",
        ["Fused", "roles"],
    ),
    "gives no callable": (
        "@hookimpl\ndef llmfit_decoders(): yield Decoder(name='x', detects=True, decode=print)\n",
        ["detects", "Callable"],
    ),
    "leaves a field out": ("@hookimpl\ndef llmfit_decoders(): yield Decoder(name='x')\n", ["TypeError", "detects"]),
    "gives a broken pattern": (
        "@hookimpl\ndef llmfit_diagnoses(): yield Diagnosis(name='x', pattern='(', cause='c', remedy='r')\n",
        ["pattern", "regular expression"],
    ),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_fails_alone(fault, site, load, capfd, monkeypatch):
    monkeypatch.setattr("llmfit_core.plugin_loading.SECONDS", 3.0)
    source, reasons = BROKEN[fault]
    site.add("llmfit-bad", source, version="2.1")
    site.add("llmfit-good", GOOD)
    registry = load()
    bad, good = registry.records()
    assert (bad.name, bad.distribution, bad.version, bad.status) == ("bad", "llmfit-bad", "2.1", "failed")
    for part in reasons:
        assert part in bad.reason
    assert "\n" not in bad.reason
    assert not any(bad.provides.values())
    assert (good.status, good.reason) == ("loaded", "")
    assert [p.value.name for p in registry.architectures()] == ["good"]
    assert registry.exporter("good").plugin.distribution == "llmfit-good"
    assert capfd.readouterr().out == ""


def test_keyboard_interrupt_is_the_users(site, load):
    site.add("llmfit-slow", "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(5)\n")
    with pytest.raises(KeyboardInterrupt):
        load()


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("llmfit_bad:Plugin", "has to name a module or an object"),
        ("llmfit_bad:nothing", "nothing"),
        ("llmfit_bad:none", "None"),
        ("not a module name!", "does not import"),
        ("", "does not import"),
    ],
)
def test_entry_points_that_name_nothing_useful(entry, reason, site, load):
    source = "none = None\nclass Plugin:\n  @hookimpl\n  def llmfit_exporters(self): return []\n"
    site.add("llmfit-bad", source, entries={"bad": entry})
    (record,) = load().records()
    assert record.status == "failed"
    assert reason in record.reason


def test_an_object_may_be_a_plugin(site, load):
    source = "class Plugin:\n  @hookimpl\n  def llmfit_exporters(self): return [exporter('obj')]\nplugin = Plugin()\n"
    site.add("llmfit-object", source, entries={"object": "llmfit_object:plugin"})
    assert load().exporter("obj").plugin.name == "object"


def test_one_hook_may_have_several_implementations(site, load):
    source = """
    @hookimpl(specname="llmfit_exporters")
    def first(): yield exporter("first")
    @hookimpl(specname="llmfit_exporters")
    def second(): yield exporter("second")
    @hookimpl(optionalhook=True)
    def llmfit_of_a_later_core(): pass
    """
    site.add("llmfit-two", source)
    (record,) = load().records()
    assert record.status == "loaded"
    assert sorted(record.provides["exporters"]) == ["first", "second"]


def test_a_helper_that_looks_like_a_hook_is_noted(site, load):
    site.add("llmfit-good", GOOD + "\ndef llmfit_runtime(): return []\n")
    (record,) = load().records()
    assert record.status == "loaded"
    assert any("llmfit_runtime looks like llmfit_runtimes" in note for note in record.notes)


def test_warnings_are_notes_even_where_they_are_errors(site, load):
    site.add("llmfit-good", "import warnings\nwarnings.warn('old thing', DeprecationWarning)\n" + GOOD)
    (record,) = load().records()
    assert record.status == "loaded"
    assert record.notes == ("DeprecationWarning: old thing",)


def test_what_plugins_print_stays_out_of_results(site, llmfit):
    noise = """
    import os, subprocess, sys
    print("printed")
    os.write(1, b"written\\n")
    subprocess.run([sys.executable, "-c", "print('from a child')"])
    sys.stdout.write("buffered")
    sys.__stdout__.write("behind")
    """
    site.add("llmfit-loud", noise + GOOD.replace("\n", "\n    ") + '\n    print("at the end")\n')
    done = llmfit("plugins", "list", "--json")
    assert done.returncode == 0, done.stderr
    listed = {p["name"]: p for p in json.loads(done.stdout)["plugins"]}
    assert listed["loud"]["status"] == "loaded"
    for text in ("printed", "written", "from a child", "buffered", "behind", "at the end"):
        assert text in done.stderr


def test_all_of_them_at_once_on_the_command_line(site, llmfit):
    cases = list(BROKEN.items())
    for i, (_, (source, _)) in enumerate(cases):
        site.add(f"llmfit-zoo{i:02}", source, requires=["llmfit-core>=0.1"])
    site.add("llmfit-newer", GOOD, requires=["llmfit-core>=999"])
    site.add("llmfit-good", GOOD)
    done = llmfit("plugins", "list", "--json")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    content = json.loads(done.stdout)
    assert content["schema"] == 1
    listed = {p["name"]: p for p in content["plugins"]}
    for i, (fault, (_, reasons)) in enumerate(cases):
        found = listed[f"zoo{i:02}"]
        assert found["status"] == "failed", fault
        for part in reasons:
            assert part.replace("llmfit_bad", f"llmfit_zoo{i:02}") in found["reason"], fault
    assert listed["newer"]["status"] == "incompatible"
    assert listed["good"] == {
        "name": "good",
        "distribution": "llmfit-good",
        "version": "1.0",
        "status": "loaded",
        "reason": "",
        "provides": {
            "architectures": ["good"],
            "tokenizers": [],
            "decoders": [],
            "transforms": [],
            "exporters": ["good"],
            "runtimes": [],
            "packagers": [],
            "diagnoses": [],
            "commands": [],
        },
    }
    plain = llmfit("plugins", "list")
    assert plain.returncode == 0
    for p in content["plugins"]:
        line = next(x for x in plain.stdout.splitlines() if x.split("\t")[0] == p["name"])
        assert p["reason"] in line


def test_a_generator_that_will_not_stop(site, llmfit):
    source = """
    @hookimpl
    def llmfit_exporters():
        while True:
            try:
                yield exporter("x")
            except BaseException:
                pass
    """
    site.add("llmfit-bad", source)
    site.add("llmfit-good", GOOD)
    done = llmfit("plugins", "list", "--json")
    assert done.returncode == 0, done.stderr
    listed = {p["name"]: p["status"] for p in json.loads(done.stdout)["plugins"]}
    assert (listed["bad"], listed["good"]) == ("failed", "loaded")


def test_trace_tells_each_call_and_shows_tracebacks(site, load, capsys):
    site.add("llmfit-good", GOOD)
    site.add("llmfit-bad", BROKEN["raises midway"][0])
    load(LLMFIT_TRACE="1")
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert captured.out == ""
    assert any("llmfit_architectures" in x and "good" in x and "ms" in x and "1 results" in x for x in lines)
    assert any("llmfit_exporters" in x and "bad" in x and "raised" in x for x in lines)
    assert "ZeroDivisionError" in captured.err
    load(LLMFIT_TRACE="0")
    assert capsys.readouterr().err == ""


def test_a_failed_plugin_can_be_loaded_beside_its_own_leftovers(site, load):
    site.add("llmfit-bad", "import llmfit_bad_part\nraise OSError('later')\n")
    (site.folder / "llmfit_bad_part.py").write_text("x = 1\n", encoding="utf-8")
    assert load().records()[0].status == "failed"
    assert "llmfit_bad" not in sys.modules
    sys.modules.pop("llmfit_bad_part", None)


def test_a_table_that_raises_is_its_plugins_fault(site, llmfit, tmp_path):
    site.add(
        "llmfit-raising",
        """
        from dataclasses import replace
        from llmfit_llama import LLAMA

        def derived(hparams):
            return {"x": 1 // 0}

        @hookimpl
        def llmfit_architectures():
            return [replace(LLAMA, name="raising", hf_classes=("RaisingForCausalLM",), model_types=(), hparams=derived)]
        """,
        requires=["llmfit-core>=0.1"],
    )
    done = llmfit("plan", str(tiny("llama", tmp_path / "m", config={"architectures": ["RaisingForCausalLM"]})), "--to", "gguf:f32")
    assert done.returncode == 5, done.stderr
    assert "llmfit-raising: ZeroDivisionError" in done.stderr
    assert "llmfit_raising.py, line" in done.stderr
    assert "[plugin-fault]" in done.stderr
