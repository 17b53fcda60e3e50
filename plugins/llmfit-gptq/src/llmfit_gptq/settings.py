"""What a GPTQ checkpoint's config says: `quantization_config` in config.json and `quantize_config.json` as one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from llmfit_core.errors import SourceError, UnsupportedError
from llmfit_core.quantized_config import (
    NamePattern,
    Section,
    merged,
    packing_of_auto_round,
    refuse_layout,
    section_of,
    side_section,
)

if TYPE_CHECKING:
    from llmfit_core.checkpoint import Checkpoint

BITS = (2, 3, 4, 8)
STREAMED = (2, 3, 4, 5, 6, 7, 8)
"""What auto-round packs in sequence; gptqmodel's 5, 6 and 7 bits lie otherwise."""
SIDE_FILES = ("quantize_config.json", "quant_config.json")
_SPELLINGS = {
    "bits": ("w_bit", "wbits"),
    "group_size": ("q_group_size", "groupsize"),
    "desc_act": (),
    "checkpoint_format": ("format",),
    "quant_method": ("method",),
}
_NO_NAME = frozenset("\\*+?^$|()[]{}")
_FORMATS = ("gptq", "gptq_v2")


@dataclass(frozen=True, kw_only=True)
class Said:
    """What holds for one module.

    Attributes:
        bits: Per weight.
        group: Columns a group; -1 for whole rows.
        desc_act: Whether columns were taken in the order of their activations.
    """

    bits: int
    group: int
    desc_act: bool


@dataclass(frozen=True, kw_only=True)
class Rule:
    """gptqmodel's or auto-round's word on some modules.

    Attributes:
        pattern: Of their names.
        said: What holds for them; `None` where they are left out.
        anywhere: Whether the pattern may match anywhere in a name, not just from its beginning.
    """

    pattern: NamePattern
    said: Said | None
    anywhere: bool = False


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A checkpoint's config.

    Attributes:
        where: How messages call it.
        usual: What holds for modules of which no rule speaks.
        second: Whether the zero points are stored as they are (`gptq_v2`), not less one.
        static_groups: Whether groups were fixed before columns were ordered, so that they follow each other.
        exact: Modules by name.
        rules: Of the others the first that matches counts.
    """

    where: str
    usual: Said
    second: bool
    static_groups: bool
    exact: Mapping[str, Said | None] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()

    def of(self, module: str) -> Said:
        """What holds for a module; one that a rule leaves out, and that is quantized all the same, is as the others."""
        if module in self.exact:
            return self.exact[module] or self.usual
        for rule in self.rules:
            if rule.pattern.matches(module, anywhere=rule.anywhere):
                return rule.said or self.usual
        return self.usual


def read_settings(checkpoint: Checkpoint) -> Settings:
    """The config.

    Raises:
        SourceError: `no-quantization-config`, `config-key-invalid`, `contradicting-config`.
        UnsupportedError: `unknown-packing`, `unknown-bits`, `online-rotation`.
    """
    section = section_of(checkpoint)
    for name in SIDE_FILES:
        section = merged(section, side_section(checkpoint, name), _SPELLINGS)
    if not section.values:
        raise SourceError(
            "no-quantization-config",
            f"{checkpoint.label} holds GPTQ weights, and nothing says their format (quantization_config in config.json, "
            "quantize_config.json): zero points may be stored less one or as they are",
            'Fetch quantize_config.json, or write one: {"bits": 4, "group_size": 128, "checkpoint_format": "gptq"}.',
        )
    exact: dict[str, Said | None] = {}
    packing = packing_of_auto_round(checkpoint)
    if packing:
        _refuse_floats(section)
        usual = _said(section, section.values, "", known=STREAMED)
        exact = _modules_of_auto_round(section, usual)
        # A name is a pattern too, that may match anywhere; most are just names.
        rules = [Rule(pattern=section.pattern("extra_config", k), said=s, anywhere=True) for k, s in exact.items() if _NO_NAME & set(k)]
    else:
        _refuse(section)
        usual = _said(section, section.values, "")
        rules = [_rule(section, str(p), v, usual) for p, v in section.mapping("dynamic").items()]
    return Settings(
        where=section.where,
        usual=usual,
        second=(packing or section.text("checkpoint_format", "gptq")) == "gptq_v2",
        static_groups=section.flag("static_groups", False),
        exact=exact,
        rules=tuple(rules),
    )


def _refuse(section: Section) -> None:
    """What is stored in another way, by its name."""
    layout = section.text("checkpoint_format", "gptq") or "gptq"
    if section.flag("is_marlin_format", False):
        layout = "marlin"
    if layout not in _FORMATS:
        raise refuse_layout(layout, " and ".join(_FORMATS), f"checkpoint_format of {section.where}")
    width = section.text("pack_dtype", "int32")
    if width not in ("int32", "torch.int32"):
        raise refuse_layout(width, "words of int32", f"pack_dtype of {section.where}")
    meta = section.values.get("meta")
    rotation = section.values.get("rotation") or (meta.get("rotation") if isinstance(meta, Mapping) else None)
    if rotation:
        raise UnsupportedError(
            "online-rotation",
            f"rotation of {section.where} is {rotation!r:.40}: the model turns activations as it runs, which no plain model does",
            "Convert the model's 16-bit original.",
        )


def _rule(section: Section, pattern: str, value: object, usual: Said) -> Rule:
    """`+:REGEX` or `REGEX` with other settings, `-:REGEX` for modules that are left out."""
    left_out = pattern.startswith("-:")
    text = pattern[2:] if pattern.startswith(("-:", "+:")) else pattern
    compiled = section.pattern("dynamic", text)
    if left_out:
        return Rule(pattern=compiled, said=None)
    if not isinstance(value, Mapping):
        raise section.invalid("dynamic", f"has {value!r:.60} for {pattern!r:.60}, no object")
    return Rule(pattern=compiled, said=_said(section, value, pattern, usual))


def _refuse_floats(section: Section) -> None:
    """auto-round's other types, and its activations, which are stored otherwise."""
    kind = section.text("data_type", "int")
    if kind not in ("int", "int_sym", "int_asym"):
        raise refuse_layout(kind, "whole numbers (int)", f"data_type of {section.where}")
    if section.whole("act_bits", 16) < 16:
        raise refuse_layout(f"act_bits {section.values['act_bits']}", "weights alone", section.where)
    if section.values.get("rotation_config") or section.values.get("transform_config"):
        raise UnsupportedError(
            "online-rotation",
            f"rotation_config of {section.where}: the model turns activations as it runs, which no plain model does",
            "Convert the model's 16-bit original.",
        )


