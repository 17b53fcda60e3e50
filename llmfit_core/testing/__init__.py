"""The conformance kit: what a plugin promises, as tests that its author inherits. PYTEST_DONT_REWRITE.

    from llmfit_core.testing import ArchitectureTests

    class TestAcme(ArchitectureTests):
        architecture = ACME
        config = {"architectures": ["AcmeForCausalLM"], "model_type": "acme", "hidden_size": 64}

The classes need no pytest plugin and pytest is not imported here. `pytest_plugins = ["llmfit_core.testing"]` in the
outermost conftest.py (or `pytest -p llmfit_core.testing`) adds the option `--llmfit-record` and, at the end of a run, the
parity figures and every declared override. `llmfit plugins check NAME` runs the same classes without pytest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmfit_core.testing.architecture_tests import ArchitectureTests
    from llmfit_core.testing.decoder_tests import DecoderTests
    from llmfit_core.testing.exporter_tests import ExporterTests
    from llmfit_core.testing.outcome import CheckFailed, NotRun
    from llmfit_core.testing.packager_tests import PackagerTests
    from llmfit_core.testing.runtime_tests import RuntimeTests
    from llmfit_core.testing.safetensor_files import read_folder
    from llmfit_core.testing.tokenizer_tests import TokenizerTests

__all__ = [
    "ArchitectureTests",
    "CheckFailed",
    "DecoderTests",
    "ExporterTests",
    "NotRun",
    "PackagerTests",
    "RuntimeTests",
    "TokenizerTests",
    "read_folder",
]

_LATE = {
    "ArchitectureTests": "architecture_tests",
    "CheckFailed": "outcome",
    "DecoderTests": "decoder_tests",
    "ExporterTests": "exporter_tests",
    "NotRun": "outcome",
    "PackagerTests": "packager_tests",
    "RuntimeTests": "runtime_tests",
    "TokenizerTests": "tokenizer_tests",
    "read_folder": "safetensor_files",
}


def __getattr__(name: str) -> object:
    """The classes and `read_folder` (a model folder's tensors as numpy arrays), imported when they are first asked for."""
    if name in _LATE:
        return getattr(import_module(f"{__name__}.{_LATE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def pytest_addoption(parser: Any) -> None:
    """`--llmfit-record FILE`: the same as the variable LLMFIT_KIT_RECORD."""
    parser.addoption("--llmfit-record", metavar="FILE", help="append each parity figure to FILE, one JSON object a line")


def pytest_configure(config: Any) -> None:
    """Hand the option on to where the figures are recorded, in workers too."""
    from llmfit_core.testing import record

    if config.getoption("--llmfit-record"):
        record.write_to(config.getoption("--llmfit-record"))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Show the figures and the declared overrides of this process."""
    from llmfit_core.testing import record
    from llmfit_core.testing.conformance import declared_overrides

    lines = [f"{p.label}: {p.figure}" for p in record.figures()]
    lines += [f"{cls} overrides {name}: {why}" for cls, name, why in declared_overrides()]
    if lines:
        terminalreporter.section("llmfit conformance")
        for line in lines:
            terminalreporter.write_line(line)
