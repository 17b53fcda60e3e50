"""Sets of characters as tokenizers' expressions write them: ranges, Unicode properties, intersections."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

Tree = tuple[Any, ...]
"""`("set", negated, props, ranges)`, `("and", negated, sets)`, `("cat", nodes)`, `("alt", nodes)`,
`("rep", node, low, high, mode)`, `("look", sign, node)`, `("at", anchor)`, `("words", texts)`."""

_WHITE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))


def make_set(props: Iterable[str] = (), ranges: Iterable[tuple[int, int]] = (), negated: bool = False) -> Tree:
    """A set node."""
    return ("set", negated, frozenset(props), _merge(ranges))


def _merge(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    merged: list[list[int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1][1] = max(merged[-1][1], high)
        else:
            merged.append([low, high])
    return tuple((low, high) for low, high in merged)


def folded(ranges: Iterable[tuple[int, int]], fold: bool) -> list[tuple[int, int]]:
    """Both cases of ASCII letters; beyond ASCII the engines' foldings of these patterns add only U+017F and U+212A."""
    out = list(ranges)
    if fold:
        for low, high in list(out):
            for first, last, shift in ((65, 90, 32), (97, 122, -32)):
                a, b = max(low, first), min(high, last)
                if a <= b:
                    out.append((a + shift, b + shift))
    return out


def intersection(parts: list[Tree], negated: bool) -> Tree:
    """The intersection node of `parts`."""
    parts = [p for p in parts if p != make_set()]
    if len(parts) == 1 and not negated:
        return parts[0]
    return ("and", negated, frozenset(clean(p) for p in parts))


def contains(node: Tree, char: str) -> bool:
    """Whether a set holds `char`."""
    if node[0] == "and":
        return bool(all(contains(p, char) for p in node[2]) != node[1])
    _, negated, props, ranges = node
    code = ord(char)
    inside = any(a <= code <= b for a, b in ranges) or any(_has(prop, char) for prop in props)
    return bool(inside != negated)


def _has(prop: str, char: str) -> bool:
    if prop == "White":
        return char in _WHITE
    category = unicodedata.category(char)
    if prop == "Word":
        return category[0] in "LMN" or category == "Pc"
    if prop == "Han":
        return unicodedata.name(char, "").startswith(("CJK UNIFIED", "CJK COMPAT", "KANGXI", "CJK RADICAL"))
    return category == prop or category[:1] == prop


@lru_cache(maxsize=1)
def _representatives() -> str:
    """ASCII, all white space, and of each Unicode category some characters far apart."""
    seen: dict[str, list[str]] = {}
    for code in range(0x20000):
        char = chr(code)
        seen.setdefault(unicodedata.category(char), []).append(char)
    picked = {chr(c) for c in range(256)} | set(_WHITE)
    for chars in seen.values():
        picked.update(chars[:: max(1, len(chars) // 16)])
    return "".join(sorted(picked))


def disjoint(a: Tree, b: Tree) -> bool:
    """Whether two sets share no character. Sets here are unions of whole categories and ranges: their corners decide."""
    corners = {chr(c) for node in (a, b) for c in _corners(node) if 0 <= c <= sys.maxunicode}
    return not any(contains(a, c) and contains(b, c) for c in (*_representatives(), *corners))


def _corners(node: Tree) -> Iterator[int]:
    if node[0] == "and":
        for part in node[2]:
            yield from _corners(part)
    else:
        for low, high in node[3]:
            yield from (low - 1, low, high, high + 1)


def clean(node: Tree) -> Tree:
    """A set without ranges that its properties cover already."""
    if node[0] != "set":
        return node
    _, negated, props, ranges = node
    kept = [
        (low, high)
        for low, high in ranges
        if high - low > 512 or not all(any(_has(p, chr(c)) for p in props) for c in range(low, high + 1))
    ]
    props = frozenset(p for p in props if len(p) == 1 or p[:1] not in props)
    return ("set", negated, props, tuple(kept))
