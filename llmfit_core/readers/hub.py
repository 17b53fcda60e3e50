"""Models on a hub: planned from their side files and headers, downloaded only to be converted."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llmfit_core.errors import SourceError, UnsupportedError
from llmfit_core.events import Event
from llmfit_core.readers.folder import (
    MODULE_FILE,
    SIDE_FILE_BYTES,
    SIDE_SUFFIXES,
    TEMPLATE_FOLDER,
    folder_files,
    read_json_object,
)
from llmfit_core.readers.hub_access import HubAccess, RangeReader, hub_errors, offline_error
from llmfit_core.readers.remote import Remote
from llmfit_core.readers.safetensors import header_length, read_safetensors, read_safetensors_header_bytes, refs
from llmfit_core.readers.selection import Selection, select_weights
from llmfit_core.readers.shards import join_shards, read_weights
from llmfit_core.readers.sniff import HEAD_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from llmfit_core.tensors import TensorRef

_THREADS = 8
_WAIT_SECONDS = 20
_NEEDED = ("config", "generation_config", "tokenizer", "model.", "pytorch_model.", "vocab", "merges", "spiece")
_UNREACHED = frozenset({"no-network", "offline", "hub-down"})


@dataclass(frozen=True, kw_only=True)
class HubModel:
    """A model on a hub, known without its weights.

    Attributes:
        repo: `org/name`.
        revision: The commit hash that everything was read at.
        side: Small files by plain name, as local paths in the hub cache.
        tensors: By name; `Remote`, or `Stored` where the cache already has the file. Empty without a
            `config.json`, since that is no whole model.
        weight_files: Names of the files that hold them, in shard order.
        sizes: Bytes of every file of the repository, where the hub tells them.
        events: What was ignored or is unusual.
    """

    repo: str
    revision: str
    side: dict[str, Path]
    tensors: dict[str, TensorRef]
    weight_files: tuple[str, ...]
    sizes: dict[str, int]
    events: tuple[Event, ...] = ()


@dataclass(frozen=True)
class _Listing:
    repo: str
    commit: str
    sizes: dict[str, int]


def parse_hub_id(text: str) -> tuple[str, str | None]:
    """Split `org/name[@revision]`.

    Raises:
        SourceError: `bad-hub-id`.
    """
    match = re.fullmatch(r"([A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})(?:@([\w][\w./-]{0,200}))?", text)
    if match is None or ".." in text or "--" in match[1]:
        raise SourceError("bad-hub-id", f"{text[:200]} is not a hub id", "Write it as org/name or org/name@revision.")
    return match[1], match[2]


def fetch_headers(repo: str, revision: str | None = None, *, access: HubAccess | None = None) -> HubModel:
    """What planning needs of a model on a hub: side files into the cache, tensor headers by ranges.

    Not one byte of a weight is asked for. Without a network the hub cache's snapshot serves.

    Args:
        repo: `org/name`.
        revision: Branch, tag or commit; the hub's main branch by default.
        access: Which hub and as whom.

    Raises:
        SourceError: `bad-hub-id`, `unknown-repo`, `unknown-revision`, `gated-repo`, `no-access`, `rate-limited`,
            `no-network`, `offline`, `hub-down`, `hub-error`, and what the weight files' readers raise.
        UnsupportedError: `remote-pickle` for a model that only has pickled weights.
    """
    access = access or HubAccess()
    parse_hub_id(f"{repo}@{revision}" if revision else repo)
    try:
        listing = _list(repo, revision, access)
    except SourceError as error:
        root = _cached(repo, revision, access) if error.code in _UNREACHED else None
        if root is None:
            raise
        return _from_cache(repo, revision, root, error)
    side = _fetch_side(listing, revision, access)
    if "config.json" not in side:
        return HubModel(repo=repo, revision=listing.commit, side=side, tensors={}, weight_files=(), sizes=listing.sizes)
    selection = select_weights(listing.sizes, lambda name: read_json_object(side[name]), repo)
    with ThreadPoolExecutor(_THREADS) as pool:
        tensors = pool.map(lambda name: _fetch_tensors(listing, name, selection, access), selection.files)
        per_file = dict(zip(selection.files, tensors, strict=True))
    return HubModel(
        repo=repo,
        revision=listing.commit,
        side=side,
        tensors=join_shards(selection, per_file),
        weight_files=selection.files,
        sizes=listing.sizes,
        events=selection.events,
    )


def download(
    repo: str,
    revision: str | None = None,
    *,
    access: HubAccess | None = None,
    before: Callable[[Mapping[str, Path]], None] | None = None,
) -> Path:
    """Download side files and the chosen weight files into the hub cache; what is there already stays.

    Args:
        repo: See `fetch_headers`.
        revision: See `fetch_headers`.
        access: See `fetch_headers`.
        before: Told the side files before a weight is asked for; what it raises ends the download.

    Returns:
        The snapshot folder, which opens like any model folder; its name is the commit hash.

    Raises:
        SourceError: As `fetch_headers`; `download-failed`.
    """
    access = access or HubAccess()
    parse_hub_id(f"{repo}@{revision}" if revision else repo)
    try:
        listing = _list(repo, revision, access)
    except SourceError as error:
        root = _cached(repo, revision, access) if error.code in _UNREACHED else None
        if root is None:
            raise
        return root
    side = _fetch_side(listing, revision, access)
    if before is not None:
        before(side)
    selection = select_weights(listing.sizes, lambda name: read_json_object(side[name]), repo)
    if selection.missing:
        raise SourceError(
            "missing-shard",
            f"{repo} lacks {', '.join(selection.missing[:5])}, which its index or file names promise",
            "Choose another revision; this upload is not whole.",
        )
    with ThreadPoolExecutor(2) as pool:
        paths = list(pool.map(lambda name: _get(listing.repo, name, listing.commit, access), selection.files))
    return paths[0].parent


def _list(repo: str, revision: str | None, access: HubAccess) -> _Listing:
    from huggingface_hub import HfApi

    with hub_errors(repo, revision):
        info = HfApi(endpoint=access.endpoint, token=access.token).model_info(
            repo, revision=revision, files_metadata=True, timeout=_WAIT_SECONDS
        )
        if not isinstance(info.sha, str) or not re.fullmatch(r"[0-9a-f]{40}", info.sha):
            raise ValueError("no commit hash")
        sizes = {s.rfilename: s.size if isinstance(s.size, int) else -1 for s in info.siblings or ()}
    return _Listing(repo, info.sha, {n: size for n, size in sizes.items() if _is_plain(n)})


def _is_plain(name: str) -> bool:
    """Whether `name` is a file of the top folder, a chat template beside it, or a module's settings."""
    if MODULE_FILE.fullmatch(name):
        return True
    base = name.removeprefix(f"{TEMPLATE_FOLDER}/")
    return bool(base) and base.isprintable() and not base.startswith(".") and not set(base) & set("/\\:")


