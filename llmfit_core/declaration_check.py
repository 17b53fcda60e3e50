"""Whether a declaration is well formed, decided from its class's own annotations.

A plugin's mistake should be found where it was made and with its name, not as a traceback in the
middle of somebody's conversion: `hf_classes=("AcmeForCausalLM")`, which is no tuple, for instance.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Literal, get_args, get_origin

from llmfit_core.architecture import Architecture
from llmfit_core.declarations import Diagnosis

_NAME = re.compile(r"[a-z0-9][a-z0-9._+-]*")
_SCALARS: Mapping[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "float": (float, int), "bool": (bool,)}
_CONTAINERS: Mapping[str, type] = {"tuple": tuple, "Mapping": Mapping, "frozenset": frozenset}


def flaw(declaration: object) -> str | None:
    """What is wrong with a declaration, in one line, or `None`."""
    name = getattr(declaration, "name", None)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return f"has the name {name!r}; a name is lower-case letters, digits and ._+- only"
    found = _field_flaw(declaration)
    if found:
        return found
    if isinstance(declaration, Architecture):
        wrong = [c for c in declaration.hf_classes if not c.isidentifier()]
        if wrong or not declaration.hf_classes:
            return f"hf_classes has to hold class names, and holds {wrong[0]!r}" if wrong else "hf_classes is empty"
        if not declaration.tensors:
            return "tensors is empty"
    if isinstance(declaration, Diagnosis):
        try:
            re.compile(declaration.pattern)
        except re.error as error:
            return f"pattern is no regular expression: {error}"
    return None


_SOUND: dict[int, object] = {}
"""Frozen values found sound before, by id, and kept so that the ids stay theirs: tables share most of their entries."""


def _field_flaw(value: object) -> str | None:
    if isinstance(value, (str, int, float, type(None))) or id(value) in _SOUND or not is_dataclass(value):
        return None
    for f in fields(value):
        member = getattr(value, f.name)
        if isinstance(f.type, str) and not _fits(member, _parsed(f.type), type(value).__module__):
            return f"{f.name} has to be {' '.join(f.type.split())}, and is {_shown(member)}"
        for nested in _nested(member):
            found = _field_flaw(nested)
            if found:
                return f"in {f.name}, {type(nested).__name__}: {found}"
    _SOUND[id(value)] = value
    return None


def _nested(member: object) -> tuple[object, ...]:
    if isinstance(member, Mapping):
        return tuple(member.values())
    return tuple(member) if isinstance(member, (tuple, frozenset)) else (member,)


@cache
def _parsed(annotation: str) -> ast.expr:
    return ast.parse(annotation.strip(), mode="eval").body


def _fits(value: object, annotation: ast.expr, module: str) -> bool:
    """Whether a value may be what the annotation says; true where that cannot be told."""
    match annotation:
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _fits(value, left, module) or _fits(value, right, module)
        case ast.Constant(value=None):
            return value is None
        case ast.Subscript(value=ast.Name(id="Callable")):
            return callable(value)
        case ast.Subscript(value=ast.Name(id=container), slice=inside) if container in _CONTAINERS:
            return isinstance(value, _CONTAINERS[container]) and _items_fit(value, container, inside, module)
        case ast.Name(id=name) if name in _SCALARS:
            return isinstance(value, _SCALARS[name]) and (name == "bool" or not isinstance(value, bool))
        case ast.Name(id=name):
            return _is_a(value, name, module)
    return True


def _items_fit(value: object, container: str, inside: ast.expr, module: str) -> bool:
    if isinstance(value, Mapping):
        if not isinstance(inside, ast.Tuple):
            return True
        key, item = inside.elts
        return _all_fit(value, key, module) and _all_fit(value.values(), item, module)
    assert isinstance(value, (tuple, frozenset))
    if container == "frozenset":
        return _all_fit(value, inside, module)
    if isinstance(inside, ast.Tuple) and isinstance(inside.elts[-1], ast.Constant) and inside.elts[-1].value is ...:
        return _all_fit(value, inside.elts[0], module)
    return True


def _all_fit(values: Iterable[object], annotation: ast.expr, module: str) -> bool:
    # A table has hundreds of entries of a handful of types, and this is on the way of every command.
    some = {type(v): v for v in values}.values() if _by_type(annotation, module) else values
    return all(_fits(v, annotation, module) for v in some)


def _by_type(annotation: ast.expr, module: str) -> bool:
    """Whether a value's type alone decides if it fits."""
    match annotation:
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _by_type(left, module) and _by_type(right, module)
        case ast.Name(id=name):
            return get_origin(getattr(sys.modules.get(module), name, None)) is not Literal
        case ast.Constant(value=None):
            return True
    return False


def _is_a(value: object, name: str, module: str) -> bool:
    known = getattr(sys.modules.get(module), name, None)
    if get_origin(known) is Literal:
        return value in get_args(known)
    try:
        return known is None or isinstance(value, known)
    except TypeError:
        return True


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
