"""What a compressed-tensors config says of each module's weight: `config_groups`, their targets and formats.

Facts: compressed-tensors' `quantization/quant_config.py`, `quant_scheme.py`, `quant_args.py` and `utils/match.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from llmfit_core.errors import SourceError, UnsupportedError
from llmfit_core.quantized_config import NamePattern, Section, refuse_layout, section_of

if TYPE_CHECKING:
    from llmfit_core.checkpoint import Checkpoint

PLAIN_FORMATS = ("", "dense", "fakequant")
_STRATEGIES = ("group", "channel", "tensor", "block")
_EMBEDDINGS = ("embed_tokens", "embed", "wte", "word_embeddings", "embed_in", "embeddings")
_ORIGINAL = "Convert the model's 16-bit original."


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """How the weights of a group of modules are quantized.

    Attributes:
        name: The group's, for messages.
        where: What it is part of.
        format: How they are stored: `pack-quantized`, or mixed-precision's own word for this group.
        type: `int` or `float`.
        bits: Per weight.
        symmetric: Whether there are no zero points.
        strategy: `group`, `channel` (a scale a row), `tensor` or `block`.
        group: Columns a group; 0 where the strategy is another.
        block: Rows and columns of a block, where that is the strategy.
        ordered: Whether columns have a group of their own each (weight_g_idx), sorted by their activations.
        activations: Whether activations are quantized too, which nothing here does.
        exact: Names of modules.
        patterns: Patterns of names.
        classes: Names of classes.
    """

    name: str
    where: str
    format: str
    type: str
    bits: int
    symmetric: bool
    strategy: str
    group: int
    block: tuple[int, ...] = ()
    ordered: bool = False
    activations: bool = False
    exact: frozenset[str] = frozenset()
    patterns: tuple[NamePattern, ...] = ()
    classes: frozenset[str] = field(default=frozenset())

    @property
    def label(self) -> str:
        """For messages about shapes: the numbers."""
        size = f", group_size {self.group}" if self.group else ""
        return f"{self.name} ({self.bits} bits, {self.strategy}{size})"


@dataclass(frozen=True, kw_only=True)
class Schemes:
    """A checkpoint's config.

    Attributes:
        where: How messages call it.
        groups: Those that speak of weights.
        kv_cache: Whether the cache is quantized.
    """

    where: str
    groups: tuple[Scheme, ...]
    kv_cache: bool

    def of(self, module: str) -> Scheme:
        """What holds for a module: named exactly, else by a pattern, else by its class; or the only group there is.

        Raises:
            SourceError: `no-scheme`.
        """
        kind = "Embedding" if module.rpartition(".")[2] in _EMBEDDINGS else "Linear"
        found: tuple[Scheme, ...] = (
            *(g for g in self.groups if module in g.exact),
            *(g for g in self.groups if any(p.matches(module) for p in g.patterns)),
            *(g for g in self.groups if kind in g.classes),
            *(self.groups if len(self.groups) == 1 else ()),
        )
        if found:
            return found[0]
        raise SourceError(
            "no-scheme",
            f"{module} is stored quantized, and none of the {len(self.groups)} config_groups of {self.where} targets it",
            "Correct the targets, as the model's authors published them.",
        )


def read_schemes(checkpoint: Checkpoint) -> Schemes:
    """The config.

    Raises:
        SourceError: `config-key-invalid`.
        UnsupportedError: `unknown-packing`, `online-rotation`, `not-compressed`.
    """
    section = section_of(checkpoint)
    _refuse(section)
    status = section.text("quantization_status", "compressed")
    whole = section.text("format")
    groups = []
    for name, value in section.mapping("config_groups").items():
        if not isinstance(value, Mapping):
            raise section.invalid("config_groups", f"has {value!r:.60} for {name}, no object")
        scheme = _scheme(section.part(value, f"{name} in {section.where}"), name, whole)
        if scheme is not None:
            groups.append(scheme)
    if status != "compressed" and groups:
        raise UnsupportedError(
            "not-compressed",
            f"quantization_status of {section.where} is {status}: the weights are yet to be rounded as the model runs",
            "Save the model compressed (save_compressed=True), or convert its 16-bit original.",
        )
    return Schemes(where=section.where, groups=tuple(groups), kv_cache=bool(section.mapping("kv_cache_scheme")))


def _refuse(section: Section) -> None:
    """What makes more of a model than weights with scales."""
    sparsity = section.mapping("sparsity_config")
    layout = section.part(sparsity, f"sparsity_config of {section.where}").text("format", "dense")
    if sparsity and layout != "dense":
        raise refuse_layout(layout, "dense weights", f"format of sparsity_config in {section.where}")
    if section.mapping("transform_config"):
        raise UnsupportedError(
            "online-rotation",
            f"transform_config of {section.where} turns weights and activations as the model runs, which no plain model does",
            _ORIGINAL,
        )


def _scheme(part: Section, name: str, whole: str) -> Scheme | None:
    """One group; `None` where it leaves weights alone."""
    weights = part.mapping("weights")
    if not weights:
        return None
    args = part.part(weights, f"weights of {part.where}")
    form = part.text("format") or whole
    if form in (*PLAIN_FORMATS, "mixed-precision"):
        raise UnsupportedError(
            "not-compressed",
            f"format of {part.where} is {form or 'not stated'}: how its weights are stored is not said",
            "Save the model compressed (save_compressed=True), or convert its 16-bit original.",
        )
    size = weights.get("group_size")
    group = args.whole("group_size") if size is not None else 0
    strategy = args.text("strategy") or ("tensor" if size is None else "channel" if group == -1 else "group")
    if strategy not in _STRATEGIES:
        raise refuse_layout(strategy, ", ".join(_STRATEGIES), f"strategy of {args.where}")
    if strategy == "group" and group < 1:
        raise args.invalid("group_size", f"is {size!r}; groups have at least one column")
    if args.flag("dynamic", False):
        raise args.invalid("dynamic", "is true; scales of weights are stored")
    block = weights.get("block_structure")
    if isinstance(block, str):
        block = [int(b) if b.isdigit() else b for b in block.split("x")]
    if block is not None and not (
        isinstance(block, list) and len(block) == 2 and all(isinstance(b, int) and b > 0 for b in block)
    ):
        raise args.invalid("block_structure", f"is {block!r:.60}, not two sizes")
    order = weights.get("actorder")
    exact, patterns, classes = _targets(part)
    return Scheme(
        name=name,
        where=part.where,
        format=form,
        type=args.text("type", "int"),
        bits=args.whole("num_bits", 8),
        symmetric=args.flag("symmetric", True),
        strategy=strategy,
        group=group if strategy == "group" else 0,
        block=tuple(block or ()),
        # `weight` and `static` order the work, not the columns.
        ordered=order is True or (order is not False and args.text("actorder") in ("group", "dynamic")),
        activations=bool(part.mapping("input_activations") or part.mapping("output_activations")),
        exact=exact,
        patterns=patterns,
        classes=classes,
    )


def _targets(part: Section) -> tuple[frozenset[str], tuple[NamePattern, ...], frozenset[str]]:
    targets = part.values.get("targets")
    if not isinstance(targets, list) or not all(isinstance(t, str) for t in targets):
        raise part.invalid("targets", f"is {targets!r:.60}, no list of names")
    patterns = tuple(part.pattern("targets", t.removeprefix("re:")) for t in targets if t.startswith("re:"))
    named = frozenset(t for t in targets if not t.startswith("re:"))
    classes = named | ({"Linear"} if "LinearBase" in named else set())
    return named, patterns, classes
