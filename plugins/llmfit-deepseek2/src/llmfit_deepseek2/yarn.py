"""yarn as llama.cpp's deepseek2 computes it: one factor on cosine and sine, another on the softmax."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from llmfit_core import UnsupportedError
from llmfit_core.rope import Rope, yarn_mscale


def yarn_keys(rope: Rope) -> dict[str, float | None]:
    """The keys under which llama.cpp's deepseek2 computes this yarn.

    With `m(x) = 1 + 0.1 x ln(factor)`, `A` for `rope.scaling.attn_factor` and `L` for ten times the log multiplier, its
    context and graph come to a factor of `A` on cosine and sine and of `(A m(L))^2` on the softmax, but for `L = 0`,
    where it is `A m(1)` and its square. The model wants `attention_factor` and `m(mscale_all_dim)^2`.
    """
    if rope.type != "yarn":
        return {}
    scale = yarn_mscale(rope.factor, rope.mscale_all_dim)
    turned = rope.attention_factor
    if turned == 1 and rope.factor > 1:
        log = rope.mscale_all_dim
    elif rope.factor != 1:
        log = (scale / turned - 1) / (0.1 * math.log(rope.factor))
    elif turned == scale:
        log = 0.0
    else:
        raise UnsupportedError(
            "graph-cannot",
            f"llama.cpp's deepseek2: yarn has the factor 1 and attention_factor {turned:g}, "
            "which this graph would apply to the whole of a head",
            "Run this checkpoint in transformers (--to hf), or choose a model whose config the graph computes.",
        )
    if abs(log) < 1e-6:
        turned, log = turned / yarn_mscale(rope.factor), 0.0
    return {
        "rope.scaling.attn_factor": turned if abs(turned - 1) > 1e-7 else None,
        "rope.scaling.yarn_log_multiplier": 0.1 * log or None,
    }


def yarn_read(keys: Mapping[str, Any]) -> dict[str, object]:
    """What a config says of the yarn that llama.cpp computes by these keys."""
    factor = float(keys.get("rope.scaling.factor", 1.0))
    turned, log = float(keys.get("rope.scaling.attn_factor", 1.0)), keys.get("rope.scaling.yarn_log_multiplier", 0.0) / 0.1
    if factor == 1:
        return {"attention_factor": turned}
    if turned == 1 and log > 0:
        plain = float(f"{log:.6g}")
        return {"mscale": plain, "mscale_all_dim": plain}
    if log:
        scale = turned * (1 + 0.1 * log * math.log(factor))
    else:
        scale = turned = turned * yarn_mscale(factor)
    all_dim = (scale - 1) / (0.1 * math.log(factor))
    return {"attention_factor": turned} | ({"mscale_all_dim": all_dim} if abs(all_dim) > 1e-6 else {})
