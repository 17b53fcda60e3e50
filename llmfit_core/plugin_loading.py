"""From an entry point to a plugin's declarations, behind a guard: whatever a plugin does, only it fails."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import inspect
import itertools
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

import pluggy

from llmfit_core.declaration_check import flaw
from llmfit_core.hookspecs import Hooks
from llmfit_core.index import nearest
from llmfit_core.plugin_record import KINDS, Kind, PluginId, PluginRecord, empty_provides

GROUP = "llmfit"
CORE = "llmfit-core"
SECONDS = 10.0
"""What a plugin may take to be imported and to declare what it has."""
MAX_DECLARATIONS = 1000
"""More from one hook means a generator that never ends."""

Trace = Callable[[str], None]
T = TypeVar("T")


class PluginFault(Exception):
    """What a plugin did wrong, said in one line."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """An entry point before it is loaded."""

    id: PluginId
    entry_point: importlib.metadata.EntryPoint
    requires: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """A plugin after loading, whatever came of it.

    Attributes:
        record: What is shown of it.
        declarations: By plural kind; empty unless it is loaded.
        callbacks: Its implementations of the hooks that declare nothing, by hook name, with argument names.
        target: What the entry point named, or `None`.
    """

    record: PluginRecord
    declarations: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    callbacks: Mapping[str, tuple[tuple[Callable[..., object], tuple[str, ...]], ...]] = field(default_factory=dict)
    target: object = None

    def failed(self, reason: str) -> Plugin:
        """The plugin without anything it provides."""
        record = replace(self.record, status="failed", reason=reason, provides=empty_provides())
        return Plugin(record=record, target=self.target)


def load(found: Found, trace: Trace | None = None) -> Plugin:
    """Import a plugin and collect its declarations. Never raises but for `KeyboardInterrupt`."""
    started = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught, _Watch(SECONDS) as watch:
        warnings.simplefilter("always")
        plugin = _load(found, trace, watch)
    notes = dict.fromkeys(one_line(f"{w.category.__name__}: {w.message}") for w in caught)
    seconds = time.perf_counter() - started
    return replace(
        plugin, record=replace(plugin.record, notes=(*plugin.record.notes, *notes), seconds=round(seconds, 6))
    )


class _Watch:
    """Bounds the time of a plugin's own code, and tells the user's interrupt from one that a plugin raises.

    Signals work in the main thread alone, and Windows has no alarm: elsewhere nothing is bounded.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.interrupted = False
        self._able = threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer")

    def __enter__(self) -> _Watch:
        if self._able:
            self._alarm = signal.signal(signal.SIGALRM, self._late)
            self._interrupt = signal.getsignal(signal.SIGINT)
            if self._interrupt is signal.default_int_handler:
                signal.signal(signal.SIGINT, self._by_user)
            signal.setitimer(signal.ITIMER_REAL, self.seconds)
        return self

    def __exit__(self, *_: object) -> None:
        if self._able:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._alarm)
            if self._interrupt is signal.default_int_handler:
                signal.signal(signal.SIGINT, self._interrupt)

    def _late(self, *_: object) -> None:
        raise PluginFault(f"takes more than {self.seconds:g} s to load")

    def _by_user(self, *_: object) -> None:
        self.interrupted = True
        raise KeyboardInterrupt


