"""The commands as a user and a script meet them: JSON, exit codes, streams, recipe files, help."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from llmfit_core.cli.guarded import run
from tests.tiny import tiny

if TYPE_CHECKING:
    from collections.abc import Callable

MAIN = "from llmfit_core.cli import main; main()"
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny("llama", tmp_path_factory.mktemp("model"), hidden=256, heads=4, head=64, ffn=512)


@pytest.fixture
def call(config_dir: Path, capfd: Capture) -> Callable[..., tuple[int, str, str]]:
    """Runs a command in this process; its exit code and what it wrote."""

    def calling(*arguments: object) -> tuple[int, str, str]:
        code = run([str(a) for a in arguments])
        out, err = capfd.readouterr()
        return code, out, err

    return calling


def llmfit(*arguments: object, script: str = MAIN, **options: Any) -> subprocess.CompletedProcess[str]:
    options = {"capture_output": True, "text": True, "check": False, "timeout": 120} | options
    return subprocess.run([sys.executable, "-c", script, *map(str, arguments)], **options)


def one_object(text: str) -> dict[str, Any]:
    """The one JSON object that standard output holds."""
    value = json.loads(text)
    assert isinstance(value, dict)
    assert value["schema"] == 1
    return value


def test_json_of_every_command(model: Path, tmp_path: Path, call: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = call("plan", model, "--json")
    plan = one_object(out)["plan"]
    assert code == 0
    assert plan["format"] == "gguf"
    assert plan["scheme"] == "q4_k_m"
    assert plan["memory"]["weight_bytes"] == sum(t["bytes"] for t in plan["tensors"]) <= plan["bytes"]
    assert plan["files"][0]["name"] == "llama-Q4_K_M.gguf"
    code, out, err = call("convert", model, "-o", tmp_path / "m.gguf", "--json")
    artifact = one_object(out)["artifact"]
    assert code == 0
    assert artifact["paths"] == [str(tmp_path / "m.gguf")]
    assert artifact["manifest"] == json.loads((tmp_path / "llmfit.json").read_text())["artifacts"]["m.gguf"]
    assert artifact["manifest"]["files"]["m.gguf"]["bytes"] == plan["bytes"] == (tmp_path / "m.gguf").stat().st_size
    assert {n: t["type"] for n, t in artifact["manifest"]["tensors"].items()} == {t["name"]: t["type"] for t in plan["tensors"]}
    assert "plan:" in err
    for source, kind in ((model, "hf"), (tmp_path / "m.gguf", "gguf")):
        code, out, _ = call("inspect", source, "--json")
        found = one_object(out)["inspection"]
        assert code == 0
        assert (found["architecture"], found["format"], found["tokenizer"]["tokens"]) == ("llama", kind, 512)
    code, out, _ = call("run", tmp_path / "m.gguf", "hello", "-n", "4", "--json")
    assert code == 0
    assert set(one_object(out)["answer"]) >= {"text", "tokens", "prompt_tokens", "seconds"}
    code, out, _ = call("serve", tmp_path / "m.gguf", "--dry-run", "--port", "0", "--json")
    assert code == 0
    assert one_object(out)["launch"]["argv"]


@pytest.mark.parametrize(
    ("arguments", "code", "name"),
    [
        (["plan", "nowhere/at/all"], 3, "no-such-source"),
        (["plan", "{tmp}"], 3, "no-config"),
        (["inspect", "{tmp}/x.gguf"], 3, "missing-file"),
        (["plan", "{model}", "--to", "exl9:4"], 5, "unknown-exporter"),
        (["plan", "{model}", "--to", "gguf:q9"], 4, "unknown-scheme"),
        (["plan", "{model}", "--to", "q4_k_m"], 4, "unknown-exporter"),
        (["plan", "{model}", "--to", "gguf:"], 2, "bad-option"),
        (["plan", "{model}", "--to", ":q4_k_m"], 2, "bad-option"),
        (["plan", "{model}", "--to", ""], 2, "bad-option"),
        (["plan", "{model}", "--tensor-type", "q8_0"], 2, "bad-option"),
        (["plan", "{model}", "--set", "general.author"], 2, "bad-option"),
        (["plan", "{model}", "--split-max-size", "lots"], 2, "bad-option"),
        (["plan", "{model}", "--split-max-size", "0"], 2, "bad-option"),
        (["plan", "{model}", "--split-max-size", "-1G"], 2, "bad-option"),
        (["plan", "{model}", "--recipe", "{tmp}/none.toml"], 3, "bad-recipe"),
        (["plan", "{model}", "--no-such-option"], 2, "usage"),
        (["plan", "{model}", "--context-length", "many"], 2, "usage"),
        (["plan"], 2, "usage"),
        (["convert", "{model}"], 2, "usage"),
        (["convert", "{model}", "-o", ""], 2, "bad-option"),
        (["convert", "{model}", "-o", "{model}/config.json/x.gguf"], 6, "not-writable"),
        (["no-such-command"], 2, "usage"),
        (["plan", "{model}", "--to", "gguf:q4_k_m", "--set", "general.architecture=x"], 4, "structural-key"),
        (["run", "{tmp}/none.gguf", "hi"], 3, "no-such-artifact"),
        (["run", "{model}", "hi"], 3, "not-an-artifact"),
        (["run", "{tmp}", "hi"], 3, "which-artifact"),
        (["serve", "{tmp}/none.gguf"], 3, "no-such-artifact"),
        (["plugins", "info", "nobody"], 5, "unknown-plugin"),
    ],
)
def test_errors(
    model: Path, tmp_path: Path, call: Callable[..., tuple[int, str, str]], arguments: list[str], code: int, name: str
) -> None:
    given = [a.format(model=model, tmp=tmp_path) for a in arguments]
    got, out, err = call(*given)
    assert got == code, err
    assert out == ""
    lines = err.splitlines()
    assert len(lines) == 2, err
    assert re.fullmatch(rf"error: .+ \[{name}\]", lines[0])
    assert re.fullmatch(r"  fix: .+", lines[1])
    got, out, _ = call(*given, "--json")
    assert got == code
    error = one_object(out)["error"]
    assert set(error) == {"code", "cause", "remedy"}
    assert error["code"] == name


def test_debug_shows_the_traceback(model: Path) -> None:
    done = llmfit("plan", model, "--to", "gguf:q9", "--debug")
    assert "Traceback" in done.stderr
    assert done.returncode != 0


def test_no_arguments_and_help() -> None:
    done = llmfit()
    assert (done.returncode, done.stdout) == (2, "")
    assert "convert" in done.stderr
    done = llmfit("--help")
    assert done.returncode == 0
    assert all(c in done.stdout for c in ("inspect", "plan", "convert", "run", "serve", "plugins"))
    done = llmfit("convert", "--help")
    options = re.findall(r"^\s+(?:-\w, )?(--[\w-]+)", done.stdout, re.MULTILINE)
    assert {"--to", "--out", "--json", "--strict", "--tensor-type", "--recipe", "--set", "--overwrite"} <= set(options)
    for line in re.split(r"\n  (?=-)", done.stdout.split("Options:")[1])[1:]:
        assert len(line.split()) > 2, f"an option without help: {line}"


def test_text_for_people(tmp_path: Path, call: Callable[..., tuple[int, str, str]]) -> None:
    odd = tiny("llama", tmp_path / "odd", hidden=320, heads=5, kv=5, head=64, ffn=640)
    code, out, err = call("plan", odd, "--to", "gguf:q4_k_m")
    assert (code, err) == (0, "")
    assert "q5_0" in out
    assert "llama-Q4_K_M-mostly-Q5_0.gguf" in out
    assert "6.11 bits per weight" in out
    assert "to convert" in out
    assert re.search(r"fallback .*rows of 320 cannot hold q4_k.*\(and 15 more\)", out)
    assert max(len(line) for line in out.splitlines()) < 160
    code, out, err = call("convert", odd, "--to", "gguf:q4_k_m", "-o", tmp_path / "o")
    assert (code, out) == (0, f"{tmp_path / 'o' / 'llama-Q4_K_M-mostly-Q5_0.gguf'}\n")
    assert "true bits per weight: 6.11" in err
    assert "token ids equal" in err
    code, _, err = call("plan", odd, "--to", "gguf:q4_k_m", "--strict")
    assert code == 8
    assert "[strict]" in err


RECIPE = """
to = "gguf:q4_0"
name = "From File"
context_length = 64
rope_freq_base = 20000
split_max_size = "200K"
tensor_types = {"attn_q" = "f16", "attn_.*" = "q8_0"}
metadata = {"general.author" = "Ada", "tokenizer.ggml.add_bos_token" = false, "tokenizer.ggml.eos_token_id" = 7}
"""


def test_a_recipe_file(model: Path, tmp_path: Path, call: Callable[..., tuple[int, str, str]]) -> None:
    file = tmp_path / "recipe.toml"
    file.write_text(RECIPE)
    _, out, _ = call("convert", model, "--recipe", file, "-o", tmp_path / "o", "--no-verify", "--json")
    manifest = one_object(out)["artifact"]["manifest"]
    assert manifest["scheme"] == "q4_0"
    assert len(manifest["files"]) > 1
    types = {n: t["type"] for n, t in manifest["tensors"].items()}
    assert (types["blk.0.attn_q.weight"], types["blk.0.attn_k.weight"]) == ("f16", "q8_0")
    assert manifest["recipe"]["metadata"] == [
        ["general.author", "Ada"], ["tokenizer.ggml.add_bos_token", "false"], ["tokenizer.ggml.eos_token_id", "7"],
    ]  # fmt: skip
    _, out, _ = call(
        "plan", model, "--recipe", file, "--to", "gguf:q8_0", "--context-length", 32, "--tensor-type", "attn_v=f32", "--json"
    )
    plan = one_object(out)["plan"]
    types = {t["name"]: t["type"] for t in plan["tensors"]}
    assert plan["scheme"] == "q8_0"
    assert plan["hparams"]["context_length"] == 32
    assert plan["hparams"]["rope.freq_base"] == 20000
    assert (types["blk.0.attn_q.weight"], types["blk.0.attn_v.weight"]) == ("q8_0", "f32")


@pytest.mark.parametrize(
    "text",
    [
        "to = ", "scheme = 'q4_0'", "context_length = '64'", "context_length = true", "context_length = 1.5", "strict = 1",
        "tensor_types = ['attn_q=f16']", "tensor_types = {attn_q = 4}", "metadata = {a = [1]}", "name = 3", "to = 'gguf:'",
        "split_max_size = 'huge'", "split_max_size = -1", "rope_freq_base = nan", "[to]\nx = 1", "\x00", "\ufeffto = 'x'",
    ],
)  # fmt: skip
def test_bad_recipe_files(model: Path, tmp_path: Path, call: Callable[..., tuple[int, str, str]], text: str) -> None:
    file = tmp_path / "recipe.toml"
    file.write_text(text, encoding="utf-8")
    code, out, err = call("plan", model, "--recipe", file)
    assert code in (2, 3, 4), err
    assert out == ""
    assert len(err.splitlines()) == 2, err


def test_recipe_files_of_other_kinds(model: Path, tmp_path: Path, call: Callable[..., tuple[int, str, str]]) -> None:
    (tmp_path / "latin.toml").write_bytes(b"name = 'gr\xfc\xdfe'")
    for file in (tmp_path / "latin.toml", tmp_path, Path("/dev/zero")):
        code, _, err = call("plan", model, "--recipe", file)
        assert code == 3, err
        assert "[bad-recipe]" in err


def test_nobody_reads(model: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; '{sys.executable}' -c '{MAIN}' plan '{model}' | true; echo ${{PIPESTATUS[0]}}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout.strip() in ("0", "141")
    done = subprocess.run(
        ["bash", "-c", f"'{sys.executable}' -c '{MAIN}' convert '{model}' -o '{tmp_path / 'm.gguf'}' 2>&1 >/dev/null | true;"
         " echo ${PIPESTATUS[0]}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.strip() == ("0" if (tmp_path / "m.gguf").exists() else "141")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams(model: Path, tmp_path: Path, closed: str) -> None:
    """Where standard output is closed, the next file opened would become it: prints must not end up in the model."""
    out = tmp_path / "m.gguf"
    line = f"'{sys.executable}' -c '{MAIN}' convert '{model}' -o '{out}' --to gguf:f16 {closed}"
    assert subprocess.run(["bash", "-c", line], check=False, stderr=subprocess.PIPE).returncode == 0
    manifest = json.loads((tmp_path / "llmfit.json").read_text())["artifacts"]["m.gguf"]
    import hashlib

    assert manifest["files"]["m.gguf"]["sha256"] == hashlib.sha256(out.read_bytes()).hexdigest()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_standard_output(model: Path) -> None:
    with open("/dev/full", "w") as full:
        done = llmfit("plan", model, capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 6
    assert "[write-failed]" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
@pytest.mark.parametrize("extra", [[], ["--json"]])
def test_narrow_encodings(tmp_path: Path, encoding: str, extra: list[str]) -> None:
    source = tiny("llama", tmp_path / "größe 模型")
    environment = os.environ | {"PYTHONIOENCODING": encoding, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = llmfit("plan", source, "--name", "模型", *extra, env=environment | {"LC_ALL": "C.UTF-8"}, text=False)
    assert done.returncode == 0, done.stderr
    if extra:
        assert one_object(done.stdout.decode("ascii"))["plan"]["source"] == str(source)  # type: ignore[attr-defined]


def test_names_that_are_no_unicode(tmp_path: Path) -> None:
    """File names are bytes; JSON and text carry them without falling over."""
    source = tiny("llama", tmp_path / "model")
    odd = os.fsencode(tmp_path) + b"/odd \xff name"
    os.rename(source, odd)
    for extra in ((), ("--json",)):
        done = subprocess.run([sys.executable, "-c", MAIN, "plan", os.fsdecode(odd), *extra], capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
    out = os.fsencode(tmp_path) + b"/out \xfe.gguf"
    command = [sys.executable, "-c", MAIN, "convert", os.fsdecode(odd), "-o", os.fsdecode(out), "--to", "gguf:q8_0"]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == out + b"\n"


NOISY = """
import os, sys
import llmfit_core.pipeline as pipeline
plan = pipeline.plan_conversion
def noisy(*args, **options):
    print("a plugin prints")
    os.write(1, b"an engine writes\\n")
    os.system("echo a child echoes")
    return plan(*args, **options)
