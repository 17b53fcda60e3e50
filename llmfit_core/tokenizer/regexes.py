"""When do two regular expressions split text alike? A normal form that answers for the expressions tokenizers use.

Tokenizer files spell one pattern in many ways: `(?i:'s|'t)` and `'[sS]|'[tT]`, `\\p{N}{1}` and `\\p{N}`,
`?+` where `?` does the same. `normal_form` parses the subset of Oniguruma they use into a tree and
applies rewrites that each provably keep every match. Equal trees split every text alike; unequal
trees may still do so, which costs an unknown-structure error but never a wrong answer.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

Tree = tuple[Any, ...]
"""`("set", negated, props, ranges)`, `("and", sets)`, `("cat", nodes)`, `("alt", nodes)`,
`("rep", node, low, high, mode)`, `("look", sign, node)`, `("at", anchor)`, `("words", texts)`."""

_INFINITE = -1
_WHITE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "a": "\a", "e": "\x1b", "0": "\0"}
_CLASSES = {
    "s": (False, "White"),
    "S": (True, "White"),
    "d": (False, "Nd"),
    "D": (True, "Nd"),
    "w": (False, "Word"),
    "W": (True, "Word"),
}
_MAX_LENGTH = 20_000
_MAX_WORDS = 256


class RegexSyntaxError(ValueError):
    """The expression is malformed, or uses what this module does not know."""


@lru_cache(maxsize=256)
def normal_form(pattern: str) -> Tree:
    """The normal form of `pattern`; raises `RegexSyntaxError`."""
    if len(pattern) > _MAX_LENGTH:
        raise RegexSyntaxError(f"{len(pattern)} characters long")
    try:
        return _simplify(_Parser(pattern).parse(), top=True)
    except RecursionError:
        raise RegexSyntaxError("nested too deeply") from None


def _set(props: Iterable[str] = (), ranges: Iterable[tuple[int, int]] = (), negated: bool = False) -> Tree:
    return ("set", negated, frozenset(props), _merge(ranges))


def _merge(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    merged: list[list[int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1][1] = max(merged[-1][1], high)
        else:
            merged.append([low, high])
    return tuple((low, high) for low, high in merged)


def _char(char: str, fold: bool) -> Tree:
    return _set(ranges=_folded([(ord(char), ord(char))], fold))


def _folded(ranges: Iterable[tuple[int, int]], fold: bool) -> list[tuple[int, int]]:
    """Both cases of ASCII letters; beyond ASCII the engines' foldings of these patterns add only U+017F and U+212A."""
    out = list(ranges)
    if fold:
        for low, high in list(out):
            for first, last, shift in ((65, 90, 32), (97, 122, -32)):
                a, b = max(low, first), min(high, last)
                if a <= b:
                    out.append((a + shift, b + shift))
    return out


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def parse(self) -> Tree:
        tree = self.alternatives(False)
        if self.at != len(self.text):
            raise RegexSyntaxError(f"unexpected {self.text[self.at]!r} at {self.at}")
        return tree

    def peek(self, text: str) -> bool:
        return self.text.startswith(text, self.at)

    def take(self, text: str) -> bool:
        if self.peek(text):
            self.at += len(text)
            return True
        return False

    def need(self, text: str) -> None:
        if not self.take(text):
            raise RegexSyntaxError(f"expected {text!r} at {self.at}")

    def next(self) -> str:
        if self.at >= len(self.text):
            raise RegexSyntaxError("ends too early")
        self.at += 1
        return self.text[self.at - 1]

    def alternatives(self, fold: bool) -> Tree:
        branches = [self.sequence(fold)]
        while self.take("|"):
            branches.append(self.sequence(fold))
        return branches[0] if len(branches) == 1 else ("alt", tuple(branches))

    def sequence(self, fold: bool) -> Tree:
        nodes: list[Tree] = []
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            nodes.append(self.repeated(self.atom(fold)))
        return nodes[0] if len(nodes) == 1 else ("cat", tuple(nodes))

    def repeated(self, node: Tree) -> Tree:
        while self.at < len(self.text):
            if self.take("?"):
                low, high = 0, 1
            elif self.take("*"):
                low, high = 0, _INFINITE
            elif self.take("+"):
                low, high = 1, _INFINITE
            elif self.peek("{"):
                low, high = self.bounds()
                if self.peek("?"):
                    raise RegexSyntaxError(f"a lazy counted repeat at {self.at}")
                node = ("rep", node, low, high, "greedy")  # A `+` behind it repeats it: possessive only in Java's syntax.
                continue
            else:
                return node
            mode = "lazy" if self.take("?") else "possessive" if self.take("+") else "greedy"
            node = ("rep", node, low, high, mode)
        return node

    def bounds(self) -> tuple[int, int]:
        self.need("{")
        end = self.text.find("}", self.at)
        body = self.text[self.at : end] if end >= 0 else ""
        low, comma, high = body.partition(",")
        if not (low.isdecimal() or (comma and not low)) or (high and not high.isdecimal()) or len(body) > 12:
            raise RegexSyntaxError(f"odd repeat at {self.at}")
        self.at = end + 1
        first = int(low or 0)
        return first, (int(high) if high else _INFINITE) if comma else first

    def atom(self, fold: bool) -> Tree:
        char = self.next()
        if char == "(":
            return self.group(fold)
        if char == "[":
            return self.bracket(fold)
        if char == "\\":
            return self.escape(fold)
        if char == ".":
            return _set(ranges=[(10, 10)], negated=True)
        if char in "^$":
            return ("at", char)
        if char in "?*+":
            raise RegexSyntaxError(f"nothing to repeat at {self.at - 1}")
        return _char(char, fold)

    def group(self, fold: bool) -> Tree:
        for sign in ("?=", "?!"):
            if self.take(sign):
                node: Tree = ("look", sign[1], self.alternatives(fold))
                self.need(")")
                return node
        if self.take("?i:"):
            fold = True
        elif not self.take("?:") and self.peek("?"):
            raise RegexSyntaxError(f"unknown group at {self.at}")
        node = self.alternatives(fold)
        self.need(")")
        return node

    def escape(self, fold: bool) -> Tree:
        char = self.next()
        if char in _CLASSES:
            negated, prop = _CLASSES[char]
            return _set([prop], negated=negated)
        if char in "pP":
            return self.prop(char == "P")
        if char in "bBAzZ":
            return ("at", "\\" + char)
        return _char(self.literal(char), fold)

    def literal(self, char: str) -> str:
        """The character an escape stands for, its letter `char` already taken."""
        if char in ("x", "u"):
            if self.take("{"):
                end = self.text.find("}", self.at)
                digits = self.text[self.at : end] if 0 <= end - self.at <= 6 else ""
                self.at = end + 1
            else:
                width = 2 if char == "x" else 4
                digits = self.text[self.at : self.at + width]
                self.at += len(digits)
            try:
                return chr(int(digits, 16))
            except (ValueError, OverflowError):
                raise RegexSyntaxError(f"odd escape at {self.at}") from None
        if char in _ESCAPES:
            return _ESCAPES[char]
        if char.isalnum():
            raise RegexSyntaxError(f"unknown escape \\{char}")
        return char

    def prop(self, negated: bool) -> Tree:
        if self.take("{"):
            end = self.text.find("}", self.at)
            if end < 0:
                raise RegexSyntaxError("unclosed property")
            name = self.text[self.at : end]
            self.at = end + 1
        else:
            name = self.next()
        if name.startswith("^"):
            negated, name = not negated, name[1:]
        return _set([name], negated=negated)

    def bracket(self, fold: bool) -> Tree:
        negated = self.take("^")
        parts: list[Tree] = []
        props: set[str] = set()
        ranges: list[tuple[int, int]] = []
        first = True
        while first or not self.peek("]"):
            if self.take("&&"):
                parts.append(_set(props, _folded(ranges, fold)))
                props, ranges = set(), []
                first = False
                continue
            char = self.next()
            first = False
            if char == "[":
                if self.peek(":"):
                    raise RegexSyntaxError("POSIX bracket")
                inner = self.bracket(fold)
                if inner[0] == "set" and not inner[1]:
                    props |= inner[2]
                    ranges += inner[3]
                elif not props and not ranges and (self.peek("]") or self.peek("&&")):
                    parts.append(inner)
                    if self.peek("]"):
                        self.at += 1
                        return _intersection(parts, negated)
                    self.need("&&")
                else:
                    raise RegexSyntaxError("negated class inside a class")
                continue
            if char == "\\":
                node = self.class_escape()
                if isinstance(node, tuple):
                    if node[1]:
                        if node[2] == {"White"} and not props and not ranges and self.peek("]"):
                            self.at += 1
                            return _set(["White"], negated=not negated)
                        raise RegexSyntaxError("negated property inside a class")
                    props |= node[2]
                    continue
                char = node
            low = ord(char)
            high = low
            if self.peek("-") and not self.peek("-]") and not self.peek("-["):
                self.at += 1
                last = self.next()
                if last == "\\":
                    node = self.class_escape()
                    if isinstance(node, tuple):
                        raise RegexSyntaxError("a range ends in a property")
                    last = node
                high = ord(last)
                if high < low:
                    raise RegexSyntaxError("a range runs backwards")
            ranges.append((low, high))
        self.need("]")
        if parts:
            if props or ranges:
                parts.append(_set(props, _folded(ranges, fold)))
            return _intersection(parts, negated)
        return _set(props, _folded(ranges, fold), negated)

    def class_escape(self) -> Tree | str:
        char = self.next()
        if char in _CLASSES:
            negated, prop = _CLASSES[char]
            return _set([prop], negated=negated)
        if char in "pP":
            return self.prop(char == "P")
        return self.literal(char)


