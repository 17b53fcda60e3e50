"""Sub-commands from plugins, and `llmfit plugins` itself."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from llmfit_core.errors import PluginError

EXPORTER = "@hookimpl\ndef llmfit_exporters(): yield exporter({!r})\n"
HELLO = """
import typer
@hookimpl
def llmfit_commands(app):
    @app.command("hello")
    def hello(name: str = "world"):
        typer.echo(f"{__name__} greets {name}")
"""


@pytest.fixture
def app():
    app = typer.Typer()

    @app.command("convert")
    def convert():
        typer.echo("the core converts")

    @app.command()
    def doctor_all():
        typer.echo("the core doctors")

    sub = typer.Typer()
    sub.command("list")(lambda: None)
    app.add_typer(sub, name="plugins")
    return app


def run(app, *arguments):
    return CliRunner().invoke(app, arguments)


def test_commands_and_groups_are_added(app, site, load):
    source = HELLO + "    group = typer.Typer()\n    group.command('one')(lambda: typer.echo('one'))\n"
    source += "    group.command('two')(lambda: typer.echo('two'))\n    app.add_typer(group, name='many')\n"
    site.add("llmfit-good", source)
    registry = load()
    assert registry.add_commands(app) == ()
    assert run(app, "hello", "--name", "you").output == "llmfit_good greets you\n"
    assert run(app, "many", "two").output == "two\n"
    assert run(app, "convert").output == "the core converts\n"
    assert registry.records()[0].provides["commands"] == ("hello", "many")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (HELLO + "    raise OSError('half-way')\n", "OSError: half-way"),
        (HELLO + "    raise SystemExit(1)\n", "sys.exit"),
        (HELLO + "    app.command('convert')(lambda: None)\n", "'convert', which llmfit has itself"),
        (HELLO + "    app.command()(hello2)\ndef doctor_all(): pass\nhello2 = doctor_all\n", "'doctor-all'"),
        (HELLO + "    app.add_typer(typer.Typer(), name='plugins')\n", "'plugins'"),
        (HELLO + "    app.callback()(lambda: None)\n", "callback"),
        (HELLO + "    app.command('odd')(lambda x: None)\n    1 / 0\n", "ZeroDivisionError"),
        (HELLO + "    def bad(x: 'nothing_known'): pass\n    app.command('odd')(bad)\n", "llmfit_commands"),
    ],
)
def test_a_plugin_that_fails_here_loses_everything(source, reason, app, site, load):
    site.add("llmfit-bad", source + EXPORTER.format("bad"))
    site.add("llmfit-good", HELLO.replace('"hello"', '"greet"'))
    registry = load()
    (event,) = registry.add_commands(app)
    assert event.code == "plugin-failed"
    assert reason in event.message
    bad, good = registry.records()
    assert bad.status == "failed"
    assert reason in bad.reason
    assert good.status == "loaded"
    assert registry.exporters() == ()
    assert run(app, "hello").exit_code != 0
    assert run(app, "convert").output == "the core converts\n"
    assert run(app, "greet").output == "llmfit_good greets world\n"


def test_two_plugins_claim_one_command(app, site, load):
    site.add("llmfit-a", HELLO)
    site.add("llmfit-b", HELLO)
    registry = load()
    assert registry.add_commands(app) == ()
    assert run(app, "convert").exit_code == 0
    result = run(app, "hello", "--name", "you", "--help")
    assert isinstance(result.exception, PluginError)
    assert "llmfit plugins prefer hello llmfit-a" in result.exception.remedy
    assert "In conflict" in run(app, "--help").output


def test_what_a_command_hook_prints_stays_out_of_results(app, site, load, capfd):
    site.add("llmfit-a", HELLO + "    print('noise')\n")
    load().add_commands(app)
    assert capfd.readouterr().out == ""


def test_the_list_knows_commands_and_what_failed_in_their_hook(site, llmfit):
    site.add("llmfit-good", HELLO)
    site.add("llmfit-bad", HELLO.replace('"hello"', '"early"') + "    raise OSError('no commands today')\n")
    site.add("llmfit-greedy", HELLO.replace('"hello"', '"convert"'))
    listed = {p["name"]: p for p in json.loads(llmfit("plugins", "list", "--json").stdout)["plugins"]}
    assert listed["good"]["provides"]["commands"] == ["hello"]
    assert listed["bad"]["status"] == "failed"
    assert "no commands today" in listed["bad"]["reason"]
    assert listed["greedy"]["status"] == "failed"
    assert "'convert'" in listed["greedy"]["reason"]
    done = llmfit("hello", "--name", "you")
    assert (done.returncode, done.stdout) == (0, "llmfit_good greets you\n")


def test_a_command_two_plugins_claim_is_chosen_by_preference(site, llmfit):
    site.add("llmfit-a", HELLO)
    site.add("llmfit-b", HELLO)
    assert llmfit("plugins", "list").stdout.count("command 'hello' is claimed by llmfit-a 1.0 and by llmfit-b 1.0") == 2
    done = llmfit("hello")
    assert done.returncode == 5
    assert "llmfit plugins prefer hello llmfit-a" in done.stderr
    assert llmfit("plugins", "prefer", "hello", "llmfit-b").returncode == 0
    done = llmfit("hello")
    assert (done.returncode, done.stdout) == (0, "llmfit_b greets world\n")


def test_prefer_writes_what_the_next_process_reads(site, llmfit):
    site.add("llmfit-one", EXPORTER.format("zz") + HELLO)
    site.add("llmfit-two", EXPORTER.format("zz") + HELLO, version="2.0")

    listed = llmfit("plugins", "list")
    assert "claimed by llmfit-one 1.0 and by llmfit-two 2.0" in listed.stdout
    done = llmfit("plugins", "prefer", "zz", "LLMFIT.two", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["preferences"] == {"zz": "llmfit-two"}
    after = {p["name"]: p for p in json.loads(llmfit("plugins", "list", "--json").stdout)["plugins"]}
    assert "preferences take zz from llmfit-two" in after["one"]["reason"]
    assert after["two"]["status"] == "loaded"
    done = llmfit("plugins", "prefer", "zz", "--forget")
    assert done.returncode == 0
    assert "claimed by" in llmfit("plugins", "list").stdout


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        (("prefer", "zz", "llmfit-three"), ["llmfit-one 1.0", "llmfit-three does not provide"]),
        (("prefer", "zz"), ["llmfit-one"]),
        (("prefer", "nothing-here", "llmfit-one"), ["nothing-here"]),
        (("info", "llmfit-onne"), ["llmfit-one"]),
    ],
)
def test_refusals_of_the_commands(arguments, texts, site, llmfit):
    site.add("llmfit-one", EXPORTER.format("zz"))
    done = llmfit("plugins", *arguments)
    assert done.returncode == 5
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    for text in texts:
        assert text in done.stderr
    assert not (site.folder.parent / "config" / "preferences.json").exists()


def test_info_tells_all(site, llmfit):
    site.add("llmfit-one", "import warnings\nwarnings.warn('old')\n" + EXPORTER.format("zz"))
    site.add("acme-two", "raise OSError('[red]' + 'long ' * 60)\n", entries={"one": "acme_two"})
    done = llmfit("plugins", "info", "one")
    assert done.returncode == 0, done.stderr
    for text in (
        "llmfit-one 1.0",
        "exporters: zz",
        "UserWarning: old",
        "llmfit_exporters",
        "acme-two 1.0",
        "[red]long",
    ):
        assert text in done.stdout
    (found,) = json.loads(llmfit("plugins", "info", "LLMFIT_one", "--json").stdout)["plugins"]
    assert found["entry_point"] == "llmfit_one"
    assert found["hooks"] == ["llmfit_exporters"]
    assert found["notes"] == ["UserWarning: old"]


def test_no_reason_is_cut_in_either_form(site, monkeypatch, capsys, load):
    from llmfit_core.cli import plugins_cmd

    site.add("llmfit-one", EXPORTER.format("zz"))
    site.add("llmfit-bad", "raise OSError('[bold]' + ' '.join(f'word{i}' for i in range(40)))\n")
    registry = load()
    (reason,) = [r.reason for r in registry.records() if r.reason]
    monkeypatch.setattr(plugins_cmd, "registry", lambda: registry)
    monkeypatch.setenv("COLUMNS", "40")
    plugins_cmd.list_plugins()
    assert reason in capsys.readouterr().out
    plugins_cmd._print_table(registry.records())
    assert reason in capsys.readouterr().out.replace("\n", " ")


def test_no_plugins_at_all(llmfit, tmp_path):
    done = llmfit("plugins", "list", "--json", LLMFIT_PLUGINS="none")
    assert all(p["status"] == "blocked" for p in json.loads(done.stdout)["plugins"])