pipeline.plan_conversion = noisy
from llmfit_core.cli import main
main()
"""


def test_a_plugin_that_prints(model: Path) -> None:
    done = llmfit("plan", model, "--json", script=NOISY)
    assert done.returncode == 0
    assert one_object(done.stdout)["plan"]["scheme"] == "q4_k_m"
    assert all(x in done.stderr for x in ("a plugin prints", "an engine writes", "a child echoes"))


def test_no_colour_where_none_is_wanted(model: Path) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        done = llmfit("plan", model, env=os.environ | {name: "1"})
        assert "\x1b" not in done.stdout + done.stderr


def test_a_fault_of_ours_is_told_as_one(
    model: Path, call: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    import llmfit_core.pipeline as pipeline

    def fails(*_: object, **__: object) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(pipeline, "plan_conversion", fails)
    code, out, err = call("plan", model, "--json")
    assert code == 70
    assert one_object(out)["error"]["code"] == "internal"
    assert "Traceback" not in err


def test_split_sizes_and_names_from_the_command(model: Path, tmp_path: Path, call: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = call("convert", model, "--to", "gguf:f16", "-o", tmp_path / "x.gguf", "--split-max-size", "1m")
    assert code == 0
    assert [Path(p).name for p in out.split()] == [f"x-{i:05d}-of-00003.gguf" for i in (1, 2, 3)]
    code, out, _ = call("convert", model, "--to", "HF:F32", "-o", tmp_path / "x", "--split-max-size", "2MB")
    assert code == 0
    assert "model-00001-of-00004.safetensors" in out


@pytest.mark.parametrize(("name", "kept"), [("convert", True), ("run", False), ("serve", False), ("inspect", False)])
def test_only_an_interrupted_conversion_speaks_of_what_is_kept(
    call: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch, name: str, kept: bool
) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("llmfit_core.cli.app.build", interrupt)
    code, _, err = call(name, "x")
    assert code == 130
    assert ("is kept" in err) is kept
