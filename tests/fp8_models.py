"""fp8 checkpoints as their writers make them, by torch; and the float32 weights that torch says they hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from tests.tiny import tiny

SIZES = {"hidden": 192, "heads": 4, "kv": 2, "head": 48, "ffn": 320}
"""Ragged in blocks of 128, both ways."""
E4M3, E5M2, E8M0 = torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu
WHOLE = 1 << 20

Tensors = dict[str, torch.Tensor]


def spread(scales: torch.Tensor, shape: torch.Size, rows: int, columns: int) -> torch.Tensor:
    """Scales `[.., a, b]`, one for each block, as one for each element of a weight."""
    high, wide = shape[-2:]
    tall = scales.float().repeat_interleave(min(rows, high), -2)[..., :high, :]
    return tall.repeat_interleave(min(columns, wide), -1)[..., :wide]


def largest(weight: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """The largest magnitude of each block, `[.., a, b]`."""
    high, wide = weight.shape[-2:]
    rows, columns = min(rows, high), min(columns, wide)
    down, across = -(-high // rows), -(-wide // columns)
    padded = torch.zeros(*weight.shape[:-2], down * rows, across * columns)
    padded[..., :high, :wide] = weight
    return padded.reshape(*weight.shape[:-2], down, rows, across, columns).abs().amax((-3, -1)).clamp(min=1e-6)


def fp8(
    folder: Path,
    rows: int = 128,
    columns: int = 128,
    *,
    end: str = "_scale_inv",
    config: dict[str, Any] | None = None,
    kind: torch.dtype = E4M3,
    stored: Callable[[torch.Tensor], torch.Tensor] = lambda s: s,
    family: str = "llama",
    change: Callable[[Tensors], None] = lambda tensors: None,
    side: dict[str, Any] | None = None,
    scaled: bool = True,
    **more: Any,
) -> tuple[Path, dict[str, np.ndarray]]:
    """Write a tiny model with its projections in 8-bit floats.

    Args:
        folder: Made.
        rows: Of a block.
        columns: Of a block.
        end: Put behind a weight's name, or in place of `.weight` where it begins with a dot.
        config: `quantization_config`.
        kind: The 8-bit float.
        stored: The scale's dtype and shape in the file; what it loses there is lost for the weights too.
        family: Of `tests.tiny`.
        change: Done to the tensors before they are written.
        side: `hf_quant_config.json`.
        scaled: With scales at all.
        more: For `tests.tiny`.

    Returns:
        The folder, and what every tensor is worth.
    """
    tiny(family, folder, config={"quantization_config": config} if config else {}, **{**SIZES, **more})
    out: Tensors = {}
    worth: dict[str, np.ndarray] = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        if "_proj" not in name:
            out[name] = tensor
        elif not scaled:
            out[name] = tensor.float().to(kind)
        else:
            exact = largest(tensor.float(), rows, columns) / 448
            kept = stored(exact)
            real = (kept.view(E8M0) if kept.dtype == torch.uint8 else kept).float().reshape(exact.shape)
            factors = spread(real, tensor.shape, rows, columns)
            out[name] = (tensor.float() / factors).clamp(-448, 448).to(kind)
            out[name.removesuffix(".weight") + end if end.startswith(".") else name + end] = kept
            worth[name] = (out[name].float() * factors).numpy()
        worth.setdefault(name, out[name].float().numpy())
    change(out)
    save_file({n: t.contiguous() for n, t in out.items()}, folder / "model.safetensors", metadata={"format": "pt"})
    if side is not None:
        (folder / "hf_quant_config.json").write_text(json.dumps(side), encoding="utf-8")
    return folder, worth
