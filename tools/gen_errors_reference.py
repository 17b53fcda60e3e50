"""Write `docs/reference/errors.md` and `docs/reference/events.md` from the source.

Every `SomeError(code, cause, remedy)` and every `Event(code=..., message=..., severity=...)` in the core and the
plugins is found by its syntax; what a text is made of at run time is shown as `{name}`.

Usage: python tools/gen_errors_reference.py [--check]
"""

from __future__ import annotations

import ast
import itertools
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ERRORS = ROOT / "docs" / "reference" / "errors.md"
EVENTS = ROOT / "docs" / "reference" / "events.md"
SOURCES = ("llmfit_core", "plugins")

CLASSES = {
    "UsageError": (2, "Wrong usage", "The command's words are off."),
    "SourceError": (3, "Bad input", "The input is missing, damaged, incomplete or hostile."),
    "UnsupportedError": (4, "Refused", "The input is sound, but what was asked cannot be done rightly; refused before the work."),
    "PluginError": (5, "Plugins", "A plugin that the command needs is missing, failed, or in conflict with another."),
    "OutputError": (6, "Output", "The result cannot be put where it was asked to go."),
    "LaunchError": (7, "Runtime", "A runtime cannot be started, or died."),
    "StrictError": (8, "Strict", "`--strict` was given and something fell back or was warned of."),
    "VerificationError": (9, "Verification", "What was written is not the same model."),
    "LlmfitError": (
        None,
        "The command line itself",
        "Not of a kind of its own: `usage` ends with 2, `internal` with 70, `interrupted` with 130, others with 1.",
    ),
}
"""By class: exit code, heading, sentence."""
SEVERITIES = ("warning", "fallback", "bound", "info")
UNKNOWN = "{...}"


@dataclass(frozen=True)
class Finding:
    """One place where an error or an event is made, with one of its possible texts."""

    kind: str
    code: str
    first: str
    second: str
    where: str