def _intersection(parts: list[Tree], negated: bool) -> Tree:
    parts = [p for p in parts if p != _set()]
    if len(parts) == 1 and not negated:
        return parts[0]
    return ("and", negated, frozenset(_clean(p) for p in parts))


def _contains(node: Tree, char: str) -> bool:
    if node[0] == "and":
        return all(_contains(p, char) for p in node[2]) != node[1]
    _, negated, props, ranges = node
    code = ord(char)
    inside = any(a <= code <= b for a, b in ranges) or any(_has(prop, char) for prop in props)
    return inside != negated


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


def _disjoint(a: Tree, b: Tree) -> bool:
    """Whether two sets share no character. Sets here are unions of whole categories and ranges: their corners decide."""
    corners = {chr(c) for node in (a, b) for c in _corners(node) if 0 <= c <= sys.maxunicode}
    return not any(_contains(a, c) and _contains(b, c) for c in (*_representatives(), *corners))


def _corners(node: Tree) -> Iterator[int]:
    if node[0] == "and":
        for part in node[2]:
            yield from _corners(part)
    else:
        for low, high in node[3]:
            yield from (low - 1, low, high, high + 1)


def _clean(node: Tree) -> Tree:
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


def _is_set(node: Tree) -> bool:
    return node[0] in ("set", "and")


