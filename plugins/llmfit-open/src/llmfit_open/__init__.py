"""Open decoders that are close to Llama, stated once as data."""

from __future__ import annotations

from collections.abc import Iterable

from llmfit_core import Architecture, hookimpl
from llmfit_open.arcee import ARCEE
from llmfit_open.cohere import COHERE
from llmfit_open.cohere2 import COHERE2
from llmfit_open.dots1 import DOTS1
from llmfit_open.ernie import ERNIE4_5
from llmfit_open.ernie_moe import ERNIE4_5_MOE
from llmfit_open.exaone4 import EXAONE4
from llmfit_open.glm import GLM
from llmfit_open.glm4 import GLM4
from llmfit_open.granite import GRANITE
from llmfit_open.granite_moe import GRANITE_MOE, GRANITE_MOE_SHARED
from llmfit_open.internlm2 import INTERNLM2
from llmfit_open.minimax_m2 import MINIMAX_M2
from llmfit_open.olmo import OLMO, OLMO2, OLMOE
from llmfit_open.olmo3 import OLMO3
from llmfit_open.seed_oss import SEED_OSS
from llmfit_open.smollm3 import SMOLLM3
from llmfit_open.variations import VARIATIONS


@hookimpl
def llmfit_architectures() -> Iterable[Architecture]:
    """The families."""
    return (
        SMOLLM3, OLMO, OLMO2, OLMOE, GRANITE, COHERE, GLM4, EXAONE4, ERNIE4_5,
        ERNIE4_5_MOE, INTERNLM2, ARCEE, SEED_OSS, COHERE2, GRANITE_MOE, GRANITE_MOE_SHARED, GLM, OLMO3,
        DOTS1, MINIMAX_M2,
        *VARIATIONS,
    )
