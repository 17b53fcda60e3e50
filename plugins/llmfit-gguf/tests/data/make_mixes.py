"""Record which type llama-quantize gives each tensor of models that need not exist.

    python make_mixes.py path/to/llama-quantize mixes.json

Writes headers with a sparse data section, runs `llama-quantize --dry-run` on each and keeps what it prints. See README.md.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import gguf

SCHEMES = "Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K_S Q3_K_M Q3_K_L Q4_K_S Q4_K_M Q5_K_S Q5_K_M Q6_K IQ4_NL IQ4_XS TQ1_0 TQ2_0".split()
LETTERS = {
    "f32": "F", "f16": "H", "bf16": "B", "q8_0": "8", "q4_0": "a", "q4_1": "b", "q5_0": "c", "q5_1": "d", "q2_k": "2",
    "q3_k": "3", "q4_k": "4", "q5_k": "5", "q6_k": "6", "iq4_nl": "n", "iq4_xs": "x", "tq1_0": "s", "tq2_0": "t",
}  # fmt: skip

Case = dict[str, Any]


def model(
    arch: str = "llama",
    *,
    layers: int = 8,
    hidden: int = 512,
    heads: int = 8,
    kv: int = 2,
    ffn: int = 1024,
    experts: int = 0,
    tied: bool = False,
    fused: bool = False,
    gateless: bool = False,
    keys: dict[str, Any] | None = None,
    vocab: int = 1024,
) -> Case:
    """Tensors (outermost axis first) and keys of one decoder; the widths need not make sense together."""
    head = int((keys or {}).get("attention.key_length", hidden // heads))
    once: dict[str, list[int]] = {"token_embd.weight": [vocab, hidden], "output_norm.weight": [hidden]}
    if not tied:
        once["output.weight"] = [vocab, hidden]
    each: dict[str, list[int]] = {}
    each["attn_norm.weight"] = [hidden]
    if fused:
        each["attn_qkv.weight"] = [(heads + 2 * kv) * head, hidden]
    else:
        each["attn_q.weight"] = [heads * head, hidden]
        each["attn_k.weight"] = [kv * head, hidden]
        each["attn_v.weight"] = [kv * head, hidden]
        each["attn_v.bias"] = [kv * head]
    each["attn_output.weight"] = [hidden, heads * head]
    each["ffn_norm.weight"] = [hidden]
    if experts:
        each["ffn_gate_inp.weight"] = [experts, hidden]
        each["ffn_gate_exps.weight"] = [experts, ffn, hidden]
        each["ffn_up_exps.weight"] = [experts, ffn, hidden]
        each["ffn_down_exps.weight"] = [experts, hidden, ffn]
    if experts == 60:
        each["ffn_gate_inp_shexp.weight"] = [hidden]
        each["ffn_gate_shexp.weight"] = [ffn, hidden]
        each["ffn_up_shexp.weight"] = [ffn, hidden]
        each["ffn_down_shexp.weight"] = [hidden, ffn]
    if not experts:
        if not gateless:
            each["ffn_gate.weight"] = [ffn, hidden]
        each["ffn_up.weight"] = [ffn, hidden]
        each["ffn_down.weight"] = [hidden, ffn]
    values = {
        "block_count": layers,
        "context_length": 4096,
        "embedding_length": hidden,
        "feed_forward_length": ffn,
        "attention.head_count": heads,
        "attention.head_count_kv": kv,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.layer_norm_epsilon": 1e-5,
        "rope.dimension_count": head,
        "vocab_size": vocab,
        **({"expert_count": experts, "expert_used_count": 2} if experts else {}),
        **(keys or {}),
    }
    return {"architecture": arch, "keys": values, "once": once, "each": each, "layers": layers}


CASES: dict[str, Case] = {
    "llama": model(),
    "llama-gqa4": model(kv=2, heads=8, layers=20),
    "llama-gqa2": model(kv=4, layers=17),
    "llama-gqa8-80-layers": model(layers=80, heads=64, kv=8, hidden=8192, ffn=28672, vocab=32000),
    "llama-mha-80-layers": model(layers=80, heads=64, kv=64, hidden=8192, ffn=22016, vocab=32000),
    "llama-32-layers": model(layers=32, heads=32, kv=8, hidden=4096, ffn=14336, vocab=128256),
    "llama-1-layer": model(layers=1),
    "llama-tied": model(tied=True, layers=9),
    "llama-320": model(hidden=320, ffn=864, tied=True),
    "llama-576": model(hidden=576, heads=9, kv=3, ffn=1536, tied=True, layers=30),
    "llama-640": model(hidden=640, ffn=2048),
    "llama-odd": model(hidden=200, ffn=1000),
    "llama-ffn-2816": model(hidden=1024, heads=16, kv=8, ffn=2816, layers=24),
    "mixtral": model(experts=8, layers=16),
    "mixtral-80-layers": model(experts=8, layers=80, heads=64, kv=8),
    "llama-4-experts": model(experts=4, layers=10),
    "llama-16-experts-320": model(experts=16, layers=4, hidden=320, ffn=448),
    "qwen2": model("qwen2", layers=28, heads=28, kv=4, hidden=3584, ffn=18944, vocab=152064),
    "qwen2-80-layers": model("qwen2", layers=80, heads=64, kv=8),
    "qwen2-tied-896": model("qwen2", layers=24, heads=14, kv=2, hidden=896, ffn=4864, tied=True),
    "qwen2moe": model("qwen2moe", experts=60, layers=12, keys={"expert_feed_forward_length": 1024, "expert_shared_feed_forward_length": 1024}),
    "qwen3moe": model("qwen3moe", experts=128, layers=6, keys={"expert_feed_forward_length": 1024}),
    "olmo-80-layers": model("olmo", layers=80, heads=64, kv=8),
    "falcon-kv1": model("falcon", layers=32, heads=71, kv=1, hidden=4544, ffn=18176, fused=True, gateless=True, tied=True),
    "falcon-60": model("falcon", layers=60, heads=128, kv=8, hidden=8192, ffn=32768, fused=True, gateless=True),
    "falcon-16": model("falcon", layers=16, heads=8, kv=2, fused=True, gateless=True),
    "phi3": model("phi3", layers=32, heads=32, kv=32, hidden=3072, ffn=8192, fused=True, gateless=True),
    "phi2": model("phi2", layers=24, heads=32, kv=32, hidden=2560, ffn=10240, fused=True, gateless=True),
    "gpt2-medium": model("gpt2", layers=12, heads=12, kv=12, hidden=768, ffn=3072, fused=True, gateless=True),
    "gemma": model("gemma", layers=18, heads=8, kv=1, hidden=2048, ffn=16384, tied=True),
    "gemma2": model("gemma2", layers=26, heads=8, kv=4, hidden=2304, ffn=9216, tied=True, keys={"attention.key_length": 256, "attention.sliding_window": 4096}),
    "gemma3-270m": model("gemma3", layers=18, heads=4, kv=1, hidden=640, ffn=2048, tied=True, keys={"attention.sliding_window": 512}),
    "starcoder2": model("starcoder2", layers=30, heads=24, kv=2, hidden=3072, ffn=12288, gateless=True, tied=True),
}  # fmt: skip


def tensors_of(case: Case) -> dict[str, list[int]]:
    """Name to shape: what is there once, then layer by layer."""
    layers = range(case["layers"])
    return {**case["once"], **{f"blk.{i}.{name}": shape for i in layers for name, shape in case["each"].items()}}


OVERRIDES: list[tuple[str, str, list[list[str]]]] = [
    ("llama-32-layers", "Q4_K_M", [["blk.[0-3].attn_v", "q8_0"]]),  # what is overridden is not counted
    ("llama-32-layers", "Q3_K_M", [["blk.0.attn_v", "q3_k"], ["ffn_down", "q4_k"]]),
    ("llama-32-layers", "Q4_K_S", [["attn_v", "q4_k"], ["token_embd", "f16"], ["output.weight", "q4_k"]]),
    ("llama-320", "Q5_K_M", [["attn_q", "q4_k"], ["ffn_up", "iq4_xs"], ["ffn_down", "f16"]]),
    ("mixtral", "Q4_K_M", [["blk.(1|2).ffn_down_exps", "q8_0"], ["norm|attn_k", "q5_0"]]),
    ("falcon-16", "IQ4_XS", [["qkv", "iq4_nl"], ["blk.1.", "f32"]]),
]


def write_header(case: Case, path: Path) -> None:
    """A GGUF whose tensors are bf16 (vectors f32), with holes for data."""
    writer = gguf.GGUFWriter(path, case["architecture"])
    for key, value in case["keys"].items():
        name = f"{case['architecture']}.{key}"
        (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(name, value)
    size = 0
    for name, shape in tensors_of(case).items():
        kind = gguf.GGMLQuantizationType.F32 if len(shape) == 1 else gguf.GGMLQuantizationType.BF16
        nbytes = math.prod(shape) * (4 if len(shape) == 1 else 2)
        writer.add_tensor_info(name, shape, gguf.np.dtype("float32"), nbytes, raw_dtype=kind)
        size += nbytes + -nbytes % 32
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    end = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(end + -end % 32 + size)


def types_of(binary: str, path: Path, scheme: str, overrides: list[list[str]] | None = None) -> dict[str, str]:
    """Tensor to type as `--dry-run` prints it; what it leaves alone keeps its own type, which is f32 here."""
    options = [part for pattern, kind in overrides or [] for part in ("--tensor-type", f"{pattern}={kind}")]
    run = subprocess.run(
        [binary, *options, "--dry-run", str(path), scheme], capture_output=True, text=True, check=False
    )
    text = run.stdout + run.stderr
    found = re.findall(
        r"\] +(\S+) +- \[[^\]]*\], type = +(\S+), .*?size = +[\d.]+ MiB(?: -> +[\d.]+ MiB \((\S+)\))?", text
    )
    if run.returncode or not found:
        raise SystemExit(f"{path.name} {scheme}: {text[-800:]}")
    return {name: (new or ("f32" if old == "bf16" else old)).lower() for name, old, new in found}


def main(binary: str, out: str) -> None:
    """Record all cases."""
    record: dict[str, Any] = {"letters": LETTERS, "cases": {}, "overrides": []}
    with tempfile.TemporaryDirectory() as folder:
        for label, case in CASES.items():
            path = Path(folder) / f"{label}.gguf"
            write_header(case, path)
            types, names = {}, list(tensors_of(case))
            for scheme in SCHEMES:
                got = types_of(binary, path, scheme)
                if set(got) != set(names):
                    raise SystemExit(f"{label} {scheme}: {len(got)} of {len(case['tensors'])} tensors printed")
                types[scheme.lower()] = "".join(LETTERS[got[name]] for name in names)
            record["cases"][label] = {**case, "types": types}
            for case_label, scheme, overrides in OVERRIDES:
                if case_label == label:
                    got = types_of(binary, path, scheme, overrides)
                    line = "".join(LETTERS[got[name]] for name in names)
                    record["overrides"].append([label, scheme.lower(), overrides, line])
            path.unlink()
            print(label, flush=True)
    Path(out).write_text(json.dumps(record, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
