"""What config.json leaves out: the defaults of the table, against transformers' config class or the author's formulas."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

from llmfit_core.architecture import REQUIRED, Reads
from llmfit_core.testing import with_transformers
from llmfit_core.testing.outcome import NotRun, few, require

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from llmfit_core.architecture import Architecture
    from llmfit_core.testing.bench import Bench

IDS = tuple(range(20, 44))
SAME = 1e-6
"""Of a log-probability: the same formulas on the same values."""


def check(bench: Bench) -> None:
    """Defaults do not contradict each other, and are what the model's own code takes.

    Raises:
        NotRun: Nobody here says what the code takes: no config class, and no formulas that do without the keys.
    """
    _check_agreement(bench.architecture)
    stated = _stated(bench.architecture)
    own = bench.sample.reference is not None
    if (with_transformers.is_here() or not own) and with_transformers.knows(bench.sample.config):
        _check_class(bench, stated)
    elif own:
        _check_formulas(bench, stated)
    else:
        raise NotRun(f"transformers has no {bench.sample.config.get('architectures')}")


def _stated(architecture: Architecture) -> dict[str, object]:
    """By config key, the default where there is one."""
    uses = {k: u for k, u in architecture.config.items() if isinstance(u, Reads)}
    return {k: u.default for k, u in uses.items() if u.default is not REQUIRED and u.default is not None}


def _check_agreement(architecture: Architecture) -> None:
    """Keys of one hparam have one default: where config.json has none of them, the first in the table would be taken."""
    first: dict[str, tuple[str, object]] = {}
    for key, default in _stated(architecture).items():
        use = architecture.config[key]
        assert isinstance(use, Reads)
        other, value = first.setdefault(use.hparam, (key, default))
        require(
            value == default,
            f"{other} and {key} both give {use.hparam}, with the defaults {value!r} and {default!r}: the first would be "
            f"taken where config.json has neither; take the key that this family does not have out of `config`",
        )


def _check_class(bench: Bench, stated: Mapping[str, object]) -> None:
    theirs = with_transformers.config_defaults(bench.sample.config)
    rope = theirs.get("rope_parameters")
    theirs = {**theirs, **(rope if isinstance(rope, dict) else {})}
    wrong = [
        f"{key}: {default!r} for {theirs[key]!r}"
        for key, default in stated.items()
        # A number that is 0 is one that the class takes away, a window unless it is switched on, say.
        if theirs.get(key) is not None and (theirs[key] or isinstance(theirs[key], bool))
        if default != theirs[key]
    ]
    require(not wrong, f"the table assumes otherwise than transformers: {few(wrong)}")


def _check_formulas(bench: Bench, stated: Mapping[str, object]) -> None:
    """Without a key the formulas compute what they compute with its default in the table."""
    import numpy as np

    wrong, untold = [], []
    for key in sorted(set(stated) & set(bench.built().config)):
        try:
            without, with_default = (_computed(bench, key, value) for value in (..., stated[key]))
        except Exception:  # the author's code, which may want the key or other shapes
            untold.append(key)
            continue
        if without.shape != with_default.shape or not np.abs(without - with_default).max() <= SAME:
            wrong.append(f"{key}: {stated[key]!r}")
    require(not wrong, f"the table has other defaults than `reference`, which computes something else without the key: {few(wrong)}")
    if untold:
        raise NotRun(
            f"nothing proves the defaults of {few(untold)}: `reference` fails where config.json lacks them; "
            'give it what the model\'s own code takes then, as in config.get("rope_theta", 10000.0)'
        )


def _computed(bench: Bench, key: str, value: object) -> NDArray[Any]:
    import numpy as np

    assert bench.sample.reference is not None
    folder = bench.work / "defaults"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(bench.built().folder, folder)
    config = {k: v for k, v in {**bench.built().config, key: value}.items() if v is not ...}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    found: NDArray[Any] = np.asarray(bench.sample.reference(folder, list(IDS)), dtype=np.float64)
    return found
