"""The reference: the model's class in transformers, float32, eager, its ternary linears with 8-bit inputs or without."""

from __future__ import annotations

import json
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

POSITIONS = range(33, 57)
LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@contextmanager
def uncompiled() -> Iterator[None]:
    """transformers compiles these few lines, which takes a minute and changes no value."""
    before = torch._dynamo.config.disable
    torch._dynamo.config.disable = True
    try:
        yield
    finally:
        torch._dynamo.config.disable = before


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    """Plain float32 weights of a ternary folder, by transformers' own unpacking, rounding and scaling."""
    from transformers.integrations.bitnet import WeightQuant, unpack_weights

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    section = config.get("quantization_config") or {}
    divides = section.get("linear_class", "bitlinear") == "bitlinear"
    online = not divides and section.get("quantization_mode", "offline") == "online"
    held = load_file(folder / "model.safetensors")
    out = {}
    with uncompiled():
        for name, tensor in held.items():
            linear = name.split(".")[-2] in LINEARS and name.endswith(".weight")
            scale = held.get(f"{name}_scale")
            if name.endswith("_scale"):
                continue
            if tensor.dtype == torch.uint8:
                tensor = unpack_weights(tensor, dtype=torch.float32)
            tensor = tensor.float()
            if scale is not None:
                tensor = tensor / scale.float() if divides else tensor * scale.float()
            elif linear and online:
                tensor = WeightQuant.apply(tensor)
            out[name] = tensor
    return out


def plain_folder(folder: Path, to: Path) -> Path:
    """The folder with those weights, for the class without its quantizer."""
    to.mkdir()
    save_file({n: t.contiguous() for n, t in weights_of(folder).items()}, to / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config.pop("quantization_config", None)
    (to / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if (folder / "golden.json").exists():
        shutil.copyfile(folder / "golden.json", to / "golden.json")
    return to


def loaded(folder: Path, *, rounds: bool = False) -> Any:
    """The class over a plain folder; `rounds`: with what goes into its ternary linears rounded, as the class does it."""
    from transformers.integrations.bitnet import ActQuant

    torch.set_num_threads(2)
    net, said = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not any(said[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys")), said
    if rounds:
        for name, module in net.named_modules():
            if name.split(".")[-1] in LINEARS:
                module.register_forward_pre_hook(lambda _, inputs: (ActQuant.apply(inputs[0]),))
    return net.eval()


def scored(net: Any, ids: Sequence[int], positions: Sequence[int] = POSITIONS) -> NDArray[np.float64]:
    """Log-probabilities after each prefix."""
    with torch.inference_mode(), uncompiled():
        every = net(torch.tensor([list(ids)])).logits[0]
        result: NDArray[np.float64] = torch.stack([every[n - 1] for n in positions]).double().log_softmax(-1).numpy()
        return result