def _simplify(node: Tree, top: bool = False) -> Tree:
    """Rewrites from the leaves up; `top` says that a match ends where `node`'s ends."""
    kind = node[0]
    if kind == "set":
        return _clean(node)
    if kind == "rep":
        inner = _simplify(node[1])
        if node[2] == node[3] == 1:
            return inner
        if inner[0] == "rep" and inner[2] == 1 and inner[4] == "greedy" and node[2:] == (1, _INFINITE, "greedy"):
            return ("rep", inner[1], *node[2:])
        return ("rep", inner, *node[2:])
    if kind == "look":
        return ("look", node[1], _simplify(node[2]))
    if kind == "alt":
        return _alternation([_simplify(n, top) for n in node[1]], top)
    if kind == "cat":
        return _concatenation([_simplify(n) for n in node[1]], top)
    return node


def _concatenation(nodes: list[Tree], top: bool) -> Tree:
    flat: list[Tree] = []
    for node in nodes:
        flat.extend(node[1] if node[0] == "cat" else [node])
    out: list[Tree] = []
    for index, node in enumerate(flat):
        if top and node[0] == "rep" and node[4] == "possessive" and _backing_off_is_vain(node, flat[index + 1 :]):
            node = (*node[:4], "greedy")
        before = out[-1] if out else None
        if (
            before is not None
            and before[0] == "rep"
            and before[2:] == (0, _INFINITE, "greedy")
            and node[0] == "rep"
            and node[2:] == (1, _INFINITE, "greedy")
            and _is_within(node[1], before[1])
        ):
            node = node[1]  # A*B+ with B inside A ends at the last B of the run, as A*B does.
        out.append(node)
    words = _words(("cat", tuple(out)))
    if words is not None:
        return words
    return out[0] if len(out) == 1 else ("cat", tuple(out))


def _backing_off_is_vain(node: Tree, rest: list[Tree]) -> bool:
    """Whether giving characters back could never help what follows, so that possessive is greedy."""
    if not _is_set(node[1]):
        return False
    if all(_nullable(n) for n in rest):
        return True
    follower = rest[0]
    if follower[0] == "rep" and follower[2] >= 1:
        follower = follower[1]
    return _is_set(follower) and _disjoint(node[1], follower)


def _nullable(node: Tree) -> bool:
    return bool(node[0] == "rep" and node[2] == 0)


def _is_within(inner: Tree, outer: Tree) -> bool:
    if inner[0] != "set" or outer[0] != "set" or inner[1] or outer[1] or inner[2] - outer[2]:
        return False
    return all(high - low < 512 and all(_contains(outer, chr(c)) for c in range(low, high + 1)) for low, high in inner[3])


