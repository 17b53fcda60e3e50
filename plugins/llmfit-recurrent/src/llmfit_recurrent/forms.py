"""What the tensors of selective state spaces have in common: roles, forms that graphs want, keys of their configs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from llmfit_core import PRE_NORM_DECODER, Asserts, Fix, Form, Fused, Ignores, Link, Reads, Role, Slot
from llmfit_core.exponential import NegativeExp
from llmfit_core.transform import Reshape

if TYPE_CHECKING:
    from llmfit_core.tensors import Tensor

Table = dict[str, str | Slot | Fused]
Uses = dict[str, Reads | Asserts | Ignores]

IN, OUT, CONV, STEP, DECAY, SKIP, NORM, SHARES = (
    "ssm_in", "ssm_out", "ssm_conv1d", "ssm_dt", "ssm_a", "ssm_d", "ssm_norm", "ssm_x",
)  # fmt: skip
INNER, STATE, KERNEL, RANK, GROUPS = (
    "ssm.inner_size", "ssm.state_size", "ssm.conv_kernel", "ssm.time_step_rank", "ssm.group_count",
)  # fmt: skip
WIDTH: Final = "embedding_length"
EPSILON: Final = "attention.layer_norm_rms_epsilon"
SSM_KEYS: Final = (KERNEL, INNER, STATE, RANK)
LIMITED: Final = "steps_limited"


def _flat(tensor: Tensor, _: Mapping[str, Any]) -> Tensor:
    return Reshape(tensor, (tensor.shape[0], tensor.shape[-1])) if len(tensor.shape) == 3 else tensor


def _deep(tensor: Tensor, _: Mapping[str, Any]) -> Tensor:
    return Reshape(tensor, (tensor.shape[0], 1, tensor.shape[-1])) if len(tensor.shape) == 2 else tensor


def _column(tensor: Tensor) -> Tensor:
    return Reshape(tensor, (tensor.shape[0], 1))


def _vector(tensor: Tensor) -> Tensor:
    return Reshape(tensor, (math.prod(tensor.shape),))


def _by_group(tensor: Tensor, hparams: Mapping[str, Any]) -> Tensor:
    groups = int(hparams[GROUPS])
    return Reshape(tensor, (groups, tensor.shape[0] // groups))


KERNEL_FORM: Final = Form(there=_flat, back=_deep)
"""Of the convolution, the axis of its one input left out; its bias is what it is."""

MAMBA_FORMS: Final = {
    CONV: KERNEL_FORM,
    DECAY: Form(there=lambda t, _: NegativeExp(t), back=lambda t, _: NegativeExp(t, inverse=True)),
}
MAMBA2_FORMS: Final = {
    CONV: KERNEL_FORM,
    DECAY: Form(there=lambda t, _: NegativeExp(_column(t)), back=lambda t, _: NegativeExp(_vector(t), inverse=True)),
    SKIP: Form(there=lambda t, _: _column(t), back=lambda t, _: _vector(t)),
    NORM: Form(there=lambda t, hp: _by_group(t, hp), back=lambda t, _: _vector(t)),
}
"""One decay and one skip a head, as columns; norms group by group."""

MAMBA2_SHAPES: Final[dict[str, Any]] = {
    IN: ("ssm_rows", WIDTH),
    CONV: ("conv_rows", 1, KERNEL),
    STEP: (RANK,),
    DECAY: (RANK,),
    SKIP: (RANK,),
    NORM: (INNER,),
    OUT: (WIDTH, INNER),
}
"""Of a Mamba-2; `RANK` is its number of heads, as llama.cpp has it."""


def mamba2_sizes(inner: int, heads: int, groups: int, state: int) -> dict[str, object]:
    """Rows of a Mamba-2's projection (gate, input, B, C, steps) and of its convolution (input, B, C)."""
    conv = inner + 2 * groups * state
    return {"ssm_rows": inner + conv + heads, "conv_rows": conv}


def limited(hparams: Mapping[str, Any]) -> bool:
    """Whether steps are kept between bounds that they could leave: they are above 0 by themselves."""
    bounds = hparams.get("time_step_limit")
    if not bounds:
        return False
    return not (isinstance(bounds, (list, tuple)) and len(bounds) == 2 and _number(bounds[0]) <= 0 and _number(bounds[1]) == math.inf)


def _number(value: object) -> float:
    """A bound as JSON has it; infinity is a word of transformers' own."""
    if isinstance(value, Mapping):
        value = value.get("__float__", value)
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return math.nan


