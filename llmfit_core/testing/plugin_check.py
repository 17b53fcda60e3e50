"""The kit without pytest: every class of it, run on what an installed plugin declares."""

from __future__ import annotations

import importlib
import importlib.util
import traceback
import unittest
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Literal

from llmfit_core.errors import LlmfitError
from llmfit_core.plugin_record import KINDS
from llmfit_core.testing import record as records
from llmfit_core.testing.architecture_tests import ArchitectureTests
from llmfit_core.testing.decoder_tests import DecoderTests
from llmfit_core.testing.exporter_tests import ExporterTests
from llmfit_core.testing.outcome import CheckFailed, NotRun
from llmfit_core.testing.packager_tests import PackagerTests
from llmfit_core.testing.runtime_tests import RuntimeTests
from llmfit_core.testing.tokenizer_tests import TokenizerTests

if TYPE_CHECKING:
    from llmfit_core.plugin_record import PluginRecord
    from llmfit_core.plugins import PluginRegistry
    from llmfit_core.testing.conformance import Conformance

Result = Literal["passed", "failed", "not run"]
CLASSES: Mapping[str, tuple[type[Conformance], str]] = {
    "architectures": (ArchitectureTests, "architecture"),
    "exporters": (ExporterTests, "exporter"),
    "runtimes": (RuntimeTests, "runtime"),
    "decoders": (DecoderTests, "decoder"),
    "tokenizers": (TokenizerTests, "reader"),
    "packagers": (PackagerTests, "packager"),
}
"""By kind, the class and the setting that holds the declaration."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One check.

    Attributes:
        kind: Of the declaration (`architecture`).
        name: The declaration's.
        check: What was checked, in words.
        subject: What it was checked on: a case, a scheme; empty for the declaration itself.
        result: `not run` is no pass.
        reason: Why it failed or was not run.
        figure: A measured figure, for people; empty where nothing was measured.
    """

    kind: str
    name: str
    check: str
    subject: str
    result: Result
    reason: str = ""
    figure: str = ""

    def as_json(self) -> dict[str, str]:
        """The row as the documented JSON object."""
        return dict(asdict(self))


def check_plugin(
    plugin: PluginRecord, registry: PluginRegistry, on_row: Callable[[Row], None] | None = None
) -> tuple[Row, ...]:
    """Run all that the kit has for what a plugin declares.

    Args:
        plugin: A loaded one.
        registry: Where it was loaded.
        on_row: Told each row as it comes.
    """
    rows = []
    for row in _rows(plugin, registry):
        rows.append(row)
        if on_row is not None:
            on_row(row)
    return tuple(rows)


def _rows(plugin: PluginRecord, registry: PluginRegistry) -> Iterator[Row]:
    for kind in KINDS:
        for name in plugin.provides[kind.plural]:
            found = CLASSES.get(kind.plural)
            if found is None:
                reason = f"the kit has no checks of a {kind.noun} by itself"
                yield Row(kind=kind.noun, name=name, check="", subject="", result="not run", reason=reason)
                continue
            provided = [p.value for p in getattr(registry, kind.plural)() if p.plugin == plugin.id and p.value.name == name]
            if not provided:
                reason = "preferences take this name from another plugin"
                yield Row(kind=kind.noun, name=name, check="", subject="", result="not run", reason=reason)
                continue
            yield from _of_declaration(kind.noun, kind.plural, name, provided[0], plugin)


def _of_declaration(noun: str, plural: str, name: str, declaration: object, plugin: PluginRecord) -> Iterator[Row]:
    base, setting = CLASSES[plural]
    try:
        settings = settings_of(plugin, plural, name, declaration)
    except (CheckFailed, NotRun) as error:
        settings = {"": _unsampled(declaration, str(error))}
        result: Result = "not run" if isinstance(error, NotRun) else "failed"
        yield Row(kind=noun, name=name, check="a sample", subject="", result=result, reason=str(error))
        if plural != "architectures":
            return
    for label, values in settings.items():
        try:
            tests = type(f"Test_{name}", (base,), {setting: declaration, "sample": values})
        except TypeError as error:
            yield Row(kind=noun, name=name, check="SAMPLES", subject=label, result="failed", reason=str(error))
            continue
        for row in run_class(tests, noun, name):
            subject = f"{label} {row.subject}".strip() if len(settings) > 1 else row.subject
            yield Row(**{**asdict(row), "subject": subject})


