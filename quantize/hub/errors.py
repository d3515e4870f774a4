"""What the hub or the way to it does wrong, in words that say what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quantize.errors import UsageError
from quantize.hub.names import HubName
from runtimes.errors import IngotError, ModelError

if TYPE_CHECKING:
    import httpx2

_STAYS = "what has arrived stays, and the next run resumes from there"


class HubError(ModelError):
    """The hub does not give the model: no access, no connection, a limit, a damaged file."""


class EndsEarlyError(HubError):
    """A file came without its end."""


class NotOnHubError(UsageError):
    """There is no such repository, or it may not be seen."""


class OfflineError(HubError):
    """The hub cannot be reached at all; an earlier download may still serve."""


def explain(error: Exception, name: HubName | None, *, token: bool, stalled_s: float) -> Exception:
    """``error`` of huggingface_hub or httpx2 as an IngotError; others come back as they are.

    Without a ``name`` nothing was to be downloaded: the hub was searched. ``token`` tells whether
    one was sent, ``stalled_s`` how long a silence counts as a stall. A repository, revision or file
    that is not there is a UsageError (exit code 2), everything else a HubError (3).
    """
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    if isinstance(error, HfHubHTTPError):
        if name is None:
            return _search_refused(error.response, token)
        return _by_status(error.response, name, token)
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
            f"the connection to the hub stalled: nothing came for {stalled_s:g} s, several times in"
            f" a row. Check the network{stays}"
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
            f"there is no connection to the hub ({said}). Check the network, or HF_ENDPOINT if it"
            " is set"
        )
    else:
        return error
    return OfflineError(f"{name}: {text}" if name else text)


def require_success(response: httpx2.Response) -> None:
    """Raise HfHubHTTPError for a refusal. Its text, which may be anything of any length, is not
    read: `explain` goes by the status and the headers."""
    from huggingface_hub.errors import HfHubHTTPError

    if response.status_code >= 400:
        raise HfHubHTTPError(f"HTTP {response.status_code}", response=response)


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
