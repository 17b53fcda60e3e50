"""From the structure of a byte-level `tokenizer.json` to llama.cpp's pre-tokenizer name.

The structure is brought to a list of expressions that cut text one after the other (`steps_of`),
each in its normal form; a row of `known.KNOWN` with equal normal forms behaves alike, whatever the
vocabulary, the added tokens or the model's name are.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from llmfit_core.errors import SourceError, UnsupportedError
from llmfit_core.events import Event
from llmfit_core.tokenizer import bytelevel, known
from llmfit_core.tokenizer.regexes import RegexSyntaxError, Tree, normal_form, show

_TOTAL = (known.GPT2, known.LLAMA3, known.QWEN2, known.GPT4O, known.TEKKEN)
"""Expressions that match every character, so that throwing away what lies between changes nothing."""
_NUMBER_STEPS = (r"\p{N}", r"\p{N}+", r"\p{N}{1,3}", "[0-9][0-9][0-9]", r"\d", r"\d+", r"\d{1,3}")
_MAX_DEPTH = 16


@dataclass(frozen=True, kw_only=True)
class Structure:
    """How a file cuts text.

    Attributes:
        steps: The expressions as the file spells them, `ByteLevel`, `Digits` and `Punctuation` spelled out.
        prefix_space: Whether `ByteLevel` puts a space in front of the text.
        odd: What no list of expressions says, in words; empty where the list says all.
    """

    steps: tuple[str, ...]
    prefix_space: bool = False
    odd: str = ""


def flatten(node: object, children: str) -> Iterator[Mapping[str, object]]:
    """The parts of a normalizer, pre-tokenizer, post-processor or decoder, `Sequence`s opened; raises `SourceError`."""

    def walk(item: object, depth: int) -> Iterator[Mapping[str, object]]:
        if item is None:
            return
        if not isinstance(item, Mapping) or not isinstance(item.get("type"), str) or depth > _MAX_DEPTH:
            raise SourceError(
                "bad-tokenizer",
                f"tokenizer.json: `{children}` hold something that is no component",
                "Get the file anew.",
            )
        if item["type"] == "Sequence":
            inner = item.get(children)
            if not isinstance(inner, list):
                raise SourceError(
                    "bad-tokenizer", f"tokenizer.json: a Sequence without `{children}`", "Get the file anew."
                )
            for child in inner:
                yield from walk(child, depth + 1)
        else:
            yield item

    yield from walk(node, 0)


def structure_of(pre_tokenizer: object) -> Structure:
    """The steps of tokenizer.json's `pre_tokenizer`; raises `SourceError` on what is no pre-tokenizer at all."""
    steps: list[str] = []
    odd: list[str] = []
    prefix_space = False
    for part in flatten(pre_tokenizer, "pretokenizers"):
        kind = part["type"]
        if kind == "ByteLevel":
            prefix_space |= bool(part.get("add_prefix_space", True))
            if part.get("use_regex", True):
                steps.append(known.GPT2)
        elif kind == "Digits":
            steps.append(r"\p{N}" if part.get("individual_digits") else r"\p{N}+")
        elif kind == "Punctuation" and part.get("behavior", "Isolated") in ("Isolated", "Contiguous"):
            steps.append(known.PUNCTUATION + ("+" if part.get("behavior") == "Contiguous" else ""))
        elif kind == "Split":
            step, strange = _split(part)
            steps.append(step)
            odd += [strange] if strange else []
        else:
            odd.append(f"it has a {kind} step")
    return Structure(steps=tuple(steps), prefix_space=prefix_space, odd=", ".join(odd))


