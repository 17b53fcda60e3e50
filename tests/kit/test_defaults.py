"""What a table assumes where config.json is silent: held against the author's formulas, and against itself."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from llmfit_acme import ACME
from llmfit_acme_samples import SAMPLES

from llmfit_core import Reads
from llmfit_core.testing import ArchitectureTests, CheckFailed, NotRun

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from llmfit_core import Architecture

SAMPLE: dict[str, Any] = SAMPLES["architectures"]["acme"]
BASE_OF_ROPE = "rope.freq_base"


def check(architecture: Architecture, sample: dict[str, Any] = SAMPLE) -> None:
    tests: type[ArchitectureTests] = type("TestMutant", (ArchitectureTests,), {"architecture": architecture, "sample": sample})
    try:
        tests().test_defaults_are_those_of_the_config_class()
    finally:
        tests.teardown_class()


def reading(**uses: Reads) -> Architecture:
    return replace(ACME, config={**ACME.config, **uses})


def test_defaults_of_the_formulas_pass() -> None:
    check(ACME)


def test_another_default_than_the_formulas_is_found() -> None:
    with pytest.raises(CheckFailed, match=r"rope_theta: 500000\.0"):
        check(reading(rope_theta=Reads(BASE_OF_ROPE, 500000.0)))


def test_a_key_of_its_own_beside_the_usual_one_is_found() -> None:
    """Of two keys of one hparam the usual one comes first in the table, and its default would be taken."""
    with pytest.raises(CheckFailed, match=r"rope_theta and turns both give rope\.freq_base, with the defaults 10000\.0 and 2000\.0"):
        check(reading(turns=Reads(BASE_OF_ROPE, 2000.0)))
    check(reading(turns=Reads(BASE_OF_ROPE, 10000.0)))
    check(reading(turns=Reads(BASE_OF_ROPE, None)))


def test_formulas_that_do_not_say_are_no_proof() -> None:
    right: Callable[..., Any] = SAMPLE["reference"]

    def strict(folder: Path, ids: Any) -> Any:
        json.loads((folder / "config.json").read_text(encoding="utf-8"))["rope_theta"]
        return right(folder, ids)

    with pytest.raises(NotRun, match=r"nothing proves the defaults of rope_theta:.*config\.get"):
        check(ACME, {**SAMPLE, "reference": strict})
