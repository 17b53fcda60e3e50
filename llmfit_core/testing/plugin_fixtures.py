"""Fixtures of an installed plugin's architectures, one file a case: see `llmfit_core.testing.fixture`."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from llmfit_core.errors import OutputError, UnsupportedError
from llmfit_core.testing.architecture_tests import ArchitectureTests
from llmfit_core.testing.fixture import write_fixture
from llmfit_core.testing.outcome import CheckFailed, NotRun
from llmfit_core.testing.plugin_check import settings_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from llmfit_core.plugin_record import PluginRecord
    from llmfit_core.plugins import PluginRegistry
    from llmfit_core.testing.bench import Built


def write_fixtures(plugin: PluginRecord, registry: PluginRegistry, folder: Path) -> Iterator[Path]:
    """Write `folder/<architecture>/<case>.json` for each case of each sample; gives the paths.

    Raises:
        UnsupportedError: `no-sample`: nothing here makes the tiny models.
        OutputError: `not-writable`.
    """
    for built, place in _built(plugin, registry, folder):
        path = place.with_name(f"{place.name}.json")
        write_fixture(path, built.config, built.start, built.origin)
        yield path


def write_models(plugin: PluginRecord, registry: PluginRegistry, folder: Path) -> Iterator[Path]:
    """Write the tiny models themselves, `folder/<architecture>/<case>`, to look at them with `inspect` and `plan`.

    Raises:
        UnsupportedError: `no-sample`.
        OutputError: `not-writable`, `output-exists`.
    """
    for built, place in _built(plugin, registry, folder):
        if place.exists():
            raise OutputError("output-exists", f"{place} is already there", "Choose another folder.")
        shutil.copytree(built.folder, place)
        yield place


def _built(plugin: PluginRecord, registry: PluginRegistry, folder: Path) -> Iterator[tuple[Built, Path]]:
    """Each tiny model of a plugin, and where what is made of it goes."""
    for provided in registry.architectures():
        if provided.plugin != plugin.id:
            continue
        name = provided.value.name
        try:
            settings = settings_of(plugin, "architectures", name, provided.value)
            for label, values in settings.items():
                sample = {**values, "fixture": None}
                tests: type[ArchitectureTests] = type(
                    f"Test_{name}", (ArchitectureTests,), {"architecture": provided.value, "sample": sample}
                )
                place = folder / name if len(settings) == 1 else folder / name / label
                try:
                    for case in tests.cases():
                        built = tests.bench().built(case)
                        place.mkdir(parents=True, exist_ok=True)
                        yield built, place / case
                finally:
                    tests.teardown_class()
        except (CheckFailed, NotRun) as error:
            raise UnsupportedError("no-sample", f"{name}: {error}", "Give SAMPLES, and install torch and transformers.") from error
        except OSError as error:
            raise OutputError("not-writable", f"{folder}: {error.strerror}", "Choose another folder.") from error