class Module:
    """A parsed module: its syntax tree, parents, and constants."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tree = ast.parse(path.read_text(encoding="utf-8"))
        self.parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}
        self.constants = {
            target.id: node.value
            for node in self.tree.body
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        }

    def functions_around(self, node: ast.AST) -> Iterator[ast.FunctionDef]:
        """The functions that `node` is in, innermost first."""
        while node in self.parents:
            node = self.parents[node]
            if isinstance(node, ast.FunctionDef):
                yield node

    def texts(self, node: ast.expr | None, at: ast.AST, depth: int = 0) -> list[str]:
        """The texts an expression may have, run-time parts as `{name}`."""
        if node is None or depth > 6:
            return [UNKNOWN]
        match node:
            case ast.Constant(value=str(text)):
                return [text]
            case ast.JoinedStr(values=parts):
                return _joined([self.texts(p, at, depth + 1) for p in parts])
            case ast.FormattedValue(value=inner):
                return self._part(inner, at, depth)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return _joined([self.texts(left, at, depth + 1), self.texts(right, at, depth + 1)])
            case ast.IfExp(body=body, orelse=other):
                return [*self.texts(body, at, depth + 1), *self.texts(other, at, depth + 1)]
            case ast.Name(id=name):
                return self._named(name, at, depth)
            case ast.Attribute(attr=attribute):
                return [_placeholder(attribute)]
            case ast.Call(func=ast.Attribute(value=inner, attr="get"), args=[_, fallback]) if isinstance(inner, ast.Name):
                table = self.constants.get(inner.id)
                found = table.values if isinstance(table, ast.Dict) else []
                return [t for v in [*found, fallback] for t in self.texts(v, at, depth + 1)]
        return [UNKNOWN]

    def _part(self, inner: ast.expr, at: ast.AST, depth: int) -> list[str]:
        """A piece inside a sentence: a name stays a name; a piece of text chosen between two stays both."""
        if isinstance(inner, ast.IfExp) or (isinstance(inner, ast.Name) and inner.id in self.constants):
            found = self.texts(inner, at, depth + 1)
            return found if all(len(t) < 90 for t in found) else [UNKNOWN]
        if isinstance(inner, ast.Name):
            return [_placeholder(inner.id)]
        if isinstance(inner, ast.Attribute):
            return [_placeholder(inner.attr)]
        return [UNKNOWN]

    def _named(self, name: str, at: ast.AST, depth: int) -> list[str]:
        for function in self.functions_around(at):
            given = [
                node
                for node in ast.walk(function)
                if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets)
            ]
            # The last one before it on the same way through the code decides alone.
            sure = [n for n in given if n.lineno < at.lineno and self._same_way(n, at)]  # type: ignore[attr-defined]
            if sure:
                given = [n for n in given if sure[-1].lineno <= n.lineno <= at.lineno]  # type: ignore[attr-defined]
            if given:
                return list(dict.fromkeys(t for n in given for t in self.texts(n.value, n, depth + 1)))
            if any(a.arg == name for a in (*function.args.args, *function.args.kwonlyargs)):
                passed = self._passed(function, name, depth)
                return passed or [f"{{{name}}}"]
        if name in self.constants:
            return self.texts(self.constants[name], at, depth + 1)
        return [f"{{{name}}}"]

    def _same_way(self, earlier: ast.AST, at: ast.AST) -> bool:
        """Whether whoever comes to `at` has passed `earlier`, which lies before it in one of the blocks around it."""
        block = self.parents[earlier]
        while at in self.parents and self.parents[at] is not block:
            at = self.parents[at]
        return any(
            earlier in body and at in body
            for body in (getattr(block, name, None) for name in ("body", "orelse", "finalbody"))
            if isinstance(body, list)
        )

    def _passed(self, function: ast.FunctionDef, name: str, depth: int) -> list[str]:
        """What callers in the same module give to a parameter."""
        names = [a.arg for a in function.args.args if a.arg != "self"]
        out = []
        for call in ast.walk(self.tree):
            if not isinstance(call, ast.Call) or _called(call) != function.name:
                continue
            given = next((k.value for k in call.keywords if k.arg == name), None)
            if given is None and name in names and names.index(name) < len(call.args):
                given = call.args[names.index(name)]
            if given is not None:
                out += self.texts(given, call, depth + 1)
        return list(dict.fromkeys(out))


def _placeholder(name: str) -> str:
    """`{name}`; the few that say nothing by themselves under a better one."""
    name = {"p": "path", "__name__": "kind", "who": "plugin", "k": "key", "v": "value"}.get(name, name).strip("_")
    return f"{{{name}}}"


def _joined(parts: list[list[str]]) -> list[str]:
    """Every combination of the parts' texts, where these are few; else the first of each."""
    count = 1
    for part in parts:
        count *= len(part)
    if count > 8:
        parts = [p if len(p) == 1 else [UNKNOWN] for p in parts]
    return ["".join(p) for p in itertools.product(*parts)]


