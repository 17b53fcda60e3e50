"""What a checkpoint's config says of its quantization: typed keys, several places as one, patterns of modules' names."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from llmfit_core.config import MAX_CONFIG_BYTES
from llmfit_core.errors import SourceError, UnsupportedError
from llmfit_core.readers.folder import read_json_object

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llmfit_core.checkpoint import Checkpoint

KEYS = ("quantization_config", "compression_config")
_PATTERN_LENGTH = 4000
_REPEATS = 5
_PATIENCE = 20.0


@dataclass(frozen=True, kw_only=True)
class Section:
    """An object that says how a checkpoint is quantized.

    Attributes:
        values: Its keys; empty where there is none.
        where: How messages call it: `quantization_config in config.json`.
        spent: Seconds that its patterns took so far.
    """

    values: Mapping[str, object]
    where: str
    spent: list[float] = field(default_factory=lambda: [0.0], compare=False)

    def whole(self, key: str, default: int | None = None) -> int:
        """A whole number.

        Raises:
            SourceError: `config-key-invalid`, also where it is missing and has no default.
        """
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            said = "is missing" if value is None else f"is {value!r:.60}, no whole number"
            raise self.invalid(key, said)
        return value

    def text(self, key: str, default: str = "") -> str:
        """A text in lower case; a missing one, or null, is the default."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.invalid(key, f"is {value!r:.60}, no text")
        return value.lower()

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.invalid(key, f"is {value!r:.60}, neither true nor false")
        return value

    def mapping(self, key: str) -> Mapping[str, object]:
        """An object; empty where there is none."""
        value = self.values.get(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise self.invalid(key, f"is {value!r:.60}, no object")
        return value

    def part(self, values: Mapping[str, object], where: str) -> Section:
        """An object within this one."""
        return Section(values=values, where=where, spent=self.spent)

    def pattern(self, key: str, text: str) -> NamePattern:
        """A regular expression for modules' names that no name can keep busy for long.

        Raises:
            SourceError: `config-key-invalid` for what is no regular expression, or one that repeats repetitions.
        """
        if len(text) > _PATTERN_LENGTH or not _is_quick(text):
            raise self.invalid(key, f"has the pattern {text!r:.60}, which may take for ever")
        try:
            return NamePattern(pattern=re.compile(text), section=self, key=key)
        except (re.error, OverflowError, RecursionError) as error:
            raise self.invalid(key, f"has the pattern {text!r:.60}, which is no regular expression: {error}") from None

    def invalid(self, key: str, said: str) -> SourceError:
        """The error about a key."""
        return SourceError(
            "config-key-invalid", f"{key} of {self.where} {said}", "Correct it, as the model's authors published it."
        )


@dataclass(frozen=True, kw_only=True)
class NamePattern:
    """A regular expression of a config, and the time that all of that config's may take."""

    pattern: re.Pattern[str]
    section: Section
    key: str

    def matches(self, name: str, *, anywhere: bool = False) -> bool:
        """Whether a name fits, from its beginning or anywhere.

        Raises:
            SourceError: `config-key-invalid` once the patterns together took too long.
        """
        began = time.monotonic()
        found = (self.pattern.search if anywhere else self.pattern.match)(name)
        self.section.spent[0] += time.monotonic() - began
        if self.section.spent[0] > _PATIENCE:
            raise self.section.invalid(self.key, f"has patterns such as {self.pattern.pattern!r:.60}, which take too long")
        return found is not None


def _is_quick(pattern: str) -> bool:
    """Whether a pattern has no repetition inside a repeated group, no reference back and few repetitions at all."""
    depth: list[int] = [0]  # repetitions so far in each open group
    total, at = 0, 0
    while at < len(pattern):
        letter = pattern[at]
        if letter == "\\":
            if pattern[at + 1 : at + 2].isdigit() and pattern[at + 1 : at + 2] != "0":
                return False
            at += 1
        elif letter == "[":
            end = pattern.find("]", at + (3 if pattern[at + 1 : at + 2] == "^" else 2))
            at = len(pattern) if end < 0 else end
        elif letter == "(":
            depth.append(0)
        elif letter == ")" and len(depth) > 1:
            inner = depth.pop()
            repeated = pattern[at + 1 : at + 2] in ("*", "+", "{")
            if repeated and inner:
                return False
            depth[-1] += inner
        elif letter in "*+{":
            depth[-1] += 1
            total += 1
            if pattern[at + 1 : at + 2] == "+":  # possessive
                at += 1
        at += 1
    return total <= _REPEATS


def section_of(checkpoint: Checkpoint) -> Section:
    """What config.json says about quantization; of a text part the part's own word.

    Raises:
        SourceError: `config-key-invalid` where it is no object.
    """
    for key in KEYS:
        for place in (checkpoint.config.values, checkpoint.config.raw):
            value = place.get(key)
            if value:
                where = f"{key} in config.json"
                if not isinstance(value, Mapping):
                    raise SourceError(
                        "config-key-invalid",
                        f"{where} is {value!r:.80}, no object",
                        "Correct config.json, as the model's authors published it.",
                    )
                return Section(values=value, where=where)
    return Section(values={}, where="config.json")


def method_of(checkpoint: Checkpoint) -> str:
    """The `quant_method` in config.json, in lower case; empty where it is silent or not understood."""
    for key in KEYS:
        for place in (checkpoint.config.values, checkpoint.config.raw):
            value = place.get(key)
            if isinstance(value, Mapping):
                said = value.get("quant_method") or value.get("method") or implied_method(value)
                return said.lower() if isinstance(said, str) else ""
    return ""


def implied_method(said: Mapping[str, object]) -> str:
    """The method that only its keys tell: `awq`, `gptq`; empty where they are neither's."""
    if any(k in said for k in ("zero_point", "w_bit", "q_group_size", "modules_to_not_convert")):
        return "awq"
    return "gptq" if any(k in said for k in ("desc_act", "damp_percent", "sym", "true_sequential")) else ""


def packing_of_auto_round(checkpoint: Checkpoint) -> str:
    """What auto-round says of its packing, which is GPTQ's or AWQ's: `gptq`, `gptq_v2`, `awq`; empty where it is neither.

    `auto_round:auto_gptq` stores zero points less one, `auto_round:gptqmodel` and `auto_round` as they are
    (auto-round's `export_to_autoround/export.py`, `inference/backend.py`).
    """
    if method_of(checkpoint) not in ("auto-round", "auto_round", "intel/auto-round"):
        return ""
    said = section_of(checkpoint).text("packing_format")
    if said == "auto_round" or "gptqmodel" in said:
        return "gptq_v2"
    return "awq" if "awq" in said else "gptq" if "gptq" in said else ""


def side_section(checkpoint: Checkpoint, name: str) -> Section:
    """The object in a side file such as `quantize_config.json`; empty where there is no such file."""
    path = checkpoint.side.get(name)
    return Section(values=read_json_object(path, MAX_CONFIG_BYTES) if path is not None else {}, where=name)


def merged(first: Section, second: Section, keys: Mapping[str, Sequence[str]]) -> Section:
    """Two objects about one checkpoint as one, with keys under one spelling.

    Args:
        first: What wins where the second is silent.
        second: And the other way round.
        keys: The spelling to use, and the others of the same fact.

    Raises:
        SourceError: `contradicting-config` naming both keys.
    """
    out: dict[str, object] = {}
    origin: dict[str, str] = {}
    spelled = {other: key for key, others in keys.items() for other in (key, *others)}
    for section in (first, second):
        for key, value in section.values.items():
            name = spelled.get(key, key)
            if value is None:
                continue
            if name in spelled.values() and name in out and _word(out[name]) != _word(value):
                raise SourceError(
                    "contradicting-config",
                    f"{origin[name]} is {out[name]!r:.80}, {key} of {section.where} is {value!r:.80}",
                    "Remove the wrong one.",
                )
            out.setdefault(name, value)
            origin.setdefault(name, f"{key} of {section.where}")
    return Section(values=out, where=first.where if first.values else second.where)


def _word(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def refuse_layout(name: str, known: str, where: str) -> UnsupportedError:
    """The refusal of a layout by name."""
    return UnsupportedError(
        "unknown-packing",
        f"{where} names the layout {name}, which is not read; read are {known}",
        "Convert the model's 16-bit original, or a copy in one of those layouts.",
    )