def _modules_of_auto_round(section: Section, usual: Said) -> dict[str, Said | None]:
    """`extra_config`: settings by names of modules or patterns; `None` for those of 16 bits."""
    found: dict[str, Said | None] = {}
    for key, value in section.mapping("extra_config").items():
        if not isinstance(value, Mapping):
            raise section.invalid("extra_config", f"has {value!r:.60} for {key!r:.60}, no object")
        if value:
            bits = section.part(value, f"{key!r:.60} in {section.where}").whole("bits", usual.bits)
            found[key] = None if bits >= 16 else _said(section, value, key, usual, known=STREAMED)
    return found


def _said(
    section: Section,
    values: Mapping[str, object],
    pattern: str,
    usual: Said | None = None,
    known: tuple[int, ...] = BITS,
) -> Said:
    """Bits, group size and order, out of the config or one of its rules."""
    part = section.part(values, f"{pattern!r:.60} in {section.where}" if pattern else section.where)
    bits = part.whole("bits", usual.bits if usual else None)
    if bits not in known:
        raise UnsupportedError(
            "unknown-bits",
            f"bits of {part.where} is {bits}; read are {', '.join(map(str, known))}",
            "Convert the model's 16-bit original, or correct the key.",
        )
    group = part.whole("group_size", usual.group if usual else 128)
    if group < 1 and group != -1:
        raise part.invalid("group_size", f"is {group}; it is -1 or at least 1")
    return Said(bits=bits, group=group, desc_act=part.flag("desc_act", usual.desc_act if usual else False))
