"""ASGI middleware around the application: host, origin and key checks, head and body limits."""

import asyncio
import hmac
import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.serve.bodies import Charge, Held
from app.serve.errors import HttpError, error_response
from app.serve.options import (
    BODY_S,
    MOST_BODY_BYTES,
    MOST_FILE_BYTES,
    MOST_HEAD_BYTES,
    ServeOptions,
)
from runtimes.machine.processes import give_back

_OPEN = frozenset({"/health", "/ready"})
_FILES = "/v1/files"
_LARGE = 2**20  # bytes; after such a body, memory is given back to the system
_TIDY_S = 1.0
# Refusals beyond so many in a row are answered so many a second: a client that only brings errors
# must not take the time of others.
_REFUSALS, _REFUSALS_PER_S, _REFUSAL_S = 100, 50.0, 2.0
_HOST = re.compile(r"(\[[0-9a-fA-F:]+\]|[^:\[\]]+)(?::\d{1,5})?")


class Guard:
    """Refuses foreign names of the host (a web page may point its own name here), requests without
    the key, pages of other origins, and heads and bodies that are too large or too slow."""

    def __init__(self, app: ASGIApp, options: ServeOptions) -> None:
        self._app = app
        self._hosts = options.hosts()
        self._key = None if options.api_key is None else options.api_key.encode()
        self._origins = frozenset(options.cors or ())
        self.held = Held()
        self._refused_until = 0.0  # when so many refusals as there were may have been answered
        self._tidying: asyncio.TimerHandle | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        headers, begun = Headers(scope=scope), False
        origin = headers.get("origin")
        allowed = origin if origin in self._origins else None

        async def sending(message: Message) -> None:
            nonlocal begun
            begun = True
            if message["type"] == "http.response.start":
                await self._pace(message["status"])
                if allowed is not None:
                    added = MutableHeaders(scope=message)
                    added.append("access-control-allow-origin", allowed)
                    added.append("vary", "Origin")
            await send(message)

        try:
            if allowed is not None and scope["method"] == "OPTIONS":
                await _preflight(headers)(scope, receive, sending)
                return
            self._check(scope, headers, allowed)
            charge = scope["ingot.charge"] = Charge(self.held)
            body = _Body(receive, charge, kept=scope["path"] == _FILES)
            body.check_length(headers.get("content-length"))
        except HttpError as error:
            await error_response(error, scope["path"])(scope, receive, sending)
            return
        try:
            await self._app(scope, body, sending)
        except HttpError as error:  # of the body
            if not begun:
                await error_response(error, scope["path"])(scope, receive, sending)
        finally:
            large = charge.amount > _LARGE
            charge.close()
            if large and self._tidying is None:
                self._tidying = asyncio.get_running_loop().call_later(_TIDY_S, self._tidy)

    async def _pace(self, status: int) -> None:
        """Wait before the answer to a request that is refused, where many are."""
        if 400 <= status < 499:
            now, free_s = asyncio.get_running_loop().time(), _REFUSALS / _REFUSALS_PER_S
            until = max(now, self._refused_until) + 1 / _REFUSALS_PER_S
            self._refused_until = min(until, now + free_s + _REFUSAL_S)
            if self._refused_until > now + free_s:
                await asyncio.sleep(self._refused_until - now - free_s)

    def _tidy(self) -> None:
        self._tidying = None
        asyncio.get_running_loop().run_in_executor(None, give_back)

    def _check(self, scope: Scope, headers: Headers, allowed: str | None) -> None:
        if sum(len(name) + len(value) + 32 for name, value in headers.raw) > MOST_HEAD_BYTES:
            said = f"the head of a request may have at most {MOST_HEAD_BYTES // 2**10} KiB here"
            raise HttpError(431, "headers_too_large", said)
        host, origin = headers.get("host", ""), headers.get("origin")
        found = _HOST.fullmatch(host)
        if self._hosts is not None and (found is None or found[1].lower() not in self._hosts):
            said = f"the server is not called {host[:80]!r}; --allow-host names it so"
            raise HttpError(403, "foreign_host", said)
        own = (f"http://{host}", f"https://{host}")
        if origin is not None and allowed is None and origin not in own:
            said = "pages of this origin may not call; --cors allows one"
            raise HttpError(403, "foreign_origin", said)
        if self._key is not None and scope["path"] not in _OPEN:
            given = _key(headers)
            if not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self._key):
                needed = "a key is needed: Authorization: Bearer KEY"
                raise HttpError(401, "invalid_api_key", "the key is wrong" if given else needed)


class _Body:
    """The body, which ends with HttpError where it is too long or takes too long, the server ends,
    or its ``charge`` is too much. One that is ``kept``, a file, goes to the disk as it comes."""

    def __init__(self, receive: Receive, charge: Charge, *, kept: bool) -> None:
        self._receive, self._charge, self._kept = receive, charge, kept
        self._most = MOST_FILE_BYTES if kept else MOST_BODY_BYTES
        self._length, self._whole = 0, False
        self._until: float | None = None
        self._late = HttpError(408, "request_timeout", "the body took too long to come")

    def check_length(self, told: str | None) -> None:
        """Raises HttpError for a length that is none, or is too large."""
        if told is None:
            return
        if not told.isascii() or not told.isdigit():
            raise HttpError(400, "bad_request", "Content-Length is not a number")
        if len(told) > 18 or int(told) > self._most:
            raise self._too_large()

    async def __call__(self) -> Message:
        if self._whole:
            return await self._receive()  # the end of the connection
        if self._until is None:
            # A large file may take longer: a megabyte a second is enough.
            most_s = BODY_S + (self._most - MOST_BODY_BYTES) / 2**20
            self._until = asyncio.get_running_loop().time() + most_s
        async with self._charge.held.until(self._until, self._late):
            message = await self._receive()
        if message["type"] == "http.request":
            came = len(message.get("body", b""))
            self._length += came
            if self._length > self._most:
                raise self._too_large()
            if not self._kept:
                self._charge.add(came)
            self._whole = not message.get("more_body", False)
        return message

    def _too_large(self) -> HttpError:
        said = f"a body may have at most {self._most // 2**20} MiB here"
        return HttpError(413, "body_too_large", said)


def _key(headers: Headers) -> str:
    """As OpenAI's clients send it, or Anthropic's."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def _preflight(asked: Headers) -> Response:
    wanted = asked.get("access-control-request-headers") or "authorization, content-type"
    headers = {
        "access-control-allow-methods": "GET, POST, DELETE, OPTIONS",
        "access-control-allow-headers": wanted,
        "access-control-max-age": "600",
    }
    return Response(status_code=204, headers=headers)
