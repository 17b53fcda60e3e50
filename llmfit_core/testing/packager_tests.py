"""`PackagerTests`: what a packager promises, on a tiny artifact and in folders of the kit's own."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path
from typing import ClassVar

from llmfit_core.declarations import Packaged, Packager
from llmfit_core.errors import LlmfitError, OutputError
from llmfit_core.runtime import Probe
from llmfit_core.testing import parity
from llmfit_core.testing.declared import Declared
from llmfit_core.testing.outcome import CheckFailed, NotRun, few, require


class PackagerTests(Declared, kit=True):
    """Inherit, set `packager`, and name the class `Test...`.

    Attributes:
        packager: The declaration.
    """

    settings: ClassVar[frozenset[str]] = frozenset({"packager"})
    plural: ClassVar[str] = "packagers"
    setting: ClassVar[str] = "packager"

    packager: ClassVar[Packager]

    def test_probing_never_raises(self) -> None:
        """It says that the host is here, or why not."""
        try:
            found = self.packager.probe()
        except Exception as error:
            raise CheckFailed(f"probe raises {type(error).__name__}: {error}") from error
        require(isinstance(found, Probe), f"probe gives {type(found).__name__}")
        require(found.available or found.reason, "the host is not here, and no reason is given")

    def test_it_writes_inside_of_the_folder(self) -> None:
        """Every file it wrote is told and lies in the folder; the artifact and what is beside it stay as they were."""
        with tempfile.TemporaryDirectory() as place:
            artifact, out = self._artifact(Path(place)), Path(place, "out")
            out.mkdir()
            before = _state(artifact.parent)
            done = self._package(artifact, out)
            require(isinstance(done, Packaged), f"package gives {type(done).__name__}")
            require(_state(artifact.parent) == before, "the artifact's own folder was changed")
            there = {p.resolve() for p in out.rglob("*") if p.is_file()}
            told = {Path(p).resolve() for p in done.paths}
            require(told, "it wrote nothing")
            require(told <= there, f"written elsewhere or not at all: {few(sorted(told - there))}")
            require(there <= told, f"written and not told: {few(sorted(there - told))}")
            strangers = [p for p in Path(place).iterdir() if p not in (out, artifact.parent)]
            require(not strangers, f"written outside of the folder: {few(strangers)}")
            require(done.steps, "it does not say what the user does next")

    def test_it_overwrites_nothing(self) -> None:
        """A file of somebody else's under a name that it would take is an OutputError, and stays as it is."""
        with tempfile.TemporaryDirectory() as place:
            artifact, out = self._artifact(Path(place)), Path(place, "out")
            out.mkdir()
            names = [Path(p).relative_to(out) for p in self._package(artifact, out).paths]
            shutil.rmtree(out)
            for name in names:
                (out / name).parent.mkdir(parents=True, exist_ok=True)
                (out / name).write_text("somebody else's", encoding="utf-8")
            before = _state(out)
            try:
                self.packager.package(artifact, out)
            except OutputError:
                require(_state(out) == before, "it refused, and changed files all the same")
                return
            except LlmfitError as error:
                raise CheckFailed(f"an occupied name is {type(error).__name__} [{error.code}], no OutputError") from error
            raise CheckFailed("it wrote over files that it did not write")

    def test_twice_is_as_good_as_once(self) -> None:
        """Done again it refuses, or leaves just the same; in another folder it writes the same."""
        with tempfile.TemporaryDirectory() as place:
            artifact, out, other = self._artifact(Path(place)), Path(place, "out"), Path(place, "other")
            out.mkdir()
            other.mkdir()
            self._package(artifact, out)
            before = _state(out)
            try:
                self.packager.package(artifact, out)
            except OutputError:
                pass
            require(_state(out) == before, "done again, it leaves something else")
            self._package(artifact, other)
            require(set(_state(other)) == set(before), "in another folder it writes other files")

    def test_a_missing_artifact_is_refused(self) -> None:
        """An artifact that is not there is an error with a code, and nothing is written."""
        with tempfile.TemporaryDirectory() as place:
            out = Path(place, "out")
            out.mkdir()
            try:
                self.packager.package(Path(place, "nowhere.gguf"), out)
            except LlmfitError:
                require(not any(out.iterdir()), "it refused, and wrote all the same")
                return
            except Exception as error:
                raise CheckFailed(f"a missing artifact ends as {type(error).__name__}: {error}") from error
            raise CheckFailed("an artifact that is not there was packaged")

    def _package(self, artifact: Path, out: Path) -> Packaged:
        try:
            return self.packager.package(artifact, out)
        except LlmfitError as error:
            raise CheckFailed(f"{error.cause} [{error.code}]") from error

    def _artifact(self, place: Path) -> Path:
        for provided in self.bench().registry.exporters():
            exporter = provided.value
            if exporter.name in self.packager.formats:
                scheme = parity.exact_scheme(exporter) or exporter.schemes[0].name
                path, _ = self.bench().artifact("base", exporter, scheme)
                folder = place / "artifact"
                shutil.copytree(path if path.is_dir() else path.parent, folder)
                return folder if path.is_dir() else folder / path.name
        raise NotRun(f"no exporter for {few(self.packager.formats)} is installed")


def _state(folder: Path) -> dict[str, str]:
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {p.relative_to(folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}
