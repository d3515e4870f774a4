"""Application and process of the server: routes, errors, middleware, sockets, signals, logs."""

import contextlib
import gc
import json
import logging
import socket
import sys
from collections.abc import AsyncIterator, Callable
from types import FrameType
from typing import Any

import uvicorn
from anyio import to_thread
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp

from app import console
from app.batch.interrupt import sigterm_as_ctrl_c
from app.openai.validation import InputError
from app.serve import answer_routes, embeddings, model_routes
from app.serve.batches import routes as batch_routes
from app.serve.batches.folder import claimed
from app.serve.batches.work import BatchService
from app.serve.connection import MOST_CONNECTIONS, Connection
from app.serve.errors import HttpError, error_response
from app.serve.generate import Generator
from app.serve.guard import Guard
from app.serve.observe import Observer, access
from app.serve.options import ServeOptions
from app.serve.pool import ModelPool, Served
from runtimes import own
from runtimes.errors import IngotError, RequestError
from runtimes.output import LogFormatter
from runtimes.request import SamplingParams

logger = logging.getLogger(__name__)
_engine_log = logging.getLogger(own("runtimes.engine"))  # of prompts that part from cached ones

# Threads that compute, such as readers of large bodies, give way to the event loop so soon: each of
# its calls of the system lets them in.
_SWITCH_S = 0.0005
_DRAIN_S = 600  # what runs when the server is told to end may take so long


def serve(pool: ModelPool, options: ServeOptions, sampling: SamplingParams) -> None:
    """Load the first model, then answer until SIGTERM or Ctrl-C; a second one does not wait for
    what runs.

    Raises RequestError for an address or a folder of data that cannot be had, or an address that
    needs a key, ModelError, OutOfMemoryError.
    """
    if options.key_needed:
        raise RequestError(
            f"--host {options.host} lets other machines in: give --api-key KEY (or INGOT_API_KEY),"
            " or --without-key if everybody may use it"
        )
    if options.adapter_dir is not None and not options.adapter_dir.is_dir():
        raise RequestError(f"--adapter-dir: there is no folder {options.adapter_dir}")
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(listen(options))
        data = stack.enter_context(claimed(options.data))
        stack.callback(pool.close)
        batches = BatchService(data, pool, sampling)
        stack.callback(batches.close)
        generator = Generator(pool, sampling, options.queue)
        pool.prefixes.watch(generator.idle)
        stack.callback(pool.prefixes.close)
        _engine_log.setLevel(_log_level())  # a worker process has the level of its start
        with console.doing("loading the model"), pool.lease(None) as served:
            first = served

        @contextlib.asynccontextmanager
        async def lifespan(_: Any) -> AsyncIterator[None]:
            host, port = listening.getsockname()[:2]
            host = f"[{host}]" if ":" in host else host
            file = first.choice.file
            console.note(
                f"{first.name} ({file.path.name} on {file.runtime}): {first.engine.slots} slots x"
                f" {first.engine.context:,} tokens{_beside(first)}"
            )
            console.note(f"http://{host}:{port}/v1 is ready; ctrl+c ends it")
            batches.start()
            yield
            await to_thread.run_sync(batches.close)

        gc.collect()
        gc.freeze()  # what is there by now stays: to look through it would hold everybody up
        _log_requests(as_json=options.log_json)
        _allow_connections()
        sys.setswitchinterval(_SWITCH_S)
        server = http_server(generator, options, batches, lifespan)
        # uvicorn raises the signals that ended it once more.
        with sigterm_as_ctrl_c(), contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[listening])


def _beside(served: Served) -> str:
    names, draft = [one.name for one in served.choice.adapters], served.engine.stats().draft
    said = f", with the adapters {', '.join(names)}" if names else ""
    return said if draft is None else f"{said}, with the draft {draft}"


