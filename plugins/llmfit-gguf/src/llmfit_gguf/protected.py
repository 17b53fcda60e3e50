"""Which tensors are too small or too delicate to be narrowed. Two rules, because llama.cpp has two programs.

`may_quantize` is llama-quantize's (block types); `keeps_float32` is its converter's (16-bit types). Both go by
GGUF names, so that they hold for architectures nobody has listed.
"""

from __future__ import annotations

import re

_NEVER_QUANTIZED_PARTS = (
    "_norm.weight",
    "ffn_gate_inp.weight",  # routers
    "ffn_gate_tid2eid.weight",
    "altup",  # Gemma 3n's small mixers
    "laurel",
    "per_layer_model_proj",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "indexer.k_proj.weight",
    "indexer.q_proj.weight",
    *(
        f"time_mix_{part}.weight"
        for part in ("first", "w0", "w1", "w2", "v0", "v1", "v2", "a0", "a1", "a2", "g1", "g2")
    ),
    "time_mix_decay_w1.weight",
    "time_mix_decay_w2.weight",
    "time_mix_lerp_fused.weight",
    "attn_rel_b.weight",
    ".position_embd",  # vision and audio towers
    "sam.pos_embd",
    "sam.neck.",
    "sam.net_",
    ".rel_pos",
    ".patch_embd",
    ".patch_merger",
    "a.rvq.codebook",
    "mm.a.code_embd",
)
_NEVER_QUANTIZED = frozenset({"position_embd.weight", "token_types.weight"})
_NEVER_QUANTIZED_IN: dict[str, tuple[str, ...]] = {
    "glm5-next": (
        "hc_",
        "indexer.attn_q_b",
        "indexer.attn_k",
        "indexer.proj",
        "indexer_compressor_gate",
        "indexer_compressor_ape",
        "ssm_f_a.weight",
        "ssm_f_b.weight",
        "ssm_g_a.weight",
        "ssm_g_b.weight",
        "ssm_beta.weight",
        "attn_kv_a_mqa.weight",
        "attn_k_b.weight",
        "attn_v_b.weight",
    ),
}

_FLOAT32_NAMES = re.compile(
    r"(?:blk\.\d+\.(?:ffn_gate_inp|ffn_gate_inp_shexp|ssm_conv1d(?:_[qkv])?|shortconv\.conv"
    r"|time_mix_(?:first|w1|w2|decay_w1|decay_w2|lerp_fused)|altup_correct_coef|altup_predict_coef|indexer\.proj)"
    r"|(?:[va]\.)?position_embd|token_types|posnet\.\d+\.norm[12])\.weight"
)
_FLOAT32_IN: dict[str, re.Pattern[str]] = {
    "glm5-next": re.compile(r"^(?:blk\.|output_hc).*(?:hc_attn_|hc_ffn_|indexer_compressor_|ssm_a|ssm_dt|exp_probs_b)"),
    "hy_v4": re.compile(r"(?:hc_attn_fn|hc_ffn_fn|output_hc_fn)\.weight$"),
    "minimax-m3": re.compile(r"\.indexer\."),
}
_ALL_MATRICES_NARROW = frozenset({"dbrx"})


def may_quantize(name: str, dimensions: int, architecture: str) -> bool:
    """Whether llama-quantize gives a tensor a block type.

    Args:
        name: GGUF name.
        dimensions: Axes that remain when leading axes of length one are dropped.
        architecture: `general.architecture`.
    """
    if dimensions < 2 or not name.endswith("weight") or name in _NEVER_QUANTIZED:
        return False
    parts = _NEVER_QUANTIZED_PARTS + _NEVER_QUANTIZED_IN.get(architecture, ())
    return not any(part in name for part in parts)


def keeps_float32(name: str, dimensions: int, architecture: str) -> bool:
    """Whether a tensor stays float32 in a 16-bit file.

    Args:
        name: GGUF name.
        dimensions: Axes as written, ones included.
        architecture: `general.architecture`.
    """
    if dimensions <= 1 or name.endswith("_norm.weight"):
        return True
    if architecture in _ALL_MATRICES_NARROW:
        return False
    if not name.endswith((".weight", ".lora_a", ".lora_b")) or _FLOAT32_NAMES.fullmatch(name):
        return True
    special = _FLOAT32_IN.get(architecture)
    return special is not None and special.search(name) is not None
