"""Make `*.safetensors` beside this file with compressed-tensors 0.20.1: its compressor's tensors, its decompressor's weight.

Usage: python make.py (compressed-tensors and torch importable); no test runs this.
"""

import json
from pathlib import Path

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationScheme
from safetensors.torch import save_file

HERE = Path(__file__).parent
CASES = (
    ("w4-g32", "pack-quantized", (24, 96), "float16", {"num_bits": 4, "strategy": "group", "group_size": 32}),
    ("w4-g32-asymmetric", "pack-quantized", (24, 96), "bfloat16", {"num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": False}),
    ("w4-rows", "pack-quantized", (10, 44), "bfloat16", {"num_bits": 4, "strategy": "channel"}),
    ("w4-rows-asymmetric", "pack-quantized", (10, 44), "float16", {"num_bits": 4, "strategy": "channel", "symmetric": False}),
    ("w8-rows", "pack-quantized", (16, 48), "bfloat16", {"num_bits": 8, "strategy": "channel"}),
    ("w8-g16-asymmetric", "pack-quantized", (12, 48), "float32", {"num_bits": 8, "strategy": "group", "group_size": 16, "symmetric": False}),
    ("w3-g32", "pack-quantized", (8, 96), "float16", {"num_bits": 3, "strategy": "group", "group_size": 32}),
    ("w3-rows-asymmetric", "pack-quantized", (9, 50), "float16", {"num_bits": 3, "strategy": "channel", "symmetric": False}),
    ("w2-g32", "pack-quantized", (8, 64), "float16", {"num_bits": 2, "strategy": "group", "group_size": 32}),
    ("w4-tensor", "pack-quantized", (8, 64), "bfloat16", {"num_bits": 4, "strategy": "tensor"}),
    ("int8-rows", "int-quantized", (12, 40), "bfloat16", {"num_bits": 8, "strategy": "channel"}),
    ("int8-tensor", "int-quantized", (12, 40), "float16", {"num_bits": 8, "strategy": "tensor"}),
    ("int8-g8-asymmetric", "int-quantized", (12, 40), "bfloat16", {"num_bits": 8, "strategy": "group", "group_size": 8, "symmetric": False}),
    ("int4-rows", "int-quantized", (12, 40), "bfloat16", {"num_bits": 4, "strategy": "channel"}),
    ("int8-naive", "naive-quantized", (12, 40), "float32", {"num_bits": 8, "strategy": "channel"}),
    ("fp8-tensor", "float-quantized", (12, 40), "float32", {"num_bits": 8, "type": "float", "strategy": "tensor"}),
    ("fp8-rows", "float-quantized", (12, 40), "bfloat16", {"num_bits": 8, "type": "float", "strategy": "channel"}),
    ("fp8-g8", "float-quantized", (12, 40), "float16", {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 8}),
    ("fp8-blocks", "float-quantized", (12, 40), "bfloat16", {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [8, 16]}),
    ("fp8-naive", "naive-quantized", (12, 40), "bfloat16", {"num_bits": 8, "type": "float", "strategy": "channel"}),
)


def main() -> None:
    for name, form, (n, k), dtype, args in CASES:
        torch.manual_seed(sum(map(ord, name)))
        kind = getattr(torch, dtype)
        scheme = QuantizationScheme(targets=["Linear"], weights={"type": "int", "symmetric": True, **args})
        groups = {"group": k // args.get("group_size", 1), "channel": 1}.get(args["strategy"])
        shape = (1,) if groups is None else (n, groups)
        if "block_structure" in args:
            shape = tuple(-(-size // b) for size, b in zip((n, k), args["block_structure"], strict=True))
        half = 1 << args["num_bits"] - 1
        scale = (torch.rand(shape) * 0.02 + 1e-4).to(kind)
        state = {"weight": (torch.randn(n, k) * 0.02 * half / 2).to(kind), "weight_scale": scale}
        if not scheme.weights.symmetric:
            state["weight_zero_point"] = torch.randint(-half, half, shape, dtype=torch.int8)
        compressor = BaseCompressor.get_value_from_registry(form)
        stored = compressor.compress(state, scheme)
        weight = compressor.decompress(stored, scheme)["weight"]
        assert weight.dtype == kind
        group = {"targets": ["Linear"], "weights": scheme.weights.model_dump(), "input_activations": None, "output_activations": None}
        config = {
            "quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed", "ignore": ["lm_head"],
            "config_groups": {"group_0": group},
        }  # fmt: skip
        tensors = {k: v.contiguous() for k, v in stored.items()} | {"expected": weight.contiguous()}
        folder = HERE / "floats" if args.get("type") == "float" else HERE
        save_file(tensors, folder / f"{name}.safetensors", metadata={"config": json.dumps(config)})


main()
