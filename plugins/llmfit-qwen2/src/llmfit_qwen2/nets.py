"""The tensors of gated delta nets, as checkpoints have them and as llama.cpp's graphs want them.

A net's key heads each serve a group of value heads. The checkpoints have the value heads of a group together;
llama.cpp's graphs of Qwen3.5 take them in turns, the first of every group before the second of any.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from llmfit_core import Form
from llmfit_core.exponential import NegativeExp
from llmfit_core.grouping import regroup, ungroup
from llmfit_core.transform import Concat, Reshape, Slice, Transpose

if TYPE_CHECKING:
    from llmfit_core.tensors import Tensor

GROUPS, SIZE, VALUES, VALUE_SIZE = "ssm.group_count", "ssm.state_size", "ssm.time_step_rank", "ssm.value_size"
NET_Q, NET_K, NET_V, NET_Z = "gdn_q", "gdn_k", "gdn_v", "attn_gate"
CONV, DECAY, STEP, BETA_ALPHA, BETA, ALPHA = "ssm_conv1d", "ssm_a", "ssm_dt", "ssm_ba", "ssm_beta", "ssm_alpha"


def in_turns(tensor: Tensor, hparams: Mapping[str, Any], height: int) -> Tensor:
    """Rows of value heads, `height` each, from groups together to groups in turns."""
    groups, values = hparams[GROUPS], hparams[VALUES]
    each = values // groups
    if each == 1:
        return tensor
    return Concat(tuple(ungroup(tensor, [height] * each, i, groups) for i in range(each)))


def together(tensor: Tensor, hparams: Mapping[str, Any], height: int) -> Tensor:
    """The inverse of `in_turns`."""
    groups, values = hparams[GROUPS], hparams[VALUES]
    each, rows = values // groups, groups * height
    if each == 1:
        return tensor
    return regroup([Slice(tensor, i * rows, (i + 1) * rows) for i in range(each)], groups)


def _rows(size: str) -> Form:
    def height(hparams: Mapping[str, Any]) -> int:
        return int(hparams[size]) if size else 1

    return Form(
        there=lambda t, hp: in_turns(t, hp, height(hp)),
        back=lambda t, hp: together(t, hp, height(hp)),
    )


def _kernel(tensor: Tensor, hparams: Mapping[str, Any], turn: Any) -> Tensor:
    """The rows of v, behind those of q and k, turned."""
    keys = 2 * hparams[GROUPS] * hparams[SIZE]
    if hparams[GROUPS] == hparams[VALUES]:
        return tensor
    values = Slice(tensor, keys, tensor.shape[0])
    return Concat((Slice(tensor, 0, keys), turn(values, hparams, int(hparams[VALUE_SIZE]))))


def _flat(tensor: Tensor) -> Tensor:
    return Reshape(tensor, (tensor.shape[0], tensor.shape[-1]))


def _deep(tensor: Tensor) -> Tensor:
    return Reshape(tensor, (tensor.shape[0], 1, tensor.shape[-1]))


def _columns(tensor: Tensor, hparams: Mapping[str, Any], turn: Any) -> Tensor:
    if hparams[GROUPS] == hparams[VALUES]:
        return tensor
    return Transpose(turn(Transpose(tensor), hparams, int(hparams[VALUE_SIZE])))


FORMS = {
    CONV: Form(there=lambda t, _: _flat(t), back=lambda t, _: _deep(t)),
    DECAY: Form(there=lambda t, _: NegativeExp(t), back=lambda t, _: NegativeExp(t, inverse=True)),
}
FORMS_35 = {
    NET_V: _rows(VALUE_SIZE),
    NET_Z: _rows(VALUE_SIZE),
    BETA: _rows(""),
    ALPHA: _rows(""),
    STEP: _rows(""),
    DECAY: Form(
        there=lambda t, hp: NegativeExp(in_turns(t, hp, 1)),
        back=lambda t, hp: NegativeExp(together(t, hp, 1), inverse=True),
    ),
    CONV: Form(
        there=lambda t, hp: _kernel(_flat(t), hp, in_turns),
        back=lambda t, hp: _deep(_kernel(t, hp, together)),
    ),
    "ssm_out": Form(there=lambda t, hp: _columns(t, hp, in_turns), back=lambda t, hp: _columns(t, hp, together)),
}
