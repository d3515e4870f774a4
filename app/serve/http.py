"""The application: routes, errors, and what stands around them."""

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp

from app.openai.validation import InputError
from app.serve import (
    adapter_routes,
    dialects,
    embeddings,
    model_routes,
    openai_routes,
)
from app.serve.batches import routes as batch_routes
from app.serve.batches.work import BatchService
from app.serve.errors import HttpError, error_response
from app.serve.generate import Generator
from app.serve.guard import Guard
from app.serve.observe import AccessLog, Observer
from app.serve.options import ServeOptions
from runtimes.errors import IngotError


def create_app(
    generator: Generator,
    options: ServeOptions,
    lifespan: Any = None,
    batches: BatchService | None = None,
) -> ASGIApp:
    """The whole ASGI application. ``lifespan``: see FastAPI."""
    app = FastAPI(title="Ingot", docs_url=None, redoc_url=None, lifespan=lifespan)
    observer = Observer(generator, batches)
    app.include_router(openai_routes.routes(generator, observer))
    app.include_router(dialects.messages_routes(generator, observer))
    app.include_router(dialects.responses_routes(generator, observer))
    app.include_router(embeddings.routes(generator))
    app.include_router(embeddings.rerank_routes(generator))
    app.include_router(model_routes.routes(generator, observer, batches))
    app.include_router(adapter_routes.routes(generator, options.adapter_dir))
    if batches is not None:
        app.include_router(batch_routes.routes(batches))
    for kind in (HttpError, InputError, IngotError, ClientDisconnect):
        app.add_exception_handler(kind, _handle)
    app.add_exception_handler(HTTPException, _unknown)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(Exception, _handle)
    guard = Guard(app, options)
    generator.at_end.append(guard.end)
    return AccessLog(guard, observer, as_json=options.log_json)


async def _handle(request: Request, error: Exception) -> Response:
    return error_response(error, request.url.path)


async def _unknown(request: Request, error: Exception) -> Response:
    """No such path, or no such method of it."""
    assert isinstance(error, HTTPException)
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "bad_request")
    said = f"{request.method} {request.url.path[:200]}: {error.detail}"
    return error_response(HttpError(error.status_code, code, said), request.url.path)


async def _invalid(request: Request, error: Exception) -> Response:
    """A parameter of the address that cannot be used."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    said = f"{where}: {first['msg']}"
    return error_response(HttpError(400, "invalid_value", said), request.url.path)
