"""The process that renders a chat template: a sandbox with limits, JSON in, JSON out.

Run as a script; it imports nothing of llmfit.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any


def environment() -> Any:
    """jinja2's immutable sandbox with what transformers gives its templates."""
    import jinja2
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(jinja2.ext.Extension):
        """`{% generation %}` marks the assistant's words for training; here it only passes them on."""

        tags = {"generation"}  # noqa: RUF012 (jinja2's own interface)

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_pass"), [], [], body).set_lineno(line)

        def _pass(self, caller: Callable[[], str]) -> str:
            return caller()

    def raise_exception(message: str) -> None:
        raise jinja2.exceptions.TemplateError(message)

    def tojson(
        value: object,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    class Watched(ImmutableSandboxedEnvironment):
        """Notes the first attribute that it hid; what a template gets in its place is jinja2's affair."""

        hidden = ""

        def unsafe_undefined(self, obj: Any, attribute: str) -> Any:
            self.hidden = self.hidden or f"it reaches for {attribute!r} of {type(obj).__name__!r}, which is not allowed"
            return super().unsafe_undefined(obj, attribute)

    env = Watched(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return env


def perform(job: dict[str, Any], limit: int) -> dict[str, str]:
    """Compile a job's template and, where it has variables, render it to at most `limit` characters."""
    import jinja2

    try:
        env = environment()
        template = env.from_string(job["template"])
        if job["variables"] is None:
            return {}
        parts: list[str] = []
        size = 0
        for part in template.generate(**job["variables"]):
            size += len(part)
            if size > limit:
                return {"error": f"more than {limit} characters of output"}
            parts.append(part)
        return {"text": "".join(parts), "unsafe": env.hidden[:500]}
    except jinja2.TemplateSyntaxError as error:
        return {"error": f"line {error.lineno}: {error.message}"[:500]}
    except MemoryError:
        return {"error": "out of memory"}
    except Exception as error:  # Whatever a template raises is its failure.
        return {"error": f"{type(error).__name__}: {error}"[:500]}


def main() -> None:
    """Read the jobs from standard input, answer on standard output."""
    order = json.loads(sys.stdin.buffer.read())
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (order["memory"], order["memory"]))
    except (ImportError, ValueError, OSError):
        pass  # No such limit on Windows; time and output stay bounded.
    answers = [perform(job, order["output"]) for job in order["jobs"]]
    sys.stdout.buffer.write(json.dumps(answers).encode())


if __name__ == "__main__":
    main()
