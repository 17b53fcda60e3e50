"""Ternary checkpoints as plain ones: which weights are ternary, how they are stored, and which way their scale works.

`transformers.integrations.bitnet` is the reference for checkpoints with a `quantization_config`:

| `linear_class` | `quantization_mode` | stored | the weight |
|---|---|---|---|
| `bitlinear` (also where it is not said) | either | packed, `weight_scale` | ternary / scale |
| `autobitlinear` | `offline` (also where it is not said) | packed, or unpacked as saved again; `weight_scale` | ternary * scale |
| `autobitlinear` | `online` | full weights | s * ternary, s the mean of their absolute values |

The older class of 1bitLLM (`BitnetForCausalLM`, no `quantization_config`) always makes its full weights ternary.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from llmfit_bitnet.ternary import Packed, Proven, Scaled, Ternarised
from llmfit_core.config import normalise
from llmfit_core.dtypes import FLOATS
from llmfit_core.errors import SourceError, UnsupportedError
from llmfit_core.events import Event
from llmfit_core.naming import Patterns, unwrap
from llmfit_core.recognise import recognise
from llmfit_core.roles import EXPERT_ROLES, Role
from llmfit_core.tensors import element_count

if TYPE_CHECKING:
    from llmfit_core.architecture import Architecture
    from llmfit_core.checkpoint import Checkpoint
    from llmfit_core.config import Config
    from llmfit_core.tensors import Tensor, TensorRef

TERNARY = "ternary"
"""What `Checkpoint.quantized` calls such weights."""
OLD_NAMES = {".self_attn.inner_attn_ln.": ".self_attn.attn_sub_norm.", ".mlp.ffn_layernorm.": ".mlp.ffn_sub_norm."}
OLD_DEFAULTS: Mapping[str, Any] = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "num_key_value_heads": None,
    "max_position_embeddings": 2048,
}
"""What the older class assumes where its config is silent."""
_SECTION = "quantization_config"
_KNOWN = frozenset(
    "quant_method linear_class quantization_mode use_rms_norm rms_norm_eps modules_to_not_convert".split()
)
_CORRECT = "Correct config.json, as the model's authors published it."
_NOT_LINEAR = frozenset({Role.EMBED, Role.POSITION_EMBED, Role.TOKEN_TYPES})
_MOST_STARS = 2


@dataclass(frozen=True, kw_only=True)
class Ways:
    """How a checkpoint's ternary weights are stored.

    Attributes:
        divide: The scale divides.
        online: Full weights, to be made ternary; `False`: they are, packed or not.
        once: Online, unless the file's weights are ternary already.
        skipped: Modules left as they are, as patterns; `None` for the class's own choice, which is the head.
    """

    divide: bool
    online: bool
    once: bool = False
    skipped: tuple[str, ...] | None = None


def detects(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint's linears are ternary, or its tensors have the older class's names."""
    if checkpoint.gguf is not None:
        return False
    section = checkpoint.config.values.get(_SECTION)
    if section:
        return isinstance(section, Mapping) and str(section.get("quant_method", "")).lower() == "bitnet"
    if _is_bitnet(checkpoint.config):
        old = any(old in n for n in checkpoint.tensors for old in OLD_NAMES)
        return old or _is_old(checkpoint.config) or bool(_packed(checkpoint))
    return False


