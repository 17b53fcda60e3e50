"""How scales lie over their weights: blocks that the config states, or that shapes tell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from llmfit_core.errors import SourceError, UnsupportedError
from llmfit_core.events import Event
from llmfit_core.scaled import Scaled, fit_scale, is_blocks, only_block, possible_blocks
from llmfit_core.transform import Reshape

if TYPE_CHECKING:
    from llmfit_core.checkpoint import Checkpoint
    from llmfit_core.foreign import Stated
    from llmfit_core.tensors import Tensor
    from llmfit_fp8.pairing import Pair

_DAMAGED = "Fetch the weights again, or correct config.json as the model's authors published it."


def stated_block(checkpoint: Checkpoint, said: Stated | None) -> tuple[int, int] | None:
    """`weight_block_size`, where the config gives it."""
    if said is None:
        return None
    if said.section.get("expert_dtype") == "fp4":
        raise UnsupportedError(
            "undecodable-source",
            f"{checkpoint.label} packs its experts in four bits (expert_dtype fp4, {said.place}), which is not read",
            "Convert the model's 16-bit original instead.",
        )
    size = said.section.get("weight_block_size")
    if size is None:
        return None
    sound = isinstance(size, list) and len(size) == 2 and all(type(n) is int and 0 < n < 1 << 31 for n in size)
    if not sound:
        raise SourceError("config-key-invalid", f"weight_block_size of {said.place} is {size!r:.60}, not two counts", _DAMAGED)
    assert isinstance(size, list)
    return size[0], size[1]


def derived_block(pairs: Sequence[Pair]) -> tuple[tuple[int, int] | None, list[Event]]:
    """The block that the shapes of all weights and scales agree on, where some are cut into blocks at all."""
    cut = [p for p in pairs if is_blocks(p.weight.shape, p.scale.shape)]
    if not cut:
        return None, []
    rows, columns = limits = possible_blocks((p.weight.shape, p.scale.shape) for p in cut)
    for at in limits:
        if at.high is not None and at.low > at.high:
            one, other = pairs[at.least], pairs[at.most]
            if one is other:
                raise _misfit(one, f"its weight is {list(one.weight.shape)}")
            raise SourceError(
                "scale-mismatch",
                f"no block explains both {one.scale_name}, {list(one.scale.shape)} for a weight {list(one.weight.shape)}, and "
                f"{other.scale_name}, {list(other.scale.shape)} for a weight {list(other.weight.shape)}",
                _DAMAGED,
            )
    block = (only_block(rows.low, rows.high), only_block(columns.low, columns.high))
    if block[0] is None or block[1] is None:
        ways = " x ".join(f"{at.low} to {at.high}" if at.high is not None else "all" for at in limits)
        raise SourceError(
            "scale-mismatch",
            f"config.json does not say weight_block_size, and the shapes of {cut[0].scale_name} and its like leave it open ({ways})",
            'Add "weight_block_size" to quantization_config in config.json, as the model\'s authors published it.',
        )
    words = " x ".join(str(b) if at.high is not None else "all" for b, at in zip(block, limits, strict=True))
    message = f"config.json does not say weight_block_size; the shapes of the scales say {words}"
    told = Event(code="inferred-from-shapes", message=message, severity="fallback", subject="weight_block_size")
    return (block[0], block[1]), [told]


def laid_over(pair: Pair, block: tuple[int, int] | None, said: Stated | None, *, of_config: bool) -> tuple[Tensor, str]:
    """The product, and in words what the scales are for."""
    weight, scale = pair.weight.shape, pair.scale.shape
    fit = fit_scale(weight, scale, block)
    if fit is None:
        if block is not None:
            rows, columns = (-(-n // b) for n, b in zip((1, *weight)[-2:], block, strict=True))
            where = f"weight_block_size in {said.place}" if said is not None and of_config else "the other scales' shapes"
            wanted = [*weight[:-2], rows, columns]
            why = f"{where} ({block[0]} x {block[1]}) makes it {wanted} for a weight {list(weight)}"
        else:
            why = f"its weight is {list(weight)}: neither one, nor one for each row, nor blocks"
        raise _misfit(pair, why)
    view = pair.scale if scale == fit.view else Reshape(pair.scale, fit.view)
    tall, wide = fit.block
    if block is not None:
        kind = f"blocks of {tall} x {wide}"
    elif tall == 1 and wide == weight[-1]:
        kind = "a scale for each row"
    else:
        kind = "a scale for each tensor" if wide == weight[-1] else "a scale for each column"
    return Scaled(pair.weight.tensor, view, fit.block), kind


def _misfit(pair: Pair, why: str) -> SourceError:
    return SourceError("scale-mismatch", f"{pair.scale_name} has the shape {list(pair.scale.shape)}, but {why}", _DAMAGED)