def http_server(
    generator: Generator, options: ServeOptions, batches: BatchService, lifespan: Any = None
) -> uvicorn.Server:
    """Make the HTTP server. ``lifespan``: see FastAPI."""
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # connections say the rest
    config = uvicorn.Config(
        _application(generator, options, batches, lifespan),
        http=Connection,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=MOST_CONNECTIONS + 1,
        timeout_graceful_shutdown=_DRAIN_S,
    )
    server = _Server(config)
    server.at_end = generator.end
    return server


class _Server(uvicorn.Server):
    """Says what it does when it is told to end. ``at_end`` is called then."""

    at_end: Callable[[], None]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn; what has not begun yet is ended first."""
        try:
            self.at_end()
        except Exception:
            logger.exception("what waits is not ended")
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        running = len(self.server_state.tasks)
        if running and not self.force_exit:
            requests = "1 request" if running == 1 else f"{running} requests"
            console.note(f"finishing {requests}; ctrl+c ends at once")


def _log_level() -> int:
    return logging.DEBUG if logger.isEnabledFor(logging.DEBUG) else logging.INFO


def _log_requests(*, as_json: bool) -> None:
    """A line on stderr for each request, and for what happens to models and batches."""
    handler = logging.StreamHandler(sys.stderr)
    plain = LogFormatter("%(asctime)s  %(message)s", "%H:%M:%S")
    handler.setFormatter(_JsonLines() if as_json else plain)
    files = [one for one in logging.getLogger().handlers if isinstance(one, logging.FileHandler)]
    ours = (access.name, _engine_log.name, *map(own, ("app.serve", "app.models.prefixes")))
    for name in (*ours, "uvicorn.error", "asyncio"):
        one = logging.getLogger(name)
        one.handlers, one.propagate = [handler, *files], False
        # Around the requests, a client that is gone is no news of its own.
        one.setLevel(_log_level() if name in ours else logging.ERROR)


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        if record.name == access.name:
            return record.getMessage()
        said = {"time": round(record.created, 3), "level": record.levelname}
        return json.dumps({**said, "message": super().format(record)})


def _allow_connections() -> None:
    """As many files as there may be connections, where the system limits them to fewer."""
    if sys.platform != "win32":
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = 2 * MOST_CONNECTIONS
        if soft != resource.RLIM_INFINITY and soft < wanted:
            most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


def listen(options: ServeOptions) -> socket.socket:
    """The socket of the server's address. Raises RequestError where it cannot be had."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    # With the protocol named, asyncio sends small answers at once (TCP_NODELAY).
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    if sys.platform != "win32":  # where it would take the port away from another program
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((options.host, options.port))
        listening.listen(1024)
    except OSError as error:
        listening.close()
        where = f"port {options.port} of {options.host}"
        raise RequestError(f"{where}: {error.strerror}; --port names another") from None
    return listening


# The application: routes, errors, and what stands around them.


def _application(
    generator: Generator, options: ServeOptions, batches: BatchService, lifespan: Any
) -> ASGIApp:
    app = FastAPI(title="Ingot", docs_url=None, redoc_url=None, lifespan=lifespan)
    observer = Observer(generator, batches, as_json=options.log_json)
    app.include_router(answer_routes.routes(generator, observer))
    app.include_router(embeddings.routes(generator))
    app.include_router(model_routes.routes(generator, observer, batches, options.adapter_dir))
    app.include_router(batch_routes.routes(batches))
    for kind in (
        HttpError,
        InputError,
        IngotError,
        ClientDisconnect,
        HTTPException,
        RequestValidationError,
        Exception,
    ):
        app.add_exception_handler(kind, _handle)
    guard = Guard(app, options)
    generator.at_end.append(guard.held.end)
    return observer.around(guard)


async def _handle(request: Request, error: Exception) -> Response:
    path = request.url.path
    match error:
        case HTTPException(status_code=status):  # no such path, or no such method of it
            code = {404: "not_found", 405: "method_not_allowed"}.get(status, "bad_request")
            error = HttpError(status, code, f"{request.method} {path[:200]}: {error.detail}")
        case RequestValidationError():  # a parameter of the address that cannot be used
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            error = HttpError(400, "invalid_value", f"{where}: {first['msg']}")
    return error_response(error, path)
