"""The same mixture in the forms in which its experts lie on disks: one by one, as one tensor, as its transpose."""

from __future__ import annotations

import json
import re
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

_ONE = re.compile(r"(.*)\.(?:mlp|block_sparse_moe)\.experts\.(\d+)\.(w1|w2|w3|gate_proj|up_proj|down_proj)\.weight")
_NEW = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}


def load(folder: Path) -> dict[str, Tensor]:
    """A folder's tensors, read by the safetensors library."""
    from safetensors.torch import load_file

    out: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        out |= load_file(file)
    return out


def save(like: Path, tensors: Mapping[str, Tensor], to: Path) -> Path:
    """A folder like `like` with other tensors."""
    from safetensors.torch import save_file

    to.mkdir(parents=True, exist_ok=True)
    for file in like.iterdir():
        if not file.name.endswith((".safetensors", ".index.json")):
            shutil.copyfile(file, to / file.name)
    save_file({k: t.contiguous() for k, t in tensors.items()}, to / "model.safetensors", metadata={"format": "pt"})
    return to


def one_by_one(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Experts one by one under transformers 5's names, whatever form they have."""
    out: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        fused = re.fullmatch(r"(.*\.mlp\.experts)\.(gate_up_proj|down_proj)", name)
        single = _ONE.fullmatch(name)
        if fused and fused[2] == "gate_up_proj":
            for number, matrix in enumerate(tensor):
                half = matrix.shape[0] // 2
                out[f"{fused[1]}.{number}.gate_proj.weight"] = matrix[:half]
                out[f"{fused[1]}.{number}.up_proj.weight"] = matrix[half:]
        elif fused:
            out |= {f"{fused[1]}.{number}.down_proj.weight": matrix for number, matrix in enumerate(tensor)}
        elif single:
            out[f"{single[1]}.mlp.experts.{single[2]}.{_NEW.get(single[3], single[3])}.weight"] = tensor
        else:
            out[name.replace(".block_sparse_moe.gate.", ".mlp.gate.")] = tensor
    return out


def as_one(tensors: Mapping[str, Tensor], *, turned: bool = False) -> dict[str, Tensor]:
    """Experts as one tensor a layer, `[E, 2I, H]` and `[E, H, I]`, or both with the last axes turned."""
    import torch

    single = one_by_one(tensors)
    found = {name: _ONE.fullmatch(name) for name in single}
    out = {name: tensor for name, tensor in single.items() if not found[name]}
    for layer in sorted({m[1] for m in found.values() if m}):
        count = 1 + max(int(m[2]) for m in found.values() if m and m[1] == layer)
        names = [f"{layer}.mlp.experts.{e}" for e in range(count)]
        both = [torch.cat([single[f"{n}.gate_proj.weight"], single[f"{n}.up_proj.weight"]]) for n in names]
        down = [single[f"{n}.down_proj.weight"] for n in names]
        for part, matrices in (("gate_up_proj", both), ("down_proj", down)):
            whole = torch.stack(matrices)
            out[f"{layer}.mlp.experts.{part}"] = whole.transpose(1, 2) if turned else whole
    return out


def turned_back(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The transposed form as transformers can load it."""
    return {
        n: t.transpose(1, 2) if re.fullmatch(r".*\.mlp\.experts\.(gate_up_proj|down_proj)", n) else t
        for n, t in tensors.items()
    }


def config_of(folder: Path) -> dict[str, object]:
    """A folder's config.json."""
    found: dict[str, object] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return found
