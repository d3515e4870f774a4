"""Asking the hub what a repository holds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from quantize.hub.errors import EndsEarlyError, HubError, asked_wait, explain
from quantize.hub.names import HubName
from quantize.progress.console import Reporter

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_T = TypeVar("_T")


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
    """A file of a repository."""

    path: str
    bytes: int
    sha256: str | None  # of a large file (LFS)
    git_sha1: str | None  # git's hash of the content as a blob, of the others

    @property
    def key(self) -> str:
        """What the content is filed under."""
        return self.sha256 or self.git_sha1 or ""


@dataclass(frozen=True, slots=True)
class Listing:
    """All files of a repository at one commit."""

    repo: str
    commit: str
    files: tuple[RemoteFile, ...]


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
            info = hub.api().model_info(
                name.repo,
                revision=name.revision,
                files_metadata=True,
                timeout=hub.patience.read_s,
            )
            files = []
            for item in info.siblings or []:
                size = item.lfs.size if item.lfs else item.size
                if size is None or not (item.lfs or item.blob_id):
                    raise HubError(
                        f"{name}: the hub does not tell sizes and checksums of its files"
                    )
                check_path(item.rfilename, name)
                sha256 = item.lfs.sha256 if item.lfs else None
                files.append(RemoteFile(item.rfilename, size, sha256, item.blob_id))
            return Listing(name.repo, info.sha or name.revision, tuple(files))

        return self.patiently(ask)

    def patiently(self, call: Callable[[], _T], arrived: Callable[[], int] = lambda: 0) -> _T:
        """``call`` as `Hub.patiently`."""
        return self.hub.patiently(call, self.name, self.progress, arrived)


def check_path(path: str, name: HubName) -> None:
    """Raise HubError when a file's name would leave the folder that it is put into."""
    if {"", ".", ".."} & set(path.split("/")) or "\\" in path or "\0" in path:
        raise HubError(f"{name} names the file {path!r}, outside its folder; nothing was written")
