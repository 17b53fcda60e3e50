"""Make `*.safetensors` beside this file with MLX 0.32.4 on a CPU: what `quantize` packs, and what `dequantize` makes of it.

Usage: python make.py (mlx importable); no test runs this. Scales and biases go to `dequantize` in float32.
"""

from pathlib import Path

import mlx.core as mx
import numpy as np

HERE = Path(__file__).parent

mx.set_default_device(mx.cpu)
for bits in (2, 3, 4, 5, 6, 8):
    for group, kind, shape in ((32, "bfloat16", (6, 96)), (64, "float16", (2, 5, 128))):
        draw = np.random.default_rng(bits * group)
        weight = mx.array(draw.standard_normal(shape).astype(np.float32) * 0.05).astype(getattr(mx, kind))
        packed, scales, biases = mx.quantize(weight, group, bits)
        expected = mx.dequantize(packed, scales.astype(mx.float32), biases.astype(mx.float32), group, bits)
        assert expected.dtype == mx.float32
        tensors = {"weight": packed, "scales": scales, "biases": biases, "expected": expected}
        mx.save_safetensors(str(HERE / f"w{bits}-g{group}"), tensors, metadata={"bits": str(bits), "group_size": str(group)})
