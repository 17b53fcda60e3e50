"""Pickles read as data: a small interpreter that imports nothing and calls nothing.

Python's own unpickler runs what a pickle asks for. This one knows only the opcodes that `torch.save`
emits for tensors and plain containers (listed in Python's `pickletools`), turns "import this" and "call
that" into values, and refuses any name that is not on the caller's list.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from llmfit_core.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable

PICKLE_BYTES = 64 << 20
"""The pickle of a checkpoint with 100,000 tensors has about 20 MB."""
_STEPS = 5_000_000
_REMEDY = "Do not load this file with anything else either; ask for the weights as safetensors."


@dataclass(frozen=True)
class Global:
    """A name that a pickle would import: `torch._utils._rebuild_tensor_v2`."""

    name: str


@dataclass(eq=False)
class Call:
    """What a pickle would call, with what; `state` is what it would set on the result.

    `items` holds the entries given to a mapping made this way (`OrderedDict()`).
    """

    function: Global
    arguments: tuple[Any, ...]
    items: dict[Any, Any] = field(default_factory=dict)
    state: Any = None


@dataclass(frozen=True, eq=False)
class Persistent:
    """What a pickle leaves to its host to find: a storage, for torch."""

    key: Any


class _Mark:
    pass


_MARK = _Mark()


def read_pickle(data: bytes, label: str, allowed: Callable[[str], bool]) -> Any:
    """The value that the pickle `data` describes, with `Global`, `Call` and `Persistent` in place of objects.

    Args:
        data: The pickle, protocol 2 to 5.
        label: What to call the file in errors.
        allowed: Whether a name may occur; the first that may not ends the reading.

    Raises:
        SourceError: `unsafe-pickle` naming the import; `bad-pickle` where the bytes make no sense or use
            opcodes that checkpoints have no need of.
    """
    if len(data) > PICKLE_BYTES:
        raise _bad(label, f"it has {len(data)} bytes, more than any checkpoint's")
    machine = _Machine(data, label, allowed)
    try:
        return machine.run()
    except (IndexError, struct.error, TypeError, ValueError, KeyError, AttributeError):
        raise _bad(label, f"it makes no sense at byte {machine.at}") from None


class _Machine:
    def __init__(self, data: bytes, label: str, allowed: Callable[[str], bool]) -> None:
        self.data = data
        self.label = label
        self.allowed = allowed
        self.at = 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        data = self.data
        stack = self.stack
        simple = _SIMPLE
        for _ in range(_STEPS):
            code = data[self.at]
            self.at += 1
            if code == 0x2E:  # STOP
                (value,) = stack
                return value
            action = simple.get(code)
            if action is None:
                raise _bad(self.label, f"it uses opcode {code:#04x}, which tensors and plain containers do not need")
            action(self)
        raise _bad(self.label, f"it takes more than {_STEPS} steps")

    def take(self, count: int) -> bytes:
        piece = self.data[self.at : self.at + count]
        if len(piece) != count:
            raise _bad(self.label, f"it ends at byte {len(self.data)}, in the middle of a value")
        self.at += count
        return piece

    def unsigned(self, width: int) -> int:
        return int.from_bytes(self.take(width), "little")

    def text(self, width: int) -> str:
        return self.take(self.unsigned(width)).decode("utf-8", "surrogatepass")

    def since_mark(self) -> list[Any]:
        at = len(self.stack) - 1
        while self.stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise IndexError
        items = self.stack[at + 1 :]
        del self.stack[at:]
        return items

    def line(self) -> str:
        end = self.data.index(b"\n", self.at, self.at + 1024)
        text = self.data[self.at : end].decode("utf-8")
        self.at = end + 1
        return text

    def tuple_of(self, count: int) -> None:
        items = tuple(self.stack[-count:])
        if len(items) != count or _MARK in items:
            raise IndexError
        self.stack[-count:] = [items]

    def named(self, module: str, name: str) -> None:
        full = f"{module}.{name}"
        if not isinstance(module, str) or not isinstance(name, str) or not self.allowed(full):
            raise SourceError(
                "unsafe-pickle",
                f"{self.label} would import {full[:120]!r} when loaded, which weights have no need of; nothing was run",
                _REMEDY,
            )
        self.stack.append(Global(full))

    def stack_global(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self.named(module, name)

    def put(self, index: int) -> None:
        # A dictionary, so that an index of two thousand million costs no more than one of two.
        self.memo[index] = self.stack[-1]

    def reduce(self) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        if not isinstance(function, Global) or not isinstance(arguments, tuple):
            raise TypeError
        self.stack.append(Call(function, arguments))

    def build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if not isinstance(target, Call):
            raise TypeError
        target.state = state

    def set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        mapping = target.items if isinstance(target, Call) else target
        if not isinstance(mapping, dict) or len(items) % 2:
            raise TypeError
        for key, value in zip(items[::2], items[1::2], strict=True):
            # Hashing a tuple nested ten thousand deep would end the process.
            if not isinstance(key, str | int):
                raise TypeError
            mapping[key] = value

    def set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.set_items([key, value])

    def append(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, list):
            raise TypeError
        target.extend(items)

    def drop(self) -> None:
        self.stack.pop()

    def frame(self) -> None:
        self.take(8)

    def protocol(self) -> None:
        if not 2 <= self.unsigned(1) <= 5:
            raise ValueError


def _push(value: Any) -> Callable[[_Machine], None]:
    return lambda m: m.stack.append(value)


def _pop_into_append(machine: _Machine) -> None:
    value = machine.stack.pop()
    machine.append([value])


_SIMPLE: dict[int, Callable[[_Machine], None]] = {
    0x80: _Machine.protocol,
    0x95: _Machine.frame,
    ord("}"): lambda m: m.stack.append({}),
    ord("]"): lambda m: m.stack.append([]),
    ord(")"): _push(()),
    ord("("): _push(_MARK),
    ord("N"): _push(None),
    0x88: _push(True),
    0x89: _push(False),
    ord("K"): lambda m: m.stack.append(m.unsigned(1)),
    ord("M"): lambda m: m.stack.append(m.unsigned(2)),
    ord("J"): lambda m: m.stack.append(int.from_bytes(m.take(4), "little", signed=True)),
    0x8A: lambda m: m.stack.append(int.from_bytes(m.take(m.unsigned(1)), "little", signed=True)),
    ord("G"): lambda m: m.stack.append(struct.unpack(">d", m.take(8))[0]),
    ord("X"): lambda m: m.stack.append(m.text(4)),
    0x8C: lambda m: m.stack.append(m.text(1)),
    0x8D: lambda m: m.stack.append(m.text(8)),
    ord("U"): lambda m: m.stack.append(m.take(m.unsigned(1)).decode("latin-1")),
    ord("T"): lambda m: m.stack.append(m.take(m.unsigned(4)).decode("latin-1")),
    ord("C"): lambda m: m.stack.append(m.take(m.unsigned(1))),
    ord("B"): lambda m: m.stack.append(m.take(m.unsigned(4))),
    ord("q"): lambda m: m.put(m.unsigned(1)),
    ord("r"): lambda m: m.put(m.unsigned(4)),
    0x94: lambda m: m.put(len(m.memo)),
    ord("h"): lambda m: m.stack.append(m.memo[m.unsigned(1)]),
    ord("j"): lambda m: m.stack.append(m.memo[m.unsigned(4)]),
    ord("t"): lambda m: m.stack.append(tuple(m.since_mark())),
    0x85: lambda m: m.tuple_of(1),
    0x86: lambda m: m.tuple_of(2),
    0x87: lambda m: m.tuple_of(3),
    ord("c"): lambda m: m.named(m.line(), m.line()),
    0x93: _Machine.stack_global,
    ord("R"): _Machine.reduce,
    0x81: _Machine.reduce,
    ord("b"): _Machine.build,
    ord("Q"): lambda m: m.stack.append(Persistent(m.stack.pop())),
    ord("s"): _Machine.set_item,
    ord("u"): lambda m: m.set_items(m.since_mark()),
    ord("a"): _pop_into_append,
    ord("e"): lambda m: m.append(m.since_mark()),
    # Sets of plain values stand beside weights now and then; kept as lists, nothing is hashed.
    0x8F: lambda m: m.stack.append([]),
    0x90: lambda m: m.append(m.since_mark()),
    ord("0"): _Machine.drop,
}


def _bad(label: str, what: str) -> SourceError:
    return SourceError("bad-pickle", f"the pickle in {label} cannot be read: {what}", _REMEDY)
