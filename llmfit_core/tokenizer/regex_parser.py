"""A parser for the subset of Oniguruma's syntax that tokenizers' expressions use."""

from __future__ import annotations

from llmfit_core.tokenizer.regex_sets import Tree, folded, intersection, make_set

INFINITE = -1
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "a": "\a", "e": "\x1b", "0": "\0"}
_CLASSES = {
    "s": (False, "White"),
    "S": (True, "White"),
    "d": (False, "Nd"),
    "D": (True, "Nd"),
    "w": (False, "Word"),
    "W": (True, "Word"),
}


class RegexSyntaxError(ValueError):
    """The expression is malformed, or uses what this module does not know."""


def parse(pattern: str) -> Tree:
    """The tree of `pattern`, as written; raises `RegexSyntaxError`."""
    return _Parser(pattern).parse()


def _char(char: str, fold: bool) -> Tree:
    return make_set(ranges=folded([(ord(char), ord(char))], fold))


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
                low, high = 0, INFINITE
            elif self.take("+"):
                low, high = 1, INFINITE
            elif self.peek("{"):
                low, high = self.bounds()
                if self.peek("?"):
                    raise RegexSyntaxError(f"a lazy counted repeat at {self.at}")
                node = (
                    "rep",
                    node,
                    low,
                    high,
                    "greedy",
                )  # A `+` behind it repeats it: possessive only in Java's syntax.
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
        return first, (int(high) if high else INFINITE) if comma else first

    def atom(self, fold: bool) -> Tree:
        char = self.next()
        if char == "(":
            return self.group(fold)
        if char == "[":
            return self.bracket(fold)
        if char == "\\":
            return self.escape(fold)
        if char == ".":
            return make_set(ranges=[(10, 10)], negated=True)
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
            return make_set([prop], negated=negated)
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
        return make_set([name], negated=negated)

    def bracket(self, fold: bool) -> Tree:
        negated = self.take("^")
        parts: list[Tree] = []
        props: set[str] = set()
        ranges: list[tuple[int, int]] = []
        first = True
        while first or not self.peek("]"):
            if self.take("&&"):
                parts.append(make_set(props, folded(ranges, fold)))
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
                        return intersection(parts, negated)
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
                            return make_set(["White"], negated=not negated)
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
                parts.append(make_set(props, folded(ranges, fold)))
            return intersection(parts, negated)
        return make_set(props, folded(ranges, fold), negated)

    def class_escape(self) -> Tree | str:
        char = self.next()
        if char in _CLASSES:
            negated, prop = _CLASSES[char]
            return make_set([prop], negated=negated)
        if char in "pP":
            return self.prop(char == "P")
        return self.literal(char)