def decode(checkpoint: Checkpoint, architectures: Sequence[Architecture]) -> Checkpoint:
    """The checkpoint with plain weights, under transformers' names.

    Raises:
        UnsupportedError: `bitnet-norms`, `bitnet-experts`, `bitnet-head`, `bitnet-modules`, `config-value`.
        SourceError: `missing-tensor`, `contradicting-config`, `config-key-invalid`.
    """
    section = checkpoint.config.values.get(_SECTION) or {}
    assert isinstance(section, Mapping)
    old = _is_bitnet(checkpoint.config) and not section and _is_old(checkpoint.config)
    if _is_bitnet(checkpoint.config):
        checkpoint = _with_new_names(checkpoint)
    if not section and _packed(checkpoint):
        raise SourceError(
            "quantization-config-missing",
            f"{_packed(checkpoint)} is packed, and config.json has no {_SECTION} to say whether its scale multiplies",
            "Add quantization_config to config.json, as the model's authors published it.",
        )
    if old:
        checkpoint = _as_new_class(checkpoint)
    elif not section:
        return checkpoint
    events = [
        Event(
            code="unknown-config-key",
            message=f"{_SECTION} in config.json has the key {key}, which nobody here knows; it may change what is computed",
            subject=f"{_SECTION}.{key}",
        )
        for key in section
        if key not in _KNOWN
    ]
    ways = Ways(divide=False, online=True, once=True) if old else _ways(section)
    _refuse_norms(checkpoint, section)
    tensors, made = (_online if ways.online else _offline)(checkpoint, ways, architectures)
    return replace(
        checkpoint,
        tensors=tensors,
        quantized=(*checkpoint.quantized, TERNARY) if made else checkpoint.quantized,
        events=(*checkpoint.events, *events, *_told(ways, made)),
    )


def _is_bitnet(config: Config) -> bool:
    names = {n.casefold() for n in (*config.architectures, config.model_type)}
    return bool(names & {"bitnetforcausallm", "bitnet"})


def _is_old(config: Config) -> bool:
    """1bitLLM's class, which rounds its weights whatever the config says."""
    return "BitnetForCausalLM" in config.architectures or "weight_bits" in config.values


def _packed(checkpoint: Checkpoint) -> str:
    """The first tensor that is packed as this format packs, empty where none is."""
    for name, ref in checkpoint.tensors.items():
        scale = checkpoint.tensors.get(f"{name}_scale")
        if ref.dtype == "u8" and name.endswith(".weight") and scale is not None and element_count(scale.shape) == 1:
            return name
    return ""


def _with_new_names(checkpoint: Checkpoint) -> Checkpoint:
    out: dict[str, TensorRef] = {}
    for name, ref in checkpoint.tensors.items():
        new = name
        for before, after in OLD_NAMES.items():
            new = new.replace(before, after)
        if new in out or (new != name and new in checkpoint.tensors):
            raise SourceError(
                "duplicate-tensor",
                f"tensors {name} and {new} are both the same sub-norm",
                "Remove the copy that does not belong to the model.",
            )
        out[new] = replace(ref, name=new)
    return replace(checkpoint, tensors=out)


def _as_new_class(checkpoint: Checkpoint) -> Checkpoint:
    """The older class's config in the words of transformers' class, with what it assumes written out."""
    raw = {k: v for k, v in checkpoint.config.raw.items() if k not in ("auto_map", "model_type", "weight_bits", "input_bits")}
    bits = checkpoint.config.values.get("weight_bits")
    if bits not in (None, 1):
        raise UnsupportedError(
            "config-value", f"weight_bits in config.json is {bits!r:.40}: only ternary weights (1) are known",
            "There is no table for this variant; a plugin may add one under a class name of its own.",
        )
    rope = raw.get("rope_parameters")
    stated = {"rope_theta"} if isinstance(rope, Mapping) and "rope_theta" in rope else set()
    raw |= {k: v for k, v in OLD_DEFAULTS.items() if k not in raw and k not in stated}
    raw |= {"architectures": ["BitNetForCausalLM"], "model_type": "bitnet"}
    return replace(checkpoint, config=normalise(raw))


def _ways(section: Mapping[str, Any]) -> Ways:
    linear = _choice(section, "linear_class", "bitlinear", ("bitlinear", "autobitlinear"))
    mode = _choice(section, "quantization_mode", "offline", ("offline", "online"))
    skipped = section.get("modules_to_not_convert")
    if skipped is not None and (not isinstance(skipped, list) or not all(isinstance(s, str) and s for s in skipped)):
        raise SourceError(
            "config-key-invalid", f"{_SECTION}.modules_to_not_convert in config.json is {skipped!r:.80}, no list of names", _CORRECT
        )
    return Ways(
        divide=linear == "bitlinear",
        online=linear == "autobitlinear" and mode == "online",
        skipped=None if skipped is None else tuple(skipped),
    )


