"""Folders as mlx-lm writes them, by numpy; and the float32 weights that they hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from llmfit_core.packing import pack
from tests.tiny import tiny

SIZES = {"hidden": 128, "heads": 2, "kv": 2, "head": 64, "ffn": 128, "moe": 64, "shared": 64}


def write(
    folder: Path,
    family: str = "llama",
    bits: int = 4,
    group: int = 32,
    *,
    said: dict[str, Any] | None = None,
    own: dict[str, tuple[int, int]] | None = None,
    change: Callable[[dict[str, np.ndarray]], None] = lambda t: None,
    packed: bool = True,
) -> tuple[Path, dict[str, np.ndarray]]:
    """A folder as mlx-lm writes it, embeddings, heads and routers packed too; and what its tensors are worth."""
    section: dict[str, Any] = {"group_size": group, "bits": bits, "mode": "affine", **(said or {})}
    section |= {m: {"bits": b, "group_size": g} for m, (b, g) in (own or {}).items()}
    sizes = SIZES if "moe" in family else {k: v for k, v in SIZES.items() if k not in ("moe", "shared")}
    both = {"quantization": section, "quantization_config": section} if packed else {}
    tiny(family, folder, config=both, dtype="float16", **sizes)
    held = load_file(folder / "model.safetensors")
    worth: dict[str, np.ndarray] = {}
    out: dict[str, np.ndarray] = {}
    stacks: dict[str, list[np.ndarray]] = {}
    for name, values in held.items():
        block, found, rest = name.partition(".experts.")
        if found:
            stacks.setdefault(f"{block}.switch_mlp.{rest.split('.')[1]}", []).append(values)
    plain = {n: v for n, v in held.items() if ".experts." not in n}
    plain |= {f"{n}.weight": np.stack(v) for n, v in stacks.items()}
    for name, values in plain.items():
        module = name.removesuffix(".weight")
        if values.ndim < 2 or not packed:
            out[name], exact = values, values.astype(np.float32)
        else:
            b, g = (own or {}).get(module, (bits, group))
            wide = values.astype(np.float32).reshape(*values.shape[:-1], -1, g)
            low, high = wide.min(-1, keepdims=True), wide.max(-1, keepdims=True)
            scale = ((high - low) / ((1 << b) - 1)).astype(np.float16)
            low = low.astype(np.float16)
            codes = np.clip(np.rint((wide - low) / scale.astype(np.float32)), 0, (1 << b) - 1)
            exact = (codes * scale.astype(np.float32) + low.astype(np.float32)).reshape(values.shape).astype(np.float32)
            out[name] = pack(codes.reshape(values.shape).astype(np.uint8), b).view(np.uint32)
            out[f"{module}.scales"], out[f"{module}.biases"] = scale[..., 0], low[..., 0]
        block, found, rest = name.partition(".switch_mlp.")
        if found:
            worth |= {f"{block}.experts.{e}.{rest}": exact[e] for e in range(len(exact))}
        else:
            worth[name] = exact
    change(out)
    save_file(out, folder / "model.safetensors", metadata={"format": "mlx"})
    return folder, worth
