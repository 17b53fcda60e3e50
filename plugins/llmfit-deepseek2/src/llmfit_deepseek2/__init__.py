"""DeepSeek, and the models with its latent attention or its experts, stated once as data."""

from __future__ import annotations

from collections.abc import Iterable

from llmfit_core import Architecture, hookimpl
from llmfit_deepseek2.glm4_lite import GLM4_MOE_LITE
from llmfit_deepseek2.glm4_moe import GLM4_MOE
from llmfit_deepseek2.solar import SOLAR_OPEN
from llmfit_deepseek2.v1 import DEEPSEEK
from llmfit_deepseek2.v2 import DEEPSEEK2
from llmfit_deepseek2.v3 import DEEPSEEK3
from llmfit_deepseek2.youtu import YOUTU


@hookimpl
def llmfit_architectures() -> Iterable[Architecture]:
    """The families."""
    return (DEEPSEEK, DEEPSEEK2, DEEPSEEK3, GLM4_MOE_LITE, GLM4_MOE, SOLAR_OPEN, YOUTU)