def _fetch_side(listing: _Listing, revision: str | None, access: HubAccess) -> dict[str, Path]:
    names = [n for n in listing.sizes if Path(n).suffix in SIDE_SUFFIXES]
    large = [n for n in names if listing.sizes[n] > SIDE_FILE_BYTES]
    names = [n for n in names if n not in large]
    # Anything else of that size is data that happens to lie there.
    large = [n for n in large if n.startswith(_NEEDED)]
    if large:
        raise SourceError(
            "file-too-large",
            f"{listing.repo}/{large[0]} has {listing.sizes[large[0]]} bytes; at most {SIDE_FILE_BYTES} are fetched",
            "This is hardly what its name says; choose another revision.",
        )
    with _quiet():
        if "config.json" in names:
            # Asked for by branch once, so that the cache learns which commit the branch stands for.
            _get(listing.repo, "config.json", revision or "main", access)
        with ThreadPoolExecutor(_THREADS) as pool:
            paths = pool.map(lambda name: _get(listing.repo, name, listing.commit, access), names)
            return dict(sorted(zip(names, paths, strict=True)))


def _get(repo: str, name: str, revision: str, access: HubAccess) -> Path:
    from huggingface_hub import hf_hub_download

    with hub_errors(repo, revision):
        return Path(
            hf_hub_download(
                repo,
                name,
                revision=revision,
                token=access.token,
                endpoint=access.endpoint,
                cache_dir=access.cache_dir,
            )
        )


