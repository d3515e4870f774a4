"""Asking the hub what a repository holds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, TypeVar

from quantize.hub.errors import HubError, asked_wait, explain, waiting_s
from quantize.hub.names import HubName

if TYPE_CHECKING:
    from huggingface_hub import HfApi

    from quantize.progress.console import Reporter

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to put up with a bad connection."""

    read_s: float = field(default_factory=waiting_s)  # without a byte, which count as a stall
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

    def headers(self) -> dict[str, str]:
        """What every request carries. No compression: lengths and ranges are the file's."""
        from huggingface_hub.utils import build_hf_headers

        return {**build_hf_headers(library_name="ingot"), "Accept-Encoding": "identity"}

    def url(self, listing: Listing, file: RemoteFile) -> str:
        """Where the content of ``file`` is."""
        from huggingface_hub import hf_hub_url

        return hf_hub_url(listing.repo, file.path, revision=listing.commit, endpoint=self.endpoint)

    def api(self) -> HfApi:
        """huggingface_hub's client, without its progress bars: ours show instead."""
        from huggingface_hub import HfApi
        from huggingface_hub.utils import disable_progress_bars

        disable_progress_bars()
        return HfApi(endpoint=self.endpoint, library_name="ingot")

    def listing(self, name: HubName, progress: Reporter) -> Listing:
        """What ``name`` holds now. Raises HubError, OfflineError or UsageError."""

        def ask() -> Listing:
            info = self.api().model_info(
                name.repo,
                revision=name.revision,
                files_metadata=True,
                timeout=self.patience.read_s,
            )
            files = []
            for item in info.siblings or []:
                sha256 = item.lfs.sha256 if item.lfs else None
                size = item.lfs.size if item.lfs else item.size
                if size is None or not (sha256 or item.blob_id):
                    raise HubError(
                        f"{name}: the hub does not tell sizes and checksums of its files"
                    )
                check_path(item.rfilename, name)
                files.append(RemoteFile(item.rfilename, size, sha256, item.blob_id))
            return Listing(name.repo, info.sha or name.revision, tuple(files))

        return self.patiently(ask, name, progress)

    def patiently(self, call: Callable[[], _T], name: HubName, progress: Reporter) -> _T:
        """``call`` again after a timeout, a broken connection, a 5xx, or the wait that a 429 asks
        for. Raises what ``explain`` makes of the last failure."""
        import httpx2
        from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

        failures = 0
        while True:
            try:
                return call()
            except (HfHubHTTPError, httpx2.TransportError, OfflineModeIsEnabled) as error:
                failures += 1
                pause = self.pause_after(error)
                if pause is None or failures >= self.patience.attempts:
                    raise self.explain(error, name) from error
            self.wait(pause, progress)

    def wait(self, seconds: float, progress: Reporter) -> None:
        """Pause before another attempt; a pause that the hub asks for is told."""
        if seconds > self.patience.pause_s:
            progress.note(f"the hub asks to wait {seconds:.0f} s")
        time.sleep(seconds)

    def explain(self, error: Exception, name: HubName) -> Exception:
        """What the user is told of ``error``."""
        return explain(error, name, token=self.has_token, stalled_s=self.patience.read_s)

    def pause_after(self, error: Exception) -> float | None:
        """Seconds until it makes sense to try again after ``error``; None: it makes none."""
        import httpx2
        from huggingface_hub.errors import HfHubHTTPError

        if isinstance(error, HfHubHTTPError):
            status = error.response.status_code
            if status == 429:
                wait = asked_wait(error.response)
                return wait if wait is not None and wait <= self.patience.wait_s else None
            return self.patience.pause_s if status >= 500 or status == 408 else None
        # No connection at all does not come back within seconds.
        down = isinstance(error, (httpx2.ConnectError, httpx2.ProxyError))
        retried = isinstance(error, httpx2.TransportError) and not down
        return self.patience.pause_s if retried else None


def check_path(path: str, name: HubName) -> None:
    """Raise HubError when a file's name would leave the folder that it is put into."""
    parts = PurePosixPath(path).parts
    bad = not parts or ".." in parts or "\\" in path or "\0" in path or path.startswith("/")
    if bad or any(part in (".", "") for part in path.split("/")):
        raise HubError(f"{name} names the file {path!r}, outside its folder; nothing was written")
