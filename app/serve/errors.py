"""Errors as HTTP statuses and OpenAI's bodies; and what is left out of a request, of which a header
tells its client, and the log once."""

import logging
import re
from collections.abc import Iterable, Sequence

from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect
from starlette.types import Scope

from app.openai.anthropic import error_body as anthropic_error
from app.openai.response import error_body, status_of
from app.openai.validation import InputError, JsonObject, Problem
from app.prompts import PromptTooLongError
from runtimes.errors import (
    IngotError,
    ModelError,
    OutOfMemoryError,
    RequestError,
    WorkerError,
)

MESSAGES = "/v1/messages"  # Anthropic's API
logger = logging.getLogger(__name__)
_MOST_MESSAGE = 2000  # characters


class HttpError(Exception):
    """An answer other than 200. ``retry_s``: when asking again may help."""

    def __init__(self, status: int, code: str, message: str, *, retry_s: int = 0) -> None:
        # It may quote what the client said: half a surrogate pair, which JSON can spell and UTF-8
        # cannot, and any number of characters.
        message = message[:_MOST_MESSAGE].encode("utf-8", "replace").decode()
        super().__init__(message)
        self.status, self.problem, self.retry_s = status, Problem(code, message), retry_s

    def body(self) -> JsonObject:
        """As OpenAI's API reference shows it."""
        return error_body(self.status, self.problem)


class UnknownModelError(RequestError):
    """No model of this name is served."""


# What an error means to a client: status, code, and when asking again may help; the first counts.
_KNOWN: tuple[tuple[type[Exception], int, str, int], ...] = (
    (PromptTooLongError, 400, "context_length_exceeded", 0),
    (UnknownModelError, 404, "model_not_found", 0),
    (RequestError, 400, "invalid_value", 0),
    (OutOfMemoryError, 507, "insufficient_memory", 0),
    (WorkerError, 503, "worker_crash", 1),
    (ModelError, 500, "model_error", 0),
    (IngotError, 500, "engine_error", 0),
)


def http_error(error: Exception) -> HttpError:
    """The answer that ``error`` means; what is no fault of the request is logged."""
    match error:
        case HttpError():
            return error
        case ClientDisconnect():
            return HttpError(499, "client_gone", "the client has closed the connection")
        case InputError():
            return problem_error(error.problem)
    for kind, status, code, retry_s in _KNOWN:
        if isinstance(error, kind):
            if status >= 500:
                logger.warning("%s", error)
            return HttpError(status, code, str(error), retry_s=retry_s)
    logger.exception("a request failed", exc_info=error)
    return HttpError(500, "internal_error", "an internal error; the server's log has it")


def shutting_down(retry_s: int = 1) -> HttpError:
    """Return the error of a request that comes, or waits, while the server ends."""
    return HttpError(503, "shutting_down", "the server is shutting down", retry_s=retry_s)


def problem_error(problem: Problem) -> HttpError:
    """Return the error of a request that was begun and has no answer."""
    if problem.code in ("worker_crash", "shutting_down"):
        return HttpError(503, problem.code, problem.message, retry_s=1)
    return HttpError(status_of(problem), problem.code, problem.message)


def error_response(error: Exception, path: str = "") -> JSONResponse:
    """The whole response to a request of ``path``, in the form of its API."""
    found = http_error(error)
    headers = {"Retry-After": str(found.retry_s)} if found.retry_s else {}
    body = found.body()
    if path.startswith(MESSAGES):
        body = anthropic_error(found.status, found.problem.message)
    return JSONResponse(body, found.status, headers)


# What is left out of a request.

HEADER = b"x-ingot-ignored"
_KEY = "ingot.ignored"  # of a request's scope
_MOST_HEADER = 1024  # characters
_MOST_LOGGED = 512  # names of one process: clients make them up
_NUMBER = re.compile(r"\[\d+\]")


class LeftOut:
    """The names that are in the log already."""

    def __init__(self) -> None:
        self._logged: set[tuple[str, str]] = set()

    def of_request(self, scope: Scope, names: Sequence[str]) -> None:
        """A request is answered without the fields of these ``names``."""
        if names:
            scope[_KEY] = names
            self.log(scope["path"], names)

    def log(self, path: str, names: Iterable[str]) -> None:
        """A line for each that has none yet; the number of a tool makes no other name of it."""
        for name in names:
            plain = _NUMBER.sub("[]", name)
            if len(self._logged) < _MOST_LOGGED and (path, plain) not in self._logged:
                self._logged.add((path, plain))
                logger.info("%s: %s is left out: it changes nothing here", path, plain)


def header_of(scope: Scope) -> bytes | None:
    """The names that were left out of a request, no longer than a header should be."""
    names: Sequence[str] = scope.get(_KEY, ())
    said = ""
    for name in names:
        longer = f"{said}, {name}" if said else name
        if len(longer) > _MOST_HEADER:
            return f"{said}, ...".encode("ascii", "replace")
        said = longer
    return said.encode("ascii", "replace") or None
