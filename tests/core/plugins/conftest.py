"""Real installed distributions, made in a temporary folder: a module, METADATA and entry_points.txt each."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

ROOT = Path(__file__).resolve().parents[3]

PREAMBLE = """
from llmfit_core import *
from llmfit_core import Architecture, Decoder, Exporter, Role, Runtime, Scheme, hookimpl

def architecture(name, *classes):
    return Architecture(name=name, hf_classes=classes, tensors={"embed": Role.EMBED}, config={})

def exporter(name):
    return Exporter(name=name, suffix="", schemes=(Scheme(name="f16", summary="half", bits=16.0),),
                    plan=print, fill=print, reopen=print)

def decoder(name):
    return Decoder(name=name, detects=print, decode=print)
"""


@dataclass
class Site:
    """A folder like site-packages."""

    folder: Path
    modules: list[str] = field(default_factory=list)

    def add(
        self,
        distribution: str,
        source: str,
        *,
        version: str = "1.0",
        requires: Sequence[str] = (),
        entries: Mapping[str, str] | str | None = None,
        module: str | None = None,
    ) -> str:
        """Install a distribution of one module; gives the module's name."""
        module = module or distribution.replace("-", "_").replace(".", "_")
        text = PREAMBLE + textwrap.dedent(source)
        (self.folder / f"{module}.py").write_text(text, encoding="utf-8")
        self.modules.append(module)
        if entries is None:
            entries = {distribution.removeprefix("llmfit-"): module}
        if not isinstance(entries, str):
            entries = "[llmfit]\n" + "".join(f"{k} = {v}\n" for k, v in entries.items())
        info = self.folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {distribution}", f"Version: {version}"]
        lines += [f"Requires-Dist: {r}" for r in requires]
        (info / "METADATA").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (info / "entry_points.txt").write_text(entries, encoding="utf-8")
        return module


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A site on `sys.path`, its modules forgotten afterwards; preferences in the temporary folder."""
    folder = tmp_path / "site"
    folder.mkdir()
    made = Site(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("LLMFIT_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.delenv("LLMFIT_PLUGINS", raising=False)
    monkeypatch.delenv("LLMFIT_TRACE", raising=False)
    importlib.invalidate_caches()
    yield made
    for module in made.modules:
        sys.modules.pop(module, None)


@pytest.fixture
def load(site: Site) -> Callable[..., object]:
    """Loads what is in the site, and only that."""
    from llmfit_core.plugin_discovery import of_distribution
    from llmfit_core.plugins import load_plugins

    def load(core: str | None = None, **variables: str) -> object:
        importlib.invalidate_caches()
        found = [f for d in importlib.metadata.distributions(path=[str(site.folder)]) for f in of_distribution(d)]
        return load_plugins({**os.environ, **variables}, found, core)

    return load


@pytest.fixture
def llmfit(site: Site) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the command line in a process of its own, with the site first on its path."""

    def llmfit(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        paths = [str(site.folder), str(ROOT), os.environ.get("PYTHONPATH", "")]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUTF8": "1", **variables}
        code = "from llmfit_core.cli import main; main()"
        command = [sys.executable, "-W", "error", "-c", code, *arguments]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)

    return llmfit
