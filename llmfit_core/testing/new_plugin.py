"""`llmfit plugins new`: the template, renamed."""

from __future__ import annotations

import keyword
import re
from collections.abc import Collection
from pathlib import Path

from llmfit_core.errors import OutputError, UnsupportedError
from llmfit_core.plugin_record import normalized

NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
LONGEST = 40
_OLD = re.compile(r"llmfit-acme|ACME|Acme|acme")
_TEXT = (".md", ".py", ".toml", ".json", ".txt")
_LEFT_OUT = ("__pycache__", ".pytest_cache", ".ruff_cache", ".mypy_cache", "dist", "build")


def template_folder() -> Path:
    """Where the template lies: beside this module in a wheel, in `contrib/` of a checkout.

    Raises:
        UnsupportedError: `no-template`.
    """
    for folder in (Path(__file__).parent / "template", Path(__file__).parents[2] / "contrib" / "plugin-template"):
        if (folder / "pyproject.toml").is_file():
            return folder
    raise UnsupportedError(
        "no-template", "this installation of llmfit-core has no plugin template", "Install llmfit-core again from its wheel."
    )


def new_plugin(name: str, directory: Path | None = None, taken: Collection[str] = ()) -> tuple[Path, tuple[Path, ...]]:
    """Make a plugin of one's own from the template.

    Args:
        name: What the model family is called (`brook`, `my-model`); a leading `llmfit-` is dropped.
        directory: Where the folder `llmfit-NAME` is made; here by default.
        taken: Names of installed plugins, distributions and architectures, with which it would be in conflict.

    Returns:
        The folder, and the files in it.

    Raises:
        UnsupportedError: `bad-plugin-name`, `no-template`.
        OutputError: `output-exists`, `not-writable`.
    """
    name = name.removeprefix("llmfit-")
    if not NAME.fullmatch(name) or len(name) > LONGEST or keyword.iskeyword(name):
        raise UnsupportedError(
            "bad-plugin-name",
            f"{name!r} cannot be the name of a plugin",
            f"Use up to {LONGEST} lower-case letters and digits that begin with a letter, with single hyphens between words.",
        )
    if name in ("core", "testing"):
        raise UnsupportedError("bad-plugin-name", f"llmfit-{name} is llmfit's own", "Choose another name.")
    if {normalized(name), f"llmfit-{normalized(name)}"} & {normalized(t) for t in taken}:
        raise UnsupportedError(
            "bad-plugin-name",
            f"an installed plugin has the name {name} already",
            "Choose another name, or look at that plugin: `llmfit plugins info`.",
        )
    source = template_folder()
    target = (directory or Path()) / f"llmfit-{name}"
    if target.exists() or target.is_symlink():
        raise OutputError("output-exists", f"{target} is already there", "Choose another name or another --directory.")
    camel = "".join(part.capitalize() for part in name.split("-"))
    plain = name.replace("-", "_")
    words = {"llmfit-acme": f"llmfit-{name}", "ACME": plain.upper(), "Acme": camel, "acme": plain}
    written = []
    try:
        for path in sorted(source.rglob("*")):
            relative = path.relative_to(source)
            if any(p in _LEFT_OUT or p.startswith(".") or p.endswith(".egg-info") for p in relative.parts) or path.is_dir():
                continue
            if path.suffix not in _TEXT:
                continue
            out = target / relative.with_name(relative.name.replace("acme", plain))
            out.parent.mkdir(parents=True, exist_ok=True)
            text = path.read_text(encoding="utf-8")
            # In one pass: the new name may hold the old one.
            out.write_text(_OLD.sub(lambda found: words[found[0]], text), encoding="utf-8")
            written.append(out)
    except OSError as error:
        raise OutputError("not-writable", f"{target}: {error.strerror}", "Choose another --directory.") from error
    return target, tuple(written)