def _fetch_tensors(listing: _Listing, name: str, selection: Selection, access: HubAccess) -> dict[str, TensorRef]:
    from huggingface_hub import try_to_load_from_cache

    repo, commit = listing.repo, listing.commit
    cached = try_to_load_from_cache(repo, name, cache_dir=access.cache_dir, revision=commit)
    if isinstance(cached, str):
        if selection.kind == "safetensors":
            return read_safetensors(Path(cached))
        from llmfit_core.readers.torch_bin import read_torch_bin

        return read_torch_bin(Path(cached))
    if selection.kind != "safetensors":
        raise UnsupportedError(
            "remote-pickle",
            f"{repo} has its weights only as pickles ({name}), which cannot be planned from a distance",
            f"Run `hf download {repo}` and give the folder that it prints.",
        )
    reader = RangeReader(access, repo, commit, name, listing.sizes[name])
    head = reader.read(0, 8)
    try:
        length = header_length(head, reader.size, reader.label)
    except SourceError:
        # It is no safetensors file, so these are no weights: enough to say what it is.
        length = header_length(reader.read(0, HEAD_BYTES), reader.size, reader.label)
    header = read_safetensors_header_bytes(head + reader.read(8, 8 + length), reader.size, reader.label)
    return refs(header, lambda e: Remote(repo, commit, name, e.offset, e.shape, e.dtype))


def _cached(repo: str, revision: str | None, access: HubAccess) -> Path | None:
    """The snapshot folder that the hub cache has of a revision, or `None`."""
    from huggingface_hub import try_to_load_from_cache

    with hub_errors(repo, revision):
        for name in ("config.json", "adapter_config.json"):
            found = try_to_load_from_cache(repo, name, cache_dir=access.cache_dir, revision=revision or "main")
            if isinstance(found, str):
                return Path(found).parent
    return None


def _from_cache(repo: str, revision: str | None, root: Path, reason: SourceError) -> HubModel:
    files = folder_files(root)
    side = {name: path for name, path in files.items() if path.suffix in SIDE_SUFFIXES}
    sizes = {name: path.stat().st_size for name, path in files.items() if path.exists()}
    # A commit is what it is; what a branch stands for may have changed since.
    fixed = revision == root.name or reason.code == "offline"
    event = Event(
        code="from-hub-cache",
        message=f"the hub was not asked ({reason.code}); the cache's copy {root.name[:12]} is used",
        severity="info" if fixed else "warning",
        subject=repo,
    )
    if "config.json" not in side:
        return HubModel(
            repo=repo, revision=root.name, side=side, tensors={}, weight_files=(), sizes=sizes, events=(event,)
        )
    try:
        weights = read_weights(files)
    except SourceError as error:
        if error.code in ("no-weights", "missing-shard"):
            raise offline_error(f"{repo}@{revision}" if revision else repo) from error
        raise
    return HubModel(
        repo=repo,
        revision=root.name,
        side=side,
        tensors=weights.tensors,
        weight_files=tuple(p.name for p in weights.files),
        sizes=sizes,
        events=(event, *weights.events),
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bar per side file."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    before = are_progress_bars_disabled()
    if not before:
        disable_progress_bars()
    try:
        yield
    finally:
        if not before:
            enable_progress_bars()