def _choice(section: Mapping[str, Any], key: str, default: str, values: tuple[str, ...]) -> str:
    value = section.get(key, default)
    if value not in values:
        raise UnsupportedError(
            "config-value", f"{_SECTION}.{key} in config.json is {value!r:.80}, not {' or '.join(values)}", _CORRECT
        )
    return str(value)


def _refuse_norms(checkpoint: Checkpoint, section: Mapping[str, Any]) -> None:
    """A norm inside each linear: no graph has one before q, k, v, gate and up, and no model class of transformers either."""
    inner = next((n for n in checkpoint.tensors if re.search(r"_proj\.(rms_)?norm\.weight$", n)), "")
    if not section.get("use_rms_norm") and not inner:
        return
    what = f"{_SECTION}.use_rms_norm in config.json is {section.get('use_rms_norm')!r:.20}" if not inner else f"there is {inner}"
    raise UnsupportedError(
        "bitnet-norms",
        f"{what}: each linear has an RMS norm of its own before it, which no graph computes and no plain model class has",
        "Run this checkpoint in transformers as it is.",
    )


def _offline(
    checkpoint: Checkpoint, ways: Ways, architectures: Sequence[Architecture]
) -> tuple[dict[str, TensorRef], dict[str, str]]:
    """Stored ternary: packed, or unpacked with a scale, or proven to be ternary as it stands."""
    out: dict[str, TensorRef] = {}
    made: dict[str, str] = {}
    for name, ref in checkpoint.tensors.items():
        if name.endswith(".weight_scale") and name.removesuffix("_scale") in checkpoint.tensors:
            continue
        tensor: Tensor = ref.tensor
        scale = checkpoint.tensors.get(f"{name}_scale") if name.endswith(".weight") else None
        if ref.dtype == "u8" and name.endswith(".weight") and len(ref.shape) == 2:
            if scale is None:
                raise SourceError(
                    "missing-tensor", f"{name} is packed, and {name}_scale, its scale, is missing", "Fetch the missing shard."
                )
            tensor, made[name] = Packed(tensor, name), "packed"
        elif scale is not None and ref.dtype in FLOATS:
            if ways.divide:
                raise UnsupportedError(
                    "bitnet-unpacked",
                    f"{name} is not packed and has a weight_scale, which linear_class bitlinear never saves",
                    "Correct linear_class in quantization_config of config.json: autobitlinear saves such files.",
                )
            made[name] = "unpacked"
        if scale is not None:
            _require_number(scale, f"{name}_scale")
            tensor = Scaled(tensor, scale.tensor, ways.divide, f"{name}_scale")
        out[name] = ref if tensor is ref.tensor else replace(ref, tensor=tensor)
    # What is neither packed nor scaled, and yet one of the class's ternary linears.
    for name in _linears(replace(checkpoint, tensors=out), ways, architectures):
        if name not in made and out[name].dtype in FLOATS:
            out[name] = replace(out[name], tensor=Proven(out[name].tensor, name))
            made[name] = "in full"
    return out, made


def _require_number(scale: TensorRef, name: str) -> None:
    if element_count(scale.shape) != 1 or scale.dtype not in FLOATS:
        raise SourceError(
            "shape-mismatch", f"{name} is {scale.dtype} {list(scale.shape)} where one number belongs", _CORRECT
        )


