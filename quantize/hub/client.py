"""Requests to the hub: names, the listing of a repository, retries, and errors in words that say
what to do.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from quantize.errors import UsageError
from quantize.progress import Reporter
from runtimes.errors import IngotError, ModelError
from runtimes.untrusted import check_digest, check_name, parse_json

if TYPE_CHECKING:
    import httpx2
    from huggingface_hub import HfApi

_PART = r"[A-Za-z0-9](?:[\w.-]*\w)?"
_NAME = re.compile(rf"(?P<repo>{_PART}/{_PART})(?:@(?P<revision>[\w./-]+))?", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
MAIN = "main"


@dataclass(frozen=True, slots=True)
class HubName:
    """A repository and the branch, tag or commit meant."""

    repo: str
    revision: str = MAIN

    @property
    def model(self) -> str:
        """The name without its organisation."""
        return self.repo.split("/")[1]

    @property
    def is_commit(self) -> bool:
        """Whether the revision cannot move."""
        return _COMMIT.fullmatch(self.revision) is not None

    def __str__(self) -> str:
        return self.repo if self.revision == MAIN else f"{self.repo}@{self.revision}"


def parse_hub_name(text: str, revision: str | None = None) -> HubName | None:
    """``text`` as a name on the hub, or None when it cannot be one (a path, a bare word).

    ``revision`` is one that was given apart from the name; it wins.
    """
    match = _NAME.fullmatch(text)
    if match is None or "--" in text or ".." in text:  # both are forbidden by the hub
        return None
    return HubName(match["repo"], revision or match["revision"] or MAIN)


_STAYS = "what has arrived stays, and the next run resumes from there"


class HubError(ModelError):
    """The hub does not give the model: no access, no connection, a limit, a damaged file."""


class EndsEarlyError(HubError):
    """A file came without its end."""


class NotOnHubError(UsageError):
    """There is no such repository, or it may not be seen."""


class OfflineError(HubError):
    """The hub cannot be reached at all; an earlier download may still serve."""


def asked_wait(response: httpx2.Response) -> float | None:
    """The seconds that a 429 asks us to wait, if it says (RateLimit or Retry-After)."""
    from huggingface_hub.utils import parse_ratelimit_headers

    limits = parse_ratelimit_headers(response.headers)
    if limits is not None and limits.remaining == 0:
        return float(limits.reset_in_seconds)
    text = response.headers.get("Retry-After", "").strip()
    return float(text) if text.isascii() and text.isdigit() else None


def _search_refused(response: httpx2.Response, token: bool) -> IngotError:
    status = response.status_code
    if status == 401 and token:
        return HubError(
            "the hub does not accept the token: it is mistyped, expired or revoked; set HF_TOKEN to"
            " a valid one, or unset it"
        )
    if status == 429:
        return HubError(_too_often(response, token))
    said = response.headers.get("X-Error-Message", "")
    later = "; try again later" if status >= 500 else ""
    return HubError(
        f"the hub does not answer the search (HTTP {status}{said and f', {said}'}){later}"
    )


def _too_often(response: httpx2.Response, token: bool) -> str:
    wait = asked_wait(response)
    when = f"in {wait:.0f} s" if wait is not None else "later"
    more = "" if token else "; with HF_TOKEN set the limit is higher"
    return f"the hub limits how often you may ask (429); try again {when}{more}"


def _by_status(response: httpx2.Response, name: HubName, token: bool) -> IngotError:
    status = response.status_code
    code, said = (response.headers.get(f"X-Error-{part}", "") for part in ("Code", "Message"))
    if code == "GatedRepo":
        how = (
            "is gated, and your token has no access to it: accept its conditions on its page with"
            " the token's account, wait for approval if it needs one, and let the token read gated"
            " repositories"
            if token
            else "is gated: accept its conditions on its page, then set HF_TOKEN to a token of that"
            " account (or run `hf auth login`)"
        )
        return HubError(f"{name} {how}")
    if status == 401 and token and code != "RepoNotFound":
        return HubError(
            f"{name}: the hub does not accept the token: it is mistyped, expired or revoked; set"
            " HF_TOKEN to a valid one, or unset it for a public model"
        )
    if code == "RevisionNotFound":
        return UsageError(
            f"{name.repo} has no revision {name.revision!r}: neither branch, tag nor"
            " commit of that name"
        )
    if code == "EntryNotFound":
        return UsageError(f"{name} no longer has a file that its listing names; run again")
    if status in (401, 404):
        private = "your token may not see it" if token else "set HF_TOKEN"
        return NotOnHubError(
            f"there is no model {name.repo} on the hub, or it is private: check the spelling; if it"
            f" is private, {private}"
        )
    if status == 403:
        reason = f" ({said})" if said else ""
        return HubError(f"{name}: the hub refuses access{reason}; check what the token may do")
    if status == 429:
        return HubError(f"{name}: {_too_often(response, token)}; {_STAYS}")
    if status >= 500:
        return HubError(f"{name}: the hub is in trouble (HTTP {status}); try again later; {_STAYS}")
    return HubError(f"{name}: the hub answers HTTP {status} {said}".rstrip())


_T = TypeVar("_T")

_MOST_ANSWER = 32 * 2**20  # bytes of what the hub tells of a repository, or of a page of them
_MOST_FILE = 2**50  # bytes


def _stalled_s() -> float:
    from huggingface_hub import constants

    return float(constants.HF_HUB_DOWNLOAD_TIMEOUT)


def start_of(response: httpx2.Response, count: int) -> bytes:
    """The first bytes of an answer, so many or, of a shorter one, all."""
    got = bytearray()
    for piece in response.iter_bytes():
        got += piece
        if len(got) >= count:
            break
    return bytes(got[:count])


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
        """Checksum that the content is filed under."""
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

    @contextmanager
    def stream(
        self, url: str, headers: Mapping[str, str] | None = None, **more: Any
    ) -> Iterator[httpx2.Response]:
        """The answer to a GET as it comes. Raises what huggingface_hub raises.

        The text of a refusal, which may be anything of any length, is not read: `explain` goes by
        the status and the headers.
        """
        import httpx2
        from huggingface_hub.errors import HfHubHTTPError
        from huggingface_hub.utils import build_hf_headers, get_session

        sent = {**build_hf_headers(library_name="ingot"), **(headers or {})}
        timeout = httpx2.Timeout(self.patience.read_s)
        with get_session().stream("GET", url, headers=sent, timeout=timeout, **more) as response:
            if response.status_code >= 400:
                raise HfHubHTTPError(f"HTTP {response.status_code}", response=response)
            yield response

    def answer(self, path: str, params: Mapping[str, Any]) -> tuple[Any, dict[str, dict[str, str]]]:
        """The JSON that the hub's API answers to a GET, and the links in its header.

        Raises HubError for what is none, or too large, and what huggingface_hub raises.
        """
        with self.stream(f"{self.api().endpoint}{path}", params=dict(params)) as response:
            raw = start_of(response, _MOST_ANSWER + 1)
        try:
            said = parse_json(raw, _MOST_ANSWER)
        except ValueError as error:
            raise HubError(
                f"what answers for the hub is not a list of models or files ({error})"
            ) from error
        return said, {str(name): link for name, link in response.links.items()}

    def explain(self, error: Exception, name: HubName | None) -> Exception:
        """``error`` of huggingface_hub or httpx2 as an IngotError; others come back as they are.

        Without a ``name`` nothing was to be downloaded: the hub was searched. A repository,
        revision or file that is not there is a UsageError (exit code 2), all else a HubError (3).
        """
        import httpx2
        from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

        if isinstance(error, HfHubHTTPError):
            if name is None:
                return _search_refused(error.response, self.has_token)
            return _by_status(error.response, name, self.has_token)
        said = error or type(error).__name__
        stays = f"; {_STAYS}" if name else ""
        if isinstance(error, OfflineModeIsEnabled):
            text = "HF_HUB_OFFLINE forbids to ask the hub: unset it"
            if name:
                text = (
                    "it is not among the downloaded models, and HF_HUB_OFFLINE forbids a download:"
                    " unset it"
                )
        elif isinstance(error, httpx2.TimeoutException):
            text = (
                f"the connection to the hub stalled: nothing came for {self.patience.read_s:g} s,"
                f" several times in a row. Check the network{stays}"
            )
        elif isinstance(error, httpx2.ProxyError):
            text = f"the proxy does not work ({error}); see HTTPS_PROXY"
        elif isinstance(error, (httpx2.RemoteProtocolError, httpx2.ReadError)):
            text = (
                f"the connection to the hub broke, several times in a row ({said}). Check the"
                f" network{stays}"
            )
        elif isinstance(error, httpx2.TransportError):
            text = (
                f"there is no connection to the hub ({said}). Check the network, or HF_ENDPOINT if"
                " it is set"
            )
        else:
            return error
        return OfflineError(f"{name}: {text}" if name else text)

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
        """List what the repository holds now. Raises HubError, OfflineError or UsageError."""
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