def _called(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


def _argument(call: ast.Call, at: int, name: str) -> ast.expr | None:
    if len(call.args) > at:
        return call.args[at]
    return next((k.value for k in call.keywords if k.arg == name), None)


def modules() -> Iterator[Module]:
    """Every module of the core and the plugins, tests left out."""
    for source in SOURCES:
        for path in sorted((ROOT / source).rglob("*.py")):
            parts = path.relative_to(ROOT).parts
            if not any(p in ("tests", "build") or p.startswith(".") for p in parts):
                yield Module(path)


def codes_of(module: Module, node: ast.expr | None, at: ast.AST) -> list[str]:
    """The codes an expression may be."""
    match node:
        case ast.Attribute(value=ast.Name(id="error" | "hint"), attr="code"):
            return []  # another error's code, passed on
    return [code for code in module.texts(node, at) if re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", code)]


def errors() -> list[Finding]:
    """Every error with a code, and those whose code is made of parts."""
    found = []
    for module in modules():
        where = module.path.relative_to(ROOT).as_posix()
        for call in ast.walk(module.tree):
            if not isinstance(call, ast.Call) or _called(call) not in CLASSES:
                continue
            code, cause, remedy = (_argument(call, i, n) for i, n in enumerate(("code", "cause", "remedy")))
            if code is not None and "check.name" in ast.unparse(code):
                for name, refusal in _refusals():
                    found += [Finding(_called(call), name, refusal, _plain(r), where) for r in module.texts(remedy, call)]
                continue
            for name in codes_of(module, code, call):
                pairs = itertools.product(module.texts(cause, call), module.texts(remedy, call))
                found += [Finding(_called(call), name, _plain(c), _plain(r), where) for c, r in itertools.islice(pairs, 8)]
    return found + list(_sniffed()) + list(_unknown_names())


def _refusals() -> list[tuple[str, str]]:
    """Codes and causes of data checks whose no is a refusal: `not-NAME`."""
    found: dict[tuple[str, str], None] = {}
    for module in modules():
        for call in ast.walk(module.tree):
            if isinstance(call, ast.Call) and _called(call) == "DataCheck" and _argument(call, 9, "refusal") is not None:
                names, refusals = (module.texts(_argument(call, 9, n), call) for n in ("name", "refusal"))
                found |= {(f"not-{n}", _plain(r)): None for n, r in itertools.product(names, refusals)}
    return list(found)


def _sniffed() -> Iterator[Finding]:
    """What `readers/sniff.py` recognises: the code and the rest of the sentence are values there."""
    sys.path.insert(0, str(ROOT))
    from llmfit_core.readers import sniff

    where = "llmfit_core/readers/sniff.py"
    said: dict[str, list[str]] = defaultdict(list)
    for _, _, code, what in sniff._MAGICS:
        said[code].append(what)
    module = Module(ROOT / where)
    for call in ast.walk(module.tree):
        if isinstance(call, ast.Call) and _called(call) == "Sniffed":
            code, what = (_argument(call, 9, n) for n in ("code", "what"))
            if isinstance(code, ast.Constant):
                said[str(code.value)] += [_plain(t) for t in module.texts(what, call)]
    for code, whats in said.items():
        for what in whats:
            yield Finding("SourceError", code, f"{{file}} is {what}", sniff._REMEDIES.get(code, sniff._AGAIN), where)
    for expected in ("safetensors", "gguf", "torch"):
        yield Finding("SourceError", f"not-{expected}", f"{{file}} is no {expected} file", sniff._AGAIN, where)


def _unknown_names() -> Iterator[Finding]:
    """`unknown-NOUN`, one for each kind of name that a plugin can provide."""
    from llmfit_core.plugin_record import KINDS

    for kind in KINDS:
        yield Finding(
            "PluginError",
            f"unknown-{kind.noun.replace(' ', '-')}",
            f"no loaded plugin provides the {kind.noun} {{name}}",
            "Install the plugin that the message names; `llmfit plugins list` shows which failed to load.",
            "llmfit_core/plugin_errors.py",
        )


def events() -> list[Finding]:
    """Every event; codes made of parts are told by what they are made of."""
    found = []
    for module in modules():
        where = module.path.relative_to(ROOT).as_posix()
        for call in ast.walk(module.tree):
            if not isinstance(call, ast.Call) or _called(call) != "Event" or not call.keywords:
                continue
            given = {k.arg: k.value for k in call.keywords}
            if "code" in given and "check.name" in ast.unparse(given["code"]):
                for name, refusal in _refusals():
                    found.append(Finding("warning", name, f"{refusal}; done all the same, as told", "", where))
                continue
            codes = codes_of(module, given.get("code"), call) or _made_codes(module, given.get("code"))
            severities = module.texts(given["severity"], call) if "severity" in given else ["warning"]
            severities = [s for s in severities if s in SEVERITIES] or list(SEVERITIES[:1])
            messages = module.texts(given.get("message"), call)
            if codes[:1] and codes[0].startswith("bound-") and messages == [UNKNOWN]:
                messages = [message for _, message in _limits()]
            for code, severity, message in itertools.product(codes, severities, messages):
                found.append(Finding(severity, code, _plain(message), "", where))
    return found


def _made_codes(module: Module, node: ast.expr | None) -> list[str]:
    """Codes that are put together: after a limit's hparam, after a flag of an added token."""
    text = ast.unparse(node) if node is not None else ""
    if text.startswith("'bound-'"):
        return sorted({"bound-" + name.split(".")[-1].replace("_", "-") for name, _ in _limits()})
    if "added-token-" in text:
        return ["added-token-lstrip", "added-token-rstrip", "added-token-single-word"]
    return []


def _limits() -> list[tuple[str, str]]:
    """The hparams that architectures' graphs have limits for, and what they say."""
    found: dict[tuple[str, str], None] = {}
    for module in modules():
        for call in ast.walk(module.tree):
            if isinstance(call, ast.Call) and _called(call) == "Limit":
                hparams, messages = (module.texts(_argument(call, 9, n), call) for n in ("hparam", "message"))
                found |= dict.fromkeys(itertools.product(hparams, messages))
    return list(found)


def _plain(text: str) -> str:
    text = re.sub(r"(\{\.\.\.\})+", UNKNOWN, " ".join(text.split()))
    return text.replace("|", "\\|")


def _quoted(text: str) -> str:
    """A message as code, whatever is in it."""
    text = text.replace("\\|", "|")
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def errors_page() -> str:
    """`docs/reference/errors.md`."""
    found = errors()
    lines = [
        "# Errors",
        "<!-- Generated from the source by tools/gen_errors_reference.py. -->",
        "Every error has a code that scripts may match on, one line of cause and one line of remedy. Without `--json` they "
        "are two lines on standard error:",
        "```text\nerror: CAUSE [CODE]\n  fix: REMEDY\n```",
        'With `--json` standard output carries `{"schema": 1, "error": {"code", "cause", "remedy"}}` as well. The kind of '
        "error decides the [exit code](exit-codes.md). `{name}` below stands for what the message fills in, `{...}` for a "
        "longer part of it. [Mend a refusal](../how-to/mend-a-refusal.md) says more about the common ones.",
    ]
    for kind, (exit_code, heading, sentence) in CLASSES.items():
        mine = [f for f in found if f.kind == kind]
        if not mine:
            continue
        lines += [f"## {heading}", f"`{kind}`{f', exit code {exit_code}' if exit_code else ''}. {sentence}"]
        for code in sorted({f.code for f in mine}):
            lines.append(f"### {code}")
            shown = dict.fromkeys((f.first, f.second) for f in mine if f.code == code)
            remedies: dict[str, list[str]] = defaultdict(list)
            for cause, remedy in shown:
                remedies[remedy].append(cause)
            items = []
            for remedy, causes in remedies.items():
                items += [f"- {_quoted(c)}" for c in dict.fromkeys(causes)]
                items.append(f"  - fix: {_quoted(remedy)}")
            lines.append("\n".join(items))
    return "\n\n".join(lines) + "\n"


def events_page() -> str:
    """`docs/reference/events.md`."""
    found = events()
    means = {
        "warning": "may be wrong for your purpose; `--strict` fails on it",
        "fallback": "something else was done than was asked or expected; `--strict` fails on it",
        "bound": "exact up to a stated limit; `--strict` lets it pass",
        "info": "said once, harmless; `--strict` lets it pass",
    }
    lines = [
        "# Events",
        "<!-- Generated from the source by tools/gen_errors_reference.py. -->",
        "What you should know that is no error. Events stand in the plan, in the output of commands and in "
        "[llmfit.json](manifest.md); each has a code, a message, a severity and a subject (a tensor, key or file).",
    ]
    for severity in SEVERITIES:
        mine = [f for f in found if f.kind == severity]
        lines += [f"## {severity}", f"{means[severity][0].upper()}{means[severity][1:]}."]
        rows = ["| code | message |", "|---|---|"]
        for code in sorted({f.code for f in mine}):
            texts = dict.fromkeys(f.first for f in mine if f.code == code)
            rows.append(f"| `{code}` | {'<br>'.join(_cell(t) for t in texts)} |")
        lines.append("\n".join(rows))
    return "\n\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("<", "&lt;").replace(">", "&gt;").replace("{...}", "…")


def main(arguments: list[str]) -> int:
    """Write both pages, or with `--check` say whether they are up to date."""
    stale = []
    for target, text in ((ERRORS, errors_page()), (EVENTS, events_page())):
        current = target.read_text(encoding="utf-8") if target.exists() else ""
        if current == text:
            continue
        stale.append(target.relative_to(ROOT).as_posix())
        if "--check" not in arguments:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
    if stale and "--check" in arguments:
        print(f"{', '.join(stale)} out of date; run python tools/gen_errors_reference.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
