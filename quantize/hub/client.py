"""Asking the hub what a repository holds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from quantize.hub.errors import EndsEarlyError, HubError, asked_wait, explain, require_success
from quantize.hub.names import HubName
from quantize.progress.console import Reporter
from runtimes.untrusted import check_digest, check_name, parse_json

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_T = TypeVar("_T")

_MOST_ANSWER = 32 * 2**20  # bytes of what the hub tells of a repository, or of a page of them
_MOST_FILE = 2**50  # bytes


def _stalled_s() -> float:
    from huggingface_hub import constants

    return float(constants.HF_HUB_DOWNLOAD_TIMEOUT)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to put up with a bad connection."""

    read_s: float = field(default_factory=_stalled_s)  # without a byte, which count as a stall
    attempts: int = 5  # in a row to connect without getting a byte
    pause_s: float = 1.0  # between them
    wait_s: float = 60.0  # the longest that a server may ask for before it is an error


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository, as the hub or a listing on the disk names it: it is put below a
    folder by its path or its key. Raises HubError for names, checksums and sizes that are none."""

    path: str
    bytes: int
    sha256: str | None  # of a large file (LFS)
    git_sha1: str | None  # git's hash of the content as a blob, of the others

    def __post_init__(self) -> None:
        """Check what it says."""
        check_name(self.path, "the hub", HubError)
        for digest in {self.sha256, self.git_sha1} - {None}:
            check_digest(digest, f"the hub's listing of {self.path}", HubError)
        whole = isinstance(self.bytes, int) and 0 <= self.bytes <= _MOST_FILE
        if not whole or not self.key:
            raise HubError(f"the hub does not tell the size and checksum of {self.path}")

    @property
    def key(self) -> str:
        """What the content is filed under."""
        return self.sha256 or self.git_sha1 or ""


@dataclass(frozen=True, slots=True)
class Listing:
    """All files of a repository at one commit, whose hash names a folder. Raises HubError for what
    is no such hash, and for files in the place of others."""

    repo: str
    commit: str
    files: tuple[RemoteFile, ...]

    def __post_init__(self) -> None:
        """Check what it says."""
        check_digest(self.commit, f"the hub's listing of {self.repo}", HubError)
        names = [file.path for file in self.files]
        once = set(names)
        parents = (name[:at] for name in names for at, char in enumerate(name) if char == "/")
        if len(once) < len(names) or not once.isdisjoint(parents):
            raise HubError(f"the hub lists files of {self.repo} in the place of others")


@dataclass(frozen=True, slots=True)
class Hub:
    """The hub of HF_ENDPOINT, or huggingface_hub's default, with the token from the environment
    or from `hf auth login`."""

    patience: Patience = field(default_factory=Patience)

    @property
    def endpoint(self) -> str | None:
        """Another hub than huggingface_hub's own, if the environment names one."""
        return os.environ.get("HF_ENDPOINT", "").rstrip("/") or None

    @property
    def has_token(self) -> bool:
        """Whether requests carry a token."""
        from huggingface_hub import get_token

        return get_token() is not None

    def api(self) -> HfApi:
        """huggingface_hub's client, without its progress bars: ours show instead."""
        from huggingface_hub import HfApi
        from huggingface_hub.utils import disable_progress_bars

        disable_progress_bars()
        return HfApi(endpoint=self.endpoint, library_name="ingot")

    def answer(self, path: str, params: Mapping[str, Any]) -> tuple[Any, dict[str, dict[str, str]]]:
        """The JSON that the hub's API answers to a GET, and the links in its header.

        Raises HubError for what is none, or too large, and what huggingface_hub raises.
        """
        import httpx2
        from huggingface_hub.utils import build_hf_headers, get_session

        with get_session().stream(
            "GET",
            f"{self.api().endpoint}{path}",
            params=dict(params),
            headers=build_hf_headers(library_name="ingot"),
            timeout=httpx2.Timeout(self.patience.read_s),
        ) as response:
            require_success(response)
            raw = bytearray()
            for piece in response.iter_bytes():
                raw += piece
                if len(raw) > _MOST_ANSWER:
                    break
        try:
            said = parse_json(bytes(raw), _MOST_ANSWER)
        except ValueError as error:
            raise HubError(
                f"what answers for the hub is not a list of models or files ({error})"
            ) from error
        return said, {str(name): link for name, link in response.links.items()}

    def explain(self, error: Exception, name: HubName | None) -> Exception:
        """What the user is told of ``error``."""
        return explain(error, name, token=self.has_token, stalled_s=self.patience.read_s)

    def pause_after(self, error: Exception) -> float | None:
        """Seconds until it makes sense to try again after ``error``: a timeout, a broken
        connection, a 5xx, or the wait that a 429 asks for. None: it makes none."""
        import httpx2
        from huggingface_hub.errors import HfHubHTTPError

        if isinstance(error, HfHubHTTPError):
            status = error.response.status_code
            if status == 429:
                wait = asked_wait(error.response)
                return wait if wait is not None and wait <= self.patience.wait_s else None
            retried = status >= 500 or status == 408
        else:
            # No connection at all does not come back within seconds.
            down = isinstance(error, (httpx2.ConnectError, httpx2.ProxyError))
            retried = isinstance(error, (httpx2.TransportError, EndsEarlyError)) and not down
        return self.patience.pause_s if retried else None

    def patiently(
        self,
        call: Callable[[], _T],
        name: HubName | None,
        progress: Reporter,
        arrived: Callable[[], int] = lambda: 0,
    ) -> _T:
        """``call`` again as ``pause_after`` says; attempts that add to ``arrived`` do not count.

        Raises what `explain` makes of the last failure.
        """
        patience, failures, before = self.patience, 0, arrived()
        while True:
            try:
                return call()
            except Exception as error:
                pause = self.pause_after(error)
                failures = 1 if arrived() > before else failures + 1
                if pause is None or failures >= patience.attempts:
                    raise self.explain(error, name) from error
            before = arrived()
            if pause > patience.pause_s:
                progress.note(f"the hub asks to wait {pause:.0f} s")
            time.sleep(pause)


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository on the hub; ``progress`` hears what is done with it."""

    name: HubName
    progress: Reporter = field(default_factory=Reporter)
    hub: Hub = field(default_factory=Hub)

    def look(self) -> Listing:
        """What it holds now. Raises HubError, OfflineError or UsageError."""
        name, hub = self.name, self.hub

        def ask() -> Listing:
            path = f"/api/models/{name.repo}/revision/{quote(name.revision, safe='')}"
            said, _ = hub.answer(path, {"blobs": True})
            try:
                items = [(item, item.get("lfs") or {}) for item in said.get("siblings") or ()]
                files = [
                    RemoteFile(
                        item["rfilename"],
                        lfs["size"] if lfs else item.get("size"),
                        lfs.get("sha256"),
                        item.get("blobId"),
                    )
                    for item, lfs in items
                ]
                return Listing(name.repo, said.get("sha"), tuple(files))
            except (KeyError, TypeError, AttributeError) as error:
                raise HubError(
                    f"{name}: what answers for the hub is not a list of files ({error!r})"
                ) from error

        return self.patiently(ask)

    def patiently(self, call: Callable[[], _T], arrived: Callable[[], int] = lambda: 0) -> _T:
        """``call`` as `Hub.patiently`."""
        return self.hub.patiently(call, self.name, self.progress, arrived)
