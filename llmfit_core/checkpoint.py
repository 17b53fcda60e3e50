"""`open_checkpoint`: a folder, a GGUF file or a hub id, opened without reading a weight."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from llmfit_core.config import MAX_CONFIG_BYTES, Config, normalise
from llmfit_core.errors import SourceError
from llmfit_core.readers.folder import read_json_object

if TYPE_CHECKING:
    from llmfit_core.events import Event
    from llmfit_core.readers.gguf import GgufFile
    from llmfit_core.tensors import TensorRef
    from llmfit_core.tokenizer.vocab import Vocab

Screen = Callable[[Config], None] | None
HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?$")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """An opened source. Nothing in it is loaded.

    Attributes:
        label: What messages call it: the path or hub id as the user wrote it.
        root: The folder or file; `None` for a hub id that is not downloaded.
        repo: Hub repo id, where it is known; empty otherwise.
        revision: Commit hash, where it is known.
        config: The config; empty for a GGUF file until it is decoded.
        tensors: By name in the source.
        side: Small files by plain name (`tokenizer.json`), as local paths.
        weight_files: The files that hold the tensors.
        gguf: The opened GGUF, for a `.gguf` source.
        vocab: The tokenizer, where the source carries it itself (GGUF).
        pooling: How token vectors become a text's, where the source is a file that says so (`llmfit_core.pooling`).
        quantized: Element types a decoder found that had lost something already (`q4_1`).
        waived: Source tensors that a decoder found to be no part of the weights, with the reason.
        events: What was noticed.
    """

    label: str
    root: Path | None = None
    repo: str = ""
    revision: str = ""
    config: Config
    tensors: Mapping[str, TensorRef]
    side: Mapping[str, Path] = field(default_factory=dict)
    weight_files: tuple[Path, ...] = ()
    gguf: GgufFile | None = None
    vocab: Vocab | None = None
    pooling: str = ""
    quantized: tuple[str, ...] = ()
    waived: Mapping[str, str] = field(default_factory=dict)
    events: tuple[Event, ...] = ()


def open_checkpoint(
    source: str | Path, *, weights: bool = False, screen: Callable[[Config], None] | None = None
) -> Checkpoint:
    """Open a model folder, a `.gguf` file or a hub id (`org/name[@revision]`).

    Args:
        source: What the user named.
        weights: Download the weights of a hub id; without it only headers are read, by ranges.
        screen: Told the config before a weight file is touched; what it raises ends the opening.

    Raises:
        SourceError: The cause by name; see `docs/reference/errors.md`.
    """
    path = Path(source)
    if path.is_dir():
        return _open_folder(path, str(source), screen)
    if path.is_file() or path.suffix == ".gguf":
        return _open_file(path, str(source))
    if is_hub_id(source):
        return _open_hub(str(source), weights, screen)
    raise SourceError(
        "no-such-source",
        f"{source} is neither a folder, a .gguf file nor a hub id",
        "Check the path, or write a hub id as org/name.",
    )


def is_hub_id(source: str | Path) -> bool:
    """Whether `source` is neither a folder nor a file here, and written like a hub id."""
    text = str(source)
    return not Path(source).exists() and not text.startswith((".", "/")) and HUB_ID.match(text) is not None


def _open_file(path: Path, label: str) -> Checkpoint:
    from llmfit_core.readers.folder import require_file
    from llmfit_core.readers.gguf import read_gguf

    require_file(path)
    if path.suffix in (".safetensors", ".bin"):
        raise SourceError(
            "weights-without-folder",
            f"{label} is a weight file; a model also needs its config.json and tokenizer",
            f"Name its folder: {path.parent}",
        )
    file = read_gguf(path)
    empty = Config(raw={}, values={})
    return Checkpoint(label=label, root=path, config=empty, tensors={}, weight_files=tuple(file.files), gguf=file)


def _open_folder(root: Path, label: str, screen: Screen) -> Checkpoint:
    from llmfit_core.readers.folder import folder_files
    from llmfit_core.readers.shards import read_weights

    files = folder_files(root)
    if "config.json" not in files:
        _explain_missing_config(files, label, root)
    config = _config(files["config.json"], screen)
    layers = config.values.get("num_hidden_layers")
    found = read_weights(files, layers=layers if isinstance(layers, int) else None)
    repo, revision = _hub_cache_identity(root)
    return Checkpoint(
        label=label,
        root=root,
        repo=repo,
        revision=revision,
        config=config,
        tensors=found.tensors,
        side={k: p for k, p in files.items() if p not in found.files},
        weight_files=found.files,
        events=(*config.events, *found.events),
    )


def _open_hub(source: str, weights: bool, screen: Screen) -> Checkpoint:
    from llmfit_core.readers import hub

    repo, _, revision = source.partition("@")
    if weights:
        root = hub.download(repo, revision or None, before=lambda side: _screen_side(side, source, screen))
        opened = _open_folder(root, source, screen)
        identity = _hub_cache_identity(root)
        return _with(opened, label=source, repo=repo, revision=identity[1] or opened.revision)
    found = hub.fetch_headers(repo, revision or None)
    if "config.json" not in found.side:
        _explain_missing_config(found.side, source)
    config = _config(found.side["config.json"], screen)
    return Checkpoint(
        label=source,
        repo=repo,
        revision=found.revision,
        config=config,
        tensors=found.tensors,
        side=found.side,
        events=(*config.events, *found.events),
    )


def _with(checkpoint: Checkpoint, **changes: object) -> Checkpoint:
    from dataclasses import replace

    return replace(checkpoint, **changes)  # type: ignore[arg-type]


def _config(path: Path, screen: Screen) -> Config:
    config = normalise(read_json_object(path, MAX_CONFIG_BYTES))
    if screen is not None:
        screen(config)
    return config


def _screen_side(side: Mapping[str, Path], label: str, screen: Screen) -> None:
    if "config.json" not in side:
        _explain_missing_config(side, label)
    _config(side["config.json"], screen)


def _explain_missing_config(files: Mapping[str, Path], label: str, root: Path | None = None) -> None:
    snapshots = sorted(p.name for p in (root / "snapshots").iterdir()) if root and (root / "snapshots").is_dir() else []
    if snapshots:
        raise SourceError(
            "hub-cache-root", f"{label} is a hub cache's folder of a repository, not a model",
            f"Name one of its snapshots: {root}/snapshots/{snapshots[-1]}",
        )
    if "adapter_config.json" in files or "adapter_model.safetensors" in files:
        base: object = None
        if "adapter_config.json" in files:
            base = read_json_object(files["adapter_config.json"], MAX_CONFIG_BYTES).get("base_model_name_or_path")
        of = f" of {base}" if isinstance(base, str) and base else ""
        raise SourceError(
            "lora-adapter",
            f"{label} is a LoRA adapter{of}, not a whole model",
            "Merge it into its base model (peft: PeftModel.from_pretrained(...).merge_and_unload()), save that, "
            "and convert the merged folder.",
        )
    if any(name.endswith(".gguf") for name in files):
        names = sorted(n for n in files if n.endswith(".gguf"))
        raise SourceError(
            "gguf-in-folder", f"{label} holds GGUF files and no config.json", f"Name the file: {label}/{names[0]}"
        )
    raise SourceError(
        "no-config", f"{label} has no config.json", "Name a Hugging Face model folder, a .gguf file or a hub id."
    )


def _hub_cache_identity(root: Path) -> tuple[str, str]:
    """Repo id and commit of a hub cache snapshot (`models--ORG--NAME/snapshots/COMMIT`), or two empty texts."""
    for path in (root.absolute(), root.resolve()):
        parts = path.parts
        if len(parts) >= 3 and parts[-2] == "snapshots" and parts[-3].startswith("models--"):
            return parts[-3].removeprefix("models--").replace("--", "/", 1), parts[-1]
    return "", ""
