"""Talking to a model hub: its errors in our words, and reading ranges of its files.

`huggingface_hub` does the talking; it is imported when first needed.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmfit_core.errors import LlmfitError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator

_WAIT_SECONDS = 20
_STATUS_RETRIED = (500, 502, 503, 504)


@dataclass(frozen=True, kw_only=True)
class HubAccess:
    """Which hub, as whom, and where its files are kept.

    Attributes:
        token: An access token; `None` takes the stored one, `False` sends none.
        endpoint: The hub's address; `None` takes `HF_ENDPOINT` or huggingface.co.
        cache_dir: The cache; `None` takes `HF_HUB_CACHE` or the usual place.
    """

    token: str | bool | None = None
    endpoint: str | None = None
    cache_dir: str | None = None


@contextmanager
def hub_errors(repo: str, revision: str | None = None) -> Iterator[None]:
    """Turn whatever `huggingface_hub` and its HTTP client raise into a `SourceError`."""
    try:
        yield
    except LlmfitError:
        raise
    except Exception as error:
        known = _translate(error, repo, revision)
        if known is None:
            raise
        raise known from error


def _translate(error: Exception, repo: str, revision: str | None) -> SourceError | None:
    from huggingface_hub import errors as hub

    at = f"{repo}@{revision}" if revision else repo
    if isinstance(error, hub.HFValidationError):
        return SourceError("bad-hub-id", f"{at} is not a hub id", "Write it as org/name or org/name@revision.")
    if isinstance(error, hub.GatedRepoError):
        return SourceError(
            "gated-repo",
            f"{repo} is gated: its owner wants its terms accepted first",
            f"Accept them at https://huggingface.co/{repo}, then run `hf auth login`.",
        )
    if isinstance(error, hub.DisabledRepoError):
        return SourceError("disabled-repo", f"{repo} was disabled by the hub", "Choose another model.")
    if isinstance(error, hub.RevisionNotFoundError):
        return SourceError("unknown-revision", f"{repo} has no revision {revision}", "Check the branch, tag or commit.")
    if isinstance(error, hub.RepositoryNotFoundError):
        return SourceError(
            "unknown-repo",
            f"the hub knows no {repo}, or it is private",
            "Check the spelling; for a private model run `hf auth login`.",
        )
    if isinstance(error, hub.OfflineModeIsEnabled | hub.LocalEntryNotFoundError):
        return offline_error(at)
    if isinstance(error, hub.EntryNotFoundError):
        return SourceError("missing-file", f"{at} lacks a file that its listing names", "Try again; it was changed.")
    if isinstance(error, hub.HfHubHTTPError):
        return _http_error(error.response.status_code, repo)
    if type(error).__module__.split(".")[0] in ("httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3"):
        return SourceError(
            "no-network",
            f"the hub cannot be reached for {at} ({type(error).__name__})",
            "Check the network and proxy settings, or give a folder on this machine.",
        )
    if isinstance(error, OSError):
        return SourceError("download-failed", f"{at}: {error}", "Check free space and permissions of the hub cache.")
    if isinstance(error, ValueError | TypeError | KeyError | AttributeError):
        return SourceError(
            "hub-error",
            f"the answer for {at} is not a hub's",
            "Check HF_ENDPOINT, and whether a proxy or login page stands between.",
        )
    return None


def offline_error(at: str) -> SourceError:
    """The error for a model that would have to be downloaded while that is switched off."""
    return SourceError(
        "offline",
        f"{at} is not (wholly) in the hub cache, and the hub may not be asked (HF_HUB_OFFLINE)",
        "Unset HF_HUB_OFFLINE, or download the model where there is a network.",
    )


def _http_error(status: int, repo: str) -> SourceError:
    if status in (401, 403):
        return SourceError("no-access", f"the hub refuses {repo} ({status})", "Run `hf auth login` with a valid token.")
    if status == 404:
        return SourceError("unknown-repo", f"the hub knows no {repo}", "Check the spelling.")
    if status == 429:
        return SourceError(
            "rate-limited",
            f"the hub limits requests and refused one for {repo}",
            "Wait some minutes; logged in (`hf auth login`) the limit is higher.",
        )
    if status >= 500:
        return SourceError("hub-down", f"the hub failed on {repo} ({status})", "Try again later.")
    return SourceError("hub-error", f"the hub answered {status} for {repo}", "Try again; report it if it stays.")


class RangeReader:
    """Reads ranges of one file of a repository.

    Attributes:
        size: The file's length in bytes: as listed, then as the server tells it.
        label: What to call the file in errors.
    """

    def __init__(self, access: HubAccess, repo: str, revision: str, filename: str, size: int) -> None:
        """Prepare to read `filename` at the commit `revision`; nothing is asked yet."""
        from huggingface_hub import hf_hub_url
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        self.url = hf_hub_url(repo, filename, revision=revision, endpoint=access.endpoint)
        self.headers = build_hf_headers(token=access.token)
        self.size = size
        self.repo = repo
        self.label = f"{repo}/{filename}"

    def read(self, start: int, stop: int) -> bytes:
        """The bytes from `start` to before `stop`, or as many as there are.

        Raises:
            SourceError: The hub's refusals (`hub_errors`); `hub-error` where it answers out of range.
        """
        from huggingface_hub.utils import hf_raise_for_status, http_stream_backoff  # type: ignore[attr-defined]

        headers = {**self.headers, "Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
        with (
            hub_errors(self.repo),
            http_stream_backoff(
                "GET",
                self.url,
                headers=headers,
                timeout=_WAIT_SECONDS,
                follow_redirects=True,
                max_retries=2,
                retry_on_status_codes=_STATUS_RETRIED,
            ) as response,
        ):
            if response.status_code == 416:
                return b""
            hf_raise_for_status(response)
            # A server that knows no ranges sends all from the start; we leave as soon as we have ours.
            skipped = 0 if response.status_code == 206 else start
            told = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", response.headers.get("Content-Range", ""))
            if told:
                self.size = int(told[2])
                if int(told[1]) != start:
                    raise SourceError("hub-error", f"{self.label}: the hub sent another range", "Try again.")
            got = bytearray()
            for piece in response.iter_bytes(65_536):
                got += piece
                if len(got) >= skipped + stop - start:
                    break
            return bytes(got[skipped : skipped + stop - start])