def _unsampled(declaration: object, why: str) -> dict[str, object]:
    """Settings of an architecture that nothing makes a model of: what goes by the table alone is checked all the same."""

    def nothing(config: Mapping[str, object]) -> Mapping[str, Sequence[int]]:
        raise NotRun(why)

    classes, kinds = getattr(declaration, "hf_classes", ("",)), getattr(declaration, "model_types", ())
    return {"config": {"architectures": [classes[0]], "model_type": next(iter(kinds), "")}, "saved_tensors": nothing}


def settings_of(plugin: PluginRecord, plural: str, name: str, declaration: object) -> dict[str, dict[str, object]]:
    """What the plugin gives as its sample, or what can be made of the declaration alone; by label.

    Raises:
        NotRun: Neither.
        CheckFailed: The plugin's SAMPLES is not what it has to be.
    """
    of_kind = samples(plugin.entry_point.partition(":")[0]).get(plural, {})
    strange = sorted(set(of_kind) - set(plugin.provides[plural]))
    if strange:
        raise CheckFailed(f"SAMPLES speaks of {', '.join(strange)}, which is none of the plugin's {plural}: {', '.join(plugin.provides[plural])}")
    given = of_kind.get(name)
    if given is not None:
        several = given if isinstance(given, (list, tuple)) else [given]
        return {_label(s, number): dict(s) for number, s in enumerate(several)}
    if plural == "architectures":
        from llmfit_core.testing.shrunk import samples_of

        return samples_of(declaration)  # type: ignore[arg-type]
    if plural in ("decoders", "tokenizers"):
        raise NotRun(f'the plugin gives no sample: SAMPLES = {{"{plural}": {{"{name}": ...}}}}')
    return {"": {}}


def _label(sample: Mapping[str, Any], number: int) -> str:
    classes = sample.get("config", {}).get("architectures") if isinstance(sample.get("config"), Mapping) else None
    return str(classes[0]) if classes else str(number)


def samples(module: str) -> Mapping[str, Mapping[str, Any]]:
    """`SAMPLES` of a plugin's entry module, of `<module>_samples`, or of `<module>.samples`; empty where there is none.

    Raises:
        CheckFailed: There is one, and it is no `{kind: {name: settings}}`.
    """
    for name in (module, f"{module}_samples", f"{module}.samples"):
        try:
            there = importlib.util.find_spec(name) is not None
        except (ImportError, ValueError):
            continue
        if there:
            try:
                found: Any = getattr(importlib.import_module(name), "SAMPLES", None)
            except Exception as error:
                raise CheckFailed(f"{name} does not import: {type(error).__name__}: {error}") from error
            if found is None:
                continue
            sound = isinstance(found, Mapping) and all(k in CLASSES and isinstance(v, Mapping) for k, v in found.items())
            if not sound:
                raise CheckFailed(f"SAMPLES in {name} has to be {{kind: {{name: settings}}}}, with kinds of {sorted(CLASSES)}")
            return dict(found)
    return {}


def run_class(tests: type[Conformance], noun: str, name: str) -> Iterator[Row]:
    """Run every test of a class of the kit; one row each, and one for what the sample gives nothing to run on."""
    for method, parameter in tests.idle():
        words = method.removeprefix("test_").replace("_", " ")
        yield Row(kind=noun, name=name, check=words, subject="", result="not run", reason=f"no {parameter} is given to run it on")
    try:
        for method, value, arguments in tests.runs():
            before = len(records.figures())
            result, reason = _run(lambda method=method, arguments=arguments: getattr(tests(), method)(**arguments))  # type: ignore[misc]
            figures = records.figures()[before:]
            figure = "; ".join(p.figure for p in figures)
            words = method.removeprefix("test_").replace("_", " ")
            yield Row(kind=noun, name=name, check=words, subject=value, result=result, reason=reason, figure=figure)
    finally:
        tests.teardown_class()


def _run(call: Callable[[], object]) -> tuple[Result, str]:
    try:
        call()
    except unittest.SkipTest as error:
        return "not run", str(error)
    except LlmfitError as error:
        return "failed", f"{error.cause} [{error.code}]"
    except CheckFailed as error:
        return "failed", str(error)
    except Exception as error:
        return "failed", f"{type(error).__name__}: {error}{_place(error)}"
    return "passed", ""


def _place(error: Exception) -> str:
    """Where it was raised, for an author to find it."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" (raised by {frames[-1].name}, {PurePath(frames[-1].filename).name} line {frames[-1].lineno})" if frames else ""


def counts(rows: Sequence[Row]) -> dict[str, int]:
    """How many passed, failed, and were not run."""
    return {key: sum(r.result == key.replace("_", " ") for r in rows) for key in ("passed", "failed", "not_run")}