def _load(found: Found, trace: Trace | None, watch: _Watch) -> Plugin:
    plugin = Plugin(record=PluginRecord(id=found.id, status="failed", entry_point=found.entry_point.value))
    step = "does not import"
    try:
        target = traced(trace, "import", found.id, found.entry_point.load)
        plugin = replace(plugin, target=target)
        step = "cannot be registered"
        implementations = _register(target, found.id.name)
        plugin = replace(plugin, record=replace(plugin.record, hooks=tuple(implementations)))
        declarations: dict[str, tuple[object, ...]] = {}
        for kind in KINDS:
            step = f"fails in {kind.hook}"
            declared: list[object] = []
            for function, _ in implementations.get(kind.hook, ()):
                declared += traced(trace, kind.hook, found.id, lambda f=function, k=kind: _collect(f, k))  # type: ignore[misc]
            _check_unique(declared, kind)
            declarations[kind.plural] = tuple(declared)
    except KeyboardInterrupt as error:
        if watch.interrupted:
            raise
        return plugin.failed(f"{step}: {describe(error)}")
    except PluginFault as fault:
        return plugin.failed(str(fault))
    except BaseException as error:
        if trace:
            trace(traceback.format_exc().rstrip())
        return plugin.failed(f"{step}: {describe(error)}")
    provides = {**empty_provides(), **{k: tuple(_name(d) for d in v) for k, v in declarations.items()}}
    hooks = {kind.hook for kind in KINDS}
    return replace(
        plugin,
        record=replace(plugin.record, status="loaded", provides=provides),
        declarations=declarations,
        callbacks={hook: tuple(found) for hook, found in implementations.items() if hook not in hooks},
    )


Implementations = dict[str, list[tuple[Callable[..., object], tuple[str, ...]]]]


def _register(target: object, name: str) -> Implementations:
    """The target's hook functions by hook, validated against the specifications in a manager of its own.

    A manager per plugin makes `check_pending` speak of this plugin alone, and a registration that breaks
    off half-way vanishes with its manager.
    """
    if target is None or inspect.isclass(target):
        raise PluginFault(f"its entry point names {target!r}; it has to name a module or an object")
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(Hooks)
    specified = {hook for hook in vars(Hooks) if hook.startswith("llmfit_")}
    unmarked = _unmarked(target, manager, specified)
    for attribute, hook in unmarked.items():
        if attribute == hook:
            raise PluginFault(f"{attribute} is not marked with @hookimpl, so nothing would call it")
    try:
        manager.register(target, name)
    except pluggy.PluginValidationError as error:
        raise PluginFault(_signature_fault(error, specified)) from None
    callers = manager.get_hookcallers(target) or []
    found: Implementations = {}
    for caller in callers:
        for implementation in caller.get_hookimpls():
            if implementation.wrapper or implementation.hookwrapper:
                raise PluginFault(f"{caller.name} is a hook wrapper; there is nothing to wrap, hooks only declare")
            if not caller.has_spec():
                if implementation.optionalhook:
                    continue
                raise PluginFault(_misspelt(caller.name, specified))
            found.setdefault(caller.name, []).append((implementation.function, tuple(implementation.argnames)))
    manager.check_pending()
    if not callers:
        near = "".join(f"; {attribute} looks like {hook}" for attribute, hook in unmarked.items())
        raise PluginFault(f"implements no hook of llmfit: nothing in it is marked with @hookimpl{near}")
    for attribute, hook in unmarked.items():
        warnings.warn(f"{attribute} looks like {hook}, and is not marked with @hookimpl", stacklevel=2)
    return found


def _unmarked(target: object, manager: pluggy.PluginManager, specified: set[str]) -> dict[str, str]:
    """Functions that are, or look very much, like a hook and would never be called, with the hook's name."""
    found = {}
    for attribute in dir(target):
        if not attribute.startswith("llmfit_") or manager.parse_hookimpl_opts(target, attribute) is not None:
            continue
        value = inspect.getattr_static(target, attribute)
        if inspect.isfunction(value) or isinstance(value, (staticmethod, classmethod)):
            near = nearest(attribute, specified, 1, cutoff=0.85)
            if near:
                found[attribute] = near[0]
    return found


def _misspelt(name: str, specified: set[str]) -> str:
    near = nearest(name, specified, 1)
    hint = f"did you mean {near[0]}?" if near else f"the hooks are {', '.join(sorted(specified))}"
    return f"{name} is no hook of llmfit; {hint}"


def _signature_fault(error: pluggy.PluginValidationError, specified: set[str]) -> str:
    text = one_line(str(error))
    hook = next((h for h in sorted(specified, key=len, reverse=True) if h in text), "")
    if not hook:
        return text
    takes = [p for p in inspect.signature(getattr(Hooks, hook)).parameters if p != "self"]
    detail = text.rpartition("hookimpl definition:")[2].strip() or text
    return f"{hook} has another signature than the hook, which is {hook}({', '.join(takes)}): {detail}"


