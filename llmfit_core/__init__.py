"""llmfit: fits a Hugging Face language model to the machine that has to run it.

What is named here is public and kept stable within a minor version; everything else is private.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from llmfit_core.architecture import (
    REQUIRED,
    ROLES,
    Architecture,
    Asserts,
    Fix,
    Form,
    Fused,
    Graph,
    Ignores,
    Limit,
    PerHead,
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
from llmfit_core.export import Exporter, Filled, FillOptions, Scheme, Written
from llmfit_core.hookspecs import hookimpl
from llmfit_core.hparams import COMMON_CONFIG, DECODER_CONFIG, DECODER_KEYS
from llmfit_core.layer_kinds import (
    ENDLESS_WINDOW,
    FULL_ATTENTION,
    SLIDING_ATTENTION,
    WINDOW_PATTERN,
    kinds_by_pattern,
)
from llmfit_core.plan import Artifact, OutputFile, OutputTensor, Plan, Recipe
from llmfit_core.roles import PRE_NORM_DECODER, SHAPES, Link, Role
from llmfit_core.runtime import Capabilities, Generated, LaunchOptions, LaunchPlan, Probe, Runtime
from llmfit_core.tokenizer.vocab import TokenType, Vocab
from llmfit_core.version import __version__

if TYPE_CHECKING:
    from llmfit_core.checkpoint import open_checkpoint
    from llmfit_core.pipeline import convert, plan_conversion
    from llmfit_core.plugins import load_plugins

__all__ = [
    "COMMON_CONFIG",
    "DECODER_CONFIG",
    "DECODER_KEYS",
    "ENDLESS_WINDOW",
    "FULL_ATTENTION",
    "PRE_NORM_DECODER",
    "REQUIRED",
    "ROLES",
    "SHAPES",
    "SLIDING_ATTENTION",
    "WINDOW_PATTERN",
    "Architecture",
    "Artifact",
    "Asserts",
    "Capabilities",
    "Decoder",
    "Diagnosis",
    "Event",
    "Exporter",
    "FillOptions",
    "Filled",
    "Fix",
    "Form",
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
    "OutputFile",
    "OutputTensor",
    "Packaged",
    "Packager",
    "PerHead",
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
    "Written",
    "__version__",
    "convert",
    "hookimpl",
    "kinds_by_pattern",
    "load_plugins",
    "open_checkpoint",
    "plan_conversion",
]

_LATE = {
    "convert": "llmfit_core.pipeline",
    "load_plugins": "llmfit_core.plugins",
    "open_checkpoint": "llmfit_core.checkpoint",
    "plan_conversion": "llmfit_core.pipeline",
}


def __getattr__(name: str) -> object:
    """The functions that do the work, imported when they are first asked for."""
    if name in _LATE:
        return getattr(import_module(_LATE[name]), name)
    raise AttributeError(f"module 'llmfit_core' has no attribute {name!r}")
