"""The architecture against llmfit's conformance kit: see docs/reference/conformance-kit.md there."""

from __future__ import annotations

from llmfit_acme import ACME
from llmfit_acme_samples import SAMPLES

from llmfit_core.testing import ArchitectureTests


class TestAcme(ArchitectureTests):
    """Inherits some thirty tests, on each config of the sample."""

    architecture = ACME
    sample = SAMPLES["architectures"]["acme"]