def _collect(function: Callable[..., object], kind: Kind) -> list[object]:
    result = function()
    wanted = _with_article(kind.type.__name__)
    if not isinstance(result, Iterable) or isinstance(result, (str, bytes, Mapping)):
        close = getattr(result, "close", None)
        if inspect.isawaitable(result) and close:
            close()
        raise PluginFault(
            f"{kind.hook} returned {_typed(result)}; it has to return an iterable of {kind.type.__name__}"
        )
    iterator = iter(result)
    declared = list(itertools.islice(iterator, MAX_DECLARATIONS + 1))
    if len(declared) > MAX_DECLARATIONS:
        close = getattr(iterator, "close", None)
        if close:
            close()
        raise PluginFault(f"{kind.hook} yielded more than {MAX_DECLARATIONS} declarations; it seems to have no end")
    for declaration in declared:
        if not isinstance(declaration, kind.type):
            raise PluginFault(f"{kind.hook} yielded {_typed(declaration)} where {wanted} has to be")
        wrong = flaw(declaration)
        if wrong:
            raise PluginFault(f"{kind.hook} yielded {wanted} that is not well formed: {_name(declaration)!r} {wrong}")
    return declared


def _check_unique(declared: Iterable[object], kind: Kind) -> None:
    seen: set[str] = set()
    for declaration in declared:
        for name in claims(declaration):
            if name in seen:
                raise PluginFault(f"{kind.hook} declares {name!r} twice")
            seen.add(name)


def claims(declaration: object) -> tuple[str, ...]:
    """The names that only one declaration of its kind can have: its own, and an architecture's classes."""
    return tuple(dict.fromkeys((_name(declaration), *getattr(declaration, "hf_classes", ()))))


def _name(declaration: object) -> str:
    return str(getattr(declaration, "name", ""))


def _typed(value: object) -> str:
    return "None" if value is None else _with_article(type(value).__name__)


def _with_article(noun: str) -> str:
    return f"{'an' if noun[:1] in 'AEIOUaeiou' else 'a'} {noun}"


def traced(trace: Trace | None, what: str, who: PluginId, call: Callable[[], T]) -> T:
    """Call, and where tracing is on tell what it took and how much came of it."""
    if trace is None:
        return call()
    started = time.perf_counter()
    count = "raised"
    try:
        result = call()
        count = f"{len(result)} results" if isinstance(result, (list, tuple)) else "done"
        return result
    finally:
        trace(f"{what}  {who.name} ({who})  {(time.perf_counter() - started) * 1e3:.2f} ms  {count}")


def one_line(text: str, limit: int = 400) -> str:
    """Whitespace runs as one space, and no longer than `limit`."""
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else f"{flat[: limit - 3]}..."


def describe(error: BaseException) -> str:
    """An exception in one line: its class, its text, and where in the plugin it came from."""
    try:
        text = one_line(str(error))
    except Exception:
        text = "(its text cannot be shown)"
    kind = "sys.exit was called" if isinstance(error, SystemExit) else type(error).__name__
    return f"{kind}: {text}{_place(error)}" if text else f"{kind}{_place(error)}"


def _place(error: BaseException) -> str:
    """File name and line of the innermost frame that is no import machinery and not ours."""
    passed_through = ("<frozen", os.path.dirname(__file__) + os.sep, os.path.dirname(importlib.__file__) + os.sep)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(passed_through)]
    return f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})" if frames else ""


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """While plugins run, what they print goes to stderr: results, JSON among them, have stdout alone.

    Both Python's `sys.stdout` and the descriptor beneath it, which C libraries and child processes write to.
    """
    saved = None
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    with contextlib.suppress(OSError):
        saved = os.dup(1)
        os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        if saved is not None:
            for stream in (sys.__stdout__, sys.__stderr__):
                with contextlib.suppress(Exception):
                    if stream:
                        stream.flush()
            os.dup2(saved, 1)
            os.close(saved)
