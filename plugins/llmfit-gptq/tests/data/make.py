"""Make `*.safetensors` beside this file with auto-gptq 0.7.1: its packing, and what its forward pass makes of it.

Usage: python make.py FOLDER_OF_AUTO_GPTQ (the unpacked wheel). Needs torch and transformers; no test runs this.

Files of the second format (`-v2`) are packed by the same code from zero points one higher, since it stores them less one.
"""

import importlib.util
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

HERE = Path(__file__).parent


def main(root: str) -> None:
    place = Path(root, "auto_gptq", "nn_modules", "qlinear", "qlinear_cuda.py")
    spec = importlib.util.spec_from_file_location("qlinear_cuda", place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, bits, n, k, group, order, second in (
        ("w2-g32", 2, 32, 64, 32, False, False),
        ("w3-g32", 3, 64, 96, 32, False, False),
        ("w4-g32", 4, 32, 96, 32, False, False),
        ("w8-g64", 8, 32, 128, 64, False, False),
        ("w4-whole", 4, 32, 64, -1, False, False),
        ("w4-order", 4, 32, 128, 32, True, False),
        ("w3-order", 3, 32, 64, 16, True, False),
        ("w8-order", 8, 32, 64, 32, True, False),
        ("w4-v2", 4, 32, 96, 32, False, True),
        ("w3-v2", 3, 32, 64, 32, True, True),
    ):
        torch.manual_seed(sum(map(ord, name)))
        size = k if group == -1 else group
        top = 2**bits - 1
        index = torch.arange(k) // size
        if order:
            index = index[torch.randperm(k)]
        codes = torch.randint(0, top + 1, (n, k))
        # None is zero: the package stores that as -1 without cutting it to `bits`, which spoils the rest of the word.
        zeros = torch.randint(1 if not second else 0, top + 1 if not second else top, (n, k // size))
        scales = (torch.rand(n, k // size) * 0.02 + 1e-4).half()
        want = (codes - zeros[:, index]).half() * scales[:, index]
        linear = torch.nn.Linear(k, n, bias=False)
        put = zeros + 1 if second else zeros
        linear.weight.data = (codes - put[:, index]).float() * scales[:, index].float()
        layer = module.QuantLinear(bits, group, k, n, False)
        layer.pack(linear, scales.float(), put.float(), index.int())
        layer.scales = layer.scales.half()
        if not second:  # the package itself reads the first format only
            theirs = layer(torch.eye(k).half()).t()
            assert torch.equal(theirs, want), name
        config = {
            "bits": bits, "group_size": group, "desc_act": order, "sym": False, "true_sequential": True, "quant_method": "gptq",
        }  # fmt: skip
        if second:
            config["checkpoint_format"] = "gptq_v2"
        parts = {p: getattr(layer, p).contiguous() for p in ("qweight", "qzeros", "scales", "g_idx")}
        save_file({**parts, "weight": want.contiguous()}, HERE / f"{name}.safetensors", metadata={"config": json.dumps(config)})


main(sys.argv[1])
