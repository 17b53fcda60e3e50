"""`RuntimeTests`: what a runtime promises, on a tiny Llama in a format it serves."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import urlsplit

from llmfit_core.errors import LlmfitError
from llmfit_core.runtime import Capabilities, LaunchOptions, LaunchPlan, Probe, Runtime
from llmfit_core.testing import parity, with_transformers
from llmfit_core.testing.declared import Declared
from llmfit_core.testing.outcome import CheckFailed, NotRun, few, require

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from llmfit_core.export import Exporter

PATIENCE = 30.0
"""Seconds in which a probe has to answer."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")
IDS = (5, 77, 130, 200, 33, 260, 12, 99)


class RuntimeTests(Declared, kit=True):
    """Inherit, set `runtime`, and name the class `Test...`.

    Attributes:
        runtime: The declaration.
    """

    settings: ClassVar[frozenset[str]] = frozenset({"runtime"})
    plural: ClassVar[str] = "runtimes"
    setting: ClassVar[str] = "runtime"

    runtime: ClassVar[Runtime]

    def test_probing_never_raises_or_hangs(self) -> None:
        """It says that it is here, with a version, or why not, and in time."""
        start = time.monotonic()
        try:
            found = self.runtime.probe()
        except Exception as error:
            raise CheckFailed(f"probe raises {type(error).__name__}: {error}") from error
        took = time.monotonic() - start
        require(took < PATIENCE, f"probe takes {took:.0f} s")
        require(isinstance(found, Probe), f"probe gives {type(found).__name__}")
        require(found.version if found.available else found.reason, "probe says neither a version nor a reason")

    def test_probing_where_nothing_is_installed(self) -> None:
        """With nothing on PATH it still answers; asked in a process of its own."""
        code = (
            "import sys; from llmfit_core import load_plugins\n"
            "found = load_plugins().runtime(sys.argv[1]).value.probe()\n"
            "print('answered', bool(found.version if found.available else found.reason))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, self.runtime.name],
            capture_output=True, text=True, timeout=2 * PATIENCE, check=False, env=_bare_environment(),
        )  # fmt: skip
        require("answered True" in done.stdout, f"probe without a PATH: {few(done.stderr.strip().splitlines()[-1:])}")

    def test_capabilities_are_told(self) -> None:
        """Engine and version are named; graphs are names that architectures could state."""
        self._available()
        found = self.runtime.capabilities()
        require(isinstance(found, Capabilities), f"capabilities gives {type(found).__name__}")
        require(found.engine and found.version, f"engine {found.engine!r}, version {found.version!r}")
        blank = [g for g in found.graphs if not g or g != g.strip()]
        require(not blank, f"graphs have odd names: {few(blank)}")

    def test_a_plan_serves_this_machine_alone(self) -> None:
        """Planning starts nothing, and the address is loopback unless told otherwise."""
        plan = self.runtime.plan(self._artifact(), LaunchOptions(port=0))
        require(isinstance(plan, LaunchPlan), f"plan gives {type(plan).__name__}")
        require(plan.argv and all(isinstance(a, str) for a in plan.argv), f"argv {plan.argv!r}")
        if plan.url:
            require(urlsplit(plan.url).hostname in LOOPBACK, f"it would serve on {plan.url}")
            require("0.0.0.0" not in plan.argv, "it would serve on every interface")

    def test_a_port_is_kept(self) -> None:
        """The port that was asked for is the one of the address."""
        plan = self.runtime.plan(self._artifact(), LaunchOptions(port=18437))
        if not plan.url:
            raise NotRun("it serves nothing")
        require(urlsplit(plan.url).port == 18437, f"port 18437 was asked for, the address is {plan.url}")

    def test_what_is_no_model_is_refused(self) -> None:
        """A file that is not there, and one of rubbish, are errors with a code and no tracebacks."""
        self._available()
        folder = self.bench().work
        suffix = self._exporter().suffix
        rubbish = folder / f"rubbish{suffix}"
        rubbish.write_bytes(b"no model at all" * 99)
        for path in (folder / f"nowhere{suffix}", rubbish):
            try:
                self.runtime.plan(path, LaunchOptions())
            except LlmfitError:
                continue
            except Exception as error:
                raise CheckFailed(f"{path.name} ends as {type(error).__name__}: {error}") from error
            raise CheckFailed(f"{path.name} is planned as if it were a model")

    def test_scores_are_probabilities(self) -> None:
        """One row a token, over the whole vocabulary, that sum to one; the same each time; none looks ahead."""
        import numpy as np

        score = self._scoring()
        path = self._artifact()
        vocabulary = self.bench().model().integer("vocab_rows")
        rows = np.array(score(path, list(IDS), LaunchOptions(context=256, threads=2)))
        require(rows.shape == (len(IDS), vocabulary), f"{rows.shape} for {len(IDS)} tokens of {vocabulary}")
        sums = np.exp(rows).sum(-1)
        require(np.abs(sums - 1).max() < 1e-3, f"probabilities sum to {sums.min():.4f} to {sums.max():.4f}")
        fewer = np.array(score(path, list(IDS[:4]), LaunchOptions(context=256, threads=2)))
        far = float(np.abs(np.exp(fewer) - np.exp(rows[:4])).max())
        require(far < 1e-4, f"tokens that follow change what came before, by {far:.1e}")

    def test_scores_are_those_of_the_model(self) -> None:
        """In float32 its probabilities are those of transformers."""
        import numpy as np

        score, exporter, built = self._scoring(), self._exporter(), self.bench().built()
        if parity.exact_scheme(exporter) is None:
            raise NotRun(f"{exporter.name} has no scheme that holds float32")
        if not with_transformers.knows(built.config):
            raise NotRun(with_transformers.MISSING)
        theirs = built.network.log_probabilities(list(IDS), range(1, len(IDS) + 1))
        ours = np.array(score(self._artifact(), list(IDS), LaunchOptions(context=256, threads=2)))
        require(ours.shape == theirs.shape, f"{ours.shape} for {theirs.shape}")
        divergence = abs(float((np.exp(theirs) * (theirs - ours)).sum(-1).mean()))
        require(divergence < parity.BOUND, f"it computes something else than transformers: mean KL {divergence:.2e}")

    def test_ids_outside_the_vocabulary_are_refused(self) -> None:
        """An id that is no token is an error with a code."""
        score = self._scoring()
        try:
            score(self._artifact(), [5, 10**6], LaunchOptions(context=256))
        except LlmfitError:
            return
        except Exception as error:
            raise CheckFailed(f"a wrong id ends as {type(error).__name__}: {error}") from error
        raise CheckFailed("a wrong id is scored")

    def test_tokens_are_those_of_the_tokenizer(self) -> None:
        """Its ids of a few texts are those of `tokenizers`."""
        self._available()
        from tokenizers import Tokenizer

        if self.runtime.tokenize is None:
            raise NotRun("it does not tokenize")
        theirs = Tokenizer.from_file(str(self.bench().built().folder / "tokenizer.json"))
        found = self.runtime.tokenize(self._artifact(), list(parity.TEXTS), False)
        for text, have in zip(parity.TEXTS, found, strict=True):
            want = theirs.encode(text, add_special_tokens=False).ids
            require(list(have) == want, f"{text!r} is {list(have)[:8]}, and {want[:8]} to tokenizers")

    def test_it_generates_what_is_most_likely(self) -> None:
        """At temperature 0 twice the same, no more tokens than asked for, piece by piece the whole text."""
        self._available()
        if self.runtime.generate is None:
            raise NotRun("it does not generate")
        pieces: list[str] = []
        options = LaunchOptions(context=256, threads=2)
        first = self.runtime.generate(self._artifact(), "the king", options, 6, 0.0, pieces.append)
        second = self.runtime.generate(self._artifact(), "the king", options, 6, 0.0, lambda _: None)
        require(first.tokens <= 6, f"{first.tokens} tokens where 6 were asked for")
        require("".join(pieces) == first.text, "the pieces are not the text")
        require(first.text == second.text, "at temperature 0 two answers differ")

    def _available(self) -> None:
        found = self.runtime.probe()
        if not found.available:
            raise NotRun(f"{self.runtime.name} is not here: {found.reason}")

    def _exporter(self) -> Exporter:
        for provided in self.bench().registry.exporters():
            if provided.value.name in self.runtime.formats:
                exporter: Exporter = provided.value
                return exporter
        raise NotRun(f"no exporter for {few(self.runtime.formats)} is installed")

    def _artifact(self) -> Path:
        self._available()
        exporter = self._exporter()
        return self.bench().artifact("base", exporter, parity.exact_scheme(exporter) or exporter.schemes[0].name)[0]

    def _scoring(self) -> Callable[[Path, Sequence[int], LaunchOptions], list[list[float]]]:
        self._available()
        if self.runtime.score is None:
            raise NotRun("it does not score")
        return self.runtime.score


def _bare_environment() -> dict[str, str]:
    import os

    kept = ("HOME", "SYSTEMROOT", "PYTHONPATH", "TMPDIR", "TEMP", "LLMFIT_CONFIG_DIR")
    return {**{k: v for k, v in os.environ.items() if k in kept}, "PATH": ""}