def _split(part: Mapping[str, object]) -> tuple[str, str]:
    pattern = part.get("pattern")
    pattern = pattern if isinstance(pattern, Mapping) else {}
    regex, text = pattern.get("Regex"), pattern.get("String")
    if not isinstance(regex, str) and not isinstance(text, str):
        raise SourceError("bad-tokenizer", "tokenizer.json: a Split without a pattern", "Get the file anew.")
    step = regex if isinstance(regex, str) else re.escape(str(text))
    behavior, invert = part.get("behavior"), bool(part.get("invert"))
    if behavior == "Isolated":
        return step, ""
    if behavior == "Removed" and invert and form_of(step) in {form_of(t) for t in _TOTAL}:
        return step, ""
    return step, f"a Split whose behavior is {behavior}{' inverted' if invert else ''}"


@lru_cache(maxsize=256)
def form_of(step: str) -> Tree:
    """The normal form of a step, or the step itself as an opaque tree where it cannot be parsed."""
    try:
        return normal_form(step)
    except RegexSyntaxError:
        return ("opaque", step)


def recognise(
    structure: Structure,
    *,
    ignore_merges: bool,
    tokens: Sequence[str],
    merges: Sequence[str],
    model_type: str = "",
    override: str | None = None,
) -> tuple[str, tuple[Event, ...]]:
    """llama.cpp's name for a structure, and what is to be said about it.

    Args:
        structure: From `structure_of`.
        ignore_merges: The BPE model's flag of that name.
        tokens: The tokens that merging is to give (no added ones).
        merges: `"left right"` by rank.
        model_type: The config's, which picks among names that behave alike.
        override: The name to take whatever the structure is.

    Raises:
        UnsupportedError: No known name behaves as the structure says, or the override is no name.
    """
    if override is not None:
        return _overridden(structure, ignore_merges, tokens, merges, model_type, override)
    rows = [] if structure.odd or structure.prefix_space else _rows_like(structure, merges)
    wanted = known.PREFERRED.get(model_type, ())
    same_flag = [row for row in rows if row.ignore_merges == ignore_merges]
    other_flag = [row for row in rows if row.ignore_merges != ignore_merges]
    if same_flag:
        liked = [n for row in other_flag for n in row.names if n in wanted]
        small = len(tokens) < 10_000  # Proving it for a large vocabulary takes seconds, for a name that behaves alike.
        if (
            liked
            and small
            and not any(n in wanted for row in same_flag for n in row.names)
            and not unmergeable(tokens, merges)
        ):
            return _named(other_flag[0], liked[0])
        names = [n for row in same_flag for n in row.names]
        name = next((n for n in wanted if n in names), names[0])
        return _named(next(row for row in same_flag if name in row.names), name)
    if other_flag:
        row = other_flag[0]
        lost = unmergeable(tokens, merges)
        events = _named(row, next((n for n in wanted if n in row.names), row.names[0]))
        if not lost:
            return events
        return events[0], (
            *events[1],
            Event(
                code="ignore-merges",
                message=f"llama.cpp's {events[0]} {'takes' if row.ignore_merges else 'does not take'} whole words that are tokens, "
                f"the tokenizer {'does' if ignore_merges else 'does not'}: words like {lost[0]!r} get other ids",
                subject="tokenizer.json",
            ),
        )
    raise UnsupportedError("unknown-pretokenizer", *_explain(structure))


def unmergeable(tokens: Sequence[str], merges: Sequence[str]) -> list[str]:
    """Tokens that show whether `ignore_merges` is set; empty where the flag makes no difference."""
    return bytelevel.unreachable(tokens, merges)


def _named(row: known.Known, name: str) -> tuple[str, tuple[Event, ...]]:
    if not row.differs:
        return name, ()
    event = Event(
        code="pretokenizer-differs", message=f"{name}: {row.differs}", severity="bound", subject="tokenizer.ggml.pre"
    )
    return name, (event,)