def _online(
    checkpoint: Checkpoint, ways: Ways, architectures: Sequence[Architecture]
) -> tuple[dict[str, TensorRef], dict[str, str]]:
    """Full weights, made ternary wherever the model class has a linear."""
    odd = next((n for n, r in checkpoint.tensors.items() if r.dtype == "u8" or n.endswith(".weight_scale")), None)
    if odd is not None:
        raise SourceError(
            "contradicting-config",
            f"quantization_mode in config.json is online, for full weights, yet there is {odd} ({checkpoint.tensors[odd].dtype})",
            "Correct quantization_mode in quantization_config: packed weights are offline.",
        )
    linears = _linears(checkpoint, ways, architectures)
    out = {
        n: replace(r, tensor=Ternarised(r.tensor, ways.once)) if n in linears else r for n, r in checkpoint.tensors.items()
    }
    return out, dict(linears)


def _linears(checkpoint: Checkpoint, ways: Ways, architectures: Sequence[Architecture]) -> dict[str, str]:
    """Names of the weights that the model class keeps in linears it makes ternary."""
    architecture, _, _ = recognise(checkpoint, architectures)
    patterns = Patterns([*architecture.tensors, *architecture.waived])
    plain, _ = unwrap(checkpoint.tensors, patterns)
    skips = [re.compile(_pattern(s)) for s in ways.skipped or ()]
    out: dict[str, str] = {}
    head = False
    for name, ref in checkpoint.tensors.items():
        match = patterns.match(plain[name])
        if match is None or match.part != "weight" or match.pattern in architecture.waived or len(ref.shape) < 2:
            continue
        slot = architecture.slot(match.pattern)
        roles = slot.role.roles if not isinstance(slot.role, str) else (slot.role,)
        if set(roles) & _NOT_LINEAR or slot.transposed:
            continue
        module = plain[name].removesuffix(".weight")
        head |= Role.HEAD in roles
        if (ways.skipped is None and Role.HEAD in roles) or any(s.search(module) for s in skips):
            continue
        if set(roles) & (EXPERT_ROLES | {Role.FFN_ROUTER}):
            raise UnsupportedError(
                "bitnet-experts",
                f"{name}: which parts of a mixture are ternary differs between versions of its class",
                "Convert a packed (offline) checkpoint of this model.",
            )
        out[name] = "full"
    if ways.online and not head and ways.skipped is not None and not any(s.search("lm_head") for s in skips):
        raise UnsupportedError(
            "bitnet-head",
            "modules_to_not_convert in quantization_config of config.json does not name lm_head, which is tied: the embedding "
            "would be ternary as the head and full as itself",
            "Add lm_head to modules_to_not_convert, if that is what the model was trained with.",
        )
    return out


def _pattern(text: str) -> str:
    """A name of `modules_to_not_convert` as transformers reads it: from the start to a dot, or the end of a name."""
    if not re.fullmatch(r"[\w.*-]+", text) or text.count("*") > _MOST_STARS or "**" in text:
        raise UnsupportedError(
            "bitnet-modules", f"modules_to_not_convert in config.json has {text!r:.80}, a pattern that is not read here", _CORRECT
        )
    return rf"^(?:{text})(?:(?<=\.)|(?=\.|$))|{re.escape(text)}$" if not text.startswith("*") else rf"{re.escape(text)}$"


def _told(ways: Ways, made: Mapping[str, str]) -> list[Event]:
    """What is ternary, for the plan."""
    if not made:
        return []
    kinds = sorted(set(made.values()))
    count = f"{len(made)} matri{'x is' if len(made) == 1 else 'ces are'} ternary"
    if ways.online:
        how = "made from full weights, by the mean of their absolute values"
        how += ", unless they are ternary already" if ways.once else ""
    else:
        how = f"stored {' and '.join(kinds)}; weight_scale {'divides' if ways.divide else 'multiplies'}"
    activations = (
        "the model class rounds what goes into its ternary linears to 8 bits; the weights say nothing of it, and a runtime "
        "that does not do so differs a little"
    )
    return [
        Event(code="ternary-weights", message=f"{count}: {how}", severity="info", subject=_SECTION),
        Event(code="activations-not-rounded", message=activations, severity="info", subject=_SECTION),
    ]
