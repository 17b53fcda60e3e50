"""llmfit: fits a Hugging Face language model to the machine that has to run it.

What is named here is public and kept stable within a minor version; everything else is private.
"""

from __future__ import annotations

from llmfit_core.architecture import (
    REQUIRED,
    Architecture,
    Asserts,
    Fix,
    Fused,
    Graph,
    Ignores,
    Limit,
    Reads,
    Slot,
)
from llmfit_core.declarations import Diagnosis, Packaged, Packager, TokenizerReader, Transform
from llmfit_core.decode import Decoder
from llmfit_core.errors import (
    LaunchError,
    LlmfitError,
    OutputError,
    PluginError,
    SourceError,
    StrictError,
    UnsupportedError,
    VerificationError,
)
from llmfit_core.events import Event
from llmfit_core.export import Exporter, Scheme
from llmfit_core.hookspecs import hookimpl
from llmfit_core.hparams import COMMON_CONFIG, DECODER_CONFIG
from llmfit_core.plan import Artifact, Plan, Recipe
from llmfit_core.roles import PRE_NORM_DECODER, SHAPES, Link, Role
from llmfit_core.runtime import Capabilities, Generated, LaunchOptions, LaunchPlan, Probe, Runtime
from llmfit_core.tokenizer.vocab import TokenType, Vocab

__version__ = "0.1.0"

__all__ = [
    "COMMON_CONFIG",
    "DECODER_CONFIG",
    "PRE_NORM_DECODER",
    "REQUIRED",
    "SHAPES",
    "Architecture",
    "Artifact",
    "Asserts",
    "Capabilities",
    "Decoder",
    "Diagnosis",
    "Event",
    "Exporter",
    "Fix",
    "Fused",
    "Generated",
    "Graph",
    "Ignores",
    "LaunchError",
    "LaunchOptions",
    "LaunchPlan",
    "Limit",
    "Link",
    "LlmfitError",
    "OutputError",
    "Packaged",
    "Packager",
    "Plan",
    "PluginError",
    "Probe",
    "Reads",
    "Recipe",
    "Role",
    "Runtime",
    "Scheme",
    "Slot",
    "SourceError",
    "StrictError",
    "TokenType",
    "TokenizerReader",
    "Transform",
    "UnsupportedError",
    "VerificationError",
    "Vocab",
    "hookimpl",
]