def _rows_like(structure: Structure, merges: Sequence[str]) -> list[known.Known]:
    forms = tuple(form_of(s) for s in structure.steps)
    found = [row for row in known.KNOWN if forms == _forms_of(row)]
    for row in known.KNOWN:
        if any(forms == tuple(map(form_of, steps)) for steps in row.unmixed) and not bytelevel.mixes_numbers(merges):
            found.insert(0, row)
    if found or not _numbers(forms) or bytelevel.merges_numbers(merges):
        return found
    # No token holds two digits: how numbers are cut cannot show.
    return [row for row in known.KNOWN if _numbers(forms) == _numbers(_forms_of(row))]


def _forms_of(row: known.Known) -> tuple[Tree, ...]:
    return tuple(map(form_of, row.steps))


def _numbers(forms: tuple[Tree, ...]) -> tuple[Tree, ...]:
    """The forms with every number-cutting step replaced by one; empty where there is none."""
    cutting = {form_of(s) for s in _NUMBER_STEPS}
    if not cutting & set(forms):
        return ()
    one = form_of(r"\p{N}")
    return tuple(one if f in cutting else f for f in forms)


def _overridden(
    structure: Structure, ignore_merges: bool, tokens: Sequence[str], merges: Sequence[str], model_type: str, name: str
) -> tuple[str, tuple[Event, ...]]:
    if name not in known.all_names():
        near = difflib.get_close_matches(name, known.all_names(), n=4, cutoff=0.3)
        raise UnsupportedError(
            "unknown-pretokenizer",
            f"llama.cpp has no pre-tokenizer {name!r}",
            f"Use --pre with a name like {', '.join(near) or 'gpt-2'}.",
        )
    try:
        found, events = recognise(
            structure, ignore_merges=ignore_merges, tokens=tokens, merges=merges, model_type=model_type
        )
    except UnsupportedError:
        found, events = "", ()
    row = known.row_of(name)
    proven = row is not None and found in row.names
    said = "which behaves as the file says" if proven else f"the file's structure says {found or 'something unknown'}"
    event = Event(
        code="pretokenizer-override",
        message=f"pre-tokenizer {name} as asked, {said}",
        severity="info" if proven else "warning",
        subject="tokenizer.ggml.pre",
    )
    return name, (*(events if proven else ()), event)


def _explain(structure: Structure) -> tuple[str, str]:
    """Cause and remedy for a structure that no row behaves like."""
    mine = [show(form) if form[0] != "opaque" else str(form[1]) for form in map(form_of, structure.steps)]
    best, name, theirs = -1.0, "gpt-2", [""]
    for row in known.KNOWN:
        shown = [show(f) for f in _forms_of(row)]
        score = difflib.SequenceMatcher(None, "\n".join(mine), "\n".join(shown), autojunk=False).ratio()
        if score > best:
            best, name, theirs = score, row.names[0], shown
    if structure.odd:
        difference = structure.odd
    elif structure.prefix_space:
        difference = "ByteLevel adds a space in front of the text, llama.cpp does not"
    else:
        difference = _first_difference(mine, theirs)
    return (
        f"tokenizer.json: no pre-tokenizer of llama.cpp cuts text as this one does; the nearest is {name}: {difference}",
        f"If you know that the difference does not matter, override it with --pre {name}; it will be recorded.",
    )


def _first_difference(mine: list[str], theirs: list[str]) -> str:
    if len(mine) != len(theirs):
        return (
            f"{len(mine)} steps here ({_short(' ; '.join(mine))}), {len(theirs)} there ({_short(' ; '.join(theirs))})"
        )
    for a, b in zip(mine, theirs, strict=True):
        if a != b:
            here, there = a.split("|"), b.split("|")
            only_here = [x for x in here if x not in there]
            only_there = [x for x in there if x not in here]
            if not only_here and not only_there:
                return f"alternatives in another order: {_short(a)}"
            return f"here `{_short('|'.join(only_here)) or 'nothing'}`, there `{_short('|'.join(only_there)) or 'nothing'}`"
    return "the flags differ"


def _short(text: str) -> str:
    return text if len(text) <= 160 else text[:157] + "..."
