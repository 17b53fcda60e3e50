"""Make `*.safetensors` beside this file with AutoAWQ 0.2.9: its packing, and its own dequantizer's result.

Usage: python make.py FOLDER_OF_AUTOAWQ (the unpacked source archive). Needs torch; no test runs this.
"""

import json
import sys
import types
from pathlib import Path

import torch
from safetensors.torch import save_file

HERE = Path(__file__).parent


def load(root: str) -> tuple:
    """The modules, without the package's own imports, which want old versions of others."""
    for name in ("awq", "awq.modules", "awq.modules.linear", "awq.utils"):
        package = types.ModuleType(name)
        package.__path__ = [str(Path(root, *name.split(".")))]
        sys.modules[name] = package
    from awq.modules.linear.gemm import WQLinear_GEMM
    from awq.modules.linear.gemv import WQLinear_GEMV
    from awq.utils.packing_utils import dequantize_gemm

    return WQLinear_GEMM, WQLinear_GEMV, dequantize_gemm


def main(root: str) -> None:
    gemm, gemv, dequantize = load(root)
    for name, cls, n, k, group in (
        ("gemm-g32", gemm, 64, 96, 32),
        ("gemm-whole", gemm, 32, 72, -1),
        ("gemm-g128", gemm, 32, 256, 128),
        ("gemv-g32", gemv, 24, 128, 32),
        ("gemv-g64", gemv, 16, 192, 64),
        ("gemv-g128", gemv, 16, 256, 128),
    ):
        torch.manual_seed(len(name))
        size = k if group == -1 else group
        codes = torch.randint(0, 16, (n, k))
        zeros = torch.randint(0, 16, (n, k // size))
        scales = (torch.rand(n, k // size) * 0.02 + 1e-4).half()
        column_zeros, column_scales = (x.repeat_interleave(size, dim=1) for x in (zeros, scales))
        linear = torch.nn.Linear(k, n, bias=False)
        linear.weight.data = (codes - column_zeros).float() * column_scales.float()
        turned = cls is gemm
        made = cls.from_linear(
            linear, 4, size, scales=scales.t().contiguous() if turned else scales,
            zeros=zeros.t().contiguous() if turned else zeros,
        )  # fmt: skip
        want = (codes - column_zeros).half() * column_scales
        if turned:
            theirs = dequantize(made.qweight, made.qzeros, made.scales, 4, size).t().contiguous()
            assert torch.equal(theirs, want), name
        config = {
            "bits": 4, "group_size": group, "zero_point": True, "version": "gemm" if turned else "gemv", "quant_method": "awq",
        }  # fmt: skip
        tensors = {"qweight": made.qweight, "qzeros": made.qzeros, "scales": made.scales, "weight": want}
        save_file(tensors, HERE / f"{name}.safetensors", metadata={"config": json.dumps(config)})


main(sys.argv[1])