TRAINING: Final[Uses] = {
    **dict.fromkeys(
        ("time_step_floor", "time_step_init_scheme", "time_step_max", "time_step_min", "time_step_scale"),
        Ignores("how steps are initialised"),
    ),
    **dict.fromkeys(
        (
            "residual_in_fp32 use_mambapy use_falcon_mambapy use_associative_scan use_mamba_kernels chunk_size "
            "mamba_chunk_size num_logits_to_keep fused_add_norm"
        ).split(),
        Ignores("how it runs, not what it computes"),
    ),
}
"""Keys of state spaces that change no result."""


def silu(name: str) -> Fix:
    """A graph's activation."""
    return Fix(values=("silu", "swish"), why=f"the {name} graph applies SiLU")


def twice_as_wide(name: str) -> Fix:
    """A graph's only expansion."""
    return Fix(values=(2,), why=f"the {name} graph loads state spaces twice as wide as the model, and no others")


def biased(name: str) -> Fix:
    """A graph that wants the bias of the convolution."""
    return Fix(values=(True,), why=f"the {name} graph loads no convolution without a bias")


def unlimited(name: str) -> Fix:
    """A graph that keeps steps within no bounds."""
    return Fix(values=(False, None), why=f"the {name} graph keeps steps within no bounds")


def net(prefix: str, **more: Any) -> Table:
    """A Mamba-2 among other layers, under `prefix`; `more` for all its slots (`when`)."""
    return {
        f"{prefix}.in_proj": Slot(IN, bias="use_bias", **more),
        f"{prefix}.conv1d": Slot(CONV, bias="use_conv_bias", **more),
        f"{prefix}.dt_bias": Slot(STEP, bare=True, part="bias", **more),
        f"{prefix}.A_log": Slot(DECAY, bare=True, **more),
        f"{prefix}.D": Slot(SKIP, bare=True, **more),
        f"{prefix}.norm": Slot(NORM, **more),
        f"{prefix}.out_proj": Slot(OUT, bias="use_bias", **more),
    }


def attention(bias: bool | str = False, **more: Any) -> Table:
    """Four projections; `more` for all of them (`when`)."""
    base = "model.layers.{layer}.self_attn"
    return {
        f"{base}.q_proj": Slot(Role.ATTN_Q, bias=bias, **more),
        f"{base}.k_proj": Slot(Role.ATTN_K, bias=bias, **more),
        f"{base}.v_proj": Slot(Role.ATTN_V, bias=bias, **more),
        f"{base}.o_proj": Slot(Role.ATTN_OUT, bias=bias, **more),
    }


def gated(prefix: str, bias: bool | str = False, **more: Any) -> Table:
    """A gated feed-forward under `prefix`."""
    return {
        f"{prefix}.gate_proj": Slot(Role.FFN_GATE, bias=bias, **more),
        f"{prefix}.up_proj": Slot(Role.FFN_UP, bias=bias, **more),
        f"{prefix}.down_proj": Slot(Role.FFN_DOWN, bias=bias, **more),
    }


NET_CONFIG: Final[Uses] = {
    **TRAINING,
    "mamba_n_heads": Reads(RANK, 128, kind="count"),
    "mamba_n_groups": Reads(GROUPS, 1, kind="count"),
    "mamba_d_state": Reads(STATE, 256, kind="count"),
    "mamba_d_head": Ignores("the class computes it"),
    "mamba_d_conv": Reads(KERNEL, 4, kind="count"),
    "mamba_expand": Reads("expand", 2, kind="count"),
    "mamba_conv_bias": Reads("use_conv_bias", True),
    "mamba_proj_bias": Reads("use_bias", False),
    "time_step_limit": Reads("time_step_limit", None),
}
"""A Mamba-2's keys among others."""

KV_HEADS: Final = "attention.head_count_kv"
NET, ATTENDING = "net", "attending"


def net_sizes(hparams: Mapping[str, Any]) -> dict[str, object]:
    """What a Mamba-2 among other layers comes to."""
    inner = hparams["expand"] * hparams[WIDTH]
    sizes = mamba2_sizes(inner, hparams[RANK], hparams[GROUPS], hparams[STATE])
    return {INNER: inner, LIMITED: limited(hparams), **sizes}


def heads_by_layer(hparams: Mapping[str, Any]) -> list[int]:
    """Key-value heads of each layer, as llama.cpp has them: 0 where it does not attend."""
    return [hparams[KV_HEADS] if attends else 0 for attends in hparams["attending_layers"]]


WIRING: Final = (
    Link(source=Role.ATTN_NORM, sinks=(Role.ATTN_Q, Role.ATTN_K, Role.ATTN_V, IN)),
    *PRE_NORM_DECODER[1:],
    Link(source=NORM, sinks=(OUT,)),
)
"""The usual links; the first norm feeds attention in some layers and a state space in others."""
