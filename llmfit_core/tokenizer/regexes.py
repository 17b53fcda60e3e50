r"""When do two regular expressions split text alike? A normal form that answers for the expressions tokenizers use.

Tokenizer files spell one pattern in many ways: `(?i:'s|'t)` and `'[sS]|'[tT]`, `\p{N}{1}` and `\p{N}`,
`?+` where `?` does the same. `normal_form` applies rewrites to the parsed tree that each provably
keep every match. Equal trees split every text alike; unequal trees may still do so, which costs an
unknown-structure error but never a wrong answer.
"""

from __future__ import annotations

import itertools
from functools import lru_cache

from llmfit_core.tokenizer.regex_parser import INFINITE, RegexSyntaxError, parse
from llmfit_core.tokenizer.regex_sets import Tree, clean, contains, disjoint, make_set

__all__ = ["RegexSyntaxError", "Tree", "normal_form", "show"]

_MAX_LENGTH = 20_000
_MAX_WORDS = 256


@lru_cache(maxsize=256)
def normal_form(pattern: str) -> Tree:
    """The normal form of `pattern`; raises `RegexSyntaxError`."""
    if len(pattern) > _MAX_LENGTH:
        raise RegexSyntaxError(f"{len(pattern)} characters long")
    try:
        return _simplify(parse(pattern), top=True)
    except RecursionError:
        raise RegexSyntaxError("nested too deeply") from None


def _is_set(node: Tree) -> bool:
    return node[0] in ("set", "and")


def _simplify(node: Tree, top: bool = False) -> Tree:
    """Rewrites from the leaves up; `top` says that a match ends where `node`'s ends."""
    kind = node[0]
    if kind == "set":
        return clean(node)
    if kind == "rep":
        inner = _simplify(node[1])
        if node[2] == node[3] == 1:
            return inner
        if inner[0] == "rep" and inner[2] == 1 and inner[4] == "greedy" and node[2:] == (1, INFINITE, "greedy"):
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
            and before[2:] == (0, INFINITE, "greedy")
            and node[0] == "rep"
            and node[2:] == (1, INFINITE, "greedy")
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
    return _is_set(follower) and disjoint(node[1], follower)


def _nullable(node: Tree) -> bool:
    return bool(node[0] == "rep" and node[2] == 0)


def _is_within(inner: Tree, outer: Tree) -> bool:
    if inner[0] != "set" or outer[0] != "set" or inner[1] or outer[1] or inner[2] - outer[2]:
        return False
    return all(
        high - low < 512 and all(contains(outer, chr(c)) for c in range(low, high + 1)) for low, high in inner[3]
    )


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
    return all(not b.startswith(a) for a, b in itertools.pairwise(ordered))


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


_ONE_WHITE = make_set(["White"])
_LAST_WHITE = (_ONE_WHITE, ("rep", _ONE_WHITE, 1, INFINITE, "greedy"))
_WHITE_BEFORE_WHITE: Tree = (
    "cat",
    (("rep", _ONE_WHITE, 1, INFINITE, "greedy"), ("look", "!", make_set(["White"], negated=True))),
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
        count = {(0, 1): "?", (0, INFINITE): "*", (1, INFINITE): "+"}.get(
            (low, high), f"{{{low},{'' if high == INFINITE else high}}}"
        )
        inner = show(tree[1])
        if not _is_set(tree[1]) and tree[1][0] != "words":
            inner = f"({inner})"
        return inner + count + {"greedy": "", "lazy": "?", "possessive": "+"}[mode]
    return str(tree[1])


def _quote(code: int) -> str:
    char = chr(code)
    return char if char.isprintable() and char not in "\\[]-" else ascii(char)[1:-1]