def _words(node: Tree) -> Tree | None:
    """The finitely many texts that `node` matches, when they are few; else `None`."""
    texts = _spell(node)
    return ("words", tuple(sorted(texts))) if texts is not None and len(texts) > 1 and _prefix_free(texts) else None


def _spell(node: Tree) -> set[str] | None:
    kind = node[0]
    if kind == "words":
        return set(node[1])
    if kind == "set":
        if node[1] or node[2] or sum(b - a + 1 for a, b in node[3]) > 8:
            return None
        return {chr(c) for a, b in node[3] for c in range(a, b + 1)}
    if kind == "alt":
        parts = [_spell(n) for n in node[1]]
        if any(p is None for p in parts):
            return None
        return set().union(*(p for p in parts if p is not None))
    if kind == "cat":
        out = {""}
        for child in node[1]:
            texts = _spell(child)
            if texts is None or len(out) * len(texts) > _MAX_WORDS:
                return None
            out = {a + b for a in out for b in texts}
        return out
    return None


def _prefix_free(texts: set[str]) -> bool:
    """Whether at most one of `texts` can match at a place, which makes their order irrelevant."""
    ordered = sorted(texts)
    return all(not b.startswith(a) for a, b in zip(ordered, ordered[1:], strict=False))


def _alternation(branches: list[Tree], top: bool) -> Tree:
    flat: list[Tree] = []
    for branch in branches:
        flat.extend(branch[1] if branch[0] == "alt" else [branch])
    out: list[Tree] = []
    for branch in flat:
        texts = _spell(branch)
        last = out[-1] if out and out[-1][0] == "words" else None
        if texts is None:
            out.append(branch)
        elif last is not None and _prefix_free(set(last[1]) | texts) and not set(last[1]) & texts:
            out[-1] = ("words", tuple(sorted(set(last[1]) | texts)))
        else:
            out.append(("words", tuple(sorted(texts))) if _prefix_free(texts) else branch)
    # White space after `\s+(?!\S)` leaves one character at most: `\s+`, `\s` and nothing split it alike.
    if top and len(out) > 1 and out[-1] in _LAST_WHITE and out[-2] == _WHITE_BEFORE_WHITE:
        out.pop()
    return out[0] if len(out) == 1 else ("alt", tuple(out))


_ONE_WHITE = _set(["White"])
_LAST_WHITE = (_ONE_WHITE, ("rep", _ONE_WHITE, 1, _INFINITE, "greedy"))
_WHITE_BEFORE_WHITE: Tree = (
    "cat",
    (("rep", _ONE_WHITE, 1, _INFINITE, "greedy"), ("look", "!", _set(["White"], negated=True))),
)


def show(tree: Tree) -> str:
    """A short text of a normal form, for saying what differs."""
    kind = tree[0]
    if kind == "set":
        body = "".join(f"\\p{{{p}}}" for p in sorted(tree[2])) + "".join(
            _quote(a) if a == b else f"{_quote(a)}-{_quote(b)}" for a, b in tree[3]
        )
        single = not tree[1] and (len(tree[2]) + len(tree[3]) == 1) and (not tree[3] or tree[3][0][0] == tree[3][0][1])
        return body if single else f"[{'^' if tree[1] else ''}{body}]"
    if kind == "and":
        return f"[{'^' if tree[1] else ''}{'&&'.join(sorted(show(p) for p in tree[2]))}]"
    if kind == "words":
        return "(" + "|".join("".join(_quote(ord(c)) for c in w) for w in tree[1]) + ")"
    if kind == "cat":
        return "".join(f"({show(n)})" if n[0] == "alt" else show(n) for n in tree[1])
    if kind == "alt":
        return "|".join(show(n) for n in tree[1])
    if kind == "look":
        return f"(?{tree[1]}{show(tree[2])})"
    if kind == "rep":
        low, high, mode = tree[2:]
        count = {(0, 1): "?", (0, _INFINITE): "*", (1, _INFINITE): "+"}.get(
            (low, high), f"{{{low},{'' if high == _INFINITE else high}}}"
        )
        inner = show(tree[1])
        if not _is_set(tree[1]) and tree[1][0] != "words":
            inner = f"({inner})"
        return inner + count + {"greedy": "", "lazy": "?", "possessive": "+"}[mode]
    return str(tree[1])


def _quote(code: int) -> str:
    char = chr(code)
    return char if char.isprintable() and char not in "\\[]-" else ascii(char)[1:-1]
